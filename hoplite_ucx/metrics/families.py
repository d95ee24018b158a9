"""What is exported, as plain data: families of samples, by Prometheus's conventions, without its library.

An exporter asks for them on a scrape. Whoever makes them copies every number, since they are turned into text on
another thread.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["CALL_SECONDS", "EVENT_SECONDS", "Distribution", "Family", "Histogram", "Kind", "Sample", "Total"]

CALL_SECONDS = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""Buckets for what users wait for: from a small object of this host to a broadcast of gigabytes."""
EVENT_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 1.0)
"""Buckets for how long a machine handles an event."""


class Kind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Histogram:
    """Counts by bucket. For one thread; `copy` gives what another one may read."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Distribution:
        return Distribution(self.bounds, tuple(self._counts), self.sum)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at a moment: how many values were in each bucket, the last of which has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(slots=True)
class Total:
    """How many there were, and how long they took together."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    value: float | Distribution | Total
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """`name` has the unit, and a counter's has no `_total`, which the text adds."""

    kind: Kind
    name: str
    help: str
    samples: list[Sample] = field(default_factory=list)
    labels: tuple[str, ...] = ()
