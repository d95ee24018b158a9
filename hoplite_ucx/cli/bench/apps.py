"""`hoplite bench apps`: the paper's applications on Ray, plain and with hoplite, in one HTML report with its data."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import time
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hoplite_ucx.bench.apps.plan import GRIDS, Run, runs
from hoplite_ucx.bench.apps.report import write_report
from hoplite_ucx.bench.apps.results import deaths, gains, latencies, wrong_answers, wrong_sums
from hoplite_ucx.bench.apps.running import check_commit, check_memory, run_all
from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.harness.machine_facts import facts, versions
from hoplite_ucx.bench.harness.plots import load_pyplot
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.cli.bench.shared import refusals
from hoplite_ucx.cli.signals import INTERRUPTED

REPORT = "report.html"
_NEEDED = {"ray": "ray", "torch": "torch", "gymnasium": "gymnasium"}


def apps(
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="Where to write the report and its records; a run continues from records found there."
        ),
    ] = Path("apps-report"),
    grid: Annotated[str, typer.Option(help="default, quick, or full: all models, and the whole sweep.")] = "default",
    quick: Annotated[bool, typer.Option("--quick", help="Short for --grid quick: 5 nodes, smaller objects.")] = False,
    only: Annotated[
        str | None, typer.Option(help="Only runs whose title has this in it, such as 'serving' or 'timing: sgd'.")
    ] = None,
) -> None:
    """Asynchronous SGD, reinforcement learning, ensemble serving and weight sync on Ray nodes on emulated hosts, with
    plain Ray and with hoplite in turns."""
    name = "quick" if quick else grid
    if name not in GRIDS:
        raise typer.BadParameter(f"there is no grid {name!r}; choose {', '.join(GRIDS)}", param_hint="--grid")
    chosen = [run for run in runs(GRIDS[name]) if only is None or only in run.title]
    if not chosen:
        raise typer.BadParameter(f"no run of the grid {name} has {only!r} in its title", param_hint="--only")
    with refusals():
        _check_installed()
        load_pyplot()
        check_memory(chosen)
        with Cluster(1):  # whether there can be any
            pass
        journal, machine = Journal.in_folder(output), facts()
        check_commit(journal, machine["commit"])
        journal.begin_run(
            {
                "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
                "command": shlex.join(["hoplite", *sys.argv[1:]]),
                "versions": {**versions(), **{package: metadata.version(package) for package in _NEEDED.values()}},
                "machine": machine,
            }
        )
        lines = _Lines([run for run in chosen if not journal.has_finished(run.key)])
        interrupted = False
        problems: list[str] = []
        try:
            problems = run_all(journal, chosen, lines)
        except KeyboardInterrupt:
            interrupted = True
        if journal.records:
            write_report(journal, output / REPORT)
    wrong = [*wrong_sums(journal.records), *wrong_answers(journal.records)]
    for problem in (*problems, *wrong):
        typer.echo(f"failed: {problem}", err=True)
    for gain in gains(journal.records):
        typer.echo(f"{gain.title}: {gain.speed_up:.2f} × plain Ray; the model says {gain.expected:.2f} ×")
    for late in latencies(journal.records):
        typer.echo(f"{late.title}: {late.system} p50 {late.seconds[50]:.2f} s, p90 {late.seconds[90]:.2f} s")
    for death in deaths(journal.records):
        typer.echo(
            f"{death.title}: {death.system}, the round with the death {death.ratio:.2f} × rounds like it, "
            f"{death.of_median:.2f} × the median"
        )
    if journal.records:
        typer.echo(str(output / REPORT))
    if interrupted:
        typer.echo("interrupted: the report has the figures so far; run the same command to continue", err=True)
        raise typer.Exit(INTERRUPTED)
    if problems or wrong:
        raise typer.Exit(1)


def _check_installed() -> None:
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise PeerError(f"the applications need {', '.join(missing)}: pip install 'hoplite-ucx[apps]'")


class _Lines:
    """One line for each run, with an estimate of the time left."""

    def __init__(self, todo: list[Run]) -> None:
        self._todo = todo
        self._done = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True, highlight=False)
        total = sum(run.estimate for run in todo)
        self._console.print(f"{len(todo)} runs, about {total / 60:.0f} min", soft_wrap=True)

    def begin(self, run: Run) -> None:
        self._began = time.monotonic()
        self._console.print(f"{self._done + 1}/{len(self._todo)} {run.title} …", soft_wrap=True)

    def end(self, problem: str | None) -> None:
        self._done += 1
        left = sum(each.estimate for each in self._todo[self._done :])
        outcome = f"{time.monotonic() - self._began:.0f} s" if problem is None else f"failed: {problem}"
        self._console.print(f"    {outcome}; about {left / 60:.0f} min left", soft_wrap=True)
