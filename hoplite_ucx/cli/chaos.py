"""`hoplite simulate chaos`: thousands of random runs, judged; a failing seed tells its story and how to replay it.

Seeds are independent, so they are spread over all cores. With `--minutes` they are fresh ones, as many as that time
allows. With `--mutant` the machines are wrong on purpose, and the command shows after how many seeds chaos notices.
A run can be kept as a recording, which stays the same run when the generator changes, and replayed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from hoplite_ucx.cli.signals import INTERRUPTED
from hoplite_ucx.simulate.actions import Recording, RecordingError
from hoplite_ucx.simulate.chaos import Outcome, record_seed, replay, run_seed
from hoplite_ucx.simulate.cluster import VirtualCluster
from hoplite_ucx.simulate.drawing import Ambush
from hoplite_ucx.simulate.mutants import MUTANTS

# Seeds handed to a worker at a time: enough to hide the hand-over, few enough for a smooth progress bar, and for a
# ctrl-C that need not wait long for those under way.
_BATCH = 5
_BATCHES_AHEAD = 2
_STORIES_SHOWN = 3
_MOST_MINUTES = 7 * 24 * 60
# Fresh seeds are below this: short enough to type.
_FRESH = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all runs of a command have in common."""

    mutant: str | None = None
    reductions: bool = True
    tell: bool = False

    @property
    def cluster(self) -> type[VirtualCluster]:
        return VirtualCluster if self.mutant is None else MUTANTS[self.mutant].cluster()

    @property
    def focus(self) -> Ambush | None:
        return None if self.mutant is None else MUTANTS[self.mutant].focus

    @property
    def options(self) -> str:
        return f"{'' if self.reductions else ' --no-reductions'}{f' --mutant {self.mutant}' if self.mutant else ''}"


