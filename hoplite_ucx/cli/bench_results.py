"""`hoplite bench peers | compare | plot`: us beside everybody else in one run; two runs compared; figures drawn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.comparison import measure_beside
from hoplite_ucx.bench.operations import ROUNDS
from hoplite_ucx.bench.peers.launching import PEERS
from hoplite_ucx.bench.plotting import draw, save
from hoplite_ucx.bench.records import Figure, changes, figure_of, read_figures
from hoplite_ucx.bench.timing import Measurement, progress_bar
from hoplite_ucx.cli.measures import RATE, WIDTH, Hosts, Json, Rate, Repeat, refusals, tell_not_run
from hoplite_ucx.cli.quantities import format_bandwidth, format_duration, format_size, size_option

Results = Annotated[Path, typer.Argument(help="JSON lines, as the commands write them with --json.")]

_SIZES: list[int] = ["1KiB", "1MiB", "32MiB"]  # type: ignore[list-item]
_OPERATIONS = ["broadcast", "reduce", "allreduce"]


def add_to(app: typer.Typer) -> None:
    for command in (peers, compare, plot):
        app.command()(command)


def peers(
    operation: Annotated[
        list[str], typer.Option(help=f"What to do, may be repeated: {', '.join(ROUNDS)}.")
    ] = _OPERATIONS,
    size: Annotated[list[int], typer.Option(parser=size_option, help="Size of each object; may be repeated.")] = _SIZES,
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Beside whom, may be repeated: {', '.join(PEERS)}. All of them.")
    ] = None,
    hosts: Hosts = 8,
    rate: Rate = RATE,
    repeat: Repeat = 5,
    bare: Annotated[bool, typer.Option("--bare/--no-bare", help="Whether bare sockets run beside us.")] = True,
    as_json: Json = False,
) -> None:
    """Us and the peers, several operations and sizes on the same emulated hosts in one run (see ci/peers)."""
    refuse_unknown(operation, ROUNDS, "--operation")
    refuse_unknown(peer or [], PEERS, "--peer")
    chosen = list(PEERS) if peer is None else list(dict.fromkeys(peer))
    cells = [(each, one) for each in dict.fromkeys(operation) for one in sorted(set(size))]
    rounds = len(cells) * (repeat + 1) * (1 + bare + len(chosen))
    with refusals(), progress_bar("peers", rounds, quiet=as_json) as advance:

        def told(measured: Measurement) -> None:
            if as_json:
                typer.echo(measured.json_line())

        figures = measure_beside(
            cells, chosen, hosts=hosts, rate=rate, repeat=repeat, bare=bare, advance=advance, told=told
        )
    if not as_json:
        _show(figures.measured, f"{hosts} hosts, {format_bandwidth(rate)} each; medians (× the limit of the links)")
    tell_not_run(figures.not_run, as_json)


def refuse_unknown(names: Sequence[str], known: Collection[str], option: str) -> None:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)


def _show(measured: list[Measurement], title: str) -> None:
    figures = [figure for each in measured if (figure := figure_of(each)) is not None]
    subjects = list(dict.fromkeys(figure.subject for figure in figures))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "size", *subjects):
        table.add_column(column, justify="left" if not column else "right")
    for operation, size in dict.fromkeys((figure.operation, figure.size) for figure in figures):
        row = {each.subject: each for each in figures if (each.operation, each.size) == (operation, size)}
        table.add_row(operation, format_size(size), *(cell_text(row.get(subject)) for subject in subjects))
    print_table(table)


def cell_text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    # What fits into one bucket of the shaper is no matter of its rate.
    ratio = f" ({figure.ratio:.2f})" if figure.ratio is not None and figure.size >= 1 << 20 else ""
    return f"{format_duration(figure.seconds, 3)}{ratio}"


# --- what was written -------------------------------------------------------------------------------------------


def compare(before: Results, after: Results) -> None:
    """Two runs side by side: what both measured, and where they differ by more than their rounds do."""
    with refusals():
        found = list(changes(read_figures(before), read_figures(after)))
    if not found:
        typer.echo(f"hoplite bench: {before} and {after} have no figure in common", err=True)
        raise typer.Exit(1)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("", "", "hosts", "size", "before", "after", "after / before", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for change in found:
        figure = change.before
        verdict = ("slower" if change.ratio > 1 else "faster") if change.beyond_spread else "within the spread"
        table.add_row(
            figure.operation,
            figure.subject,
            str(figure.hosts),
            format_size(figure.size),
            *(format_duration(each.seconds, 3) for each in (change.before, change.after)),
            f"{change.ratio:.3f}",
            verdict,
        )
    print_table(table)


def plot(
    results: Results,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Where to draw, as .png and .svg; beside the figures.")
    ] = None,
) -> None:
    """Draw figures as PNG and SVG (needs matplotlib)."""
    with refusals():
        figures = read_figures(results)
        made = save(draw(figures, results.stem), output or results)
    typer.echo(" ".join(str(path) for path in made))


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(WIDTH, 150)
    console.print(table)
