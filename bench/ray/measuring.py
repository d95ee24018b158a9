"""Plain Ray and `hoplite_ucx.ray` in turns: two jobs in one Ray cluster, of which one works at a time."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from hoplite_ucx.bench.harness.timing import Measurement, limit_seconds
from hoplite_ucx.bench.ray.jobs import Job, ray_cluster

__all__ = ["OURS", "PLAIN", "Calls", "measure_calls", "measure_rounds"]

PLAIN, OURS = "plain Ray", "hoplite"
_START_SECONDS = 240.0
_BLOCK = 25
"""Calls of one job before it is the other's turn."""
_SAMPLES = 4000


@contextmanager
def _jobs(nodes: int, rate: float, largest: int, names: Sequence[str]) -> Iterator[dict[str, Job]]:
    with ray_cluster(nodes, rate, largest) as (started, memory), ExitStack() as stack:
        jobs = {}
        for name in names:
            plan = {"ours": name == OURS, "rate": rate, "memory": memory}
            jobs[name] = Job(started, "driver", plan, stack)
            jobs[name].report("ray", seconds=_START_SECONDS)
        yield jobs


# --- collectives ------------------------------------------------------------------------------------------------


def measure_rounds(
    operations: Sequence[str],
    sizes: Sequence[int],
    *,
    nodes: int,
    rate: float,
    repeat: int,
    names: Sequence[str] = (PLAIN, OURS),
    advance: Callable[[], object] = lambda: None,
) -> Iterator[list[Measurement]]:
    """For each operation and size, a measurement of every name; rounds in turn, after one that is not timed."""
    with _jobs(nodes, rate, max(sizes), names) as jobs:
        for operation, size in itertools.product(operations, sizes):
            runs: dict[str, list[float]] = defaultdict(list)
            for number in range(repeat + 1):
                for name, job in jobs.items():
                    seconds = job.ask("seconds", do="round", operation=operation, size=size, number=number)
                    if number:
                        runs[name].append(seconds)
                    advance()
            yield _compared(runs, operation, size, nodes, rate)


def _compared(runs: dict[str, list[float]], operation: str, size: int, nodes: int, rate: float) -> list[Measurement]:
    limit = limit_seconds(operation, nodes, size, rate)
    settings = {"operation": operation, "hosts": nodes, "size": size, "rate": rate}
    measured = []
    for name, seconds in runs.items():
        gains = {}
        if name == OURS and PLAIN in runs:
            turns = [plain / ours for plain, ours in zip(runs[PLAIN], seconds, strict=True)]
            gains = {
                "times_as_fast": statistics.median(runs[PLAIN]) / statistics.median(seconds),
                "least_times_as_fast": min(turns),
                "most_times_as_fast": max(turns),
            }
        measured.append(Measurement(name, tuple(seconds), limit, {**settings, **gains}))
    return measured


# --- small calls ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calls:
    """Of one kind and size: what both jobs took, and the median of the ratios of neighbouring blocks with its 95 %
    interval."""

    kind: str
    size: int
    count: int
    plain_seconds: float
    our_seconds: float
    ratio: float
    low: float
    high: float


def measure_calls(
    kinds: Sequence[str],
    sizes: Sequence[int],
    *,
    nodes: int,
    rate: float,
    count: int,
    advance: Callable[[], object] = lambda: None,
) -> Iterator[Calls]:
    with _jobs(nodes, rate, 1 << 20, (PLAIN, OURS)) as jobs:
        for kind, size in itertools.product(kinds, sizes):
            blocks: dict[str, list[list[float]]] = {name: [] for name in jobs}
            for number in range(-(-count // _BLOCK)):
                # Each goes first as often as second: what grows over time meets both.
                for name in sorted(jobs, reverse=number % 2 == 1):
                    asked = {"kind": kind, "size": size, "count": _BLOCK, "warm_up": number == 0}
                    blocks[name].append(jobs[name].ask("calls", do="small", **asked))
                advance()
            yield _ratios(kind, size, blocks[PLAIN], blocks[OURS])


def _ratios(kind: str, size: int, plain: list[list[float]], ours: list[list[float]]) -> Calls:
    median = statistics.median
    ratios = [median(our) / median(their) for our, their in zip(ours, plain, strict=True)]
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(_SAMPLES))
    return Calls(
        kind,
        size,
        sum(map(len, ours)),
        median(itertools.chain(*plain)),
        median(itertools.chain(*ours)),
        median(ratios),
        medians[round(0.025 * _SAMPLES)],
        medians[round(0.975 * _SAMPLES) - 1],
    )
