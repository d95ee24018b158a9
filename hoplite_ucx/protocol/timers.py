"""Timers of a machine that has no clock: it keeps what is due, and its shell wakes it.

Each timer has a key; setting a key again moves it, so that there is never more than one of a kind.
"""

import heapq
from collections.abc import Hashable, Iterator

_SLACK = 64


class Timers:
    def __init__(self) -> None:
        self._due: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._sequence = 0  # ties fire in the order they were set, and keys are never compared

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._due)

    def set(self, key: Hashable, at: float) -> None:
        self._due[key] = at
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, key))
        if len(self._heap) > 2 * len(self._due) + _SLACK:  # moved and cancelled timers leave entries behind
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def set_no_later(self, key: Hashable, at: float) -> None:
        """Like `set`, but a timer that is due earlier stays."""
        if self._due.get(key, at) >= at:
            self.set(key, at)

    def set_if_absent(self, key: Hashable, at: float) -> None:
        if key not in self._due:
            self.set(key, at)

    def cancel(self, key: Hashable) -> None:
        self._due.pop(key, None)

    def next(self) -> float | None:
        """When the shell must come back at the latest."""
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> Iterator[Hashable]:
        """The keys whose time has come and that are not cancelled before their turn; what is set while iterating
        waits for the next look."""
        due = []
        while (at := self.next()) is not None and at <= now:
            due.append(heapq.heappop(self._heap))
        for at, _, key in due:
            if self._due.get(key) == at:
                del self._due[key]
                yield key
