"""Streams that go out: turns, limits, requests that come early, and versions that end."""

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelServe,
    Free,
    GetCall,
    PeerLost,
    PutCall,
    PutFinished,
    SendPeer,
    Serve,
    ServeClosed,
    Tick,
)
from hoplite_ucx.protocol.ids import StreamId
from hoplite_ucx.protocol.messages import (
    Drop,
    PutAccepted,
    StreamCancel,
    StreamFault,
    StreamRefused,
    StreamStatus,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import RATE, NodeDriver, version
from tests.tools.transfers import OTHER, RECEIVER, SIZE, R, V, holding_one, place, receiving, request


def test_a_request_is_served_from_its_offset() -> None:
    n = NodeDriver()
    segment = holding_one(n)
    assert n.peer(RECEIVER, request(1, offset=MIB)) == [Serve(StreamId(RECEIVER, 1), segment, MIB, SIZE, MIB)]
    assert n.peer(RECEIVER, request(1, offset=MIB)) == [], "a request sent twice is one"


def test_streams_of_one_object_run_one_after_the_other() -> None:
    n = NodeDriver()
    holding_one(n)
    first, second = StreamId(RECEIVER, 1), StreamId(RECEIVER, 2)
    assert n.only(n.peer(RECEIVER, request(1)), Serve).stream == first
    assert n.peer(RECEIVER, request(2)) == []
    assert SendPeer(RECEIVER, StreamStatus(second, 0, queued=True)) in n.beat()
    assert n.only(n.handle(ServeClosed(first)), Serve).stream == second


def test_streams_that_leave_capacity_run_beside_each_other() -> None:
    n = NodeDriver()
    holding_one(n)
    for number in (1, 2):
        assert n.only(n.peer(RECEIVER, request(number, rate=RATE / 2)), Serve).stream.number == number
    assert n.peer(RECEIVER, request(3, rate=RATE / 2)) == []


def test_a_stream_that_does_not_move_gives_its_turn_away() -> None:
    n = NodeDriver()
    holding_one(n)
    n.peer(RECEIVER, request(1))
    n.peer(OTHER, request(2, receiver=OTHER))
    n.positions[StreamId(RECEIVER, 1)] = 0
    started = [effect for effect in n.beat(4) if isinstance(effect, Serve)]
    assert [serve.stream for serve in started] == [StreamId(OTHER, 2)]


def test_a_starved_stream_says_so() -> None:
    n = NodeDriver()
    receiving(n)
    serve = n.only(n.peer(RECEIVER, request(1)), Serve)
    n.positions[serve.stream] = 0
    assert SendPeer(RECEIVER, StreamStatus(serve.stream, 0, queued=False)) in n.beat()


def test_a_request_before_its_placement_is_parked_and_served_when_it_comes() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, None))
    assert n.peer(RECEIVER, request(1)) == []
    assert SendPeer(RECEIVER, StreamStatus(StreamId(RECEIVER, 1), 0, queued=True)) in n.beat()
    serve = n.only(n.directory(place()), Serve)
    assert serve.stream == StreamId(RECEIVER, 1)


def test_a_request_parked_before_a_put_is_accepted_is_served_then() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    assert n.peer(RECEIVER, request(1)) == []
    assert n.only(n.directory(PutAccepted(5, V, existing=False)), Serve).size == SIZE


def test_a_request_is_not_parked_for_ever() -> None:
    n = NodeDriver()
    n.peer(RECEIVER, request(1))
    refused = n.sent(n.beat(4), StreamRefused)
    assert refused == [StreamRefused(StreamId(RECEIVER, 1), StreamFault.ABSENT)]
    assert not n.state.serving.streams


def test_only_the_version_that_was_asked_for_is_served() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    n.directory(PutAccepted(5, version(1, 2), existing=False))
    refused = StreamRefused(StreamId(RECEIVER, 1), StreamFault.ABSENT)
    assert n.peer(RECEIVER, request(1, of=version(1, 1))) == [SendPeer(RECEIVER, refused)]


def test_more_streams_than_there_are_slots_are_refused_as_busy() -> None:
    n = NodeDriver(streams_out=1)
    holding_one(n)
    n.peer(RECEIVER, request(1))
    busy = StreamRefused(StreamId(RECEIVER, 2), StreamFault.BUSY)
    assert n.peer(RECEIVER, request(2)) == [SendPeer(RECEIVER, busy)]


def test_a_dropped_version_is_served_no_more_and_freed_when_nothing_reads_it() -> None:
    n = NodeDriver()
    segment = holding_one(n)
    serve = n.only(n.peer(RECEIVER, request(1)), Serve)
    n.peer(OTHER, request(2, receiver=OTHER))
    effects = n.directory(Drop(V))
    assert [m.fault for m in n.sent(effects, StreamRefused)] == [StreamFault.ABSENT] * 2
    assert CancelServe(serve.stream) in effects
    assert n.none(effects, Free)
    assert n.handle(ServeClosed(serve.stream)) == [Free(segment)]


def test_a_receiver_that_cancels_or_vanishes_is_served_no_more() -> None:
    n = NodeDriver()
    holding_one(n)
    n.peer(RECEIVER, request(1))
    assert n.peer(RECEIVER, StreamCancel(StreamId(RECEIVER, 1))) == [CancelServe(StreamId(RECEIVER, 1))]
    n.handle(ServeClosed(StreamId(RECEIVER, 1)))
    n.peer(RECEIVER, request(2))
    assert n.handle(PeerLost(RECEIVER)) == [CancelServe(StreamId(RECEIVER, 2))]
    n.handle(ServeClosed(StreamId(RECEIVER, 2)))
    assert not n.state.serving.streams


def test_an_offset_beyond_the_end_is_refused() -> None:
    n = NodeDriver()
    holding_one(n)
    effects = n.peer(RECEIVER, request(1, offset=SIZE + 1))
    assert effects == [SendPeer(RECEIVER, StreamRefused(StreamId(RECEIVER, 1), StreamFault.ABSENT))]


def test_the_time_of_a_put_stands_still_while_its_user_writes() -> None:
    n = NodeDriver()
    n.now = 1.0
    n.handle(PutCall(5, R, SIZE, b"", None, 3.0))
    n.now = 60.0
    assert n.none(n.handle(Tick()), CallFailed)
    n.handle(PutFinished(5))
    n.now = 61.9
    assert n.none(n.handle(Tick()), CallFailed)
    n.now = 62.0
    failure = n.only(n.handle(Tick()), CallFailed).failure
    assert failure.kind is FailureKind.TIMEOUT
    assert failure.ref == R
