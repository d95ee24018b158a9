"""Device memory on links that know only the host's: a source and a sink between a stream and a device.

Each stream has a ring of host memory. Copies between rings and a device run on one CUDA stream per direction; whoever
asks for a copy never waits, a thread per direction does, and tells. So the copy of the next piece runs while the socket
has the last one. The stream sees a source whose watermark is what has come to the host, and a sink that takes as much
as its ring has room for.

Rings are pinned memory, up to a limit for the process. A stream that comes when it is used up gets a small ring of
plain memory, which is slower; it never waits for another stream.

After a stream is closed the device's memory is neither read nor written: closing is reported after the last copy.
"""

import ctypes as c
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu.copies import copy
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.transports.configuration import PINNED_LIMIT
from hoplite_ucx.transports.interface import Fault, ReceiveClosed, ServeClosed, Sink, Source

__all__ = ["CopiedSource", "Ring", "StagedSink", "StagedSource", "Stager"]

_RING = 8 << 20
_PLAIN_RING = 512 << 10
_PIECE = 1 << 20
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every device

Done = Callable[[CudaError | None], None]


@dataclass(slots=True, eq=False)
class Ring:
    """Host memory at an address that copies can be given."""

    address: int
    memory: memoryview
    pinned: bool

    def __len__(self) -> int:
        return len(self.memory)


@dataclass(slots=True)
class _Copy:
    """One copy: under way, with an event behind it, or still to be made by the thread that waits."""

    done: Done
    event: int = 0
    to: int = 0
    source: int = 0
    size: int = 0
    failure: CudaError | None = None


class Lane:
    """Copies of one device in one direction, done and reported in the order in which they were asked for."""

    def __init__(self, device: int, name: str) -> None:
        self._driver = cuda.load()
        self._device = device
        self._driver.enter(device)
        self._stream: int = self._driver.value(c.c_void_p, "cuStreamCreate", cuda.NON_BLOCKING)
        self._events: deque[int] = deque()
        self._lock = threading.Lock()
        self._copies: SimpleQueue[_Copy] = SimpleQueue()
        threading.Thread(target=self._run, name=f"hoplite-{name}-{device}", daemon=True).start()

    def copy(self, to: int, source: int, size: int, done: Done, *, pinned: bool) -> None:
        """`done` is called on the lane's thread, with what went wrong if something did."""
        if not pinned:
            self._copies.put(_Copy(done, to=to, source=source, size=size))
            return
        with self._lock:
            try:
                self._driver.enter(self._device)
                event = self._events.popleft() if self._events else self._new_event()
                self._driver.call("cuMemcpyAsync", to, source, size, self._stream)
                self._driver.call("cuEventRecord", event, self._stream)
            except CudaError as error:
                self._copies.put(_Copy(done, failure=error))
            else:
                self._copies.put(_Copy(done, event=event))

    def _new_event(self) -> int:
        return int(self._driver.value(c.c_void_p, "cuEventCreate", cuda.NO_TIMING))

    def _run(self) -> None:
        self._driver.enter(self._device)
        while True:
            copy = self._copies.get()
            failure = copy.failure
            try:
                if copy.event:
                    self._driver.call("cuEventSynchronize", copy.event)
                    self._events.append(copy.event)
                elif failure is None:
                    self._driver.call("cuMemcpyAsync", copy.to, copy.source, copy.size, self._stream)
                    self._driver.call("cuStreamSynchronize", self._stream)
            except CudaError as error:
                failure = error
            copy.done(failure)
            del copy  # else it would keep a stream's memory until the next one comes


