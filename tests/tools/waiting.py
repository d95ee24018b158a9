"""Waiting for events: tests wait until something is so, and a bound on that only ends a hang."""

import time
from collections.abc import Callable

HANG = 60.0
"""Seconds after which a test gives up. Nothing takes a tenth of that, also on a busy machine: only what hangs does."""


def eventually(holds: Callable[[], object], seconds: float = HANG) -> None:
    """Asserts that it becomes so."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.005)
