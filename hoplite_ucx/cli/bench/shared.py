"""What all commands that measure share: their options, how they show figures, and how they report a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.harness.timing import PAYLOAD, Measurement
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import ClusterError
from hoplite_ucx.bench.peers.measuring import NotRun
from hoplite_ucx.cli.quantities import bandwidth_option, format_duration, size_option

Hosts = Annotated[int, typer.Option(min=1, help="How many hosts, including the source.")]
Size = Annotated[int, typer.Option(parser=size_option, help="Size of each object.")]
Rate = Annotated[float, typer.Option(parser=bandwidth_option, help="Rate of each host, in and out.")]
Repeat = Annotated[int, typer.Option(min=1, help="Timed rounds, after an untimed one.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line and nothing else.")]

# Typer parses a default as it parses what is typed.
SIZE: int = "32MiB"  # type: ignore[assignment]
SMALL_SIZE: int = "1KiB"  # type: ignore[assignment]
RATE: float = "1gbit"  # type: ignore[assignment]
_DIGITS = 3
WIDTH = 120  # if the output is not a terminal
_RULES = f"it counts {PAYLOAD:g} of the rate; rounds start together and end with the last host"


def show(measurements: Iterable[Measurement], title: str, yardstick: str = "limit", rules: str = _RULES) -> None:
    """One line per measurement: its median, the fastest and slowest round, and the ratio to the limit."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("", "median", "fastest", "slowest", "spread", f"× {yardstick}", "processor"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    measured = list(measurements)
    for each in measured:
        table.add_row(
            each.what,
            *(format_duration(seconds, _DIGITS) for seconds in (each.seconds, each.fastest, each.slowest)),
            f"{each.spread:.0%}",
            "-" if each.ratio is None else f"{each.ratio:.3f}",
            "-" if each.processor is None else format_duration(each.processor, _DIGITS),
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    limits = {format_duration(each.limit_seconds, _DIGITS) for each in measured if each.limit_seconds is not None}
    told = f"{yardstick}: {', '.join(sorted(limits))}; {rules}" if limits else rules
    console.print(told, style="dim", soft_wrap=True)


def tell_not_run(skipped: Iterable[NotRun], as_json: bool) -> None:
    """List what was not run, and why, one line each; the exit status is then 1."""
    told = list(skipped)
    for each in told:
        typer.echo(each.json_line() if as_json else f"not run: {each.what}: {each.why}", err=not as_json)
    if told:
        raise typer.Exit(1)


@contextmanager
def refusals() -> Iterator[None]:
    """Print a refusal of a cluster or a peer as one line."""
    try:
        yield
    except (ClusterError, PeerError) as refusal:
        typer.echo(f"hoplite bench: {refusal}", err=True)
        raise typer.Exit(1) from None