def chaos(
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Run the seeds from A up to, but not including, B; by default 0:200, or 0:1500 with --mutant.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this one seed, and print its story.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Run fresh seeds for this long, starting at one taken from the clock.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="With --seed: record the choices of that run in this file.")
    ] = None,
    replayed: Annotated[Path | None, typer.Option("--replay", help="Replay a recording, and print its story.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores by default.")] = None,
    mutant: Annotated[
        str | None, typer.Option(help=f"Leave out one rule of the protocol on purpose: {', '.join(MUTANTS)}.")
    ] = None,
    reductions: Annotated[bool, typer.Option(help="Mix reductions with puts, gets, waits and deletes.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Random clusters, workloads and faults, each made from a seed and checked by the oracle."""
    if mutant is not None and mutant not in MUTANTS:
        raise typer.BadParameter(f"{mutant!r} is not one of {', '.join(MUTANTS)}", param_hint="--mutant")
    if sum(choice is not None for choice in (seeds, seed, minutes, replayed)) > 1:
        raise typer.BadParameter("give one of --seed, --seeds, --minutes and --replay", param_hint="--seed")
    if record is not None and seed is None:
        raise typer.BadParameter("--record needs --seed, the run to record", param_hint="--record")
    if minutes is not None and not 0 < minutes <= _MOST_MINUTES:
        raise typer.BadParameter(f"give more than 0 and at most {_MOST_MINUTES} minutes", param_hint="--minutes")
    kind = _Kind(mutant, reductions, tell=seed is not None)
    if replayed is not None:
        _replay(replayed, kind, as_json=as_json)
        return
    if record is not None and seed is not None:
        _record(seed, record, kind, as_json=as_json)
        return
    with _ctrl_c_noted() as interrupted:
        if minutes is not None:
            first = time.time_ns() // 1_000_000 % _FRESH
            end = time.monotonic() + 60 * minutes
            chosen: Iterable[int] = takewhile(lambda _: time.monotonic() < end, count(first))
            if not as_json:
                typer.echo(f"seeds from {first} up, for {minutes:g} minutes")
        elif seed is not None:
            chosen = [seed]
        else:
            chosen = _range(seeds or ("0:1500" if mutant else "0:200"))
        _judge(chosen, kind, jobs or os.cpu_count() or 1, minutes, interrupted, as_json=as_json)


@contextmanager
def _ctrl_c_noted() -> Iterator[list[int]]:
    """Ctrl-C only leaves word here: it reaches every process of the terminal, at any moment, and must break none."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _judge(
    seeds: Iterable[int], kind: _Kind, jobs: int, minutes: float | None, interrupted: list[int], *, as_json: bool
) -> None:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        total = len(seeds) if isinstance(seeds, Sized) else None
        task = progress.add_task("chaos", total=total if minutes is None else 60 * minutes)
        for outcome in _run(seeds, kind, jobs):
            outcomes.append(outcome)
            done = len(outcomes) if minutes is None else time.monotonic() - began
            progress.update(task, completed=done, description=f"chaos, {len(outcomes)} seeds")
            if interrupted or (kind.mutant is not None and not outcome.ok):
                break  # the mutant is caught
    _report(outcomes, kind, time.monotonic() - began, as_json=as_json)
    failed = any(not outcome.ok for outcome in outcomes)
    if interrupted:
        raise typer.Exit(1 if failed and kind.mutant is None else INTERRUPTED)
    if failed != (kind.mutant is not None):
        raise typer.Exit(1)


def _record(seed: int, path: Path, kind: _Kind, *, as_json: bool) -> None:
    outcome, recording = record_seed(seed, kind.cluster, reductions=kind.reductions, focus=kind.focus)
    try:
        recording.write(path)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint="--record") from error
    _finish(outcome, f"seed {seed}", f"hoplite simulate chaos --replay {path}", as_json=as_json)


def _replay(path: Path, kind: _Kind, *, as_json: bool) -> None:
    try:
        recording = Recording.read(path)
        outcome = replay(recording, kind.cluster, tell=True)
    except RecordingError as error:
        raise typer.BadParameter(str(error), param_hint="--replay") from error
    _finish(outcome, str(path), f"hoplite simulate chaos --replay {path}", as_json=as_json)


def _finish(outcome: Outcome, name: str, again: str, *, as_json: bool) -> None:
    """Of a single run."""
    if as_json:
        typer.echo(json.dumps(asdict(outcome)))
    else:
        _tell(Console(highlight=False), outcome, name, again)
    if not outcome.ok:
        raise typer.Exit(1)


def _run(seeds: Iterable[int], kind: _Kind, jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds, which are asked for no sooner than they can be run."""
    if jobs == 1 or (isinstance(seeds, Sized) and len(seeds) <= _BATCH):
        for seed in seeds:
            yield from _run_batch((seed,), kind)
        return
    batches = _batches(seeds)
    under_way: deque[Future[list[Outcome]]] = deque()
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for _ in range(_BATCHES_AHEAD * jobs):
                under_way.extend(_submit(pool, batch, kind) for batch in islice(batches, 1))
            while under_way:
                yield from under_way.popleft().result()
                under_way.extend(_submit(pool, batch, kind) for batch in islice(batches, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, batch: tuple[int, ...], kind: _Kind) -> Future[list[Outcome]]:
    """Processes that this starts never hear ctrl-C, and end with their batch: they begin with it blocked, whichever way
    Python starts them. Those of a fork server would not have this process's handler."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return pool.submit(_run_batch, batch, kind)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _batches(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    left = iter(seeds)
    while batch := tuple(islice(left, _BATCH)):
        yield batch


def _run_batch(seeds: tuple[int, ...], kind: _Kind) -> list[Outcome]:
    cluster = kind.cluster
    return [run_seed(s, cluster, tell=kind.tell, reductions=kind.reductions, focus=kind.focus) for s in seeds]


def _report(outcomes: list[Outcome], kind: _Kind, seconds: float, *, as_json: bool) -> None:
    failed = [outcome for outcome in outcomes if not outcome.ok]
    processor_ms = 1e3 * sum(outcome.processor_seconds for outcome in outcomes) / max(1, len(outcomes))
    gets, faults = sum(outcome.gets for outcome in outcomes), sum(outcome.faults for outcome in outcomes)
    if as_json:
        summary = {
            "seeds": len(outcomes),
            "failed": len(failed),
            "seconds": seconds,
            "processor_ms_per_seed": processor_ms,
            "gets": gets,
            "faults": faults,
            "events": sum(outcome.events for outcome in outcomes),
            "mutant": kind.mutant,
        }
        typer.echo(json.dumps({**summary, "failures": [asdict(outcome) for outcome in failed]}))
        return
    console = Console(highlight=False)
    for number, outcome in enumerate(outcomes if kind.tell else failed):
        if number >= _STORIES_SHOWN:
            outcome.story.clear()
        replay_it = f"hoplite simulate chaos --seed {outcome.seed}{kind.options}"
        _tell(console, outcome, f"seed {outcome.seed}", replay_it)
    if kind.mutant is not None:
        caught = f"caught after {len(outcomes)}" if failed else f"not caught in {len(outcomes)}"
        console.print(f"mutant {kind.mutant}: {caught} seeds")
        return
    console.print(
        f"{len(outcomes)} seeds, {len(failed)} failed; {gets} gets and {faults} faults in {seconds:.1f} s, "
        f"{processor_ms:.1f} ms of processor time a seed",
        soft_wrap=True,
    )
    if failed and not kind.tell:
        console.print(
            "to keep such a run as a test: its replay line with --record tests/simulate/recordings/NAME.jsonl"
        )


def _tell(console: Console, outcome: Outcome, name: str, again: str) -> None:
    verdict = "all promises kept" if outcome.ok else outcome.problem
    console.print(f"[bold {'green' if outcome.ok else 'red'}]{name}[/]:", end=" ")
    console.print(verdict, markup=False, soft_wrap=True)
    for line in outcome.story:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if not outcome.ok:
        console.print(f"replay: {again}", markup=False, soft_wrap=True)


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise typer.BadParameter(f"{text!r} is not a range of seeds like 0:20000", param_hint="--seeds")
    return range(int(first), int(last))
