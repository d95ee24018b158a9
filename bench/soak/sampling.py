"""What processes use, sampled over time, and whether that grows.

Memory is what a process has for itself alone: pages of shared segments come and go with objects, and their account is
the store's. A process is judged over its life, without the time in which it warms up; short lives say nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Growth", "Sampler", "Use", "use_of"]

_WARM_UP = 0.25
"""The part of a life that is not looked at."""
_LEAST_SAMPLES = 20
_MEMORY_SHARE, _MEMORY_SLACK = 0.10, 12 << 20
_DESCRIPTOR_SLACK = 24
_THREAD_SLACK = 8


@dataclass(frozen=True)
class Use:
    memory: int
    descriptors: int
    threads: int


def use_of(pid: int) -> Use | None:
    """None if the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return Use(int(fields["RssAnon"].split()[0]) << 10, descriptors, int(fields["Threads"]))
    except (OSError, KeyError):
        return None


@dataclass(frozen=True)
class Growth:
    """Medians of the first and the last third of a life, after it has warmed up."""

    process: str
    seconds: float
    first: Use
    last: Use

    @property
    def flat(self) -> bool:
        return (
            self.last.memory <= self.first.memory * (1 + _MEMORY_SHARE) + _MEMORY_SLACK
            and self.last.descriptors <= self.first.descriptors + _DESCRIPTOR_SLACK
            and self.last.threads <= self.first.threads + _THREAD_SLACK
        )


@dataclass
class _Life:
    process: str
    times: list[float] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)


class Sampler:
    def __init__(self) -> None:
        self._lives: dict[int, _Life] = {}

    def sample(self, pids: Mapping[str, int]) -> None:
        for process, pid in pids.items():
            use = use_of(pid)
            if use is not None:
                life = self._lives.setdefault(pid, _Life(process))
                life.times.append(time.monotonic())
                life.uses.append(use)

    def growth(self) -> list[Growth]:
        """Of all lives that are long enough to say something."""
        return [_growth(life) for life in self._lives.values() if len(life.uses) >= _LEAST_SAMPLES]


def _growth(life: _Life) -> Growth:
    warm = life.uses[int(_WARM_UP * len(life.uses)) :]
    third = len(warm) // 3
    return Growth(life.process, life.times[-1] - life.times[0], _median(warm[:third]), _median(warm[-third:]))


def _median(uses: list[Use]) -> Use:
    return Use(
        int(statistics.median(use.memory for use in uses)),
        int(statistics.median(use.descriptors for use in uses)),
        int(statistics.median(use.threads for use in uses)),
    )
