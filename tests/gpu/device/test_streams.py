"""Streams from and to memory of a device: a UCX with CUDA passes it on as it is, all others stage it."""

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.copies import copy
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.runtime.agent.store import Segment
from hoplite_ucx.transports.buffers import Memory, MemorySink
from hoplite_ucx.transports.configuration import PINNED_LIMIT
from hoplite_ucx.transports.interface import Fault, LinkLost, Priority, Stream
from hoplite_ucx.transports.staging import StagedSink, StagedSource, Stager
from hoplite_ucx.transports.tcp import TcpTransport
from hoplite_ucx.transports.testing.conformance.tools import Endpoint, Maker, endpoints, next_key, pattern
from hoplite_ucx.transports.testing.endpoint import LOOPBACK, ListeningEndpoint
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.wire.handshake import Identity
from tests.tools.waiting import HANG, eventually

SIZE = 20_000_003
GRANULE = 1 << 20


class WithCuda(UcxEndpoint):
    settings = UcxSettings(tls=("tcp", "cuda_copy"))


class WithoutCuda(UcxEndpoint):
    """Over TCP alone UCX does not move memory of devices."""


class Bounded(ListeningEndpoint[TcpTransport]):
    """All that a test makes share their pinned memory."""

    stager = Stager()

    def __init__(self, node: int, token: bytes = b"", on_lost: LinkLost | None = None) -> None:
        me = Identity(node, token)
        super().__init__(me, TcpTransport(me, on_lost, stager=self.stager), LOOPBACK)


class DeviceMemory(Memory):
    """Memory of a device, as source and below a sink."""

    def __init__(self, size: int, device: int, content: bytes = b"", watermark: int = 0) -> None:
        self.memory = segments.create(segments.size_class(size), device)
        self.bytes = self.memory.window()[:size]
        super().__init__(bytearray(), watermark)
        self.device = device
        if content:
            copy(self.bytes, memoryview(bytearray(content)))

    def window(self, offset: int, length: int) -> Window:  # type: ignore[override]
        return self.bytes[offset : offset + length]

    def content(self) -> bytes:
        read = memoryview(bytearray(len(self.bytes)))
        copy(read, self.bytes)
        return bytes(read)


def memory(place: int | None, size: int = SIZE, content: bytes = b"", watermark: int = 0) -> Memory:
    if place is not None:
        return DeviceMemory(size, place, content, watermark)
    return Memory(bytearray(content or size), watermark)


def content_of(place: Memory) -> bytes:
    return place.content() if isinstance(place, DeviceMemory) else bytes(place.view)


def sink_on(place: Memory, size: int = SIZE) -> MemorySink:
    sink = MemorySink(place, size)
    sink.device = place.device
    return sink


class Transfer:
    """One stream between two endpoints."""

    def __init__(self, sender: Endpoint, receiver: Endpoint, source: Memory, target: Memory, size: int = SIZE) -> None:
        self.closed: list[tuple[int, Fault | None]] = []
        self.received, self.served = threading.Event(), threading.Event()
        self.stream = Stream(next_key(), 0, size, GRANULE)
        receiver.transport.receive(sender.node, sender.address, self.stream, sink_on(target, size), self._closed)
        sender.transport.serve(receiver.node, self.stream, source, self.served.set, priority=Priority.OWN)

    def _closed(self, watermark: int, fault: Fault | None) -> None:
        self.closed.append((watermark, fault))
        self.received.set()

    def wait(self) -> None:
        assert self.received.wait(HANG)
        assert self.served.wait(HANG)


LAST = cuda.load().count - 1
PLACES = [(0, 0), (0, None), (None, 0), (0, LAST)]


@pytest.mark.parametrize("make", [TcpEndpoint, WithoutCuda, WithCuda], ids=["tcp", "ucx", "ucx-cuda"])
@pytest.mark.parametrize(("source", "target"), PLACES)
def test_bytes_arrive(make: Maker, source: int | None, target: int | None) -> None:
    wanted = pattern(1, 0, SIZE)
    read, written = memory(source, content=wanted), memory(target)
    with endpoints(make, 1, 2) as (sender, receiver):
        transfer = Transfer(sender, receiver, read, written)
        for position in (1, 70_000, 5 << 20, 9_000_001, SIZE):
            read.rise(position)
            eventually(lambda position=position: written.watermark() >= position)
        transfer.wait()

    assert transfer.closed == [(SIZE, None)]
    assert content_of(written) == wanted


