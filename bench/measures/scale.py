"""How operations scale: a grid of operations, numbers of hosts and sizes, each cell measured as `operations` does.

Hosts have the rate that was asked for, as long as all of them together have no more than `TOGETHER`: what a small
machine can shape and carry. A cell that would take too much of the memory that is available, or too long for a round,
is not run and listed with the reason. Every size has a live cluster of its own, since a store keeps the segments of
what it held before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from hoplite_ucx.bench.harness.machine_facts import MEMORY_SHARE, memory_available, memory_needed
from hoplite_ucx.bench.harness.timing import Measurement, limit_seconds
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.measures.operations import ROUNDS, check_cell, compare_on, live_clusters

__all__ = [
    "MOST_HOSTS",
    "OPERATIONS",
    "TOGETHER",
    "Cell",
    "NotRun",
    "ScaleFigures",
    "grid",
    "measure_scale",
    "rounds_of",
]

OPERATIONS = ("broadcast", "reduce", "allreduce")
MOST_HOSTS = 16
TOGETHER = 1e9
"""Bytes per second, 8 Gbit/s: above 8 hosts of 1 Gbit/s, hosts get less each."""

_LONGEST = 60.0  # a round, at the rate of its links: a worker's calls wait twice as long


@dataclass(frozen=True)
class Cell:
    """`rate` is that of each host, in bytes per second."""

    operation: str
    hosts: int
    size: int
    rate: float

    @property
    def limit(self) -> float:
        return limit_seconds(self.operation, self.hosts, self.size, self.rate)


@dataclass(frozen=True)
class NotRun:
    """A cell that was left out: what it needs of something, and how much of that there is."""

    cell: Cell
    why: str
    needs: float
    there: float

    def json_line(self) -> str:
        return json.dumps(
            {
                "what": self.cell.operation,
                "operation": self.cell.operation,
                "hosts": self.cell.hosts,
                "size": self.cell.size,
                "rate": self.cell.rate,
                "not_run": self.why,
                "needs": self.needs,
                "there": self.there,
            }
        )


@dataclass
class ScaleFigures:
    measured: list[Measurement] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)


def grid(operations: Iterable[str], hosts: Iterable[int], sizes: Iterable[int], rate: float) -> list[Cell]:
    """All cells, those of one cluster side by side. Refuses what could never be measured."""
    cells = [
        Cell(operation, count, size, min(rate, TOGETHER / count))
        for count in sorted(set(hosts))
        for size in sorted(set(sizes))
        for operation in dict.fromkeys(operations)
    ]
    for cell in cells:
        if cell.operation not in ROUNDS:
            raise PeerError(f"{cell.operation!r} is not one of {', '.join(ROUNDS)}")
        if not 2 <= cell.hosts <= MOST_HOSTS:
            raise PeerError(f"a cluster is scaled from 2 to {MOST_HOSTS} hosts, not to {cell.hosts}")
        check_cell(cell.operation, cell.hosts, cell.size, memory=False)
    return cells


def measure_scale(
    cells: Iterable[Cell],
    *,
    repeat: int,
    untimed: int = 1,
    bare: bool = False,
    advance: Callable[[], object] = lambda: None,
    told: Callable[[Measurement | NotRun], object] = lambda _: None,
) -> ScaleFigures:
    """Measure the cells in their order; each figure, and each cell that is left out, is `told` as soon as it is."""
    figures = ScaleFigures()
    for (hosts, rate, size), group in itertools.groupby(cells, lambda cell: (cell.hosts, cell.rate, cell.size)):
        fitting = []
        for cell in group:
            if (left_out := _too_much(cell, bare)) is None:
                fitting.append(cell)
            else:
                figures.not_run.append(left_out)
                told(left_out)
                for _ in range(rounds_of([cell], repeat, untimed, bare)):
                    advance()
        if not fitting:
            continue
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(hosts, rate))
            lives = live_clusters(stack, cluster.hosts, rate, size)
            for cell in fitting:
                for measured in compare_on(
                    cluster.hosts, lives, cell.operation, size=size, rate=rate, repeat=repeat, untimed=untimed,
                    bare=bare, advance=advance,
                ):  # fmt: skip
                    figures.measured.append(measured)
                    told(measured)
    return figures


def rounds_of(cells: Collection[Cell], repeat: int, untimed: int, bare: bool) -> int:
    """How often `measure_scale` advances."""
    return len(cells) * (repeat + untimed) * (1 + bare)


def _too_much(cell: Cell, bare: bool) -> NotRun | None:
    needed = memory_needed(cell.operation, cell.hosts, cell.size) + (cell.hosts * cell.size if bare else 0)
    there = memory_available()
    if needed > MEMORY_SHARE * there:
        why = f"about {needed >> 20} MiB of memory are needed, and {MEMORY_SHARE:.0%} of {there >> 20} MiB may be used"
        return NotRun(cell, why, needed, there)
    if cell.limit > _LONGEST:
        why = f"a round takes {cell.limit:.0f} s at this rate, and may take at most {_LONGEST:.0f} s"
        return NotRun(cell, why, cell.limit, _LONGEST)
    return None
