"""`hoplite bench breaks`: how long a getter goes without a byte when its sender or its link breaks."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.measures.breaks import WAYS, Break, Outcome, measure_breaks, measure_mixed_reduce
from hoplite_ucx.cli.bench.shared import RATE, Json, Rate, Size, refusals
from hoplite_ucx.cli.quantities import format_duration


class Way(StrEnum):
    TCP = "tcp"
    UCX_TCP = "ucx-tcp"
    UCX_POSIX = "ucx-posix"
    MIXED = "mixed"
    """A reduction over links of both kinds."""


_SIZE: int = "64MiB"  # type: ignore[assignment]
_ONE_HOST_FACTOR = 8  # memory is that much faster than the network


def breaks(
    transport: Annotated[
        list[Way] | None, typer.Option(help="The transport of the links; may be repeated, they take turns.")
    ] = None,
    what: Annotated[
        list[Break] | None, typer.Option("--break", help="What breaks; by default, everything in turn.")
    ] = None,
    size: Size = _SIZE,
    rate: Rate = RATE,
    as_json: Json = False,
) -> None:
    """Kill, stop or cut off a sender in the middle of an object, or break its link: time until the next byte."""
    wanted = [(way, each) for way in transport or list(Way) for each in _breaks(way, what)]
    outcomes: list[Outcome] = []
    with refusals(), progress_bar("breaks", 2 * len(wanted), quiet=as_json) as advance:
        for way, each in wanted:
            if way is Way.MIXED:
                outcomes.append(measure_mixed_reduce(size=size, rate=rate, advance=advance))
            else:
                outcomes.append(_measure(way, each, size, rate, advance))
            advance()
            if as_json:
                typer.echo(outcomes[-1].json_line())
    if not as_json:
        _show(outcomes)


def _breaks(way: Way, what: list[Break] | None) -> list[Break]:
    there_are = (Break.LINK,) if way is Way.MIXED else WAYS[way].breaks
    return [each for each in there_are if what is None or each in what]


def _measure(way: Way, what: Break, size: int, rate: float, advance: Callable[[], object]) -> Outcome:
    factor = _ONE_HOST_FACTOR if WAYS[way].one_host else 1
    return measure_breaks(way, what, size=size * factor, rate=rate, advance=advance)


def _show(outcomes: list[Outcome]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("links", "break", "given up", "next byte", "get", "undisturbed", "rest over"):
        table.add_column(column, justify="left" if column in ("links", "break", "rest over") else "right")
    for each in outcomes:
        times = (each.noticed, each.next_byte, each.seconds, each.undisturbed)
        table.add_row(
            each.transport,
            each.what,
            *("-" if time is None else format_duration(time, 3) for time in times),
            each.goes_on_over,
        )
    Console(highlight=False).print(table)
