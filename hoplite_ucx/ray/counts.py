"""How often this process used plain Ray instead of hoplite, and why: reported to the owner, for `status()`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

_GATHER = 0.5
"""What is counted within this time is reported together."""


class Counts:
    def __init__(self, report: Callable[[Counter[str]], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._new: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        """Of this process."""

    def add(self, what: str) -> None:
        with self._lock:
            first = not self._new
            self._new[what] += 1
            self.total[what] += 1
        if first:
            threading.Thread(target=self._tell, name="hoplite-counts", daemon=True).start()

    def _tell(self) -> None:
        time.sleep(_GATHER)
        with self._lock:
            new, self._new = self._new, Counter()
        self._report(new)
