"""`hoplite bench directory`: what an event costs the directory."""

from __future__ import annotations

from typing import Annotated

import typer

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.measures.directory_cost import measure_directory_cost
from hoplite_ucx.cli.bench.shared import RATE, Hosts, Json, Rate, Size, refusals
from hoplite_ucx.cli.quantities import format_duration, format_size

_SIZE: int = "1MiB"  # type: ignore[assignment]  # typer reads it with the option's parser


def directory(
    hosts: Hosts = 8,
    size: Size = _SIZE,
    rate: Rate = RATE,
    rounds: Annotated[int, typer.Option(min=1, help="How many broadcasts.")] = 200,
    as_json: Json = False,
) -> None:
    """The processor time that the directory's process takes for an event, over many broadcasts: what `hoplite simulate`
    charges by default."""
    with refusals(), progress_bar("directory", rounds, quiet=as_json) as advance:
        found = measure_directory_cost(hosts=hosts, size=size, rate=rate, rounds=rounds, advance=advance)
    if as_json:
        typer.echo(found.json_line())
        return
    typer.echo(
        f"{found.rounds} broadcasts of {format_size(found.size)} among {found.hosts} hosts: the directory handled "
        f"{found.events} events and took {format_duration(found.per_event, 3)} of processor time for each"
    )
