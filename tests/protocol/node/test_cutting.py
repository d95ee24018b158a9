"""A complete object that is cut for others: its stripes are windows of the copy."""

from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelServe,
    Free,
    PutCall,
    PutFinished,
    Serve,
    ServeClosed,
    Window,
)
from hoplite_ucx.protocol.ids import StreamId, node_id
from hoplite_ucx.protocol.messages import (
    Copy,
    Cut,
    Drop,
    Evict,
    PutAccepted,
    StreamFault,
    StreamRefused,
    StreamRequest,
    Stripe,
)
from tests.tools.machines import RATE, NodeDriver, ref, version

HALF = 1 << 20
WHOLE, LOW, HIGH = version(1), version(7), version(8)
CUT = Cut(WHOLE, 2 * HALF, (Stripe(LOW, HALF), Stripe(HIGH, HALF)))
PEERS = [node_id(9), node_id(10)]


def holder(**options: int) -> NodeDriver:
    n = NodeDriver(**options)
    n.handle(PutCall(1, ref(1), 2 * HALF, b"", None, None))
    n.directory(PutAccepted(1, WHOLE, existing=False))
    n.handle(PutFinished(1))
    return n


def pull(n: NodeDriver, stripe: int, peer: int = 0, offset: int = 0) -> list[object]:
    request = StreamRequest(StreamId(PEERS[peer], stripe), version(stripe), offset, 1 << 16, RATE / 2, for_slot=True)
    return list(n.peer(PEERS[peer], request))


def test_stripes_are_windows_of_the_copy() -> None:
    n = holder()
    windows = [effect for effect in n.directory(CUT) if isinstance(effect, Window)]
    assert [(w.offset, w.size) for w in windows] == [(0, HALF), (HALF, HALF)]
    [serve] = [effect for effect in pull(n, 8, offset=5) if isinstance(effect, Serve)]
    assert (serve.segment, serve.offset, serve.size) == (windows[1].segment, 5, HALF)


def test_a_request_that_came_first_is_served_then() -> None:
    n = holder()
    assert pull(n, 7) == []
    assert n.only(n.directory(CUT), Serve).stream == StreamId(PEERS[0], 7)


def test_streams_of_a_stripe_run_side_by_side() -> None:
    n = holder()
    n.directory(CUT)
    pull(n, 7, peer=0)
    request = StreamRequest(StreamId(PEERS[1], 9), LOW, 0, 1 << 16, RATE, for_slot=True)
    assert n.only(n.peer(PEERS[1], request), Serve).stream == StreamId(PEERS[1], 9)


def test_told_twice_it_makes_no_windows_again() -> None:
    n = holder()
    n.directory(CUT)
    assert n.directory(CUT) == []


def test_who_does_not_have_all_of_it_makes_none() -> None:
    n = NodeDriver()
    assert n.directory(CUT) == []
    other_size = Cut(WHOLE, HALF, (Stripe(LOW, HALF // 2), Stripe(HIGH, HALF // 2)))
    assert holder().directory(other_size) == []


def test_a_window_that_is_read_is_freed_when_its_reader_is_done() -> None:
    n = holder()
    n.directory(CUT)
    pull(n, 7)
    effects = n.directory(Drop(LOW))
    assert n.none(effects, Free)
    assert n.only(effects, CancelServe).stream == StreamId(PEERS[0], 7)
    assert n.sent(effects, StreamRefused) == [StreamRefused(StreamId(PEERS[0], 7), StreamFault.ABSENT)]
    assert len([e for e in n.handle(ServeClosed(StreamId(PEERS[0], 7))) if isinstance(e, Free)]) == 1


def test_windows_are_announced_as_pieces() -> None:
    n = holder()
    n.directory(CUT)
    copies = {copy.version: copy.piece for copy in n.connect().copies}
    assert copies == {WHOLE: False, LOW: True, HIGH: True}
    assert Copy(LOW, HALF, b"", piece=True) in n.connect().copies


def test_a_put_waits_until_the_stripes_of_a_copy_are_over() -> None:
    n = holder(memory=3 * HALF)
    n.directory(CUT)
    pull(n, 7)
    assert n.none(n.handle(PutCall(2, ref(2), 2 * HALF, b"", None, None)), CallFailed)
    n.directory(Drop(LOW))
    n.handle(ServeClosed(StreamId(PEERS[0], 7)))
    assert n.sent(n.directory(Drop(HIGH)), Evict) == [Evict(WHOLE)]
