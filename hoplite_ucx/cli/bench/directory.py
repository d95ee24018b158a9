"""`hoplite bench directory`: what each kind of message costs the directory."""

from __future__ import annotations

from typing import Annotated

import typer

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.measures.directory_cost import measure_directory_cost
from hoplite_ucx.cli.bench.shared import Json, refusals
from hoplite_ucx.cli.quantities import format_duration


def directory(
    hosts: Annotated[int, typer.Option(min=2, max=10_000, help="How many nodes are made up.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="How many broadcasts, and as many reduces.")] = 5,
    as_json: Json = False,
) -> None:
    """The processor time that the directory's process takes for each kind of message, which made-up nodes send all at
    once: what `hoplite simulate` charges."""
    with refusals(), progress_bar("directory", rounds, quiet=as_json) as advance:
        found = measure_directory_cost(hosts=hosts, rounds=rounds, advance=advance)
    if as_json:
        typer.echo(found.json_line())
        return
    costs = found.costs
    typer.echo(f"a directory of {hosts} made-up nodes takes")
    for way, listed in (("receive", costs.received), ("send", costs.sent)):
        for kind, seconds in listed.items():
            typer.echo(f"  {format_duration(seconds, 3):>8} to {way} {kind}")
    typer.echo(f"  {format_duration(costs.wake_up, 3):>8} to wake up")
    placement, slot = format_duration(costs.of_placement, 3), format_duration(costs.of_slot, 3)
    typer.echo(f"and so {placement} for a placement, {slot} for a slot of a reduce")
