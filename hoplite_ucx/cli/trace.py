"""`hoplite trace`: record what a cluster does for a while, as a file that Perfetto and Chrome show."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from hoplite_ucx.cli.quantities import format_duration
from hoplite_ucx.cli.signals import ending_noted
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import local_agents, token_towards
from hoplite_ucx.runtime.launch.tracing import LONGEST, ClusterTrace, TraceReport

_LOOK_SECONDS = 0.1


def trace(
    out: Annotated[
        Path, typer.Option(dir_okay=False, metavar="FILE", help="Where the trace is written, as JSON.")
    ] = Path("hoplite-trace.json"),
    seconds: Annotated[
        float, typer.Option(min=0.1, max=LONGEST, help="How long to record; ctrl-C ends it earlier, and writes it.")
    ] = 10.0,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The cluster's directory; by default HOPLITE_ADDRESS, or the cluster of this host's only agent.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Record the streams, slots, placements and waits of all hosts. Open the file at ui.perfetto.dev, which reads it in
    the browser and sends it nowhere, or in chrome://tracing."""
    try:
        where = address or os.environ.get(ADDRESS) or _only_cluster()
        tracing = ClusterTrace(out, where, token_towards(where), seconds)
        tracing.start()
        with ending_noted() as is_ending:
            if not as_json:
                typer.echo(f"recording {where} for {format_duration(seconds)}; ctrl-C ends it", err=True)
            while not is_ending() and not tracing.wait(_LOOK_SECONDS):
                pass
        report = tracing.finish()
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(_figures(report)) if as_json else _told(report))


def _only_cluster() -> str:
    found = sorted({agent["directory"] for agent in local_agents().status})
    if len(found) == 1:
        return str(found[0])
    here = f"agents here belong to {', '.join(found)}" if found else "no agent of this user runs on this host"
    raise typer.BadParameter(f"give the cluster's --address, or set {ADDRESS} ({here})", param_hint="--address")


def _figures(report: TraceReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "seconds": report.seconds,
        "spans": report.spans,
        "processes": [
            {
                "name": process.name,
                "records": len(process.records),
                "dropped": process.dropped,
                "clock_offset_seconds": process.offset.seconds,
                "clock_error_seconds": process.offset.error,
                "note": process.note,
            }
            for process in report.processes
        ],
    }


def _told(report: TraceReport) -> str:
    worst = max((process.offset.error for process in report.processes), default=0.0)
    dropped = sum(process.dropped for process in report.processes)
    took, within = format_duration(report.seconds, digits=3), format_duration(worst, digits=2)
    found = f"{report.spans} spans of {len(report.processes)} processes in {took}"
    lines = [f"{report.path}: {found}; clocks agree within {within}"]
    if dropped:
        lines.append(f"{dropped} records were dropped: the oldest of processes that did more than fits")
    lines += [f"{name}: {why}" for name, why in report.lost.items()]
    return "\n".join(lines)