def test_only_a_ucx_with_cuda_takes_memory_of_devices() -> None:
    with WithCuda(1) as direct, WithoutCuda(2) as staged:
        assert direct.transport.start().takes_devices
        assert not staged.transport.start().takes_devices


@pytest.mark.parametrize("make", [Bounded, WithCuda], ids=["tcp", "ucx-cuda"])
def test_many_streams_at_once(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there is pinned memory for: the driver is never asked for more than is allowed."""
    limit = 20 << 20
    monkeypatch.setattr(Bounded, "stager", Stager(limit))
    pinned: list[int] = []
    value = cuda.Driver.value

    def counted(driver: cuda.Driver, kind: Any, name: str, *arguments: Any) -> Any:
        if name == "cuMemHostAlloc":
            pinned.append(arguments[0])
        return value(driver, kind, name, *arguments)

    monkeypatch.setattr(cuda.Driver, "value", counted)
    size, count = 2_000_003, 12
    sources = [memory(0, size, pattern(seed, 0, size), size) for seed in range(count)]
    targets = [memory(LAST, size) for _ in range(count)]
    with endpoints(make, 1, 2) as (sender, receiver):
        transfers = [
            Transfer(sender, receiver, read, written, size) for read, written in zip(sources, targets, strict=True)
        ]
        for transfer in transfers:
            transfer.wait()

    assert all(content_of(target) == pattern(seed, 0, size) for seed, target in enumerate(targets))
    assert sum(pinned) <= limit
    assert make is WithCuda or sum(pinned) == 2 * (8 << 20)


@pytest.mark.parametrize("make", [TcpEndpoint, WithCuda], ids=["tcp", "ucx-cuda"])
def test_a_cancelled_stream_leaves_the_device_alone(make: Maker) -> None:
    """After it is closed, both memories may be unmapped: a copy that still ran would lose the context."""
    wanted = pattern(1, 0, SIZE)
    read, written = memory(0, content=wanted, watermark=SIZE - 1), memory(0)
    assert isinstance(read, DeviceMemory)
    assert isinstance(written, DeviceMemory)
    with endpoints(make, 1, 2) as (sender, receiver):
        transfer = Transfer(sender, receiver, read, written)
        eventually(lambda: written.watermark() > 0)
        receiver.transport.cancel_receive(transfer.stream.key)
        sender.transport.cancel_serve(transfer.stream.key)
        transfer.wait()
        ((watermark, fault),) = transfer.closed
        assert fault is None
        assert content_of(written)[:watermark] == wanted[:watermark]
        for one in (read, written):
            one.memory.close()
            del one.bytes

    cuda.load().settle(0)  # it raises if the context is lost


class Lanes(Stager):
    """Copies that run when the test says so."""

    def __init__(self, limit: int = PINNED_LIMIT) -> None:
        super().__init__(limit)
        self.asked: list[tuple[int, int, int, Callable[[CudaError | None], None], bool]] = []

    def to_host(self, device: int) -> "Lanes":  # type: ignore[override]
        return self

    to_device = to_host  # type: ignore[assignment]

    def copy(self, to: int, source: int, size: int, done: Callable[[CudaError | None], None], *, pinned: bool) -> None:
        self.asked.append((to, source, size, done, pinned))

    def run_one(self, failure: CudaError | None = None) -> None:
        to, source, size, done, _ = self.asked.pop(0)
        if failure is None:
            driver = cuda.load()
            driver.enter(0)
            driver.call("cuMemcpyAsync", to, source, size, None)
            driver.call("cuCtxSynchronize")
        done(failure)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    lanes = Lanes()
    yield lanes
    assert not lanes.asked


def test_the_next_piece_is_copied_while_the_last_is_on_the_wire(lanes: Lanes) -> None:
    wanted = pattern(1, 0, SIZE)
    closed: list[bool] = []
    source = StagedSource(memory(0, content=wanted, watermark=SIZE), 0, lambda: closed.append(True), list, lanes)
    assert not lanes.asked, "nobody has asked for the stream yet"
    source.begin()
    sent = b""
    ahead = []

    while len(sent) < SIZE:
        lanes.run_one()
        while source.watermark() > len(sent):
            window = source.window(len(sent), GRANULE)
            ahead.append(len(lanes.asked))  # copies under way while this piece is with the network
            sent += bytes(window)
    source.close()

    assert sent == wanted
    assert closed == [True]
    assert min(ahead[:-8]) >= 7, "a ring has room for eight pieces"
    assert lanes.pinned == 8 << 20


class Trace:
    """What happened in a stream, in order: what, and at which position of the stream."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self._changed = threading.Condition()

    def note(self, what: str, position: int) -> None:
        with self._changed:
            self.events.append((what, position))
            self._changed.notify_all()

    def when(self, what: str, position: int) -> int | None:
        """The number of the first such event at this position or beyond."""
        found = (number for number, (name, at) in enumerate(self.events) if name == what and at >= position)
        return next(found, None)

    def wait_for(self, what: str, position: int) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self.when(what, position) is not None, HANG)
        assert came, f"no {what} at {position}: {self.events}"

    def in_order(self, *events: tuple[str, int]) -> bool:
        numbers = [self.when(*event) for event in events]
        return None not in numbers and numbers == sorted(number for number in numbers if number is not None)

    def follow(self, patch: pytest.MonkeyPatch, kind: type, method: str, note: Callable[..., None]) -> None:
        """Have calls of a method noted before they are made."""
        original = getattr(kind, method)

        def noted(staged: object, *arguments: Any, **named: Any) -> Any:
            note(*arguments)
            return original(staged, *arguments, **named)

        patch.setattr(kind, method, noted)


