"""How fast each link was over each transport, measured by the streams that it carried.

A stream is a sample if it is long and its sink took everything at once. Its delay counts from the request to the first
arrival, its rate from there to the last. If most of it came with the first arrival, the rate counts from the request. A
stream that waited for its source, or shared the link with others, shows less than the link can do, never more: so the
highest of the last few rates counts, and the shortest of the last few delays. Before any sample there are defaults.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from hoplite_ucx.transports.interface import Sink
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["ENOUGH", "LEAST", "Estimate", "Rates", "Timed", "Way"]

Way: TypeAlias = UcxSettings | None
"""A way of using a transport: UCX with these settings, or TCP."""

LEAST = 4 << 20
"""Shorter streams say more about the moment than about the link."""
ENOUGH = 3
"""With this many samples on a link, a way counts as measured there."""
_WINDOW = 8
# The size for which costs are compared: large enough that rates count, small enough that delays do.
_REFERENCE = 8 << 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """The measured speed of a way on a link; `samples` is 0 for a default."""

    bytes_per_second: float
    delay: float
    samples: int = 0

    @property
    def cost(self) -> float:
        """The seconds that an object of the reference size would take."""
        return self.delay + _REFERENCE / self.bytes_per_second

    def __str__(self) -> str:
        how = "measured" if self.samples else "supposed"
        return f"{self.bytes_per_second / 1e9:.2f} GB/s after {self.delay * 1e3:.2f} ms, {how}"


@dataclass(slots=True)
class _Samples:
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))


class Rates:
    """The samples of one node, those of streams into memory of a device apart from the others. Any thread may add some;
    each change is one atomic operation on a deque."""

    def __init__(self, default: Callable[[Way, bool], Estimate]) -> None:
        self._default = default
        self._samples: dict[tuple[int, Way, bool], _Samples] = {}

    def add(self, peer: int, way: Way, to_device: bool, count: int, seconds: float, delay: float) -> None:
        """A stream of this peer carried this many bytes in this many seconds, after a delay."""
        if count < LEAST or seconds <= 0:
            return
        samples = self._samples.setdefault((peer, way, to_device), _Samples())
        samples.delays.append(delay)
        samples.rates.append(count / seconds)

    def estimate(self, peer: int, way: Way, to_device: bool) -> Estimate:
        samples = self._samples.get((peer, way, to_device))
        if samples is None or not samples.rates:
            return self._default(way, to_device)
        return Estimate(max(samples.rates), min(samples.delays), len(samples.rates))


class Timed:
    """A sink that notes when its bytes arrived."""

    def __init__(self, sink: Sink, offset: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._arrived = sink.arrived
        self._clock = clock
        self._asked = clock()
        self._first = self._last = 0.0
        self._offset = self._start = self._end = offset
        self.device = sink.device
        self.window = sink.window
        self.watermark = sink.watermark
        self.limit = sink.limit
        self.subscribe = sink.subscribe
        self.end = sink.end

    def arrived(self, end: int) -> None:
        self._last, self._end = self._clock(), end
        if not self._first:
            self._first, self._start = self._last, end
        self._arrived(end)

    def sample(self) -> tuple[int, float, float]:
        """The bytes, the seconds they took, and how long the first arrival took."""
        delay = self._first - self._asked
        if self._end - self._start < (self._end - self._offset) / 2:
            return self._end - self._offset, self._last - self._asked, delay
        return self._end - self._start, self._last - self._first, delay
