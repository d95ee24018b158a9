"""`hoplite bench paper`: the figures of Hoplite's paper at emulated scale, in one HTML report with its raw data."""

from __future__ import annotations

import shlex
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.harness.machine_facts import facts, versions
from hoplite_ucx.bench.harness.plots import load_pyplot
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.paper.plan import DEFAULT, QUICK, Part, parts
from hoplite_ucx.bench.paper.report import write_report
from hoplite_ucx.bench.paper.running import run_parts
from hoplite_ucx.bench.peers.launching import PEERS, why_missing
from hoplite_ucx.cli.bench.shared import refusals
from hoplite_ucx.cli.signals import INTERRUPTED

REPORT = "report.html"


def paper(
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="Where to write the report and its records; a run continues from records found there."
        ),
    ] = Path("paper-report"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer hosts and smaller objects; takes up to 6 minutes.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Also run the peers that are installed (ci/peers).")
    ] = True,
) -> None:
    """Figures 6, 7, 8, 12 and 13 of Hoplite's paper on emulated hosts, within 40 minutes, into one HTML report."""
    grid = QUICK if quick else DEFAULT
    with refusals():
        load_pyplot()
        with Cluster(1):  # whether there can be any
            pass
        journal = Journal.in_folder(output)
        missing = {name: why for name in PEERS if peers and (why := why_missing(name)) is not None}
        here = [name for name in PEERS if peers and name not in missing]
        chosen = parts(grid, here)
        todo = [part for part in chosen if not journal.has_finished(part.key)]
        journal.begin_run(
            {
                "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
                "command": shlex.join(["hoplite", *sys.argv[1:]]),
                "grid": grid.name,
                "rate": grid.rate,
                "versions": versions(),
                "machine": facts(),
            }
        )
        for name in PEERS:
            _tell_missing(journal, name, missing.get(name) if peers else "left out by --no-peers")
        interrupted = False
        problems: list[str] = []
        with _Bar(todo) as bar:
            try:
                problems = run_parts(journal, chosen, 60 * grid.minutes, bar)
            except KeyboardInterrupt:
                interrupted = True
        write_report(journal, output / REPORT)
    for name, why in missing.items():
        typer.echo(f"not run: {PEERS[name].title}: {why}", err=True)
    for problem in problems:
        typer.echo(f"not run: {problem}", err=True)
    typer.echo(str(output / REPORT))
    if interrupted:
        typer.echo("interrupted: the report has the figures so far; run the same command to continue", err=True)
        raise typer.Exit(INTERRUPTED)
    if problems:
        raise typer.Exit(1)


def _tell_missing(journal: Journal, name: str, why: str | None) -> None:
    """Record why a peer has no figures at all, in place of an earlier run's reason."""
    part = f"peer {name}"
    journal.begin(part)
    if why is not None:
        journal.tell(part, {"what": PEERS[name].title, "not_run": why})


class _Bar:
    """A progress bar in estimated seconds, with the time left; without a terminal, one line per part."""

    def __init__(self, todo: list[Part]) -> None:
        self._left = sum(part.seconds for part in todo)
        self._console = Console(stderr=True, highlight=False)
        self._shown = self._console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            disable=not self._shown,
        )
        self._task = self._progress.add_task("", total=max(self._left, 1e-9), left="")
        self._begun = time.monotonic()
        self._done = 0.0
        self._step = 0.0
        self._of_part = 0.0
        self._place = ""

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._progress.stop()

    def begin(self, part: Part, number: int, total: int) -> None:
        self._place = f"{number}/{total}"
        self._of_part = 0.0
        self._step = part.seconds / max(part.steps, 1)
        self._progress.update(self._task, description=f"{self._place} {part.title}")
        self._show()

    def advance(self) -> None:
        self._of_part += self._step
        self._show()

    def end(self, part: Part, seconds: float, problem: str | None) -> None:
        self._done += part.seconds
        self._of_part = 0.0
        self._show()
        if not self._shown:
            outcome = f"{seconds:.0f} s" if problem is None else f"not run: {problem}"
            self._console.print(f"{self._place} {part.title}: {outcome}; {self._estimate()}", soft_wrap=True)

    def _show(self) -> None:
        self._progress.update(self._task, completed=self._done + self._of_part, left=self._estimate())

    def _estimate(self) -> str:
        """The time left: the estimates, corrected by how good they were so far."""
        done = self._done + self._of_part
        elapsed = time.monotonic() - self._begun
        pace = elapsed / done if done > 5 else 1.0
        left = max(0.0, (self._left - done) * pace)
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"
