"""The node's store: segments with their memory and watermark, and the recycling of unused memory.

A segment gets its memory when it is known who fills it: this process (received objects, slots), or one worker (a put),
which maps it writable and keeps that mapping for its later puts. Small ones live in plain memory of this process and
travel by copy. Memory is recycled only when every process that it was given to has reported its release; a process that
vanished, or forked meanwhile, may still read it, and it is dropped instead.

The memory is the host's, or a device's: that belongs to this copy of an object, and only this host knows of it.

How much may be used is the protocol's account. What lies in the pools comes on top of it only up to the same limit.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hoplite_ucx.gpu.arithmetic import bytes_on
from hoplite_ucx.gpu.copies import copy
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.segments import DeviceMemory, Window
from hoplite_ucx.protocol.messages import BIND_ALIGNMENT
from hoplite_ucx.runtime.agent.device_memory import DeviceMemories
from hoplite_ucx.runtime.objects.kernels import Bytes
from hoplite_ucx.runtime.settings import StoreSettings
from hoplite_ucx.transports import shm

_NONE: Bytes = np.empty(0, np.uint8)


@dataclass(slots=True, eq=False)
class Backing:
    """The memory of a segment: of the host, or of a device. `writer` is the worker that has it mapped writable, if
    any."""

    number: int
    shared: shm.SharedMemory | DeviceMemory | None
    array: Bytes
    writer: bytes | None = None
    sealed: bool = False
    mapped: int = 0
    """Mappings given out to readers that were not reported back."""
    tainted: bool = False
    """A process that we cannot hear from any more may still read it."""

    @property
    def capacity(self) -> int:
        return len(self.array) if self.shared is None else self.shared.capacity

    @property
    def device(self) -> int | None:
        return self.shared.device if isinstance(self.shared, DeviceMemory) else None

    def memory(self, size: int) -> memoryview | Window:
        if isinstance(self.shared, DeviceMemory):
            return self.shared.window()[:size]
        return self.array.data[:size]


class Segment:
    """The bytes of one holding. Everything below the watermark is final; listeners hear of each rise."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.backing: Backing | None = None
        self.twin: Backing | None = None
        """A copy of the whole in memory of the host, for those who cannot map the device that it is on."""
        self.memory: memoryview | Window = memoryview(b"")
        self._array: Bytes | None = None
        self._watermark = 0
        self._missing = 0
        self._pieces = 0
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._lock = threading.Lock()

    def back(self, backing: Backing) -> None:
        self.backing = backing
        self.memory = backing.memory(self.size)
        self._array = None

    @property
    def device(self) -> int | None:
        return self.memory.device if isinstance(self.memory, Window) else None

    @property
    def idle(self) -> bool:
        """Whether it is complete, and no stream or slot of this node follows it, or has a piece of its memory."""
        return self._watermark == self.size and not (self._listeners or self._pieces)

    def adopt(self, data: bytes) -> None:
        """All of a small object at once: it lives in these very bytes."""
        self.memory = memoryview(data)
        self.raise_watermark(self.size)

    @property
    def array(self) -> Bytes:
        """The memory, for arithmetic where it is: on a device it is an array of CuPy, which whoever asks has loaded."""
        if self._array is None or len(self._array) != self.size:
            memory = self.memory
            self._array = bytes_on(memory) if isinstance(memory, Window) else np.frombuffer(memory, np.uint8)
        return self._array

    def watermark(self) -> int:
        return self._watermark

    def raise_watermark(self, watermark: int) -> None:
        if watermark > self._watermark:
            self._watermark = watermark
            for listener in self._listeners:
                listener()

    def share(self, missing: int) -> None:
        """A piece has some of its memory. This many bytes will come through that."""
        with self._lock:
            self._pieces += 1
            self._missing += missing

    def unshare(self) -> None:
        with self._lock:
            self._pieces -= 1

    def filled(self, size: int) -> None:
        with self._lock:
            self._missing -= size
            whole = not self._missing
        if whole:
            self.raise_watermark(self.size)

    def window(self, offset: int, length: int) -> memoryview | Window:
        """As a source: bytes that are final."""
        return self.memory[offset : min(offset + length, self._watermark)]

    def subscribe(self, risen: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = (*self._listeners, risen)

    def unsubscribe(self, risen: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = tuple(listener for listener in self._listeners if listener != risen)


class Piece(Segment):
    """A segment that shares the bytes of another, with a watermark of its own. When every byte that was to come through
    pieces is final, so is the whole."""

    def __init__(self, number: int, whole: Segment, offset: int, size: int) -> None:
        super().__init__(number, size)
        self.offset = offset
        self.whole = whole
        self.memory = whole.memory[offset : offset + size]
        self._watermark = min(size, max(0, whole.watermark() - offset))
        whole.share(size - self._watermark)

    def raise_watermark(self, watermark: int) -> None:
        before = self._watermark
        super().raise_watermark(watermark)
        if self._watermark > before:
            self.whole.filled(self._watermark - before)


class SegmentSink:
    """A stream into a whole segment: what arrives is final. Until the end its watermark is between two elements, where
    a slot can continue by combining."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.device = segment.device

    def window(self, offset: int, length: int) -> memoryview | Window:
        return self._segment.memory[offset : offset + length]

    def arrived(self, end: int) -> None:
        self._segment.raise_watermark(end if end == self._segment.size else end - end % BIND_ALIGNMENT)

    def watermark(self) -> int:
        return self._segment.watermark()

    def limit(self) -> int:
        return self._segment.size

    def subscribe(self, grown: Callable[[], None]) -> None:
        """The limit is the size, and the watermark rises only by what arrives."""

    def end(self) -> int:
        return self._segment.watermark()


def _yield_to_others() -> None:
    """Memory that is not urgent is prepared when nothing else needs the processor."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class Store:
    """All segments of a node. Every method is called on the loop's thread."""

    def __init__(self, limit: int, forget: Callable[[bytes, int], None], settings: StoreSettings | None = None) -> None:
        """`forget(worker, backing)` tells a worker to unmap memory that will not be its own again."""
        settings = settings or StoreSettings()
        self.devices = DeviceMemories(settings.device_memory)
        self._limit = limit
        self.small = settings.small
        """Objects up to this size are copied through the socket: cheaper than a mapping, and it holds no descriptor."""
        self._most_spare = settings.spare
        self._forget = forget
        self.segments: dict[int, Segment] = {}
        self.used = 0
        self.pooled = 0
        self.moved_to_host = 0
        """Bytes that left a device so far, to make room there."""
        self._free: deque[Backing] = deque()  # oldest first
        self._made = 0
        self._background = ThreadPoolExecutor(1, "hoplite-prefault", _yield_to_others)
        self._copying = ThreadPoolExecutor(1, "hoplite-to-host")
        self._twins: dict[Future[None], Backing] = {}
        self._spares_wanted: set[int] = set()
        self._spares: dict[int, shm.SharedMemory] = {}
        self._spare_lock = threading.Lock()

    def allocate(self, number: int, size: int) -> None:
        self.segments[number] = Segment(number, size)
        self.used += size

    def window(self, number: int, of: int, offset: int, size: int) -> None:
        """A segment that is a piece of another one; it takes no memory of its own."""
        whole = self.segments[of]
        self.back(whole)
        self.segments[number] = Piece(number, whole, offset, size)

    def __getitem__(self, number: int) -> Segment:
        return self.segments[number]

    def back(self, segment: Segment) -> None:
        """Give a segment memory that this process fills. Without descriptors it is memory that workers cannot map."""
        if len(segment.memory) == segment.size > 0:
            return  # it has some
        try:
            segment.back(self._small(segment.size) if segment.size <= self.small else self._take(segment.size, None))
        except OSError:
            segment.back(self._small(segment.size))

    def back_on(self, segment: Segment, device: int, worker: bytes | None = None) -> Backing | None:
        """Give a segment memory of a device, which a worker or this process fills; None if there is none to give. The
        host's limit counts it too, so that the host has room for it whenever the device has not.

        Workers unmap it when they have filled it, since nothing could stop them from writing later."""
        if segment.size <= self.small:
            return None
        memory = self.devices.take(device, segment.size)
        if memory is None:
            return None
        self._made += 1
        backing = Backing(self._made, memory, _NONE, worker, sealed=worker is None)
        try:
            segment.back(backing)
        except CudaError as error:
            self.devices.drop(memory)
            self.devices.lose(device, error)
            return None
        return backing

    def twin(self, segment: Segment) -> Future[None]:
        """Have a copy of a complete segment in memory of the host. The future is done when it is there; the loop then
        calls `keep_twin`."""
        backing = self._take(segment.size, None)
        target, source = backing.memory(segment.size), segment.memory
        copying: Future[None] = self._copying.submit(copy, target, source)
        self._twins[copying] = backing
        return copying

    def keep_twin(self, segment: Segment, copying: Future[None]) -> bool:
        """Whether the copy came about; raises what went wrong with it."""
        backing = self._twins.pop(copying)
        error = copying.exception()
        if error is None and self.segments.get(segment.number) is segment and segment.twin is None:
            segment.twin = backing
            return True
        self._let_go(backing)
        if isinstance(error, CudaError) and segment.device is not None:
            self.devices.lose(segment.device, error)
        if error is not None:
            raise error
        return segment.twin is not None

    def evictable(self, device: int) -> Segment | None:
        """The oldest object on a device that nobody looks at: it may go to the host."""
        for segment in self.segments.values():
            backing = segment.backing
            if backing is not None and backing.device == device and segment.idle and not backing.mapped:
                return segment
        return None

    def evict(self, segment: Segment) -> bool:
        """Let go of a segment's memory on a device, of which there is a twin; False if somebody uses it meanwhile."""
        backing, twin = segment.backing, segment.twin
        if backing is None or backing.device is None or twin is None or not segment.idle or backing.mapped:
            return False
        segment.back(twin)
        segment.twin = None
        self.moved_to_host += segment.size
        self._let_go(backing)
        return True

    def back_for(self, segment: Segment, worker: bytes) -> tuple[Backing, bool]:
        """Give a segment memory that a worker fills; says whether the worker has it mapped from before."""
        backing = self._take(segment.size, worker)
        segment.back(backing)
        known = backing.writer is not None
        backing.writer = worker
        return backing, known

    def seal(self, segment: Segment) -> None:
        """The writer is done."""
        backing = segment.backing
        if backing is not None and backing.shared is not None and not backing.sealed:
            if isinstance(backing.shared, shm.SharedMemory):
                shm.seal(backing.shared)
            else:
                backing.writer = None  # it has unmapped it
            backing.sealed = True

    def free(self, number: int) -> Segment:
        segment = self.segments.pop(number)
        if isinstance(segment, Piece):
            segment.whole.unshare()
            return segment
        self.used -= segment.size
        for backing in (segment.backing, segment.twin):
            if backing is not None and backing.shared is not None:
                self._let_go(backing)
        return segment

    def worker_left(self, worker: bytes) -> None:
        """Memory that it had mapped writable has no owner any more."""
        for backing in [backing for backing in self._free if backing.writer == worker]:
            self._free.remove(backing)
            self.pooled -= backing.capacity
            self._drop(backing)
        for segment in self.segments.values():
            if segment.backing is not None and segment.backing.writer == worker:
                segment.backing.tainted = True

    def close(self) -> None:
        self._background.shutdown(wait=True, cancel_futures=True)
        self._copying.shutdown(wait=True, cancel_futures=True)
        for segment in self.segments.values():
            for backing in (segment.backing, segment.twin):
                if backing is not None:
                    self._drop(backing, tell=False)
        for backing in self._twins.values():
            self._drop(backing, tell=False)
        self.devices.close()
        for backing in self._free:
            self._drop(backing, tell=False)
        for spare in self._spares.values():
            spare.close()
        self.segments.clear()
        self._free.clear()
        self._spares.clear()

    # --- inside ------------------------------------------------------------------------------------------------

    def _small(self, size: int) -> Backing:
        self._made += 1
        return Backing(self._made, None, np.empty(size, np.uint8))

    def _take(self, size: int, writer: bytes | None) -> Backing:
        capacity = shm.size_class(size)
        # The latest first: its pages are the warmest.
        for backing in reversed(self._free):
            if backing.capacity == capacity and backing.writer == writer:
                self._free.remove(backing)
                self.pooled -= backing.capacity
                return backing
        self._trim()
        with self._spare_lock:
            shared = self._spares.pop(capacity, None)
        if shared is None:
            shared = shm.create(capacity)
        self._prepare_spare(capacity)
        self._made += 1
        backing = Backing(self._made, shared, shared.array)
        if writer is None:
            shm.seal(shared)
            backing.sealed = True
        return backing

    def _trim(self) -> None:
        """Let the oldest pooled memory go until what is used and pooled is within the limit."""
        while self._free and self.used + self.pooled > self._limit:
            backing = self._free.popleft()
            self.pooled -= backing.capacity
            self._drop(backing)

    def _let_go(self, backing: Backing) -> None:
        """It is recycled, unless some process may still use it."""
        if backing.tainted or backing.mapped or (backing.writer is not None and not backing.sealed):
            self._drop(backing)
        elif isinstance(backing.shared, DeviceMemory):
            self.devices.give_back(backing.shared)
        else:
            self._free.append(backing)
            self.pooled += backing.capacity
            self._trim()

    def _drop(self, backing: Backing, *, tell: bool = True) -> None:
        if isinstance(backing.shared, DeviceMemory):
            self.devices.drop(backing.shared)
        elif backing.shared is not None:
            backing.shared.close()
        if tell and backing.writer is not None:  # also if a put was given up: its worker keeps every mapping
            self._forget(backing.writer, backing.number)

    def _prepare_spare(self, capacity: int) -> None:
        """A worker that made one object of a size is likely to make another: have its pages ready."""
        if capacity > self._most_spare or self.used + self.pooled + 2 * capacity > self._limit:
            return
        with self._spare_lock:
            if capacity in self._spares or capacity in self._spares_wanted:
                return
            self._spares_wanted.add(capacity)
        self._background.submit(self._make_spare, capacity)

    def _make_spare(self, capacity: int) -> None:
        shared = shm.create(capacity)
        try:
            shm.prefault(shared)
        except OSError:
            shared.close()  # no memory to spare: the next request for it reports that
            shared = None  # type: ignore[assignment]
        with self._spare_lock:
            self._spares_wanted.discard(capacity)
            if shared is not None:
                self._spares[capacity] = shared
            while len(self._spares) > 1 and sum(self._spares) > self._most_spare:
                self._spares.pop(next(iter(self._spares))).close()
