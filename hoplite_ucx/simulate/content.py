"""What the bytes of a segment are, symbolically: which put wrote which range.

The simulator moves no bytes. A segment remembers ranges and the token of the put they came from; a chunk carries the
ranges that its sender's segment had when it was read. So whatever mixes versions, skips a hole or writes into recycled
memory shows as a wrong token, without a byte being copied.
"""

from bisect import bisect_left
from typing import TypeAlias

Span: TypeAlias = tuple[int, int, int]
"""From, to, token."""

EMPTY = 0
"""The token of bytes that were never written."""


class Content:
    """The ranges of one piece of memory, in order and without overlap; what is missing was never written."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def write(self, start: int, end: int, token: int) -> None:
        if start >= end:
            return
        spans = self.spans
        after = bisect_left(spans, (start,))
        if after:
            low, high, before = spans[after - 1]
            grows = high == start and before == token
            if grows and (after == len(spans) or spans[after][0] > end):  # a stream that goes on: the common case
                spans[after - 1] = (low, end, token)
                return
        kept: list[Span] = []
        for low, high, old in spans:
            if low < start:
                kept.append((low, min(high, start), old))
            if high > end:
                kept.append((max(low, end), high, old))
        kept.append((start, end, token))
        self.spans = _merged(sorted(kept))

    def read(self, start: int, end: int) -> list[Span]:
        """What stands between `start` and `end`, holes included."""
        spans = self.spans
        after = bisect_left(spans, (start + 1,))
        if after and start < end <= spans[after - 1][1]:  # what one stream wrote: the common case
            return [(start, end, spans[after - 1][2])]
        found: list[Span] = []
        position = start
        for low, high, token in spans:
            if high <= start or low >= end:
                continue
            if low > position:
                found.append((position, low, EMPTY))
            found.append((max(low, start), min(high, end), token))
            position = min(high, end)
        if position < end:
            found.append((position, end, EMPTY))
        return found


class Piece:
    """A piece of another content, whose bytes it shares, counted from its own beginning."""

    __slots__ = ("_offset", "_whole")

    def __init__(self, whole: "Content | Piece", offset: int) -> None:
        self._whole = whole
        self._offset = offset

    def write(self, start: int, end: int, token: int) -> None:
        self._whole.write(start + self._offset, end + self._offset, token)

    def read(self, start: int, end: int) -> list[Span]:
        spans = self._whole.read(start + self._offset, end + self._offset)
        return [(low - self._offset, high - self._offset, token) for low, high, token in spans]


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for low, high, token in spans:
        if merged and merged[-1][1] == low and merged[-1][2] == token:
            merged[-1] = (merged[-1][0], high, token)
        else:
            merged.append((low, high, token))
    return merged
