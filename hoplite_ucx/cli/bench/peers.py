"""`hoplite bench peers`: hoplite compared with the other systems, on the same emulated hosts.

A whole table takes a quarter of an hour or more. `--output` keeps figures in a file as they arrive, and what the file
has is not run again: an interrupted run continues where it was, and `--within` splits one into parts. A failed cell is
recorded as well: to try it again, remove its line.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hoplite_ucx.bench.harness.figure_file import FigureFile
from hoplite_ucx.bench.harness.records import BARE, US, Figure, Key, failure_in, figure_in
from hoplite_ucx.bench.harness.timing import Measurement, progress_bar
from hoplite_ucx.bench.measures.comparison import keys_of, measure_beside
from hoplite_ucx.bench.measures.operations import ROUNDS
from hoplite_ucx.bench.peers.launching import PEERS
from hoplite_ucx.bench.peers.measuring import NotRun
from hoplite_ucx.cli.bench.results import cell_text, print_table, refuse_unknown
from hoplite_ucx.cli.bench.shared import RATE, Json, Rate, Repeat, refusals, tell_not_run
from hoplite_ucx.cli.quantities import duration_option, format_bandwidth, format_size, size_option

_SIZES: list[int] = ["1KiB", "1MiB", "32MiB"]  # type: ignore[list-item]
_OPERATIONS = ["broadcast", "reduce", "allreduce"]
_HOSTS = [8]
_CELL: float = "10s"  # type: ignore[assignment]
_LEFT = 3  # the exit status of a run that has not come to its end


def peers(
    operation: Annotated[
        list[str], typer.Option(help=f"The operation; may be repeated: {', '.join(ROUNDS)}.")
    ] = _OPERATIONS,
    size: Annotated[list[int], typer.Option(parser=size_option, help="Size of each object; may be repeated.")] = _SIZES,
    peer: Annotated[
        list[str] | None, typer.Option(help=f"The peer; may be repeated: {', '.join(PEERS)}. By default, all.")
    ] = None,
    hosts: Annotated[
        list[int], typer.Option(min=2, help="How many hosts, including the source; may be repeated.")
    ] = _HOSTS,
    rate: Rate = RATE,
    repeat: Repeat = 5,
    cell: Annotated[
        float,
        typer.Option(
            parser=duration_option, help="How long to start further rounds of one figure, after its first timed one."
        ),
    ] = _CELL,
    bare: Annotated[bool, typer.Option("--bare/--no-bare", help="Also run bare sockets.")] = True,
    output: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Append figures to this file, and continue a run recorded there."),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            parser=duration_option, help="Start no figure after this time; exits with status 3 if some are left."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare hoplite with its peers: several operations and sizes on the same emulated hosts (see ci/peers)."""
    refuse_unknown(operation, ROUNDS, "--operation")
    refuse_unknown(peer or [], PEERS, "--peer")
    until = math.inf if within is None else time.monotonic() + within
    chosen = list(PEERS) if peer is None else list(dict.fromkeys(peer))
    counts = list(dict.fromkeys(hosts))
    cells = [(each, one) for one in sorted(set(size)) for each in dict.fromkeys(operation)]
    planned = [key for count in counts for key in keys_of(cells, chosen, count, rate)]
    absent: dict[str, NotRun] = {}
    with refusals(), ExitStack() as stack:
        file = None if output is None else stack.enter_context(FigureFile(output))
        kept = _Kept(file, as_json)
        rounds = len([key for key in planned if key not in kept]) * (repeat + 1)
        with progress_bar("peers", rounds, quiet=as_json) as advance:
            for count in counts:
                if time.monotonic() < until and any(key[2] == count and key not in kept for key in planned):
                    figures = measure_beside(
                        cells, chosen,
                        hosts=count, rate=rate, repeat=repeat, seconds=cell, until=until, there=kept, bare=bare,
                        advance=advance, told=kept.add,
                    )  # fmt: skip
                    absent |= {each.what: each for each in figures.not_run if not each.settings}
    if not as_json:
        for count in counts:
            title = f"{count} hosts, {format_bandwidth(rate)} each; medians (× the limit of the links)"
            _show([figure for key, figure in kept.figures.items() if key[2] == count and key[4] == rate], title)
    left = [key for key in planned if key not in kept and key[1] not in absent]
    if left:
        typer.echo(f"{len(left)} of {len(planned)} figures are left: run it again", err=True)
        raise typer.Exit(_LEFT)
    failed = [
        NotRun(f"{key[1]}, {key[0]} of {format_size(key[3])}, {key[2]} hosts", why)
        for key, why in kept.failed.items()
        if key in planned
    ]
    tell_not_run([*absent.values(), *failed], as_json)


class _Kept:
    """The figures of a run so far: those of its file, and each new one, which is appended."""

    def __init__(self, file: FigureFile | None, as_json: bool) -> None:
        self._file = file
        self._as_json = as_json
        found = [] if file is None else file.figures()
        self.figures: dict[Key, Figure] = {figure.key: figure for figure in found if figure is not None}
        self.failed: dict[Key, str] = {} if file is None else file.failures()

    def __contains__(self, key: object) -> bool:
        return key in self.figures or key in self.failed

    def add(self, each: Measurement | NotRun) -> None:
        line = each.json_line()
        if self._file is not None:
            self._file.append(line)
        if self._as_json:
            typer.echo(line)
        told = json.loads(line)
        if (figure := figure_in(told)) is not None:
            self.figures[figure.key] = figure
        if (failure := failure_in(told)) is not None:
            self.failed |= [failure]


def _show(figures: Sequence[Figure], title: str) -> None:
    """A row for every operation and size; the last column is the best peer's time divided by ours."""
    subjects = list(dict.fromkeys(figure.subject for figure in figures))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "size", *subjects, "best peer ÷ us"):
        table.add_column(column, justify="left" if not column else "right")
    for operation, size in sorted({(each.operation, each.size) for each in figures}, key=_place):
        row = {each.subject: each for each in figures if (each.operation, each.size) == (operation, size)}
        table.add_row(operation, format_size(size), *(cell_text(row.get(name)) for name in subjects), _lead(row))
    print_table(table)


def _place(row: tuple[str, int]) -> tuple[int, int]:
    return list(ROUNDS).index(row[0]), row[1]


def _lead(row: dict[str, Figure]) -> str:
    peers = [figure for subject, figure in row.items() if subject not in (US, BARE)]
    if US not in row or not peers:
        return "-"
    best = min(peers, key=lambda figure: figure.seconds)
    return f"{best.seconds / row[US].seconds:.2f} ({best.subject})"
