"""What is recorded of a process: spans and marks on named tracks, in a ring of bounded size.

A span is recorded when it ends, with its beginning, so that the ring never holds half of one. Spans that are open are
kept apart, and given out as unfinished.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from msgspec import Struct, structs

__all__ = ["Arguments", "Mark", "Record", "Recording", "Span", "Taken"]

KEPT = 65_536
"""Records of a process that nobody has taken yet; of more, the oldest are dropped, and counted."""
TAKEN = 8_192
"""Records that are given out at a time."""

Key: TypeAlias = tuple[Any, ...]
"""What a span is, and of what."""
Arguments: TypeAlias = dict[str, str | int | float | bool]


class _Record(Struct, frozen=True, array_like=True, tag=True):
    pass


class Span(_Record, frozen=True):
    """Something that took time. `starts` and `follows` are the names of arrows, from the one span to the other."""

    track: str
    name: str
    began: float
    ended: float
    details: Arguments = {}
    starts: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()


class Mark(_Record, frozen=True):
    """Something that took no time."""

    track: str
    name: str
    at: float
    details: Arguments = {}


Record: TypeAlias = Span | Mark


class Taken(Struct, frozen=True, array_like=True):
    """Records since the last time. `more`: there are others, to be taken at once. `open` are unfinished spans, as they
    are now; they come again."""

    records: list[Record]
    open: list[Span]
    dropped: int
    more: bool


class Recording:
    """For one thread."""

    def __init__(self) -> None:
        self._ring: deque[Record] = deque(maxlen=KEPT)
        self._open: dict[Key, Span] = {}
        self._dropped = 0

    def add(self, record: Record) -> None:
        if len(self._ring) == KEPT:
            self._dropped += 1
        self._ring.append(record)

    def begin(self, key: Key, span: Span, now: float) -> None:
        """One that is open under this key ends now."""
        self.end(key, now)
        self._open[key] = span

    def is_open(self, key: Key) -> bool:
        return key in self._open

    def began(self, key: Key) -> float | None:
        return self._open[key].began if key in self._open else None

    def open_keys(self) -> list[Key]:
        return list(self._open)

    def end(self, key: Key, now: float, **details: str | int | float | bool) -> None:
        """Nothing happens if there is none: it may have begun before the recording."""
        span = self._open.pop(key, None)
        if span is not None:
            self.add(structs.replace(span, ended=now, details={**span.details, **details}))

    def end_wait(self, key: Key, now: float) -> None:
        """Nobody waited, if it ends as soon as it began."""
        if key in self._open and self._open[key].began == now:
            del self._open[key]
        self.end(key, now)

    def end_all(self, now: float, **details: str | int | float | bool) -> None:
        for key in self.open_keys():
            self.end(key, now, **details)

    def take(self, now: float) -> Taken:
        ring = self._ring
        records = [ring.popleft() for _ in range(min(TAKEN, len(ring)))]
        unfinished = [
            structs.replace(span, ended=max(now, span.began), details={**span.details, "unfinished": True})
            for span in self._open.values()
        ]
        return Taken(records, unfinished, self._dropped, bool(ring))
