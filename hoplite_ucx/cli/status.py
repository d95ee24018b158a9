"""`hoplite status`: the agents of this host with what their stores hold, and the nodes of a cluster."""

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.cli.quantities import counted, format_duration, format_size
from hoplite_ucx.cli.watching import watch
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import LocalAgents, directory_status, local_agents, token_towards
from hoplite_ucx.runtime.local.remedies import JOIN_OR_START, join


def status(
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The directory of the cluster to show; HOPLITE_ADDRESS by default."),
    ] = None,
    watching: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, with rates, until ctrl-C; also into a file.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, max=3600.0, metavar="SECONDS", help="How often, with --watch.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the nodes of the cluster, and this host's agents of it (all agents, if no cluster is given) with their
    largest objects and streams. It fails if this host has no agent and no cluster is given."""
    where = address or os.environ.get(ADDRESS)
    if watching and as_json:
        raise typer.BadParameter("give either --watch or --json", param_hint="--watch")
    try:
        cluster = directory_status(where, token_towards(where)) if where is not None else None
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if watching:
        watch(_Watched(where).show, every)
        return
    agents = local_agents(cluster["cluster"] if cluster is not None else None)
    if as_json:
        typer.echo(json.dumps({"cluster": cluster, "agents": agents.status, "silent": agents.silent}))
    else:
        _show(Console(), where, cluster, agents)
    if cluster is None and not agents.status:
        raise typer.Exit(1)


class _Watched:
    """What was there the last time, for rates. A directory that does not answer is shown as such, and asked again."""

    def __init__(self, where: str | None) -> None:
        self._where = where
        self._before: dict[str, dict[str, Any]] = {}

    def show(self, console: Console) -> None:
        cluster = None
        if self._where is not None:
            try:
                cluster = directory_status(self._where, token_towards(self._where))
            except HopliteError as error:
                console.print(f"{error}", style="red", highlight=False, markup=False)
        agents = local_agents(cluster["cluster"] if cluster is not None else None)
        _show(console, self._where, cluster, agents, self._before)
        self._before = {agent["agent"]: agent for agent in agents.status}


def _show(
    console: Console,
    where: str | None,
    cluster: dict[str, Any] | None,
    agents: LocalAgents,
    before: dict[str, dict[str, Any]] | None = None,
) -> None:
    if cluster is not None:
        _show_cluster(console, cluster)
    show_absent(console, agents, where)
    for agent in agents.status:
        _show_agent(console, agent, None if before is None else before.get(agent["agent"], agent))


def show_absent(console: Console, agents: LocalAgents, cluster: str | None = None) -> None:
    """Print the agents that do not answer, or that there are none, for the cluster at this address if one is given."""
    for name in agents.silent:
        console.print(f"agent {name} does not answer; check whether it is stopped or overloaded", highlight=False)
    if not agents.status and not agents.silent:
        remedy = JOIN_OR_START if cluster is None else join(cluster)
        console.print(f"no agent of this user runs on this host; {remedy}", highlight=False)


def _show_cluster(console: Console, cluster: dict[str, Any]) -> None:
    nodes, refs = counted(len(cluster["nodes"]), "node"), counted(cluster["objects"], "ref")
    table = Table(title=f"cluster {cluster['cluster']}: {nodes}, {refs} known")
    for name in ("node", "address", "state", "receiving", "sending"):
        table.add_column(name)
    for node in cluster["nodes"]:
        state = "suspect" if node["suspect"] else "connected" if node["connected"] else "away"
        table.add_row(node["node"], node["address"], state, str(node["receiving"]), str(node["sending"]))
    console.print(table)


def _show_agent(console: Console, agent: dict[str, Any], before: dict[str, Any] | None = None) -> None:
    """With an earlier status of it, rates are shown too."""
    memory = agent["memory"]
    used = f"{_size(memory['used'])} of {_size(memory['limit'])} used"
    session = "connected to" if agent["connected"] else "looking for"
    console.print(
        f"agent {agent['agent']} at {agent['address']}, {session} {agent['directory']}: "
        f"{counted(agent['objects'], 'object')}, {used}, {counted(agent['workers'], 'worker')}, "
        f"{counted(agent['calls'], 'open call')}"
        + (
            ""
            if before is None
            else f", receives {_rate(agent, before, 'receiving')}, sends {_rate(agent, before, 'sending')}"
        )
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
            table.add_row(found["ref"], _size(found["size"]), found["phase"], idle, counted(found["pins"], "get"))
        console.print(table)

    if agent["streams"]:
        table = Table("receiving", "from", "into", "so far", *([] if before is None else ["rate"]))
        for stream in agent["streams"]:
            share = f"{_size(stream['position'])} of {_size(stream['size'])}"
            rate = [] if before is None else [_stream_rate(stream, agent, before)]
            table.add_row(stream["ref"][:16], stream["sender"], stream["into"][:16] or "store", share, *rate)
        console.print(table)


def _rate(agent: dict[str, Any], before: dict[str, Any], side: str) -> str:
    """Over all links. One that ended meanwhile took its figure with it."""
    now, then = (sum(link["bytes"] for link in of["links"] if link["side"] == side) for of in (agent, before))
    return _per_second(now - then, agent, before)


def _stream_rate(stream: dict[str, Any], agent: dict[str, Any], before: dict[str, Any]) -> str:
    """Of a stream that has just begun, as far as it has come."""
    same = ("ref", "into", "sender")
    then = [each["position"] for each in before["streams"] if all(each[key] == stream[key] for key in same)]
    return _per_second(stream["position"] - (then[0] if then else 0), agent, before)


def _per_second(carried: int, agent: dict[str, Any], before: dict[str, Any]) -> str:
    seconds = agent["uptime"] - before["uptime"]
    return f"{_size(max(0, round(carried / seconds)) if seconds > 0 else 0)}/s"


def _size(size: int) -> str:
    """A size for people to read."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return format_size(size)
