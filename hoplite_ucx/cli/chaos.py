"""`hoplite simulate chaos`: thousands of random runs, judged; a failing seed tells its story and how to replay it.

Seeds are independent, so they are spread over all cores. With `--mutant` the machines are wrong on purpose, and the
command shows after how many seeds chaos notices.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from hoplite_ucx.simulate.chaos import Outcome, run_seed
from hoplite_ucx.simulate.cluster import VirtualCluster
from hoplite_ucx.simulate.mutants import MUTANTS

# Seeds handed to a worker at a time: enough to hide the hand-over, few enough for a smooth progress bar, and for a
# ctrl-C that need not wait long for those under way.
_BATCH = 5
_STORIES_SHOWN = 3


def chaos(
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Run the seeds from A to before B; 0:200, or 0:1500 with --mutant."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Run this one seed, and tell its story.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores by default.")] = None,
    mutant: Annotated[str | None, typer.Option(help=f"Break one rule on purpose: {', '.join(MUTANTS)}.")] = None,
    reductions: Annotated[bool, typer.Option(help="Mix reductions with puts, gets, waits and deletes.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Random clusters, workloads and faults, each run from its seed and judged by the oracle."""
    if mutant is not None and mutant not in MUTANTS:
        raise typer.BadParameter(f"{mutant!r} is not one of {', '.join(MUTANTS)}", param_hint="--mutant")
    if seed is not None and seeds is not None:
        raise typer.BadParameter("give one seed or a range of them, not both", param_hint="--seed")
    chosen = range(seed, seed + 1) if seed is not None else _range(seeds or ("0:1500" if mutant else "0:200"))
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        task = progress.add_task("chaos", total=len(chosen))
        for outcome in _run(chosen, mutant, jobs or os.cpu_count() or 1, tell=seed is not None, reductions=reductions):
            outcomes.append(outcome)
            progress.advance(task)
            if mutant is not None and not outcome.ok:
                break  # caught
    failed = [outcome for outcome in outcomes if not outcome.ok]
    summary = {
        "seeds": len(outcomes),
        "failed": len(failed),
        "seconds": time.perf_counter() - began,
        "processor_ms_per_seed": 1e3 * sum(outcome.processor_seconds for outcome in outcomes) / max(1, len(outcomes)),
        "gets": sum(outcome.gets for outcome in outcomes),
        "faults": sum(outcome.faults for outcome in outcomes),
        "events": sum(outcome.events for outcome in outcomes),
        "mutant": mutant,
    }
    if as_json:
        typer.echo(json.dumps({**summary, "failures": [asdict(outcome) for outcome in failed]}))
    else:
        options = f"{'' if reductions else ' --no-reductions'}{f' --mutant {mutant}' if mutant else ''}"
        _show(summary, outcomes if seed is not None else failed[:_STORIES_SHOWN], mutant, options)
    if bool(failed) != (mutant is not None):
        raise typer.Exit(1)


def _run(seeds: range, mutant: str | None, jobs: int, *, tell: bool, reductions: bool) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds."""
    run = partial(_run_batch, mutant=mutant, tell=tell, reductions=reductions)
    batches = [seeds[start : start + _BATCH] for start in range(0, len(seeds), _BATCH)]
    if jobs == 1 or len(batches) == 1:
        for batch in batches:
            yield from run(batch)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for outcomes in pool.map(run, batches):
                yield from outcomes
        finally:
            pool.shutdown(cancel_futures=True)


def _run_batch(seeds: range, *, mutant: str | None, tell: bool, reductions: bool) -> list[Outcome]:
    cluster_type = VirtualCluster if mutant is None else MUTANTS[mutant].cluster()
    focus = None if mutant is None else MUTANTS[mutant].focus
    return [run_seed(seed, cluster_type, tell=tell, reductions=reductions, focus=focus) for seed in seeds]


def _show(summary: Mapping[str, object], told: list[Outcome], mutant: str | None, options: str) -> None:
    console = Console(highlight=False)
    for outcome in told:
        verdict = "all promises kept" if outcome.ok else outcome.problem
        console.print(f"[bold {'green' if outcome.ok else 'red'}]seed {outcome.seed}[/]: {verdict}", soft_wrap=True)
        for line in outcome.story:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        if not outcome.ok:
            console.print(f"replay: hoplite simulate chaos --seed {outcome.seed}{options}", markup=False)
    if mutant is not None:
        caught = f"caught after {summary['seeds']}" if summary["failed"] else f"not caught in {summary['seeds']}"
        console.print(f"mutant {mutant}: {caught} seeds")
        return
    console.print(
        f"{summary['seeds']} seeds, {summary['failed']} failed; {summary['gets']} gets and {summary['faults']} faults "
        f"in {summary['seconds']:.1f} s, {summary['processor_ms_per_seed']:.1f} ms of processor time a seed",
        soft_wrap=True,
    )


def _range(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise typer.BadParameter(f"{text!r} is not a range of seeds like 0:20000", param_hint="--seeds")
    return range(int(first), int(last))
