"""`hoplite status`: the agents of this host with what their stores hold, and the nodes of a cluster."""

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.cli.quantities import format_duration, format_size
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import LocalAgents, directory_status, local_agents, token_towards
from hoplite_ucx.runtime.local.remedies import JOIN_OR_START, join


def status(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The directory of the cluster to show; HOPLITE_ADDRESS by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the nodes of the cluster, and this host's agents of it (all agents, if no cluster is given) with their
    largest objects and streams. It fails if this host has no agent and no cluster is given."""
    where = address or os.environ.get(ADDRESS)
    try:
        cluster = directory_status(where, token_towards(where)) if where is not None else None
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    agents = local_agents(cluster["cluster"] if cluster is not None else None)
    if as_json:
        typer.echo(json.dumps({"cluster": cluster, "agents": agents.status, "silent": agents.silent}))
    else:
        _show(Console(), where, cluster, agents)
    if cluster is None and not agents.status:
        raise typer.Exit(1)


def _show(console: Console, where: str | None, cluster: dict[str, Any] | None, agents: LocalAgents) -> None:
    if cluster is not None:
        _show_cluster(console, cluster)
    show_absent(console, agents, where)
    for agent in agents.status:
        _show_agent(console, agent)


def show_absent(console: Console, agents: LocalAgents, cluster: str | None = None) -> None:
    """Print the agents that do not answer, or that there are none, for the cluster at this address if one is given."""
    for name in agents.silent:
        console.print(f"agent {name} does not answer; check whether it is stopped or overloaded", highlight=False)
    if not agents.status and not agents.silent:
        remedy = JOIN_OR_START if cluster is None else join(cluster)
        console.print(f"no agent of this user runs on this host; {remedy}", highlight=False)


def _show_cluster(console: Console, cluster: dict[str, Any]) -> None:
    table = Table(title=f"cluster {cluster['cluster']}: {len(cluster['nodes'])} nodes, {cluster['objects']} refs known")
    for name in ("node", "address", "state", "receiving", "sending"):
        table.add_column(name)
    for node in cluster["nodes"]:
        state = "suspect" if node["suspect"] else "connected" if node["connected"] else "away"
        table.add_row(node["node"], node["address"], state, str(node["receiving"]), str(node["sending"]))
    console.print(table)


def _show_agent(console: Console, agent: dict[str, Any]) -> None:
    memory = agent["memory"]
    used = f"{_size(memory['used'])} of {_size(memory['limit'])} used"
    session = "connected to" if agent["connected"] else "looking for"
    console.print(
        f"agent {agent['agent']} at {agent['address']}, {session} {agent['directory']}: "
        f"{agent['objects']} objects, {used}, {agent['workers']} workers, {agent['calls']} open calls"
    )
    for device in agent.get("gpu", {}).get("devices", ()):  # an agent of an older release tells nothing of it
        instead = device["host_memory_instead"]
        console.print(
            f"  GPU {device['name']}: {_size(device['used'])} of {_size(device['limit'])} used"
            + (f"; the last object for it went to the host: {instead}" if instead else ""),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if agent["largest"]:
        table = Table("ref", "size", "state", "idle", "held by")
        for found in agent["largest"]:
            idle = format_duration(max(0.0, found["idle"]), digits=3)
            table.add_row(found["ref"], _size(found["size"]), found["phase"], idle, f"{found['pins']} gets")
        console.print(table)

    if agent["streams"]:
        table = Table("receiving", "from", "into", "so far")
        for stream in agent["streams"]:
            share = f"{_size(stream['position'])} of {_size(stream['size'])}"
            table.add_row(stream["ref"][:16], stream["sender"], stream["into"][:16] or "store", share)
        console.print(table)


def _size(size: int) -> str:
    """A size for people to read."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return format_size(size)
