"""`hoplite bench dask …`: Dask programs on emulated hosts, plain and with `hoplite_ucx.dask`."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Annotated, Any

import typer

from hoplite_ucx.bench.dask.cases import Case
from hoplite_ucx.bench.dask.hosts import reports
from hoplite_ucx.bench.harness.timing import Measurement, limit_seconds, progress_bar
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.cli.bench.adapters import Operation, gains, growth, show_faults
from hoplite_ucx.cli.bench.shared import RATE, Json, Rate, Repeat, Size, refusals, show
from hoplite_ucx.cli.quantities import format_bandwidth, format_size

app = typer.Typer(name="dask", help="Dask programs, plain and with hoplite_ucx.dask.", no_args_is_help=True)

Workers = Annotated[int, typer.Option(min=2, max=16, help="Hosts with a worker; the scheduler has one of its own.")]

_SIZE: int = "64MiB"  # type: ignore[assignment]
_SMALL: int = "1MiB"  # type: ignore[assignment]
_ROUND_SECONDS = 300.0
LEFT = ("objects", "tasks", "shared")
"""Nothing of these may be left after many rounds."""


@app.command()
def speed(
    operation: Annotated[
        list[Operation] | None, typer.Option("--operation", help="What to measure; by default, all of them.")
    ] = None,
    workers: Workers = 4,
    size: Size = _SIZE,
    rate: Rate = RATE,
    repeat: Repeat = 5,
    as_json: Json = False,
) -> None:
    """Broadcast, reduce and allreduce, as plain Dask programs do them and with hoplite, in turns in one run."""
    operations = [each.value for each in operation or Operation]
    plan = {"size": size, "repeat": repeat, "operations": operations}
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    with refusals():
        for report in reports("speed", plan, workers=workers, rate=rate, seconds=_ROUND_SECONDS):
            runs[report["operation"], report["way"]].append(report["seconds"])
    settings = {"workers": workers, "size": size, "rate": rate}
    for name in operations:
        limit = limit_seconds(name, workers, size, rate)
        measured = [
            Measurement(way, tuple(seconds), limit, {"operation": name, **settings})
            for (of, way), seconds in runs.items()
            if of == name
        ]
        if as_json:
            for each in measured:
                typer.echo(each.json_line())
            continue
        show(measured, f"{name} of {format_size(size)}, {workers} workers, {format_bandwidth(rate)} each")
        typer.echo("".join(f"{line}\n" for line in gains(measured)))


@app.command()
def faults(
    case: Annotated[list[str] | None, typer.Option("--case", help="Only cases whose name contains this.")] = None,
    workers: Workers = 4,
    size: Size = _SIZE,
    rate: Rate = RATE,
    as_json: Json = False,
) -> None:
    """Kill workers, agents, hosts and the directory in the middle of things: right values, and how long they took."""
    chosen = [each for each in Case if case is None or any(part in each.value for part in case)]
    told: list[dict[str, Any]] = []
    with progress_bar("faults", len(chosen), quiet=as_json) as advance:
        for each in chosen:
            try:
                plan = {"size": size, "case": each.value}
                told += reports("faults", plan, workers=workers, rate=rate, nanny=each.nanny, seconds=_ROUND_SECONDS)
            except PeerError as error:
                told.append({"case": each.value, "right": False, "why": str(error)[-2000:]})
            advance()
            if as_json:
                typer.echo(json.dumps(told[-1]))
    if not as_json:
        show_faults(told)
    if not all(each["right"] for each in told):
        raise typer.Exit(1)


@app.command()
def rounds(
    count: Annotated[int, typer.Option(min=10, help="How many rounds.")] = 200,
    workers: Workers = 4,
    size: Size = _SMALL,
    rate: Rate = RATE,
    as_json: Json = False,
) -> None:
    """Broadcast, reduce, share and forget, many times: objects, tasks, memory and descriptors must stay flat."""
    plan = {"size": size, "rounds": count}
    with refusals():
        seconds = _ROUND_SECONDS + 5.0 * count
        looks = list(reports("endurance", plan, workers=workers, rate=rate, seconds=seconds, profile=False))
    for look in looks:
        typer.echo(json.dumps(look))
    grown = growth(looks[0], looks[-1], nothing=LEFT)
    if not as_json:
        typer.echo("flat" if not grown else f"grown: {', '.join(grown)}")
    if grown:
        raise typer.Exit(1)
