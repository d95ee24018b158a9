"""`hoplite bench view`: what it costs a broadcast that somebody looks at the live view."""

from __future__ import annotations

import statistics
from typing import Annotated

import typer

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.measures.viewing import Viewing, measure_viewing
from hoplite_ucx.cli.bench.shared import RATE, SIZE, Hosts, Json, Rate, Size, refusals
from hoplite_ucx.cli.quantities import format_duration, format_size
from hoplite_ucx.runtime.launch.view_port import INSTALL, is_installed


def view(
    hosts: Hosts = 8,
    size: Size = SIZE,
    rate: Rate = RATE,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds with viewers; there are as many without.")] = 40,
    viewers: Annotated[int, typer.Option(min=1, max=32, help="Plain HTTP clients that read everything.")] = 3,
    as_json: Json = False,
) -> None:
    """A broadcast with viewers of the live view and without, in turns: the median ratio, and its 95 % interval."""
    if not is_installed():
        typer.echo(f"hoplite bench: the live view is not installed; {INSTALL}", err=True)
        raise typer.Exit(1)
    with refusals(), progress_bar("view", 2 * rounds, quiet=as_json) as advance:
        found = measure_viewing(hosts=hosts, size=size, rate=rate, rounds=rounds, viewers=viewers, advance=advance)
    typer.echo(found.json_line() if as_json else _shown(found))


def _shown(found: Viewing) -> str:
    ratio = found.ratio
    each = "viewer" if found.viewers == 1 else "viewers"
    watched, alone = (format_duration(statistics.median(runs), 3) for runs in (found.watched, found.alone))
    busy = format_duration(statistics.median(found.directory_watched), 3)
    calm = format_duration(statistics.median(found.directory_alone), 3)
    return (
        f"broadcast of {format_size(found.size)} among {found.hosts} hosts, {len(found.watched)} rounds of each\n"
        f"{watched} with {found.viewers} {each}, {alone} with none: "
        f"{ratio.median:.3f} × (95 %: {ratio.low:.3f} to {ratio.high:.3f})\n"
        f"the directory's processor time in a round: {busy} with, {calm} without; {found.lines} lines were read"
    )
