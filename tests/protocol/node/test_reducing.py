"""Streams that feed a slot: which of them may wait, and for whom."""

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import CallFailed, CancelReceive, Combined, PutCall, Receive, ReceiveClosed
from hoplite_ucx.protocol.ids import node_id
from hoplite_ucx.protocol.messages import Bind, Completed, Consumed, Operation, Place, Sealed, StreamFault, StreamStatus
from hoplite_ucx.protocol.settings import GIB, MIB
from tests.tools.machines import RATE, NodeDriver, version

FIRST, SECOND = node_id(8), node_id(9)


def fed_slot(memory: int = GIB) -> tuple[NodeDriver, Receive, Receive]:
    """A slot of two parts, both from elsewhere."""
    n = NodeDriver(memory=memory)
    slot, parts = version(1), (version(2), version(3))
    n.directory(Bind(slot, 1, 8 * MIB, b"", Operation.SUM, parts, slot.ref))
    streams = []
    for number, (part, sender) in enumerate(zip(parts, (FIRST, SECOND), strict=True), 2):
        place = Place(part, number, 8 * MIB, b"", sender, "there:1", MIB, RATE, into=slot.ref)
        streams.append(n.only(n.directory(place), Receive))
    first, second = streams
    return n, first, second


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
