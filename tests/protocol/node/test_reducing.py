"""The slots that a node runs: streams that feed them, slots taken over in the middle, and what cannot be combined."""

import pytest

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    Allocate,
    CallFailed,
    CancelReceive,
    Combine,
    CombineBytes,
    Combined,
    CombineFailed,
    DirectoryLost,
    Fill,
    Free,
    GetCall,
    Got,
    PutCall,
    Receive,
    ReceiveClosed,
    ReduceCall,
    SendDirectory,
    Serve,
)
from hoplite_ucx.protocol.ids import NO_SLOT, StreamId, Version, node_id
from hoplite_ucx.protocol.messages import (
    Bind,
    Bound,
    CombineInline,
    Completed,
    Consumed,
    Copy,
    Declined,
    Drop,
    Inline,
    Operation,
    Origin,
    Place,
    Reduce,
    Reduced,
    Result,
    Sealed,
    SlotReport,
    StreamFault,
    StreamRefused,
    StreamRequest,
    StreamStatus,
    Unfit,
    Want,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import RATE, NodeDriver, ref, version
from tests.tools.reducer import TARGET, chain
from tests.tools.transfers import FIRST, SENDER, fed_slot


def test_a_part_that_waits_for_the_one_before_it_is_no_stall() -> None:
    n, first, _ = fed_slot()
    for _ in range(8):
        n.peer(FIRST, StreamStatus(first.stream, 0, queued=False))  # starved: nothing comes of the first part
        assert n.none(n.beat(), CancelReceive)


def test_a_part_that_could_go_on_and_does_not_is_a_stall() -> None:
    n, first, second = fed_slot()
    cancelled = []
    for step in range(1, 6):
        n.positions[first.stream] = step * MIB
        cancelled += [effect for effect in n.beat() if isinstance(effect, CancelReceive)]
    assert cancelled == [CancelReceive(second.stream)]


def test_a_slot_that_waits_for_a_lost_part_is_not_waited_for_long() -> None:
    """Whoever puts that part here would wait for the memory of the slot, and the slot for the put."""
    n, first, _ = fed_slot(memory=12 * MIB)
    assert n.none(n.handle(PutCall(1, version(2).ref, 8 * MIB, b"", None, None)), CallFailed), "it may be done soon"
    n.handle(ReceiveClosed(first.stream, 0, StreamFault.BROKEN))
    assert n.none(n.beat(15), CallFailed), "another sender may be found"
    failed = n.only(n.beat(), CallFailed)
    assert failed.failure.kind is FailureKind.STORE_FULL


def test_a_part_that_was_lost_and_is_placed_again_goes_on_where_it_was() -> None:
    """The slot is not told of the loss: the directory either drops it, or finds the part again."""
    n, first, _ = fed_slot()
    n.handle(ReceiveClosed(first.stream, 3 * MIB, StreamFault.BROKEN))
    n.directory(Drop(version(2)))
    again = Place(version(2), 9, 8 * MIB, b"", SENDER, "there:1", MIB, RATE, into=version(1).ref)
    receive = n.only(n.directory(again), Receive)
    assert (receive.segment, receive.part, receive.offset) == (first.segment, first.part, 3 * MIB)


def test_a_result_may_be_decided_before_its_last_stream_is_seen_to_end() -> None:
    """The kernels and the links are different threads: `Combined` may overtake the `ReceiveClosed` of the last part."""
    n, first, second = fed_slot()
    n.handle(ReceiveClosed(first.stream, 8 * MIB, None))
    assert n.sent(n.handle(Combined(second.segment)), Completed) == [Completed(version(1))]
    assert n.only(n.directory(Sealed(version(1))), CancelReceive).stream == second.stream
    assert n.sent(n.handle(ReceiveClosed(second.stream, 8 * MIB, None)), Consumed) == []
    copy = n.state.memory.complete_copy(version(1).ref)
    assert copy is not None
    assert not copy.in_use()


# --- slots taken over in the middle ---------------------------------------------------------------------------

PEER = node_id(9)
SLOT, PART, UPPER = version(1), version(2), version(3)
SIZE = 8 * MIB


def bind(of: Version, *parts: Version, start: int = 0, resume: bool = False, number: int = 1) -> Bind:
    return Bind(of, number, SIZE, b"", Operation.SUM, parts, ref(TARGET), None, start, resume)


def request(number: int, offset: int) -> StreamRequest:
    return StreamRequest(StreamId(PEER, number), SLOT, offset, MIB, RATE, for_slot=True)


def placed(of: Version, number: int, into: bytes = NO_SLOT) -> Place:
    return Place(of, number, SIZE, b"", PEER, "there:1", MIB, RATE, sealed=bool(into), into=into)


def test_a_slot_combines_and_pulls_from_its_start_on() -> None:
    n = NodeDriver()
    effects = n.directory(bind(SLOT, PART, start=3 * MIB))
    assert n.only(effects, Combine) == Combine(1, SIZE, b"", Operation.SUM, (None,), 3 * MIB)
    assert n.sent(effects, Bound) == [Bound(SLOT, 1, (PART,))]
    assert n.only(n.directory(placed(PART, 2, SLOT.ref)), Receive).offset == 3 * MIB


@pytest.mark.parametrize("offset", [0, 3 * MIB - 1, SIZE + 1])
def test_a_slot_serves_nothing_below_its_start(offset: int) -> None:
    n = NodeDriver()
    n.directory(bind(SLOT, PART, start=3 * MIB))
    effects = n.peer(PEER, request(1, offset))
    assert n.sent(effects, StreamRefused) == [StreamRefused(StreamId(PEER, 1), StreamFault.ABSENT)]
    assert n.none(effects, Serve)
    assert n.only(n.peer(PEER, request(2, 3 * MIB)), Serve).offset == 3 * MIB


def test_a_request_below_the_start_that_came_before_the_slot_is_refused_too() -> None:
    n = NodeDriver()
    n.peer(PEER, request(1, MIB))
    effects = n.directory(bind(SLOT, PART, start=3 * MIB))
    assert n.sent(effects, StreamRefused) == [StreamRefused(StreamId(PEER, 1), StreamFault.ABSENT)]


def test_the_end_of_a_slot_is_not_announced() -> None:
    n = NodeDriver()
    n.directory(bind(SLOT, PART, start=3 * MIB))
    stream = n.only(n.directory(placed(PART, 2, SLOT.ref)), Receive).stream
    n.handle(ReceiveClosed(stream, SIZE, None))
    assert n.sent(n.handle(Combined(1)), Completed) == []
    assert n.state.memory.complete_copy(SLOT.ref) is None
    n.handle(DirectoryLost())
    again = n.connect()
    assert again.copies == ()
    assert again.slots == (SlotReport(bind(SLOT, PART, start=3 * MIB), ()),)


@pytest.mark.parametrize(("start", "missing"), [(2 * MIB, (SLOT,)), (3 * MIB, ()), (5 * MIB, ())])
def test_the_end_of_a_slot_is_used_in_place_only_from_its_start_on(start: int, missing: tuple[Version, ...]) -> None:
    n = NodeDriver()
    n.directory(bind(SLOT, PART, start=3 * MIB))
    effects = n.directory(bind(UPPER, SLOT, start=start, number=2))
    assert n.sent(effects, Bound) == [Bound(UPPER, 2, missing)]


def getting(watermark: int) -> NodeDriver:
    """A get of the slot's output that has lost its sender."""
    n = NodeDriver()
    n.handle(GetCall(7, SLOT.ref, None))
    stream = n.only(n.directory(placed(SLOT, 1)), Receive).stream
    n.handle(ReceiveClosed(stream, watermark, StreamFault.BROKEN))
    return n


def test_a_getter_makes_the_rest_in_place() -> None:
    n = getting(3 * MIB)
    effects = n.directory(bind(SLOT, PART, start=3 * MIB, resume=True))
    assert n.none(effects, Allocate, Free)
    assert n.only(effects, Combine) == Combine(1, SIZE, b"", Operation.SUM, (None,), 3 * MIB)
    assert n.only(n.peer(PEER, request(1, 0)), Serve).offset == 0  # the beginning is here
    stream = n.only(n.directory(placed(PART, 2, SLOT.ref)), Receive).stream
    n.handle(ReceiveClosed(stream, SIZE, None))
    assert n.sent(n.handle(Combined(1)), Completed) == [Completed(SLOT)]
    assert n.only(n.directory(Sealed(SLOT)), Got).segment == 1


@pytest.mark.parametrize("start", [MIB, 4 * MIB])
def test_a_getter_that_has_not_come_so_far_declines(start: int) -> None:
    n = getting(3 * MIB)
    effects = n.directory(bind(SLOT, PART, start=start, resume=True))
    assert n.sent(effects, Declined) == [Declined(SLOT, 1)]
    assert n.sent(n.directory(Drop(SLOT)), Want) == [Want(SLOT.ref)]


def test_a_node_that_gets_nothing_declines_to_make_the_rest() -> None:
    n = NodeDriver()
    effects = n.directory(bind(SLOT, PART, start=MIB, resume=True))
    assert n.sent(effects, Declined) == [Declined(SLOT, 1)]
    assert n.none(effects, Allocate)


def test_a_slot_that_begins_beyond_its_end_is_ignored() -> None:
    n = NodeDriver()
    assert n.directory(bind(SLOT, PART, start=SIZE + 1)) == []


# --- small results --------------------------------------------------------------------------------------------

ASKED = Reduce(1, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2)
RESULT = Result(version(TARGET), b"layout", b"ab", Origin(ASKED, (version(1), version(2))))


def asked_for() -> NodeDriver:
    """A node whose user asked for a reduction, which the directory knows."""
    n = NodeDriver()
    n.handle(ReduceCall(1, ASKED.target, ASKED.sources, ASKED.op, ASKED.count, None))
    n.directory(Reduced(1))
    return n


def test_a_result_that_came_is_got_without_asking() -> None:
    n = asked_for()
    effects = n.directory(RESULT)
    assert n.only(effects, Fill).data == b"ab"
    assert n.none(effects, SendDirectory)
    effects = n.handle(GetCall(2, ref(TARGET), None))
    got = n.only(effects, Got)
    assert (got.version, got.size, got.layout) == (RESULT.version, 2, b"layout")
    assert n.none(effects, SendDirectory)


def test_a_get_that_waits_is_answered_by_the_result() -> None:
    n = asked_for()
    n.handle(GetCall(2, ref(TARGET), None))
    assert n.only(n.directory(RESULT), Got).call == 2
    assert n.directory(Inline(RESULT.version, b"layout", b"ab")) == []


def test_with_its_result_a_reduction_is_over_and_the_copy_is_announced() -> None:
    n = asked_for()
    n.directory(RESULT)
    n.handle(DirectoryLost())
    hello = n.connect()
    assert hello.submitted == ()
    assert hello.copies == (Copy(RESULT.version, 2, b"layout", origin=RESULT.origin),)


def test_a_result_that_is_deleted_is_not_found_any_more() -> None:
    n = asked_for()
    n.directory(RESULT)
    n.directory(Drop(RESULT.version))
    assert n.sent(n.handle(GetCall(2, ref(TARGET), None)), Want) == [Want(ref(TARGET))]


def test_a_result_that_is_here_already_changes_nothing() -> None:
    n = asked_for()
    n.directory(RESULT)
    assert n.directory(RESULT) == []


def test_a_result_without_room_is_given_to_waiting_gets_and_not_kept() -> None:
    n = NodeDriver(memory=1)
    n.handle(GetCall(2, ref(TARGET), None))
    effects = n.directory(RESULT)
    assert n.sent(effects, Declined) == [Declined(RESULT.version, 0)]
    assert n.only(effects, Got).data == b"ab"
    assert n.none(effects, Fill, Allocate)


# --- what cannot be combined ----------------------------------------------------------------------------------

SENSELESS = Failure(FailureKind.INVALID, "xor is not defined for float64", "reduce other arrays")


def test_a_node_lets_go_of_the_slot_and_says_why() -> None:
    n = NodeDriver()
    combine = n.only(n.directory(Bind(SLOT, 1, 1 << 20, b"", Operation.XOR, (PART,), ref(TARGET))), Combine)
    effects = n.handle(CombineFailed(combine.segment, SENSELESS))
    assert n.sent(effects, Unfit) == [Unfit(SLOT, SENSELESS.detail, SENSELESS.remedy)]
    assert n.only(effects, Free).segment == combine.segment
    assert n.sent(n.handle(CombineFailed(combine.segment, SENSELESS)), Unfit) == []


def test_small_objects_that_cannot_be_combined_are_not_kept() -> None:
    n = NodeDriver()
    combine = n.only(n.directory(CombineInline(SLOT, b"", Operation.XOR, (b"1", b"2"))), CombineBytes)
    effects = n.handle(CombineFailed(combine.version, SENSELESS))
    assert n.sent(effects, Unfit) == [Unfit(SLOT, SENSELESS.detail, SENSELESS.remedy)]
    assert n.none(effects, Fill)
    assert n.sent(n.handle(CombineFailed(combine.version, SENSELESS)), Unfit) == []


@pytest.mark.parametrize("length", [10, 100_000])
def test_the_word_may_be_lost_with_the_session(length: int) -> None:
    """Then the slot is not announced: the directory gives it away again, and whoever gets it says it anew."""
    n = NodeDriver()
    combine = n.only(n.directory(Bind(SLOT, 1, 1 << 20, b"", Operation.XOR, (PART,), ref(TARGET))), Combine)
    n.handle(DirectoryLost())
    n.handle(CombineFailed(combine.segment, Failure(FailureKind.INVALID, "x" * length, "")))
    assert n.connect().slots == ()
    d, lower, _ = chain()
    d.rejoin("B", copies=(2,), slots=())
    d.report_halts("C")
    assert d.take("B").parts == lower.parts
