"""What a node is getting: resumed where it stands, replaced, halted and let go of."""

import pytest

from hoplite_ucx.protocol.events import (
    CancelCall,
    CancelReceive,
    Free,
    PeerLost,
    Receive,
    ReceiveClosed,
    SendDirectory,
    SendPeer,
)
from hoplite_ucx.protocol.ids import next_life
from hoplite_ucx.protocol.messages import (
    Completed,
    Drop,
    Halt,
    Halted,
    StreamCancel,
    StreamFailed,
    StreamFault,
    StreamRefused,
    Want,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import NodeDriver, version
from tests.tools.transfers import OTHER, SENDER, SIZE, R, V, place, receiving


def test_a_broken_stream_is_reported_with_its_watermark_and_resumed_there() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.handle(ReceiveClosed(receive.stream, 3 * MIB, StreamFault.BROKEN)) == [
        SendDirectory(StreamFailed(V, 1, 3 * MIB, SENDER, StreamFault.BROKEN, wanted=True))
    ]
    again = n.only(n.directory(place(2, sender=OTHER)), Receive)
    assert (again.sender, again.offset, again.segment) == (OTHER, 3 * MIB, receive.segment)
    assert again.stream != receive.stream


def test_a_newer_placement_waits_until_the_old_stream_writes_no_more() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.directory(place(2, sender=OTHER)) == [
        SendPeer(SENDER, StreamCancel(receive.stream)),
        CancelReceive(receive.stream),
    ]
    again = n.only(n.handle(ReceiveClosed(receive.stream, 4 * MIB, None)), Receive)
    assert (again.sender, again.offset) == (OTHER, 4 * MIB)


def test_an_older_placement_that_arrives_late_is_nothing() -> None:
    n = NodeDriver()
    receiving(n, number=5)
    assert n.directory(place(4, sender=OTHER)) == []
    assert n.directory(place(5, sender=OTHER)) == []


def test_a_newer_version_takes_a_new_segment() -> None:
    n = NodeDriver()
    old = receiving(n)
    effects = n.directory(place(2, of=version(1, 2), sender=OTHER))
    new = n.only(effects, Receive)
    assert new.segment != old.segment
    assert new.offset == 0
    assert CancelReceive(old.stream) in effects
    assert n.only(n.handle(ReceiveClosed(old.stream, 5, None)), Free) == Free(old.segment)


def test_a_halt_is_answered_when_nothing_is_written_any_more() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.none(n.directory(Halt(V, 1)), SendDirectory)
    assert n.handle(ReceiveClosed(receive.stream, 4 * MIB, None)) == [SendDirectory(Halted(V, 1, 4 * MIB, wanted=True))]
    assert n.directory(Halt(V, 1)) == [], "it was answered"
    assert n.only(n.directory(place(2)), Receive).offset == 4 * MIB


def test_a_halted_stream_that_turns_out_complete_reports_that() -> None:
    n = NodeDriver()
    receive = receiving(n)
    n.directory(Halt(V, 1))
    effects = n.handle(ReceiveClosed(receive.stream, SIZE, None))
    assert n.sent(effects, Completed) == [Completed(V)]
    assert n.sent(effects, Halted) == []


def test_what_nobody_wants_is_let_go_when_it_is_halted() -> None:
    n = NodeDriver()
    receive = receiving(n)
    n.handle(CancelCall(1))
    n.directory(Halt(V, 1))
    assert n.handle(ReceiveClosed(receive.stream, MIB, None)) == [
        SendDirectory(Halted(V, 1, MIB, wanted=False)),
        Free(1),
    ]


def test_a_dropped_version_is_wanted_again() -> None:
    n = NodeDriver()
    receiving(n)
    assert n.sent(n.directory(Drop(V)), Want) == [Want(R)]


def test_a_lost_peer_breaks_the_streams_from_it() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.handle(PeerLost(OTHER)) == []
    assert CancelReceive(receive.stream) in n.handle(PeerLost(next_life(SENDER)))
    [failed] = n.sent(n.handle(ReceiveClosed(receive.stream, 7, None)), StreamFailed)
    assert (failed.fault, failed.watermark) == (StreamFault.BROKEN, 7)


@pytest.mark.parametrize("fault", [StreamFault.ABSENT, StreamFault.BUSY])
def test_a_refusal_is_reported_as_what_it_is(fault: StreamFault) -> None:
    n = NodeDriver()
    receive = receiving(n)
    n.peer(SENDER, StreamRefused(receive.stream, fault))
    [failed] = n.sent(n.handle(ReceiveClosed(receive.stream, 0, None)), StreamFailed)
    assert failed.fault is fault
