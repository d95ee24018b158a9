"""Virtual time.

The clock owns the order in which things happen in a simulation. Callbacks run at the time they were scheduled for,
those of one instant in the order in which they were scheduled, and time never goes back: what is scheduled for the
past happens now, after everything already due now. Nothing here looks at the real time, so a run is repeatable.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, isnan
from typing import Any, TypeVarTuple

__all__ = ["Clock", "Handle"]

Args = TypeVarTuple("Args")


class Handle:
    """One scheduled callback, until it has run or was cancelled."""

    __slots__ = ("_args", "_callback", "_clock")

    def __init__(self, clock: Clock, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._clock = clock
        self._callback: Callable[..., object] | None = callback
        self._args = args

    @property
    def pending(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        """Do not run it. Harmless if it has run already, or is cancelled twice."""
        if self._callback is not None:
            self._callback = None
            # The heap's entry stays until its time comes; what the callback held must not stay with it.
            self._args = ()
            self._clock._cancelled += 1


class Clock:
    """Seconds since the start of the simulation, and what is still to happen."""

    __slots__ = ("_cancelled", "_heap", "_scheduled", "now")

    def __init__(self) -> None:
        self.now = 0.0
        # The number of the entry breaks ties first come, first served, and keeps the rest from being compared: a
        # callback with its arguments, or a handle that has them, without.
        self._heap: list[tuple[float, int, Any, tuple[Any, ...] | None]] = []
        self._scheduled = 0
        self._cancelled = 0

    @property
    def pending(self) -> int:
        """How many callbacks are still to run."""
        return len(self._heap) - self._cancelled

    def at(self, when: float, callback: Callable[[*Args], object], *args: *Args) -> Handle:
        """Run `callback(*args)` at `when`, or now if that is past."""
        if not when >= self.now:
            if isnan(when):
                raise ValueError("cannot schedule at NaN")
            when = self.now
        handle = Handle(self, callback, args)
        self._scheduled = number = self._scheduled + 1
        heappush(self._heap, (when, number, handle, None))
        return handle

    def after(self, delay: float, callback: Callable[[*Args], object], *args: *Args) -> Handle:
        """Run `callback(*args)` `delay` seconds from now."""
        return self.at(self.now + delay, callback, *args)

    def post(self, delay: float, callback: Callable[[*Args], object], *args: *Args) -> None:
        """Like `after`, at least 0 seconds from now and not to be cancelled: most of all callbacks are chunks on their
        way, for which a handle would cost more than the rest."""
        self._scheduled = number = self._scheduled + 1
        heappush(self._heap, (self.now + delay, number, callback, args))

    def step(self) -> bool:
        """Run the next callback; False if there is none."""
        return self.run(max_events=1) == 1

    def run(
        self, until: float | None = None, max_events: int | None = None, unless: Callable[[], bool] | None = None
    ) -> int:
        """Run what is due, in order, and return how many callbacks ran.

        Stops when nothing is left, when everything up to and including `until` has run (it is then `until`, even if
        the last callback was earlier), after `max_events` callbacks (it is then the time of the last one), or before
        one if `unless` says so.
        """
        heap = self._heap
        horizon = inf if until is None else until
        limit = inf if max_events is None else max_events
        ran = 0
        while heap and heap[0][0] <= horizon:
            if ran >= limit or (unless is not None and unless()):
                return ran
            when, _, callback, args = heappop(heap)
            if args is None:
                handle: Handle = callback
                callback, args = handle._callback, handle._args
                if callback is None:
                    self._cancelled -= 1
                    continue
                handle._callback = None
            self.now = when
            ran += 1
            callback(*args)
        if until is not None and until > self.now:
            self.now = until
        return ran


class Waker:
    """Calls `wake` when a machine's time has come, and never twice for one moment."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._handle: Handle | None = None
        self._due: float | None = None

    def set(self, due: float | None) -> None:
        if due != self._due:
            self.cancel()
            self._due = due
            self._handle = self._clock.at(due, self._fire) if due is not None else None

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None

    def _fire(self) -> None:
        self._handle = self._due = None
        self._wake()