class Stager:
    """The rings of a node's links, and the lanes of its devices."""

    def __init__(self, limit: int = PINNED_LIMIT) -> None:
        self._limit = limit
        self._pinned = 0
        self._free: list[Ring] = []
        self._lanes: dict[tuple[int, str], Lane] = {}
        self._lock = threading.Lock()

    def to_host(self, device: int) -> Lane:
        return self._lane(device, "to-host")

    def to_device(self, device: int) -> Lane:
        return self._lane(device, "to-device")

    def take_ring(self, device: int) -> Ring:
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._pinned + _RING <= self._limit and (ring := self._pin(device)) is not None:
                self._pinned += _RING
                return ring
        room = bytearray(_PLAIN_RING)
        return Ring(c.addressof(c.c_ubyte.from_buffer(room)), memoryview(room), pinned=False)

    def return_ring(self, ring: Ring) -> None:
        if ring.pinned:
            with self._lock:
                self._free.append(ring)

    @property
    def pinned(self) -> int:
        """How much memory is pinned, used or not. It is kept for the next streams."""
        return self._pinned

    def _lane(self, device: int, name: str) -> Lane:
        with self._lock:
            if (device, name) not in self._lanes:
                self._lanes[device, name] = Lane(device, name)
            return self._lanes[device, name]

    def _pin(self, device: int) -> Ring | None:
        driver = cuda.load()
        driver.enter(device)
        try:
            address = driver.value(c.c_void_p, "cuMemHostAlloc", _RING, _PORTABLE)
        except CudaError:
            return None  # the machine has no more memory to pin
        return Ring(address, memoryview((c.c_ubyte * _RING).from_address(address)).cast("B"), pinned=True)


class _Staged(ABC):
    """What both directions share: a ring, the copies under way, and the report when the stream and its last copy are
    over. If a copy fails, `failed` is called, on any thread: the stream is to be cancelled."""

    device: int | None = None

    def __init__(self, lane: Lane, ring: Ring, stager: Stager, failed: Callable[[], None]) -> None:
        self._lane = lane
        self._ring: Ring | None = ring
        self._stager = stager
        self._failed = failed
        self._lock = threading.Lock()
        self._under_way = 0
        self._broken = self._closed = False

    def _copy(self, to: int, source: int, end: int, window: Window, *, pinned: bool) -> None:
        """Ask for the copy that ends there. The lock is held."""
        self._under_way += 1
        self._lane.copy(to, source, window.nbytes, partial(self._copied, end, window), pinned=pinned)

    def _copied(self, end: int, _: Window, failure: CudaError | None) -> None:
        """The window is here only to keep its mapping until now. Copies are done in order, on one thread."""
        if failure is None and not self._broken:
            self._reached(end)
        with self._lock:
            self._under_way -= 1
            first = failure is not None and not self._broken
            self._broken = self._broken or first
        if first:
            self._failed()
        elif not self._broken:
            self._tell()
        self._report()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        self._report()

    def _report(self) -> None:
        with self._lock:
            if not self._closed or self._under_way or self._ring is None:
                return
            ring, self._ring = self._ring, None
        self._stager.return_ring(ring)
        self._over()

    @abstractmethod
    def _reached(self, end: int) -> None:
        """Everything before this has been copied."""

    @abstractmethod
    def _tell(self) -> None:
        """Whoever waits for a copy."""

    @abstractmethod
    def _over(self) -> None:
        """The device's memory is neither read nor written any more."""


