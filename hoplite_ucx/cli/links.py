"""`hoplite links`: the links of this host's agents, the transport of each, the lanes that UCX chose, and why."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.cli.quantities import format_size
from hoplite_ucx.cli.status import show_absent
from hoplite_ucx.runtime.launch.inspection import local_agents


def links(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the links of this host's agents, and the transport of each."""
    agents = local_agents()
    if as_json:
        shown = ("agent", "address", "links")
        found = [{name: agent[name] for name in shown} for agent in agents.status]
        typer.echo(json.dumps({"agents": found, "silent": agents.silent}))
        return
    console = Console()
    show_absent(console, agents)
    for agent in agents.status:
        _show(console, agent)


def _show(console: Console, agent: dict[str, Any]) -> None:
    if not agent["links"]:
        console.print(f"agent {agent['agent']} at {agent['address']} has no links now", highlight=False)
        return
    with_gpus = any(link.get("gpu_memory") for link in agent["links"])
    columns = ["peer", "side", "transport", *(["GPU memory"] if with_gpus else []), "lanes", "carried", "why"]
    table = Table(*columns, title=f"agent {agent['agent']}")
    for link in agent["links"]:
        lanes = ", ".join(link.get("lanes", []))
        carried = format_size(link["bytes"])
        gpus = [link.get("gpu_memory", "")] if with_gpus else []
        table.add_row(link["peer"], link["side"], link["transport"], *gpus, lanes, carried, link.get("reason", ""))
    console.print(table)
