"""Slots on real threads: parts in order, rings that hold senders back, streams that end early and resume."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.agent.local_streams import LocalStreams
from hoplite_ucx.runtime.agent.slots import RING, Combiner, PartSink, Slot
from hoplite_ucx.runtime.agent.store import Backing, Segment
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.kernels import Kernel
from tests.tools.waiting import HANG, eventually

SIZE = 3 * RING


@pytest.fixture
def combiner() -> Iterator[Combiner]:
    combiner = Combiner()
    yield combiner
    combiner.close()


def segment(data: np.ndarray | None = None, size: int = 0) -> Segment:
    size = data.nbytes if data is not None else size
    made = Segment(1, size)
    made.back(Backing(1, None, np.zeros(size, np.uint8)))
    if data is not None:
        made.memory[:] = data.tobytes()
        made.raise_watermark(size)
    return made


def feed(sink: PartSink, data: bytes, start: int, end: int, step: int = 300_001) -> int:
    """Write as a link does, as far as the sink takes it; returns how far that was."""
    at = start
    while at < min(end, sink.limit()):
        window = sink.window(at, min(step, end - at, sink.limit() - at))
        window[:] = data[at : at + len(window)]
        at += len(window)
        sink.arrived(at)
    return at


class Output:
    def __init__(
        self, combiner: Combiner, parts: list[Segment | None], like: np.ndarray, start: int = 0, divisor: int = 0
    ) -> None:
        self.segment = segment(size=like.nbytes)
        self.done = threading.Event()
        self.failed: list[Exception] = []
        self.kernel = Kernel(values.encode(like).layout, Operation.SUM)
        tell = (self.done.set, self.failed.append)
        self.slot = Slot(combiner, self.segment, self.kernel, parts, *tell, start=start, divisor=divisor)

    def array(self) -> np.ndarray:
        assert self.done.wait(HANG)
        return np.frombuffer(bytes(self.segment.memory), np.float64)


def arrays(count: int) -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.random(SIZE // 8) for _ in range(count)]


def test_local_parts(combiner: Combiner) -> None:
    one, two, three = arrays(3)
    output = Output(combiner, [segment(one), segment(two), segment(three)], one)
    assert np.array_equal(output.array(), one + two + three)


def test_one_local_part_is_copied(combiner: Combiner) -> None:
    (one,) = arrays(1)
    assert np.array_equal(Output(combiner, [segment(one)], one).array(), one)


def test_a_growing_part_is_copied_without_a_kernel(combiner: Combiner) -> None:
    (one,) = arrays(1)
    growing, target, done = segment(size=SIZE), segment(size=SIZE), threading.Event()
    Slot(combiner, target, None, [growing], done.set, pytest.fail)
    growing.memory[:] = one.tobytes()
    growing.raise_watermark(12_345)
    growing.raise_watermark(SIZE)
    assert done.wait(HANG)
    assert bytes(target.memory) == one.tobytes()


@pytest.mark.parametrize("order", ["own first", "stream first"])
def test_a_stream_and_an_own_part(combiner: Combiner, order: str) -> None:
    own, other = arrays(2)
    parts = [segment(own), None] if order == "own first" else [None, segment(own)]
    output = Output(combiner, parts, own)
    sink = output.slot.sink(parts.index(None))
    data, at = other.tobytes(), 0
    while at < SIZE:
        at = feed(sink, data, at, SIZE)
    assert np.array_equal(output.array(), own + other)
    assert sink.watermark() == SIZE
    assert sink.end() == SIZE


def test_a_mean_is_divided_before_it_is_final(combiner: Combiner) -> None:
    """Whoever forwards the output as it grows sees no sums, wherever the bytes of a stream happen to end."""
    own, first, second = arrays(3)
    output = Output(combiner, [segment(own), None, None], own, divisor=4)
    mean = (own + first + second) / 4
    seen: list[bool] = []

    def risen() -> None:
        end = output.segment.watermark()
        seen.append(end % 8 == 0 and bytes(output.segment.memory[:end]) == mean.tobytes()[:end])

    output.segment.subscribe(risen)
    one, two = output.slot.sink(1), output.slot.sink(2)
    at = 0
    while at < SIZE:
        feed(one, first.tobytes(), at, at + RING // 2)
        at = feed(two, second.tobytes(), at, at + RING // 2, step=3_000_001)
    assert np.array_equal(output.array(), mean)
    assert len(seen) > 3
    assert all(seen)


def test_the_rest_of_a_mean_that_another_began(combiner: Combiner) -> None:
    """One part, straight into the output; what is below the start was divided before."""
    (one,) = arrays(1)
    start = SIZE // 4 * 3
    output = Output(combiner, [None], one, start=start, divisor=2)
    output.segment.memory[:start] = (one / 2).tobytes()[:start]
    sink = output.slot.sink(0)
    at = feed(sink, one.tobytes(), start, SIZE - 5)
    assert output.segment.watermark() == SIZE - 8
    assert sink.end() == at
    assert output.slot.stands_at(0) == at
    feed(output.slot.sink(0), one.tobytes(), at, SIZE)
    assert np.array_equal(output.array(), one / 2)


def test_a_part_waits_for_the_one_before_it(combiner: Combiner) -> None:
    """The second stream fills its ring and no more, until the first one comes."""
    own, first, second = arrays(3)
    output = Output(combiner, [segment(own), None, None], own)
    early, late = output.slot.sink(2), output.slot.sink(1)
    grown = threading.Event()
    early.subscribe(grown.set)
    at = feed(early, second.tobytes(), 0, SIZE)
    assert at == RING
    assert early.watermark() == 0
    assert not grown.is_set()
    feed(late, first.tobytes(), 0, SIZE)
    assert grown.wait(HANG)
    while at < SIZE:
        at = feed(early, second.tobytes(), at, SIZE)
    assert np.array_equal(output.array(), (own + first) + second)


def test_a_stream_that_ends_early_resumes_at_what_was_combined(combiner: Combiner) -> None:
    own, first, second = arrays(3)
    output = Output(combiner, [segment(own), None, None], own)
    one, two = output.slot.sink(1), output.slot.sink(2)
    feed(one, first.tobytes(), 0, 1_000_003)
    feed(two, second.tobytes(), 0, 2_000_005)
    assert two.end() == two.watermark() <= 1_000_003
    stands = one.end()
    assert stands == 1_000_003 // 8 * 8
    for part, data in ((1, first), (2, second)):
        assert output.slot.stands_at(part) == (stands if part == 1 else two.watermark())
        sink = output.slot.sink(part)
        at = sink.watermark()
        while at < SIZE:
            at = feed(sink, data.tobytes(), at, SIZE)
    assert np.array_equal(output.array(), (own + first) + second)


def test_a_part_that_comes_at_once(combiner: Combiner) -> None:
    own, other = (np.arange(100.0), np.arange(100.0) * 2)
    output = Output(combiner, [segment(own), None], own)
    output.slot.supply(1, other.tobytes())
    assert np.array_equal(output.array(), own + other)


def test_a_closed_slot_writes_no_more(combiner: Combiner) -> None:
    own, other = arrays(2)
    output = Output(combiner, [segment(own), None], own)
    sink = output.slot.sink(1)
    feed(sink, other.tobytes(), 0, 1 << 20)
    output.slot.close()
    before = bytes(output.segment.memory)
    sink.window(1 << 20, 100)[:] = bytes(100)
    sink.arrived((1 << 20) + 100)
    assert bytes(output.segment.memory) == before
    assert not output.done.is_set()


def test_the_watermark_follows_growing_parts(combiner: Combiner) -> None:
    """A part that is itself being combined: the output grows with it."""
    own, other = arrays(2)
    growing = segment(size=SIZE)
    output = Output(combiner, [segment(own), growing], own)
    risen = threading.Event()
    output.segment.subscribe(risen.set)
    growing.memory[:] = other.tobytes()
    growing.raise_watermark(SIZE // 2 + 3)
    assert risen.wait(HANG)
    growing.raise_watermark(SIZE)
    assert np.array_equal(output.array(), own + other)


def test_a_slot_fed_from_its_own_node(combiner: Combiner) -> None:
    own, other = arrays(2)
    output = Output(combiner, [segment(own), None], own)
    streams = LocalStreams(combiner.executor)
    received, served = threading.Event(), threading.Event()
    ends: list[int] = []
    streams.receive((1, 1), output.slot.sink(1), 0, SIZE, lambda end: (ends.append(end), received.set()))
    streams.serve((1, 1), segment(other), served.set)
    assert received.wait(HANG)
    assert served.wait(HANG)
    assert ends == [SIZE]
    assert np.array_equal(output.array(), own + other)


def test_a_local_stream_that_nobody_receives_is_closed(combiner: Combiner) -> None:
    streams = LocalStreams(combiner.executor)
    served = threading.Event()
    streams.serve((1, 2), segment(arrays(1)[0]), served.set)
    assert served.wait(HANG)


def test_a_local_stream_is_cancelled(combiner: Combiner) -> None:
    own = arrays(1)[0]
    output = Output(combiner, [segment(own), None], own)
    streams = LocalStreams(combiner.executor)
    received = threading.Event()
    streams.receive((1, 3), output.slot.sink(1), 0, SIZE, lambda _: received.set())
    streams.cancel((1, 3))
    assert received.wait(HANG)


def test_a_kernel_that_raises_ends_the_slot_and_is_told_once(combiner: Combiner) -> None:
    own, other = arrays(2)
    output = Output(combiner, [segment(own), None], own)

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    output.kernel.combine = broken  # type: ignore[method-assign]
    sink = output.slot.sink(1)
    sink.window(0, 1000)[:] = other.tobytes()[:1000]
    sink.arrived(1000)
    sink.arrived(2000)
    assert [str(error) for error in output.failed] == ["no room"]
    assert output.segment.watermark() == 0
    assert sink.end() == 0


def test_what_grows_on_another_thread_is_combined_there(combiner: Combiner) -> None:
    """A stripe that this node makes is copied into the target by whoever received its last part."""
    data = np.resize(np.arange(256, dtype=np.uint8), 1 << 20)
    made, copied = segment(size=data.nbytes), segment(size=data.nbytes)
    made.memory[:] = data.tobytes()
    ended_on: list[int] = []
    Slot(combiner, copied, None, [made], lambda: ended_on.append(threading.get_ident()), pytest.fail)
    combiner.executor.submit(lambda: None).result()  # what was possible from the start is over
    receiver = threading.Thread(target=lambda: made.raise_watermark(data.nbytes))
    receiver.start()
    receiver.join()
    assert ended_on == [receiver.ident]
    assert np.array_equal(copied.array, data)


def test_a_stream_behind_one_local_part_waits_in_the_output(combiner: Combiner) -> None:
    """It takes no ring and no credit, however late the local part is, and what waits is not served."""
    own, other = (np.random.default_rng(seed).random(RING // 4) for seed in (1, 2))
    late, output, done = segment(size=own.nbytes), segment(size=own.nbytes), threading.Event()
    late.memory[:] = own.tobytes()
    kernel = Kernel(values.encode(own).layout, Operation.SUM)
    slot = Slot(combiner, output, kernel, [late, None], done.set, pytest.fail)
    sink = slot.sink(1)
    assert sink.limit() == own.nbytes > RING
    feed(sink, other.tobytes(), 0, own.nbytes)
    assert sink.watermark() == output.watermark() == 0
    late.raise_watermark(own.nbytes)
    assert done.wait(HANG)
    assert np.array_equal(output.array.view(np.float64), own + other)


@pytest.mark.parametrize("busy", ["a stream ends", "a stream begins"])
def test_bytes_that_come_while_the_slot_is_busy_otherwise_are_combined(
    combiner: Combiner, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    """They are the last ones: nobody else would come and look."""
    first, second = arrays(2)
    output = Output(combiner, [None, None], first)
    sink = output.slot.sink(0)
    others = [output.slot.sink(1)]
    feed(others[0], second.tobytes(), 0, SIZE)
    sink.window(0, SIZE)[:] = first.tobytes()

    def last_bytes_come() -> None:
        monkeypatch.undo()
        thread = threading.Thread(target=sink.arrived, args=(SIZE,))
        thread.start()
        thread.join(HANG)

    if busy == "a stream ends":
        monkeypatch.setattr(combiner, "return_ring", lambda _: last_bytes_come())
        others[0].end()
    else:
        made = PartSink
        monkeypatch.setattr("hoplite_ucx.runtime.agent.slots.PartSink", lambda *of: (last_bytes_come(), made(*of))[1])
        output.slot.sink(1)
    eventually(lambda: sink.watermark() == SIZE)
