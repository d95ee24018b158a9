"""A node, event by event: what users, peers, streams and the directory make it do. `check()` runs after every event."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    Allocate,
    CallFailed,
    CancelCall,
    CancelReceive,
    CancelServe,
    ConnectDirectory,
    DeleteCall,
    DeleteDone,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    Fill,
    Free,
    GetCall,
    Got,
    NodeEffect,
    PeerLost,
    PutCall,
    PutDone,
    PutFinished,
    PutReady,
    Receive,
    ReceiveClosed,
    SendDirectory,
    SendPeer,
    Serve,
    ServeClosed,
    Tick,
    Unpin,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId, Version, next_life, node_id
from hoplite_ucx.protocol.messages import (
    Aborted,
    Completed,
    Copy,
    Delete,
    Deleted,
    Drop,
    Failed,
    Fenced,
    Halt,
    Halted,
    Heartbeat,
    Inline,
    Join,
    ObjectState,
    Place,
    Poll,
    Polled,
    Progress,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    StreamCancel,
    StreamFailed,
    StreamFault,
    StreamRefused,
    StreamRequest,
    StreamStatus,
    Unwant,
    Unwatch,
    Want,
    Watch,
    Welcome,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import CLUSTER, RATE, NodeDriver, ref, version

R = ref(1)
V = version(1)
SIZE = 10 * MIB
SENDER = node_id(7)
OTHER = node_id(8)
RECEIVER = node_id(9)


def place(number: int = 1, *, of: Version = V, size: int = SIZE, sender: int = SENDER) -> Place:
    return Place(of, number, size, b"layout", sender, f"address{sender}", MIB, RATE)


def request(
    number: int, *, of: Version = V, offset: int = 0, rate: float = RATE, receiver: NodeId = RECEIVER
) -> StreamRequest:
    return StreamRequest(StreamId(receiver, number), of, offset, MIB, rate)


def holding_one(n: NodeDriver, number: int = 1, size: int = SIZE) -> int:
    """Put an object; its segment."""
    call = 1000 + number
    segment = n.only(n.handle(PutCall(call, ref(number), size, b"layout", None, None)), PutReady).segment
    n.directory(PutAccepted(call, version(number), existing=False))
    n.handle(PutFinished(call))
    return segment


def receiving(n: NodeDriver, call: int = 1, number: int = 1) -> Receive:
    """A get that was placed: the stream that it opened."""
    n.handle(GetCall(call, R, None))
    return n.only(n.directory(place(number)), Receive)


# --- put --------------------------------------------------------------------------------------------------------


def test_a_put_reserves_memory_is_offered_filled_and_answered() -> None:
    n = NodeDriver()
    assert n.handle(PutCall(5, R, SIZE, b"layout", None, None)) == [
        Allocate(1, SIZE),
        PutReady(5, 1),
        SendDirectory(Put(5, R, SIZE, b"layout", None)),
    ]
    assert n.directory(PutAccepted(5, V, existing=False)) == []
    assert n.handle(PutFinished(5)) == [SendDirectory(Completed(V)), PutDone(5, V, existing=False)]


def test_a_small_put_carries_its_bytes_and_is_done_when_it_is_accepted() -> None:
    n = NodeDriver()
    assert n.handle(PutCall(5, R, 3, b"", b"abc", None)) == [
        Allocate(1, 3),
        Fill(1, b"abc"),
        SendDirectory(Put(5, R, 3, b"", b"abc")),
    ]
    assert n.directory(PutAccepted(5, V, existing=False)) == [PutDone(5, V, existing=False)]


def test_a_small_put_under_a_fresh_ref_is_done_before_the_directory_hears_of_it() -> None:
    n = NodeDriver()
    assert n.handle(PutCall(5, R, 3, b"", b"abc", None, fresh=True)) == [
        Allocate(1, 3),
        Fill(1, b"abc"),
        PutDone(5, None, existing=False),
        SendDirectory(Put(5, R, 3, b"", b"abc", told=True)),
    ]
    assert n.directory(PutAccepted(5, V, existing=False)) == []
    assert n.only(n.handle(GetCall(6, R, None)), Got).version == V


def test_a_fresh_put_that_comes_to_nothing_later_is_not_answered_twice() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, 3, b"", b"abc", None, fresh=True))
    failure = Failure(FailureKind.DELETED, "", "", R)
    assert n.directory(PutRefused(5, failure)) == [Free(1)]


def test_a_put_of_what_exists_frees_what_it_took() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    assert n.directory(PutAccepted(5, V, existing=True)) == []
    assert n.handle(PutFinished(5)) == [Free(1), PutDone(5, V, existing=True)]
    assert n.state.memory.used == 0


def test_a_refused_put_fails_but_its_memory_stays_while_its_writer_writes() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    failure = Failure(FailureKind.DELETED, "gone", "use another ref", R)
    assert n.directory(PutRefused(5, failure)) == [CallFailed(5, failure)]
    assert n.state.memory.used == SIZE
    assert n.handle(PutFinished(5)) == [Free(1)]


def test_a_putter_that_dies_aborts_its_put() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    n.directory(PutAccepted(5, V, existing=False))
    assert n.handle(CancelCall(5)) == [SendDirectory(Aborted(V)), Free(1)]


def test_a_putter_that_dies_before_the_answer_aborts_when_it_comes() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    assert n.handle(CancelCall(5)) == [Free(1)]
    assert n.directory(PutAccepted(5, V, existing=False)) == [SendDirectory(Aborted(V))]


def test_a_put_whose_version_ends_in_the_middle_is_offered_again() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, SIZE, b"", None, None))
    n.directory(PutAccepted(5, V, existing=False))
    serve = n.only(n.peer(RECEIVER, request(1)), Serve)
    effects = n.directory(Drop(V))
    assert n.sent(effects, Put) == [Put(5, R, SIZE, b"", None)]
    assert CancelServe(serve.stream) in effects
    n.handle(ServeClosed(serve.stream))
    n.directory(PutAccepted(5, version(1, 2), existing=False))
    assert n.only(n.handle(PutFinished(5)), PutDone).version == version(1, 2)


def test_a_put_answers_gets_that_waited_here() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, None))
    n.handle(PutCall(5, R, SIZE, b"layout", None, None))
    n.directory(PutAccepted(5, V, existing=False))
    effects = n.handle(PutFinished(5))
    assert n.only(effects, Got) == Got(1, V, b"layout", SIZE, 1, None)
    assert n.only(effects, PutDone).call == 5


@pytest.mark.parametrize(
    "call",
    [
        PutCall(5, b"short", 1, b"", None, None),
        PutCall(5, R, -1, b"", None, None),
        PutCall(5, R, Settings().max_object + 1, b"", None, None),
        PutCall(5, R, 4, b"", b"five!", None),
        PutCall(5, R, 1 << 20, b"", bytes(1 << 20), None),
        PutCall(5, R, 1, bytes((1 << 20) + 1), None, None),
        GetCall(5, b"", None),
        WaitCall(5, (R,), 0, None),
        WaitCall(5, (R,), 2, None),
        WaitCall(5, (), 0, None),
        WaitCall(5, (R, R), 1, None),
        WaitCall(5, (R, bytes(15)), 1, None),
        DeleteCall(5, (bytes(17),), None),
    ],
    ids=[
        "a short ref",
        "a negative size",
        "over the largest object",
        "bytes of another size",
        "inline over the limit",
        "layout over the limit",
        "get of no ref",
        "wait for none",
        "wait for more than there are",
        "wait for nothing",
        "wait for one twice",
        "wait for a short ref",
        "delete of a long ref",
    ],
)
def test_calls_that_cannot_be_are_refused_and_leave_nothing(call: PutCall | GetCall | WaitCall | DeleteCall) -> None:
    n = NodeDriver()
    [failed] = n.handle(call)
    assert isinstance(failed, CallFailed)
    assert (failed.call, failed.failure.kind) == (5, FailureKind.INVALID)
    assert not n.state.calls.puts
    assert not n.state.calls.waits
    assert not n.state.calls.deletes
    assert not n.state.fetching.fetches


# --- get --------------------------------------------------------------------------------------------------------


def test_a_get_of_what_is_here_pins_it() -> None:
    n = NodeDriver()
    segment = holding_one(n)
    assert n.handle(GetCall(1, R, None)) == [Got(1, V, b"layout", SIZE, segment, None)]
    n.directory(Drop(V))
    assert n.state.memory.used == SIZE, "someone has it mapped"
    assert n.handle(Unpin(1)) == [Free(segment)]


def test_a_get_wants_is_placed_receives_and_is_answered() -> None:
    n = NodeDriver()
    assert n.handle(GetCall(1, R, None)) == [SendDirectory(Want(R))]
    assert n.handle(GetCall(2, R, None)) == [], "one want serves all gets of the node"
    stream = StreamId(n.state.node, 1)
    assert n.directory(place()) == [
        Allocate(1, SIZE),
        Receive(stream, 1, SENDER, f"address{SENDER}", V, 0, SIZE, MIB),
        SendPeer(SENDER, StreamRequest(stream, V, 0, MIB, RATE)),
    ]
    assert n.handle(ReceiveClosed(stream, SIZE, None)) == [
        SendDirectory(Completed(V)),
        Got(1, V, b"layout", SIZE, 1, None),
        Got(2, V, b"layout", SIZE, 1, None),
    ]


def test_inline_bytes_answer_a_get_without_memory() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, None))
    assert n.directory(Inline(V, b"l", b"abc")) == [Got(1, V, b"l", 3, None, b"abc")]
    assert n.state.memory.used == 0


def test_an_empty_object_needs_no_stream() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, None))
    effects = n.directory(place(size=0))
    assert n.only(effects, Got).size == 0
    assert n.none(effects, Receive)


@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.DELETED, FailureKind.ABORTED])
def test_a_failure_ends_every_get(kind: FailureKind) -> None:
    n = NodeDriver()
    receive = receiving(n)
    failure = Failure(kind, "gone", "put it again", R)
    effects = n.directory(Failed(R, failure))
    assert effects[0] == CallFailed(1, failure)
    assert CancelReceive(receive.stream) in effects
    assert n.none(effects, Free), "the stream may still write"
    assert n.handle(ReceiveClosed(receive.stream, 5, None)) == [Free(1)]


def test_a_get_that_runs_out_of_time_says_what_it_waited_for() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, 0.1))
    n.now = 0.1
    assert n.handle(Tick()) == [SendDirectory(Poll(1, R))]
    failed, unwant = n.directory(Polled(1, ObjectState.UNKNOWN))
    assert isinstance(failed, CallFailed)
    assert failed.failure.kind is FailureKind.TIMEOUT
    assert "no node has it" in failed.failure.detail
    assert unwant == SendDirectory(Unwant(R))
    assert not n.state.fetching.fetches


def test_a_transfer_goes_on_when_its_get_gives_up() -> None:
    """Others may be behind this node."""
    n = NodeDriver()
    receive = receiving(n)
    assert n.handle(CancelCall(1)) == []
    assert n.handle(ReceiveClosed(receive.stream, SIZE, None)) == [SendDirectory(Completed(V))]


# --- resuming ---------------------------------------------------------------------------------------------------


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


# --- stalls -----------------------------------------------------------------------------------------------------


def test_silence_is_a_stall() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.none(n.beat(2), CancelReceive)
    assert CancelReceive(receive.stream) in n.beat(1)
    [failed] = n.sent(n.handle(ReceiveClosed(receive.stream, 0, None)), StreamFailed)
    assert failed.fault is StreamFault.STALLED


def test_progress_is_a_sign_of_life_and_is_reported() -> None:
    n = NodeDriver()
    receive = receiving(n)
    for step in range(1, 9):
        n.positions[receive.stream] = step * MIB
        assert n.sent(n.beat(), Heartbeat) == [Heartbeat((Progress(V, step * MIB),))]
    assert n.state.memory.holdings[V].watermark == 8 * MIB


@pytest.mark.parametrize("queued", [True, False])
def test_a_sender_that_says_it_has_nothing_to_send_is_no_stall(queued: bool) -> None:
    n = NodeDriver()
    receive = receiving(n)
    n.positions[receive.stream] = MIB
    n.beat()
    for _ in range(10):
        n.peer(SENDER, StreamStatus(receive.stream, MIB, queued))
        assert n.none(n.beat(), CancelReceive)


def test_starved_beyond_what_has_arrived_is_a_stall() -> None:
    """It sent more than has come: that is no hunger, that is a backlog that does not move."""
    n = NodeDriver()
    receive = receiving(n)
    n.positions[receive.stream] = MIB
    n.beat()
    cancelled = []
    for _ in range(4):
        n.peer(SENDER, StreamStatus(receive.stream, 2 * MIB, queued=False))
        cancelled += [e for e in n.beat() if isinstance(e, CancelReceive)]
    assert cancelled == [CancelReceive(receive.stream)]


# --- serving ----------------------------------------------------------------------------------------------------


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


# --- wait, delete -----------------------------------------------------------------------------------------------


def test_a_wait_is_answered_when_enough_is_ready() -> None:
    n = NodeDriver()
    holding_one(n, 3)
    refs = (ref(1), ref(2), ref(3))
    assert n.handle(WaitCall(1, refs, 2, None)) == [SendDirectory(Watch((ref(1), ref(2))))]
    assert n.directory(Ready((ref(2),))) == [
        SendDirectory(Unwatch((ref(1),))),
        Waited(1, (ref(2), ref(3)), (ref(1),)),
    ]


def test_two_waits_watch_a_ref_once() -> None:
    n = NodeDriver()
    n.handle(WaitCall(1, (R,), 1, None))
    assert n.handle(WaitCall(2, (R,), 1, None)) == []
    assert n.handle(CancelCall(1)) == []
    assert n.directory(Ready((R,))) == [Waited(2, (R,), ())]


def test_a_wait_that_runs_out_of_time_says_what_is_ready() -> None:
    n = NodeDriver()
    n.handle(WaitCall(1, (ref(1), ref(2)), 2, 0.1))
    n.directory(Ready((ref(2),)))
    n.now = 0.1
    assert n.handle(Tick()) == [SendDirectory(Poll(1))]
    assert n.only(n.directory(Polled(1, ObjectState.READY)), Waited) == Waited(1, (ref(2),), (ref(1),))


def test_a_deleted_ref_ends_a_wait() -> None:
    n = NodeDriver()
    n.handle(WaitCall(1, (R,), 1, None))
    failure = Failure(FailureKind.DELETED, "gone", "use another", R)
    assert n.only(n.directory(Failed(R, failure)), Waited).ready == (R,)


def test_delete() -> None:
    n = NodeDriver()
    assert n.handle(DeleteCall(1, (R,), None)) == [SendDirectory(Delete(1, (R,)))]
    assert n.directory(Deleted(1)) == [DeleteDone(1)]
    assert n.directory(Deleted(1)) == []


def test_a_delete_that_nobody_answers_ends_in_time() -> None:
    n = NodeDriver(joined=False)
    n.handle(DeleteCall(1, (R,), 2.0))
    n.now = 2.0
    assert n.only(n.handle(Tick()), CallFailed).failure.kind is FailureKind.TIMEOUT


# --- the session with the directory -----------------------------------------------------------------------------


def test_everything_is_announced_when_the_session_is_new() -> None:
    n = NodeDriver()
    holding_one(n, 3)
    n.handle(GetCall(1, ref(1), None))
    n.only(n.directory(place(7)), Receive)
    n.handle(GetCall(2, ref(2), None))
    n.handle(PutCall(3, ref(4), SIZE, b"", None, None))
    n.directory(PutAccepted(3, version(4), existing=False))
    n.handle(PutCall(4, ref(5), SIZE, b"l", None, None))
    n.handle(WaitCall(5, (ref(6),), 1, None))
    n.handle(DeleteCall(6, (ref(7),), None))
    n.handle(DirectoryLost())
    hello = n.connect()
    assert hello.copies == (Copy(version(3), SIZE, b"layout"),)
    (partial,) = hello.partials
    assert (partial.version, partial.size, partial.watermark, partial.number) == (V, SIZE, 0, 7)
    assert hello.wants == (ref(2),)
    assert hello.producing == (Copy(version(4), SIZE, b""),)
    assert hello.puts == (Put(4, ref(5), SIZE, b"l", None),)
    assert hello.watches == (ref(6),)
    assert hello.deletes == (Delete(6, (ref(7),)),)


def test_reconnecting_backs_off() -> None:
    n = NodeDriver()
    pauses = []
    for _ in range(9):
        n.handle(DirectoryLost())
        began = n.now
        effects: list[NodeEffect] = []
        while not any(isinstance(effect, ConnectDirectory) for effect in effects):
            wakeup = n.state.wakeup()
            assert wakeup is not None
            n.now = wakeup
            effects = n.handle(Tick())
        pauses.append(n.now - began)
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5, 0.5])


def test_a_silent_directory_is_left() -> None:
    n = NodeDriver()
    effects: list[NodeEffect] = []
    for _ in range(9):
        n.now += n.settings.heartbeat
        effects += n.handle(Tick())
    assert effects.count(DisconnectDirectory()) == 1


def test_streams_run_on_without_the_directory() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.handle(DirectoryLost()) == []
    assert n.only(n.handle(ReceiveClosed(receive.stream, SIZE, None)), Got).call == 1
    assert n.connect().copies == (Copy(V, SIZE, b"layout"),)


@pytest.mark.parametrize("welcome", [Welcome(1, "another", Settings()), Welcome(0, CLUSTER, Settings())])
def test_a_foreign_or_older_directory_is_refused(welcome: Welcome) -> None:
    n = NodeDriver()
    assert DisconnectDirectory() in n.directory(welcome)
    assert n.state.refusal is not None
    assert n.state.refusal.kind is FailureKind.STALE


def test_the_directorys_settings_are_taken_over() -> None:
    n = NodeDriver()
    n.directory(Welcome(1, CLUSTER, Settings(inline_limit=5)))
    [failed] = n.handle(PutCall(5, R, 6, b"", b"sixsix", None))
    assert isinstance(failed, CallFailed)


def test_a_fenced_node_comes_back_under_a_new_name_with_what_it_has() -> None:
    n = NodeDriver()
    holding_one(n, 3)
    receive = receiving(n, number=7)
    n.positions[receive.stream] = 2 * MIB
    n.beat()
    old = n.state.node
    effects = n.directory(Fenced(old))
    assert DisconnectDirectory() in effects
    assert n.state.node == next_life(old)
    n.handle(ReceiveClosed(receive.stream, 3 * MIB, None))
    hello = n.only([e for e in n.handle(DirectoryConnected()) if isinstance(e, SendDirectory)], SendDirectory).message
    assert isinstance(hello, Join)
    assert hello.node == next_life(old)
    (partial,) = hello.partials
    assert (partial.version, partial.watermark, partial.number) == (V, 3 * MIB, 0)
    assert hello.copies == (Copy(version(3), SIZE, b"layout"),)
    again = n.only(n.directory(place(1, sender=OTHER)), Receive)
    assert again.offset == 3 * MIB
    assert again.stream.receiver == next_life(old)


def test_fencing_another_life_changes_nothing() -> None:
    n = NodeDriver()
    assert n.directory(Fenced(next_life(n.state.node))) == []


# --- every call is answered once --------------------------------------------------------------------------------


def test_a_cancelled_call_is_not_answered() -> None:
    n = NodeDriver()
    for call in (
        GetCall(1, R, 0.1),
        WaitCall(2, (R,), 1, 0.1),
        DeleteCall(3, (R,), 0.1),
        PutCall(4, ref(4), 5, b"", None, 0.1),
    ):
        n.handle(call)
        n.handle(CancelCall(call.call))
    n.now = 1.0
    effects = n.handle(Tick()) + n.directory(Ready((R,))) + n.directory(Deleted(3))
    assert n.none(effects, CallFailed, Waited, DeleteDone, Got, PutDone)
    assert n.state.memory.used == 0
