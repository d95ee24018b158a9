"""`hoplite bench fuzz`: corrupted frames for every parser, and for every port of a real directory and agent."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.measures.fuzz import Report, fuzz_parsers, fuzz_ports
from hoplite_ucx.cli.bench.shared import Json
from hoplite_ucx.cli.quantities import format_duration

_ALLOWED_GROWTH = 32 << 20
"""What an allocator may keep after the first frames; a frame that is never let go of shows far above it."""
_STEP = 1000


def add_to(app: typer.Typer) -> None:
    app.command()(fuzz)


def fuzz(
    frames: Annotated[
        int, typer.Option(min=0, help="How many frames to give to the parsers, in this process.")
    ] = 200_000,
    port_frames: Annotated[
        int, typer.Option(min=0, help="How many frames to send to the ports of a real cluster.")
    ] = 3000,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random frames.")] = 0,
    as_json: Json = False,
) -> None:
    """Feed invalid bytes to every parser and every port.

    Exits with status 1 if anything raised an untyped error, grew by more than 32 MiB, or stopped serving.
    """
    reports = {}
    with progress_bar("fuzz", (frames + port_frames) // _STEP, quiet=as_json) as advance:
        done = 0

        def moved(count: int) -> None:
            nonlocal done
            done += count
            while done >= _STEP:
                done -= _STEP
                advance()

        if frames:
            reports["parsers"] = fuzz_parsers(frames, seed, moved)
        if port_frames:
            reports["ports"] = fuzz_ports(port_frames, seed, moved)
    bad = any(
        report.crashes or report.growth > _ALLOWED_GROWTH or report.serves_after is False for report in reports.values()
    )
    for what, report in reports.items():
        _show(what, report, as_json=as_json)
    raise typer.Exit(1 if bad else 0)


def _show(what: str, report: Report, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"what": what, **report.as_json()}))
        return
    rate = report.frames / max(report.seconds, 1e-9)
    typer.echo(f"{what}: {report.frames} frames in {format_duration(report.seconds, 3)}, {rate:.0f} a second")
    for name, before in report.memory_before.items():
        after = report.memory_after[name]
        typer.echo(f"  memory of {name}: {before / 2**20:.1f} MiB, then {after / 2**20:.1f} MiB")
    typer.echo(f"  crashes: {len(report.crashes)}")
    for crash in report.crashes[:10]:
        typer.echo(f"    {crash.parser}, seed {crash.seed}, frame {crash.number}: {crash.error}")
    if report.serves_after is not None:
        typer.echo(f"  the cluster {'serves as before' if report.serves_after else 'DOES NOT SERVE any more'}")
