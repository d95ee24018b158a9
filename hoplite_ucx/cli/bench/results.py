"""`hoplite bench compare | page | plot`: compare two runs, write a page, plot; and what tables share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.apps.manual_page import is_journal
from hoplite_ucx.bench.apps.manual_page import page as applications_page
from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.harness.page import Recording, readme_table, with_table
from hoplite_ucx.bench.harness.page import page as render_page
from hoplite_ucx.bench.harness.plots import draw, save
from hoplite_ucx.bench.harness.records import Figure, changes, read_figures
from hoplite_ucx.cli.bench.shared import WIDTH, refusals
from hoplite_ucx.cli.quantities import format_duration, format_size

Results = Annotated[Path, typer.Argument(help="JSON lines, as the commands print them with --json.")]


def add_to(app: typer.Typer) -> None:
    for command in (compare, page, plot):
        app.command()(command)


def compare(before: Results, after: Results) -> None:
    """Compare two runs: what both measured, and which differences exceed the spread of the rounds."""
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
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The path of the plot, without suffix (.png and .svg are added); by default, that of the figures.",
        ),
    ] = None,
) -> None:
    """Plot figures as PNG and SVG (needs matplotlib)."""
    with refusals():
        figures = read_figures(results)
        made = save(draw(figures, results.stem), output or results)
    typer.echo(" ".join(str(path) for path in made))


def page(
    results: Results,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="The page to write; by default it is printed.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A page whose short table is replaced as well.")
    ] = None,
) -> None:
    """Write figures as a page of the manual: of one machine and one commit, and where we are slower. Those of the
    peers, or of a run of the applications."""
    with refusals():
        command = f"hoplite bench page {results}"
        if is_journal(results):
            text = applications_page(Journal(results), command)
        else:
            recording = Recording(results)
            text = render_page(recording, command)
            if readme is not None:
                readme.write_text(with_table(readme.read_text(), readme_table(recording)))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text)


# --- tables and options -----------------------------------------------------------------------------------------


def refuse_unknown(names: Sequence[str], known: Collection[str], option: str) -> None:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint=option)


def cell_text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    # Objects that fit into one bucket of the shaper do not depend on its rate.
    ratio = f" ({figure.ratio:.2f})" if figure.ratio is not None and figure.size >= 1 << 20 else ""
    return f"{format_duration(figure.seconds, 3)}{ratio}"


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(WIDTH, 170)
    console.print(table)