class StagedSource(_Staged):
    """A device's bytes as a source of the host. Copies begin when the receiver has asked for the stream (`begin`).

    Whoever asks for a window is done with everything before it, as a link over a socket is.
    """

    def __init__(
        self, source: Source, offset: int, on_closed: ServeClosed, failed: Callable[[], None], stager: Stager
    ) -> None:
        assert source.device is not None
        super().__init__(stager.to_host(source.device), stager.take_ring(source.device), stager, failed)
        self._source = source
        self._start = self._taken = self._issued = self._staged = offset
        self._on_closed = on_closed
        self._readers: tuple[Callable[[], None], ...] = ()
        self._begun = False
        source.subscribe(self._stage)  # from now on: who follows a source keeps it where it is

    def watermark(self) -> int:
        return self._staged

    def window(self, offset: int, length: int) -> memoryview:
        ring = self._ring
        assert ring is not None
        self._taken = offset
        self._stage()
        place = (offset - self._start) % len(ring)
        return ring.memory[place : place + min(length, self._staged - offset, len(ring) - place)]

    def subscribe(self, risen: Callable[[], None]) -> None:
        with self._lock:
            self._readers = (*self._readers, risen)

    def unsubscribe(self, risen: Callable[[], None]) -> None:
        with self._lock:
            self._readers = tuple(reader for reader in self._readers if reader != risen)

    def begin(self) -> None:
        self._begun = True
        self._stage()

    def close(self) -> None:
        """The stream is over: report it when no copy reads the device any more."""
        self._source.unsubscribe(self._stage)
        self._close()

    def _stage(self) -> None:
        """Ask for copies of all that is there and has room."""
        with self._lock:
            ring = self._ring
            if not self._begun or self._closed or self._broken or ring is None:
                return
            end = min(self._source.watermark(), self._taken + len(ring))
            while self._issued < end:
                place = (self._issued - self._start) % len(ring)
                window = self._source.window(self._issued, min(_PIECE, end - self._issued, len(ring) - place))
                assert isinstance(window, Window)
                self._issued += window.nbytes
                self._copy(ring.address + place, window.pointer, self._issued, window, pinned=ring.pinned)

    def _reached(self, end: int) -> None:
        self._staged = end

    def _tell(self) -> None:
        for risen in self._readers:
            risen()

    def _over(self) -> None:
        self._on_closed()


class CopiedSource:
    """A device's bytes as a source of the host, for a link that keeps several windows for as long as it likes: each is
    a copy of its own, made while the link waits. What a UCX without CUDA gets."""

    device: int | None = None

    def __init__(self, source: Source) -> None:
        self._source = source
        self.watermark = source.watermark
        self.subscribe = source.subscribe
        self.unsubscribe = source.unsubscribe

    def window(self, offset: int, length: int) -> memoryview:
        piece = self._source.window(offset, length)
        copied = memoryview(bytearray(piece.nbytes))
        copy(copied, piece)
        return copied


class StagedSink(_Staged):
    """A sink of a device as one of the host. `closed` takes the place of the stream's callback: the device's sink is
    ended after the last copy. A stream of which a copy failed counts as broken."""

    def __init__(
        self, sink: Sink, offset: int, size: int, on_closed: ReceiveClosed, failed: Callable[[], None], stager: Stager
    ) -> None:
        assert sink.device is not None
        ring = stager.take_ring(sink.device)
        super().__init__(stager.to_device(sink.device), ring, stager, failed)
        self._sink = sink
        self._size = size
        self._room = len(ring)
        self._start = self._received = self._copied_to = offset
        self._on_closed = on_closed
        self._grown: Callable[[], None] | None = None
        self._fault: Fault | None = None

    def window(self, offset: int, length: int) -> memoryview:
        assert self._ring is not None
        place = (offset - self._start) % self._room
        return self._ring.memory[place : place + min(length, self._room - place)]

    def arrived(self, end: int) -> None:
        with self._lock:
            ring = self._ring
            if self._broken or ring is None:
                return
            while self._received < end:
                place = (self._received - self._start) % self._room
                window = self._sink.window(self._received, min(end - self._received, self._room - place))
                assert isinstance(window, Window)
                self._received += window.nbytes
                self._copy(window.pointer, ring.address + place, self._received, window, pinned=ring.pinned)

    def watermark(self) -> int:
        return self._sink.watermark()

    def limit(self) -> int:
        return min(self._sink.limit(), self._copied_to + self._room)

    def subscribe(self, grown: Callable[[], None]) -> None:
        self._grown = grown
        self._sink.subscribe(self._tell)

    def end(self) -> int:
        """`closed` comes next, and ends the device's sink."""
        self._grown = None
        return self._sink.watermark()

    def closed(self, _: int, fault: Fault | None) -> None:
        self._fault = fault
        self._close()

    def _reached(self, end: int) -> None:
        self._sink.arrived(end)
        self._copied_to = end

    def _tell(self) -> None:
        if (grown := self._grown) is not None:
            grown()

    def _over(self) -> None:
        watermark = self._sink.end()
        fault = Fault.BROKEN if self._broken else self._fault
        self._on_closed(watermark, None if watermark >= self._size else fault)
