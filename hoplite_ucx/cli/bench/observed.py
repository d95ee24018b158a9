"""`hoplite bench observed`: what metrics, traces and viewers together cost a broadcast."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.measures.observing import Observation, measure_observing
from hoplite_ucx.cli.bench.shared import RATE, SIZE, Hosts, Json, Rate, Size, refusals
from hoplite_ucx.cli.quantities import format_duration, format_size
from hoplite_ucx.runtime.launch.view_port import INSTALL, is_installed


def observed(
    hosts: Hosts = 8,
    size: Size = SIZE,
    rate: Rate = RATE,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each cluster.")] = 40,
    viewers: Annotated[
        int, typer.Option(min=0, max=32, help="Viewers of the live view, beside metrics and trace.")
    ] = 0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Observe neither cluster: by how much two of them differ anyway.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A broadcast in a cluster whose metrics are scraped every second and which is traced, in turns with one in a
    cluster that has nothing of it: the median ratio and its 95 % interval, and the directory's time for a placement."""
    for missing, remedy in _missing(viewers):
        typer.echo(f"hoplite bench: {missing} is not installed; {remedy}", err=True)
        raise typer.Exit(1)
    with refusals(), progress_bar("observed", 2 * rounds, quiet=as_json) as advance:
        found = measure_observing(
            hosts=hosts, size=size, rate=rate, rounds=rounds, viewers=viewers, calibrate=calibrate, advance=advance
        )
    typer.echo(found.json_line() if as_json else _shown(found))


def _missing(viewers: int) -> list[tuple[str, str]]:
    missing = []
    if importlib.util.find_spec("prometheus_client") is None:
        missing.append(("prometheus_client", "pip install 'hoplite-ucx[metrics]'"))
    if viewers and not is_installed():
        missing.append(("the live view", INSTALL))
    return missing


def _shown(found: Observation) -> str:
    ratio, directory = found.ratio, found.directory_ratio
    with_it, without = (format_duration(found.per_placement(used), 3) for used in _directory(found))
    what = f"{found.scrapes} scrapes, {found.spans} spans, {found.viewers} viewers"
    return (
        f"broadcast of {format_size(found.size)} among {found.hosts} hosts, {len(found.observed)} rounds of each; "
        f"{'nothing is observed' if found.calibrated else what}\n"
        f"{ratio.median:.3f} × the time of one that nobody observes (95 %: {ratio.low:.3f} to {ratio.high:.3f})\n"
        f"the directory's processor time for a placement: {with_it}, and {without} if nobody observes: "
        f"{directory.median:.3f} × (95 %: {directory.low:.3f} to {directory.high:.3f})"
    )


def _directory(found: Observation) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return found.directory_observed, found.directory_alone
