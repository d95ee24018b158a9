"""`hoplite start`: run a host's service in the foreground, until a signal ends it."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from hoplite_ucx.cli.quantities import bandwidth_option, format_size, size_option
from hoplite_ucx.cli.settings_options import ConfigOption, SetOption, settings_of_flags
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.host.memory_limits import store_limit
from hoplite_ucx.runtime.launch.cluster import AGENT
from hoplite_ucx.runtime.launch.inspection import token_towards
from hoplite_ucx.runtime.launch.service import Service, ServicePlan
from hoplite_ucx.runtime.launch.tokens import head_token
from hoplite_ucx.runtime.launch.view_port import INSTALL, PORT, is_installed
from hoplite_ucx.runtime.settings import load
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.settings.reading import CONFIG
from hoplite_ucx.transports.wire.addresses import is_loopback, is_unspecified, parse_address


def start(
    head: Annotated[
        bool, typer.Option("--head", help="Start a new cluster: run its directory and an agent here.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Join the cluster of this directory: run an agent here.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The address of this host to listen on; by default 127.0.0.1 for a head, else the address that "
            "reaches the directory."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The directory's port; 0 takes a free one.")] = 7777,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=size_option,
            metavar="SIZE",
            help="The limit of this host's store; by default 4GiB, or half the RAM if that is less.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            parser=bandwidth_option,
            metavar="BANDWIDTH",
            help="The rate of this host's network card, if the system does not report it.",
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65534,
            metavar="PORT",
            help="Serve metrics to Prometheus: the agent's at this port of loopback, a directory's at the next; 0 "
            "takes free ones.",
        ),
    ] = None,
    hand_over: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="When this host leaves (ctrl-C, SIGTERM), let other hosts take over the objects that only this one "
            "holds, for this long at most.",
        ),
    ] = 0.0,
    view: Annotated[
        bool,
        typer.Option("--view/--no-view", help="With --head, if it is installed: a live view for the browser."),
    ] = True,
    view_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"The view's port; by default {PORT}, or any if that is in use."),
    ] = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Run this host's part of a cluster until ctrl-C.

    Every host needs the cluster's token. It comes from HOPLITE_TOKEN, from the file that HOPLITE_TOKEN_FILE
    names, or from your own token file, which --head creates and prints.
    """
    if head == (address is not None):
        raise typer.BadParameter("give either --head or --address", param_hint="--head")
    if memory == 0:
        raise typer.BadParameter("the store needs some memory", param_hint="--memory")
    if host is not None and is_unspecified(host):
        problem = f"other hosts cannot reach {host}: give one of this host's own addresses"
        raise typer.BadParameter(problem, param_hint="--host")
    try:
        flags = settings_of_flags(changes, memory=memory, rate=rate, metrics=metrics)
        settings = load(config, arguments=flags)
        limit = store_limit(settings.store.memory)
        token, token_file = head_token() if head else (token_towards(address or ""), None)
        plan = ServicePlan(
            token=token,
            memory=limit,
            address=address,
            host=host,
            port=port,
            settings=settings,
            variables={} if config is None else {CONFIG: str(config.absolute())},
            view=view and is_installed(),
            view_port=view_port,
        )
        service = Service(plan, lambda text: typer.echo(text, err=True))
        service.start()
    except (HopliteError, ConfigurationError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    leaving = 0.0
    try:
        _show(service, plan, token_file, as_json)
        if others := service.other_agents():
            typer.echo(_several(others), err=True)
        while True:
            service.watch(60.0)
    except KeyboardInterrupt:
        leaving = hand_over
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        service.stop(leaving)


def _several(others: list[str]) -> str:
    return (
        f"warning: this host has other agents of this cluster: {', '.join(others)}. One agent is enough: "
        f"all processes share its memory. With several, programs must choose one with init(agent=...) or {AGENT}"
    )


def _show(service: Service, plan: ServicePlan, token_file: Path | None, as_json: bool) -> None:
    agent, head = service.agent, plan.address is None
    if as_json:
        report = {
            "address": service.address,
            "cluster": agent["cluster"],
            "agent": agent["agent"],
            "agent_address": agent["address"],
            "head": head,
            "metrics": service.metrics,
            "memory": plan.memory,
            "token_file": str(token_file) if token_file is not None else None,
            "view": service.view,
            "pid": os.getpid(),
        }
        typer.echo(json.dumps(report))
        return
    if head:
        typer.echo(f"directory  {service.address}  (cluster {agent['cluster']})")
    typer.echo(f"agent      {agent['address']}  ({agent['agent']}, {format_size(plan.memory)} of memory)")
    if service.metrics:
        typer.echo(f"metrics    {', '.join(f'{url} ({role})' for role, url in service.metrics.items())}")
    if token_file is not None:
        typer.echo(f"token      {token_file}  (anyone who has it can join and run code as you)")
        if not is_loopback(parse_address(service.address)[0]):
            joining = f"hoplite start --address {service.address}"
            typer.echo(f"on other hosts, copy that file to the same place, then `{joining}`")
    if service.view is not None:
        typer.echo(f"view       {service.view}")
    elif head and not is_installed():
        typer.echo(f"view       {INSTALL} adds a live view for the browser")
    typer.echo(f"use it with HOPLITE_ADDRESS={service.address}; ctrl-C ends it")