def test_over_sockets_a_piece_is_copied_while_the_one_before_it_is_on_the_wire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each copy is held up until the frame before it was given to the socket, and was asked for earlier than that."""
    trace = Trace()
    ends = [0]

    def copy(_to: int, _from: int, end: int, _: Window) -> None:
        ends.append(end)
        trace.note("copy", end)

    def copied(end: int, *_: object) -> None:
        if (begin := ends[ends.index(end) - 1]) > 0:
            trace.wait_for("on the wire", begin - GRANULE)
        trace.note("copied", end)

    trace.follow(monkeypatch, StagedSource, "_copy", copy)
    trace.follow(monkeypatch, StagedSource, "_copied", copied)
    trace.follow(monkeypatch, StagedSource, "window", lambda offset, _: trace.note("on the wire", offset))
    wanted = pattern(5, 0, SIZE)
    read, written = memory(0, content=wanted, watermark=SIZE), memory(None)
    with endpoints(TcpEndpoint, 1, 2) as (sender, receiver):
        Transfer(sender, receiver, read, written).wait()

    assert content_of(written) == wanted
    for begin, end in itertools.pairwise(ends[1:]):
        assert trace.in_order(("copy", end), ("on the wire", begin - GRANULE), ("copied", end))


def test_over_sockets_a_piece_is_received_while_the_one_before_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy is held up until more has come behind what it copies."""
    trace = Trace()

    def copied(end: int, *_: object) -> None:
        if end < SIZE:
            trace.wait_for("received", end + 1)
        trace.note("copied", end)

    trace.follow(monkeypatch, StagedSink, "_copy", lambda _to, _from, end, _: trace.note("copy", end))
    trace.follow(monkeypatch, StagedSink, "_copied", copied)
    trace.follow(monkeypatch, StagedSink, "arrived", lambda end: trace.note("received", end))
    wanted = pattern(6, 0, SIZE)
    read, written = memory(None, content=wanted, watermark=SIZE), memory(0)
    with endpoints(TcpEndpoint, 1, 2) as (sender, receiver):
        Transfer(sender, receiver, read, written).wait()

    assert content_of(written) == wanted
    ends = [end for what, end in trace.events if what == "copied"]
    assert len(ends) > SIZE // (8 << 20), "more copies than rings"
    for end in ends[:-1]:
        assert trace.in_order(("copy", end), ("received", end + 1), ("copied", end))


