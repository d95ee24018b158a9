"""The memory of virtual nodes: segments, and who reads them as they grow."""

from __future__ import annotations

from typing import Protocol

from hoplite_ucx.simulate.content import Content, Piece


class Reader(Protocol):
    """A stream that forwards a segment, or a slot that combines it."""

    def pump(self) -> None:
        """There is more of it."""
        ...


class Segment:
    """Memory in use by one holding: contents that outlive it, a watermark that does not. A window is a segment that
    shares the contents of another."""

    def __init__(self, size: int, content: Content | Piece, whole: Segment | None = None) -> None:
        self.size = size
        self.content = content
        self.whole = whole
        self.unfilled = 0
        """Bytes that are to come through windows."""
        self.watermark = 0
        self.readers: dict[Reader, None] = {}

    def raise_watermark(self, watermark: int) -> None:
        if watermark > self.watermark:
            before, self.watermark = self.watermark, watermark
            for reader in list(self.readers):
                reader.pump()
            if self.whole is not None:
                self.whole.filled(watermark - before)

    def filled(self, size: int) -> None:
        self.unfilled -= size
        if not self.unfilled:
            self.raise_watermark(self.size)
