"""`hoplite bench scale`: operations over 2 to 16 emulated hosts and sizes from 1 KiB to 1 GiB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hoplite_ucx.bench.harness.figure_file import FigureFile
from hoplite_ucx.bench.harness.plots import draw, save
from hoplite_ucx.bench.harness.records import Figure, figure_of
from hoplite_ucx.bench.harness.timing import Measurement, progress_bar
from hoplite_ucx.bench.measures.operations import ROUNDS
from hoplite_ucx.bench.measures.scale import MOST_HOSTS, OPERATIONS, Cell, NotRun, grid, measure_scale, rounds_of
from hoplite_ucx.cli.bench.results import cell_text, print_table, refuse_unknown
from hoplite_ucx.cli.bench.shared import RATE, Json, Rate, Repeat, refusals
from hoplite_ucx.cli.quantities import format_bandwidth, format_size, size_option

_SIZES: list[int] = ["1KiB", "32KiB", "1MiB", "32MiB", "256MiB", "1GiB"]  # type: ignore[list-item]
_OPERATIONS = list(OPERATIONS)
_HOSTS = [2, 4, 8, 12, 16]


def scale(
    operation: Annotated[
        list[str], typer.Option(help=f"The operation; may be repeated: {', '.join(ROUNDS)}.")
    ] = _OPERATIONS,
    hosts: Annotated[list[int], typer.Option(min=2, max=MOST_HOSTS, help="How many hosts; may be repeated.")] = _HOSTS,
    size: Annotated[list[int], typer.Option(parser=size_option, help="Size of each object; may be repeated.")] = _SIZES,
    rate: Rate = RATE,
    repeat: Repeat = 3,
    untimed: Annotated[int, typer.Option(min=1, help="Untimed rounds before those, in each cell.")] = 1,
    bare: Annotated[bool, typer.Option("--bare/--no-bare", help="Also run bare sockets.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Append figures to this file, and continue a run recorded there."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Plot to this path, as PNG and SVG (needs matplotlib).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Operations over growing numbers of hosts and sizes; cells that do not fit this machine are listed.

    No host has more than --rate, and all hosts together have at most 8 Gbit/s.
    """
    refuse_unknown(operation, ROUNDS, "--operation")
    with refusals(), ExitStack() as stack:
        cells = grid(operation, hosts, size, rate)
        file = None if output is None else stack.enter_context(FigureFile(output))
        missing = [cell for cell in cells if file is None or not _is_in(file, cell, repeat, untimed)]

        def told(each: Measurement | NotRun) -> None:
            if file is not None:
                file.append(each.json_line())
            if as_json:
                typer.echo(each.json_line())

        with progress_bar("scale", rounds_of(missing, repeat, untimed, bare), quiet=as_json) as advance:
            figures = measure_scale(missing, repeat=repeat, untimed=untimed, bare=bare, advance=advance, told=told)
        found = _of_grid(cells, map(figure_of, figures.measured) if file is None else file.figures())
        if found and picture is not None:
            made = save(draw(found, f"scale, {format_bandwidth(rate)} each at most"), picture)
            typer.echo(" ".join(map(str, made)), err=True)
    if not as_json:
        if found:
            _show(cells, found)
        for each in figures.not_run:
            typer.echo(
                f"not run: {each.cell.operation} of {format_size(each.cell.size)}, {each.cell.hosts} hosts: {each.why}"
            )
    if not found:
        typer.echo("hoplite bench: no cell of this grid can be run on this machine", err=True)
        raise typer.Exit(1)


def _is_in(file: FigureFile, cell: Cell, repeat: int, untimed: int) -> bool:
    return file.has(cell.operation, cell.hosts, cell.size, cell.rate, repeat=repeat, untimed=untimed)


def _of_grid(cells: Sequence[Cell], figures: Iterable[Figure | None]) -> list[Figure]:
    """The figures that belong to the grid; of several for one cell, the last counts."""
    asked = {(cell.operation, cell.hosts, cell.size, cell.rate) for cell in cells}
    latest = {each.key: each for each in figures if each is not None}
    return [each for each in latest.values() if (each.operation, each.hosts, each.size, each.rate) in asked]


def _show(cells: Sequence[Cell], figures: Sequence[Figure]) -> None:
    counts = sorted({(cell.hosts, cell.rate) for cell in cells})
    for subject in dict.fromkeys(figure.subject for figure in figures):
        by_place = {(each.operation, each.size, each.hosts): each for each in figures if each.subject == subject}
        table = Table(
            title=f"{subject}: medians (× the limit)",
            title_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        for column in ("", "size", *(f"{count} hosts of {format_bandwidth(rate, 3)}" for count, rate in counts)):
            table.add_column(column, justify="left" if not column else "right")
        for operation, size in sorted(
            {(cell.operation, cell.size) for cell in cells}, key=lambda row: (list(ROUNDS).index(row[0]), row[1])
        ):
            row = (by_place.get((operation, size, count)) for count, _ in counts)
            table.add_row(operation, format_size(size), *map(cell_text, row))
        print_table(table)
