"""Plain memory as source and sink: a buffer with a watermark, which one writer raises and many readers follow."""

import threading
from collections.abc import Callable

__all__ = ["Memory", "MemorySink"]


class Memory:
    """A `Source`. One thread at a time writes and raises the watermark; readers get a callback after each rise."""

    device: int | None = None

    def __init__(self, buffer: bytearray | memoryview, watermark: int = 0) -> None:
        self.view = memoryview(buffer).cast("B")
        self._watermark = watermark
        self._lock = threading.Lock()
        self._readers: tuple[Callable[[], None], ...] = ()  # replaced as a whole, so that it is read without the lock

    def watermark(self) -> int:
        return self._watermark

    def window(self, offset: int, length: int) -> memoryview:
        return self.view[offset : offset + length]

    def subscribe(self, risen: Callable[[], None]) -> None:
        with self._lock:
            self._readers = (*self._readers, risen)

    def unsubscribe(self, risen: Callable[[], None]) -> None:
        with self._lock:
            self._readers = tuple(reader for reader in self._readers if reader is not risen)

    def rise(self, watermark: int) -> None:
        if watermark > self._watermark:
            self._watermark = watermark
            for risen in self._readers:
                risen()


class MemorySink:
    """A `Sink` that takes everything at once, where every byte is final on arrival."""

    device: int | None = None

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self._size = size
        self.window = memory.window
        self.arrived = memory.rise
        self.watermark = memory.watermark
        self.end = memory.watermark

    def limit(self) -> int:
        return self._size

    def subscribe(self, grown: Callable[[], None]) -> None:
        """Neither the limit nor the watermark ever rises by itself."""
