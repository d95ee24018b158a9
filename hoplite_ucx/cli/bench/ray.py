"""`hoplite bench ray …`: Ray programs on emulated hosts, plain and with `hoplite_ucx.ray`."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.ray.cases import Case
from hoplite_ucx.bench.ray.measuring import Calls, measure_calls, measure_rounds
from hoplite_ucx.bench.ray.trials import fault_outcomes, many_rounds
from hoplite_ucx.cli.bench.adapters import Operation, gains, growth, show_faults
from hoplite_ucx.cli.bench.shared import RATE, Json, Rate, Repeat, Size, refusals, show
from hoplite_ucx.cli.quantities import format_bandwidth, format_duration, format_size, size_option

app = typer.Typer(name="ray", help="Ray programs, plain and with hoplite_ucx.ray.", no_args_is_help=True)

Nodes = Annotated[int, typer.Option(min=2, max=16, help="Hosts with a Ray node; the driver is on the first.")]
Sizes = Annotated[list[int], typer.Option("--size", parser=size_option, help="Size of each object; may be repeated.")]

_SIZES: list[int] = ["64MiB"]  # type: ignore[list-item]
_FAULT_SIZE: int = "64MiB"  # type: ignore[assignment]
_ROUND_SIZE: int = "2MiB"  # type: ignore[assignment]
_SMALL_SIZES: list[int] = ["1KiB", "64KiB", "512KiB"]  # type: ignore[list-item]


class Kind(StrEnum):
    CALL = "call"
    PUT = "put"
    TASK = "task"


@app.command()
def speed(
    operation: Annotated[
        list[Operation] | None, typer.Option("--operation", help="What to measure; by default, all of them.")
    ] = None,
    nodes: Nodes = 4,
    size: Sizes = _SIZES,
    rate: Rate = RATE,
    repeat: Repeat = 5,
    as_json: Json = False,
) -> None:
    """Broadcast, reduce and allreduce, as plain Ray programs do them and with hoplite, in turns in one run."""
    operations = [each.value for each in operation or Operation]
    total = 2 * len(operations) * len(size) * (repeat + 1)
    with refusals(), progress_bar("rounds", total, quiet=as_json) as advance:
        for measured in measure_rounds(operations, size, nodes=nodes, rate=rate, repeat=repeat, advance=advance):
            if as_json:
                for each in measured:
                    typer.echo(each.json_line())
                continue
            of = measured[0].settings
            what = f"{of['operation']} of {format_size(of['size'])}"
            show(measured, f"{what}, {nodes} nodes, {format_bandwidth(rate)} each")
            typer.echo("".join(f"{line}\n" for line in gains(measured)))


@app.command()
def small(
    kind: Annotated[
        list[Kind] | None, typer.Option("--kind", help="Which calls: of an actor, put and get, or tasks; or all.")
    ] = None,
    nodes: Nodes = 2,
    size: Sizes = _SMALL_SIZES,
    count: Annotated[int, typer.Option(min=50, help="Calls of each kind and size, for each side.")] = 1000,
    rate: Rate = RATE,
    as_json: Json = False,
) -> None:
    """Calls with arrays below the threshold, which stay with Ray: what our presence costs them."""
    kinds = [each.value for each in kind or Kind]
    found = []
    with refusals(), progress_bar("calls", len(kinds) * len(size) * count // 25, quiet=as_json) as advance:
        for each in measure_calls(kinds, size, nodes=nodes, rate=rate, count=count, advance=advance):
            found.append(each)
            if as_json:
                typer.echo(json.dumps(asdict(each)))
    if not as_json:
        _show_calls(found)


def _show_calls(found: list[Calls]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("call", "size", "plain Ray", "hoplite", "ratio", "95 % interval"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for each in found:
        seconds = (format_duration(median, 3) for median in (each.plain_seconds, each.our_seconds))
        interval = f"{each.low:.3f} to {each.high:.3f}"
        table.add_row(each.kind, format_size(each.size), *seconds, f"{each.ratio:.3f}", interval)
    Console(highlight=False).print(table)


@app.command()
def faults(
    case: Annotated[list[str] | None, typer.Option("--case", help="Only cases whose name contains this.")] = None,
    nodes: Annotated[int, typer.Option(min=3, max=16, help="Hosts with a Ray node; the second is hit.")] = 4,
    size: Size = _FAULT_SIZE,
    rate: Rate = RATE,
    as_json: Json = False,
) -> None:
    """Kill actors, agents, nodes, the head and the directory in the middle of things: how calls end, and when."""
    chosen = [each for each in Case if case is None or any(part in each.value for part in case)]
    found = []
    with refusals(), progress_bar("faults", len(chosen), quiet=as_json) as advance:
        for outcome in fault_outcomes(chosen, nodes=nodes, size=size, rate=rate):
            found.append(outcome)
            advance()
            if as_json:
                typer.echo(json.dumps(outcome))
    if not as_json:
        show_faults(found)
    if not all(each["right"] for each in found):
        raise typer.Exit(1)


@app.command()
def rounds(
    count: Annotated[int, typer.Option(min=10, help="How many rounds.")] = 300,
    nodes: Nodes = 4,
    size: Size = _ROUND_SIZE,
    rate: Rate = RATE,
    as_json: Json = False,
) -> None:
    """Put, broadcast, reduce and release, many times: objects, actors, memory and descriptors must stay flat. Then the
    driver is killed with -9, and everything of it must go."""
    found = []
    with refusals():
        for look in many_rounds(count, nodes=nodes, size=size, rate=rate):
            found.append(look)
            typer.echo(json.dumps(look))
    early, *_, late, killed = found
    grown = growth(early, late, nothing=("objects",))
    grown += ["actors"] if late["actors"] > early["actors"] else []
    grown += ["processes after the driver was killed"] if killed["left"] else []
    if not as_json:
        typer.echo("flat" if not grown else f"grown: {', '.join(grown)}")
    if grown:
        raise typer.Exit(1)
