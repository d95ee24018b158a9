"""How every benchmark measures and reports: repeated runs, their median and spread, and the ratio to the limit.

The limit of an operation is the time its bytes need on the busiest link, at 0.95 of the shaped rate: what is left of a
link after the headers of Ethernet, IP and TCP. Time runs from a barrier until the last host is done, after an
untimed round. Figures are printed for people, or as one JSON object a line, with nothing else on standard output.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import Progress

__all__ = ["LIMITS", "PAYLOAD", "Measurement", "Round", "limit_seconds", "measure", "measure_in_turn", "progress_bar"]

# The part of a link's rate that bulk TCP can fill with its users' bytes.
PAYLOAD = 0.95

# What the busiest link carries in an operation of n hosts, in sizes of one object.
LIMITS: dict[str, Callable[[int], float]] = {
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "gather": lambda hosts: hosts - 1.0,
    "allreduce": lambda hosts: 2.0 * (hosts - 1) / hosts,
    "arrivals": lambda _: 1.0,  # a reduce, after the last has come
    "rtt": lambda _: 2.0,  # there and back
}


def limit_seconds(operation: str, hosts: int, size: int, rate: float) -> float:
    """The least time an operation can take between `hosts` hosts of `rate` bytes per second each."""
    return LIMITS[operation](hosts) * size / (PAYLOAD * rate)


@dataclass(frozen=True)
class Round:
    """One run: how long it took, and how much processor time all its processes together."""

    seconds: float
    processor: float


@dataclass(frozen=True)
class Measurement:
    """The seconds of every timed run of one thing, and what it was."""

    what: str
    runs: tuple[float, ...]
    limit_seconds: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    processor: float | None = None
    """The processor time of a run, where it is known: it can be trusted more than the clock on a busy machine."""

    @property
    def seconds(self) -> float:
        return statistics.median(self.runs)

    @property
    def fastest(self) -> float:
        return min(self.runs)

    @property
    def slowest(self) -> float:
        return max(self.runs)

    @property
    def spread(self) -> float:
        """How far the runs lie apart, as a part of their median."""
        return (self.slowest - self.fastest) / self.seconds

    @property
    def ratio(self) -> float | None:
        return None if self.limit_seconds is None else self.seconds / self.limit_seconds

    def json_line(self) -> str:
        return json.dumps(
            {
                "what": self.what,
                "seconds": self.seconds,
                "limit_seconds": self.limit_seconds,
                "ratio": self.ratio,
                "fastest_seconds": self.fastest,
                "slowest_seconds": self.slowest,
                "spread": self.spread,
                "runs": self.runs,
                "processor_seconds": self.processor,
                **self.settings,
            }
        )


def measure(
    what: str,
    run: Callable[[], Round],
    *,
    repeat: int,
    untimed: int = 1,
    limit: float | None = None,
    settings: dict[str, Any] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> Measurement:
    """Call `run` `repeat` times after `untimed` rounds; `advance` after each."""
    (measured,) = measure_in_turn(
        {what: run}, repeat=repeat, untimed=untimed, limit=limit, settings=settings, advance=advance
    )
    return measured


def measure_in_turn(
    what: Mapping[str, Callable[[], Round]],
    *,
    repeat: int,
    untimed: int = 1,
    limit: float | None = None,
    settings: dict[str, Any] | None = None,
    seconds: float = math.inf,
    advance: Callable[[], object] = lambda: None,
) -> list[Measurement]:
    """Measure several things that are to be compared: a round of each in turn, so that noise affects all alike. Once
    each has been timed, none starts later than `seconds` after the first."""
    rounds: dict[str, list[Round]] = {name: [] for name in what}
    began = time.monotonic()
    for number in range(untimed + repeat):
        if number > untimed and time.monotonic() - began > seconds:
            break
        for name, run in what.items():
            each = run()
            if number >= untimed:
                rounds[name].append(each)
            advance()
    return [
        Measurement(
            name,
            tuple(each.seconds for each in timed),
            limit,
            settings or {},
            statistics.median(each.processor for each in timed),
        )
        for name, timed in rounds.items()
    ]


@contextmanager
def progress_bar(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's standard error, gone when done; what it yields moves it on by one."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
