"""What users ask of a node, event by event. Invariants are checked after every event."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    Allocate,
    CallFailed,
    CancelCall,
    CancelReceive,
    CancelServe,
    DeleteCall,
    DeleteDone,
    Fill,
    Free,
    GetCall,
    Got,
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
from hoplite_ucx.protocol.ids import StreamId
from hoplite_ucx.protocol.messages import (
    Aborted,
    Completed,
    Delete,
    Deleted,
    Drop,
    Failed,
    Inline,
    ObjectState,
    Poll,
    Polled,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    StreamRequest,
    Unwant,
    Unwatch,
    Want,
    Watch,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import RATE, NodeDriver, ref, version
from tests.tools.transfers import RECEIVER, SENDER, SIZE, R, V, holding_one, place, receiving, request

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
