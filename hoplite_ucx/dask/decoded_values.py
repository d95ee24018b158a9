"""Values that were expensive to decode, kept in this process until Dask forgets their anchor.

A model of many small objects takes seconds to unpickle: once for the process, and not for every task. Arrays lie in
shared memory and cost nothing to look at again, so they are not kept: their memory stays free to be evicted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


class _Entry:
    __slots__ = ("kept", "lock", "users", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.kept = False
        self.value: Any = None


class DecodedValues:
    """Threads that ask for the same value at the same time decode it once, if it is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[bytes, _Entry] = {}

    def get(self, ref: bytes, fetch: Callable[[Callable[[], None]], Any]) -> Any:
        """The value that is kept, or what `fetch` returns; `fetch` is given a function to call if it is to be kept."""
        with self._lock:
            entry = self._entries.setdefault(ref, _Entry())
            entry.users += 1
        try:
            with entry.lock:
                if entry.kept:
                    return entry.value
                keep: list[bool] = []
                value = fetch(lambda: keep.append(True))
                if keep:
                    entry.value, entry.kept = value, True
                return value
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users and not entry.kept and self._entries.get(ref) is entry:
                    del self._entries[ref]

    def forget(self, refs: Iterable[bytes]) -> None:
        with self._lock:
            for ref in refs:
                self._entries.pop(ref, None)

    def __len__(self) -> int:
        return len(self._entries)


values = DecodedValues()
"""Of this process, for all its workers."""