def test_a_source_stays_where_it_is_from_when_it_is_offered(lanes: Lanes) -> None:
    """An object that nobody follows may be moved to the host, and a stream would find it there."""
    segment, on_device = Segment(1, SIZE), memory(0)
    assert isinstance(on_device, DeviceMemory)
    segment.memory = on_device.bytes
    segment.raise_watermark(SIZE)
    assert segment.idle

    source = StagedSource(segment, 0, list, list, lanes)

    assert not segment.idle
    source.close()
    assert segment.idle


def test_a_source_is_closed_after_its_last_copy(lanes: Lanes) -> None:
    closed: list[bool] = []
    source = StagedSource(memory(0, content=b"x" * SIZE, watermark=SIZE), 0, lambda: closed.append(True), list, lanes)
    source.begin()

    source.close()
    while lanes.asked:
        assert not closed, "a copy still reads the device"
        lanes.run_one()

    assert closed == [True]


def test_a_sink_takes_no_more_than_its_ring_and_is_closed_after_its_last_copy(lanes: Lanes) -> None:
    wanted = pattern(1, 0, SIZE)
    closed: list[tuple[int, Fault | None]] = []
    target = memory(0)
    sink = StagedSink(sink_on(target), 0, SIZE, lambda *what: closed.append(what), list, lanes)
    ring = 8 << 20
    assert sink.limit() == ring

    def fill(start: int, end: int) -> None:
        while start < end:
            window = sink.window(start, end - start)
            window[:] = wanted[start : start + len(window)]
            start += len(window)
            sink.arrived(start)

    fill(0, ring)
    assert sink.limit() == ring
    assert sink.watermark() == 0, "nothing is on the device yet"
    while lanes.asked:
        lanes.run_one()
    assert sink.watermark() == ring
    assert sink.limit() == 2 * ring
    fill(ring, 2 * ring)
    lanes.run_one()
    final = sink.end()
    sink.closed(final, Fault.BROKEN)
    while lanes.asked:
        assert not closed
        lanes.run_one()

    ((watermark, fault),) = closed
    assert fault is Fault.BROKEN
    assert content_of(target)[:watermark] == wanted[:watermark]
    assert watermark == 2 * ring


def test_pinned_memory_stays_below_its_limit() -> None:
    stager = Stager(limit=20 << 20)

    rings = [stager.take_ring(0) for _ in range(5)]

    assert [ring.pinned for ring in rings] == [True, True, False, False, False]
    assert stager.pinned == 16 << 20
    for ring in rings:
        stager.return_ring(ring)
    assert stager.take_ring(0).pinned


def test_a_copy_that_fails_breaks_its_stream_alone(lanes: Lanes) -> None:
    failed: list[str] = []
    closed: list[object] = []
    error = CudaError("cuMemcpyAsync", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "")
    source = StagedSource(
        memory(0, content=b"x" * SIZE, watermark=SIZE),
        0,
        lambda: closed.append("source"),
        partial(failed.append, "source"),
        lanes,
    )
    source.begin()
    lanes.run_one()
    position = source.watermark()
    lanes.run_one(error)
    while lanes.asked:
        lanes.run_one()
    assert failed == ["source"]
    assert source.watermark() == position, "there would be a gap"
    source.close()

    sink = StagedSink(
        sink_on(memory(0)), 0, SIZE, lambda *what: closed.append(what), partial(failed.append, "sink"), lanes
    )
    sink.window(0, 10)[:] = b"0123456789"
    sink.arrived(10)
    lanes.run_one(error)
    sink.closed(sink.end(), None)

    assert failed == ["source", "sink"]
    assert closed == ["source", (0, Fault.BROKEN)]


def test_plain_rings_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bounded, "stager", Stager(limit=0))
    wanted = pattern(3, 0, SIZE)
    read, written = memory(0, content=wanted, watermark=SIZE), memory(0)
    with endpoints(Bounded, 1, 2) as (sender, receiver):
        Transfer(sender, receiver, read, written).wait()

    assert content_of(written) == wanted
    assert np.frombuffer(wanted, np.uint8).any()
