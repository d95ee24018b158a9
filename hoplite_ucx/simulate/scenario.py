"""What to run: hosts, an object, when each host asks, and what disturbs the run."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.simulate.cluster import Shape


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time: in seconds, or as a part of the run's limit."""

    value: float
    of_limit: bool = False

    def seconds(self, limit: float) -> float:
        return self.value * limit if self.of_limit else self.value


class Pattern(enum.StrEnum):
    TOGETHER = "together"
    EVERY = "every"
    RANDOM = "random"
    BIMODAL = "bimodal"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When receivers ask, or sources of a reduction are put.

    All together, one every so often, each at random within a while, or half at once and half after a while.
    """

    pattern: Pattern = Pattern.TOGETHER
    span: Span = Span(0.0)

    def times(self, count: int, limit: float, seed: int) -> list[float]:
        span = self.span.seconds(limit)
        match self.pattern:
            case Pattern.TOGETHER:
                return [0.0] * count
            case Pattern.EVERY:
                return [span * position for position in range(count)]
            case Pattern.RANDOM:
                draw = random.Random(seed)
                return [draw.uniform(0.0, span) for _ in range(count)]
            case Pattern.BIMODAL:
                late = count // 2
                return [0.0] * (count - late) + [span] * late


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that is killed, or a host that is unplugged: then its peers must notice its silence."""

    host: int
    at: Span
    unplug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is to be run. `copies` hosts, the source first, hold an object before the clock starts."""

    shape: Shape
    size: int
    arrivals: Arrivals = Arrivals()
    kills: tuple[Kill, ...] = ()
    copies: int = 1
    directory_crash: Span | None = None
    """When the directory dies; a successor starts a moment later."""
    put_again: bool = False
    """If the object is lost, its source comes back and puts it again, and everyone asks again."""
    absent: frozenset[int] = frozenset()
    """Receivers that do not ask."""
    count: int | None = None
    """How many of its sources a reduction takes; all of them, if it is not said."""
    getters: int = 1
    """How many hosts get a reduction's target, host 0 first."""
    everywhere: bool = False
    """The reduction is an allreduce: every host has a source and gets the target."""
    seed: int = 0

    def __post_init__(self) -> None:
        nodes = self.shape.nodes
        if nodes < 2:
            raise ValueError(f"{nodes} hosts are too few: it takes at least 2, a sender and a receiver")
        largest = Settings().max_object
        if not 1 <= self.size <= largest:
            raise ValueError(f"an object of {self.size} bytes cannot be transferred; it has 1 to {largest}")
        if not 1 <= self.copies < nodes:
            raise ValueError(f"{self.copies} copies among {nodes} hosts leave no receiver; keep 1 to {nodes - 1}")
        if self.count is not None and not 1 <= self.count <= nodes:
            raise ValueError(f"{self.count} sources cannot be taken from {nodes} hosts; take 1 to {nodes}")
        if not 1 <= self.getters <= nodes:
            raise ValueError(f"{self.getters} of {nodes} hosts cannot get the target; let 1 to {nodes}")
        for what, hosts in (("kill", [kill.host for kill in self.kills]), ("slow", list(self.shape.rates))):
            for host in hosts:
                if not 0 <= host < nodes:
                    raise ValueError(f"there is no host {host} to {what}: hosts are 0 (the source) to {nodes - 1}")

    @property
    def slow(self) -> frozenset[int]:
        return frozenset(host for host, rate in self.shape.rates.items() if rate < self.shape.bandwidth)

    def without_slow(self) -> Scenario:
        """The same, but slow hosts do not ask: what the others can then reach is what they should."""
        receivers = frozenset(range(self.copies, self.shape.nodes))
        return replace(self, absent=self.slow & receivers) if receivers - self.slow else self
