"""`hoplite start`: the service of a host, in the foreground, until it is told to end."""

import json
import os
from typing import Annotated

import typer

from hoplite_ucx.cli.quantities import bandwidth_option, format_size, size_option
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.cluster import AGENT, default_memory, read_token
from hoplite_ucx.runtime.service import Service, ServicePlan


def start(
    head: Annotated[
        bool, typer.Option("--head", help="Run the directory of a new cluster here, and an agent.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Run an agent for the cluster of the directory there.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address of this host to listen on; 127.0.0.1 for a head, else what leads there."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The directory's port; 0 takes a free one.")] = 7777,
    memory: Annotated[
        int | None,
        typer.Option(parser=size_option, metavar="SIZE", help="The limit of this host's store; 4GiB, or half the RAM."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            parser=bandwidth_option, metavar="BANDWIDTH", help="What this host's network card carries, if not known."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Run this host's part of a cluster until ctrl-C. The token comes from HOPLITE_TOKEN or HOPLITE_TOKEN_FILE."""
    if head == (address is not None):
        raise typer.BadParameter("give either --head or --address", param_hint="--head")
    if memory == 0:
        raise typer.BadParameter("a store without memory holds nothing", param_hint="--memory")
    try:
        plan = ServicePlan(
            token=read_token(), memory=memory or default_memory(), address=address, host=host, port=port, rate=rate
        )
        service = Service(plan, lambda text: typer.echo(text, err=True))
        service.start()
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    try:
        _show(service, plan, head, as_json)
        if others := service.other_agents():
            typer.echo(_several(others), err=True)
        while True:
            service.watch(60.0)
    except KeyboardInterrupt:
        pass
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        service.stop()


def _several(others: list[str]) -> str:
    return (
        f"warning: this host has other agents of this cluster: {', '.join(others)}. One is enough, and shares its "
        f"memory with all processes; with several, programs must name theirs with init(agent=...) or {AGENT}"
    )


def _show(service: Service, plan: ServicePlan, head: bool, as_json: bool) -> None:
    agent = service.agent
    if as_json:
        report = {
            "address": service.address,
            "cluster": agent["cluster"],
            "agent": agent["agent"],
            "agent_address": agent["address"],
            "head": head,
            "memory": plan.memory,
            "pid": os.getpid(),
        }
        typer.echo(json.dumps(report))
        return
    if head:
        typer.echo(f"directory  {service.address}  (cluster {agent['cluster']})")
    typer.echo(f"agent      {agent['address']}  ({agent['agent']}, {format_size(plan.memory)} of memory)")
    typer.echo(f"use it with HOPLITE_ADDRESS={service.address}; ctrl-C ends it")
