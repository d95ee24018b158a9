"""The clock of a shell: what `now` is, and a timer that fires no later than a machine asked for.

A machine's wakeup moves with nearly every event, mostly to later. So the timer is not moved with it: it may fire early,
finds that nothing is due, and is set again.
"""

import asyncio
import math
import time
from collections.abc import Callable

now = time.monotonic


class Waker:
    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._due: float | None = None
        self._armed_for = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float | None) -> None:
        self._due = due
        if due is not None and due < self._armed_for:
            self._arm(due)

    def cancel(self) -> None:
        self._due = None
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_for = due
        # The loop counts in milliseconds: rounded up, so that it does not fire before the time.
        delay = math.ceil(max(0.0, due - now()) * 1000) / 1000
        self._handle = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._armed_for = math.inf
        if self._due is None:
            return
        if self._due <= now():
            self._due = None
            self._wake()
        elif self._handle is None:
            self._arm(self._due)
