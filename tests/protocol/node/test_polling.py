"""Who asks once, or whose time is over, hears what the directory knows; a silent directory is called that."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    ContributorsAre,
    ContributorsCall,
    DeleteCall,
    DeleteDone,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    GetCall,
    Got,
    NodeEffect,
    PutCall,
    PutDone,
    Receive,
    ReceiveClosed,
    ReduceCall,
    SendDirectory,
    Tick,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.messages import (
    Alive,
    Ask,
    Assemble,
    Contributors,
    Declined,
    Deleted,
    Drop,
    Failed,
    Inline,
    Join,
    ObjectState,
    Operation,
    Place,
    Poll,
    Polled,
    Put,
    PutAccepted,
    Ready,
    Rejected,
    Stripe,
    Unwant,
    Unwatch,
    Want,
    Watch,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import RATE, NodeDriver, ref, version

R = ref(1)
V = version(1)
SIZE = 10 * MIB
SENDER = 7
LATER = 300.0
SETTINGS = Settings()


def place() -> Place:
    return Place(V, 1, SIZE, b"", SENDER, "address", MIB, RATE)


def stripe(number: int) -> Place:
    return Place(version(number), number, MIB, b"", SENDER, "address", MIB, RATE, sealed=False)


def failure(effects: list[NodeEffect]) -> Failure:
    return NodeDriver.only(effects, CallFailed).failure


def stand_still(n: NodeDriver, seconds: float) -> list[NodeEffect]:
    """Time passes, and the directory says nothing."""
    effects = []
    end = n.now + seconds
    while n.now < end - 1e-9:
        n.now = min(end, n.now + n.settings.heartbeat / 2)
        effects += n.handle(Tick(dict(n.positions)))
    return effects


# --- a get that asks once ---------------------------------------------------------------------------------------


def test_it_asks_at_once_and_hears_of_an_object_that_is_not_there() -> None:
    n = NodeDriver()
    assert n.handle(GetCall(1, R, LATER, once=True)) == [SendDirectory(Want(R)), SendDirectory(Poll(1, R))]
    failed, unwant = n.directory(Polled(1, ObjectState.UNKNOWN))
    assert isinstance(failed, CallFailed)
    assert failed.failure.kind is FailureKind.TIMEOUT
    assert "no node has it" in failed.failure.detail
    assert "timeout" in failed.failure.remedy
    assert unwant == SendDirectory(Unwant(R))
    assert not n.state.fetching.fetches


def test_a_small_object_comes_with_the_answer() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    assert n.only(n.directory(Inline(V, b"", b"abc")), Got).data == b"abc"
    assert n.directory(Polled(1, ObjectState.READY)) == []


def test_what_is_there_is_fetched_however_long_that_takes() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    stream = n.only(n.directory(place()), Receive).stream
    assert n.directory(Polled(1, ObjectState.READY)) == []
    for watermark in range(1, 40):
        n.positions[stream] = watermark
        asked = n.sent(n.beat(), Poll)
        for poll in asked:
            n.directory(Polled(poll.call, ObjectState.READY))
    assert n.only(n.handle(ReceiveClosed(stream, SIZE, None)), Got).call == 1


def test_the_transfer_has_a_time_limit() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, 1.0, once=True))
    stream = n.only(n.directory(place()), Receive).stream
    n.directory(Polled(1, ObjectState.READY))
    n.positions[stream] = 5
    n.beat(3)
    assert n.none(n.handle(Tick({stream: 7})), CallFailed)
    assert f"5 of {SIZE} bytes have arrived" in failure(n.beat()).detail


def test_what_is_lost_in_the_meantime_is_not_waited_for() -> None:
    """The next put of the ref would be another producer."""
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.directory(place())
    n.directory(Polled(1, ObjectState.READY))
    assert n.sent(n.directory(Drop(V)), Want) == [Want(R)]
    asked = n.sent(n.beat(int(SETTINGS.lease / SETTINGS.heartbeat)), Poll)
    assert asked == [Poll(1, R)]
    assert "no node has it" in failure(n.directory(Polled(1, ObjectState.UNKNOWN))).detail


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (ObjectState.COMING, "it is still being put or reduced"),
        (ObjectState.UNKNOWN, "no node has it"),
    ],
)
def test_it_says_why_there_is_nothing(state: ObjectState, why: str) -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    assert why in failure(n.directory(Polled(1, state))).detail


def test_a_producer_is_not_waited_for_though_its_bytes_come() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.only(n.directory(place()), Receive)
    detail = failure(n.directory(Polled(1, ObjectState.COMING))).detail
    assert f"0 of {SIZE} bytes" in detail
    assert "still being put" in detail


def test_what_is_here_needs_no_question() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, 3, b"", b"abc", None))
    n.directory(PutAccepted(5, V, existing=False))
    assert n.only(n.handle(GetCall(1, R, LATER, once=True)), Got).version == V


def test_an_own_put_is_seen_before_the_directory_has_heard_of_it() -> None:
    """The offer goes before the question, and its answer comes before the question's."""
    n = NodeDriver()
    told = n.handle(PutCall(5, R, 3, b"", b"abc", None, fresh=True))
    assert n.only(told, PutDone).call == 5
    sent = [SendDirectory(message) for message in (Want(R), Poll(1, R))]
    assert told[-1] == SendDirectory(Put(5, R, 3, b"", b"abc", told=True))
    assert n.handle(GetCall(1, R, LATER, once=True)) == sent
    assert n.only(n.directory(PutAccepted(5, V, existing=False)), Got).call == 1
    assert n.directory(Polled(1, ObjectState.READY)) == []


def behind_another() -> NodeDriver:
    """A get that asks once, of what is there, and has no room until a stream is over."""
    n = NodeDriver(memory=SIZE + MIB)
    n.handle(GetCall(9, ref(9), None))
    stream = n.only(n.directory(Place(version(9), 1, SIZE, b"", SENDER, "address", MIB, RATE)), Receive).stream
    n.positions[stream] = 1
    n.handle(GetCall(1, R, LATER, once=True))
    assert n.sent(n.directory(place()), Declined) == [Declined(V, 1)]
    assert n.directory(Polled(1, ObjectState.READY)) == []
    return n


def test_what_is_deleted_while_there_is_no_room_for_it_is_not_waited_for() -> None:
    n = behind_another()
    assert n.sent(n.beat(int(SETTINGS.lease / SETTINGS.heartbeat)), Poll) == [Poll(1, R)]
    assert n.directory(Polled(1, ObjectState.DELETED)) == [SendDirectory(Want(R))]
    gone = Failure(FailureKind.DELETED, "it was deleted", "put another", R)
    assert n.directory(Failed(R, gone)) == [CallFailed(1, gone)]


@pytest.mark.parametrize(("state", "why"), [(ObjectState.UNKNOWN, "no node has it"), (ObjectState.READY, "no room")])
def test_what_is_lost_is_not_said_to_have_no_room(state: ObjectState, why: str) -> None:
    n = behind_another()
    n.handle(GetCall(2, R, n.now))
    assert why in failure(n.directory(Polled(2, state))).detail


def test_whoever_gives_up_forgets_the_question() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.handle(CancelCall(1))
    assert n.directory(Polled(1, ObjectState.UNKNOWN)) == []
    assert n.state.timers() == ["beat"]


# --- other calls without time -----------------------------------------------------------------------------------


def test_a_wait_without_time_asks_once() -> None:
    n = NodeDriver()
    refs = (ref(1), ref(2))
    assert n.handle(WaitCall(1, refs, 2, n.now)) == [SendDirectory(Watch(refs)), SendDirectory(Poll(1))]
    assert n.directory(Ready((ref(2),))) == []
    assert n.directory(Polled(1, ObjectState.READY)) == [
        SendDirectory(Unwatch((ref(1),))),
        Waited(1, (ref(2),), (ref(1),)),
    ]


def test_a_wait_that_finds_enough_ends_with_it() -> None:
    n = NodeDriver()
    n.handle(WaitCall(1, (R,), 1, n.now))
    assert n.directory(Ready((R,))) == [Waited(1, (R,), ())]
    assert n.directory(Polled(1, ObjectState.READY)) == []


def test_what_is_ready_together_is_told_together() -> None:
    n = NodeDriver()
    refs = (ref(1), ref(2), ref(3))
    n.handle(WaitCall(1, refs, 1, n.now))
    assert n.only(n.directory(Ready((ref(1), ref(3)))), Waited) == Waited(1, (ref(1), ref(3)), (ref(2),))


def test_a_get_with_hardly_any_time_is_not_told_a_lie() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, 0.001))
    n.now = 0.001
    assert n.handle(Tick()) == [SendDirectory(Poll(1, R))]
    n.now = 0.002
    assert n.only(n.directory(Inline(V, b"", b"abc")), Got).data == b"abc"


def test_a_get_whose_time_is_over_says_how_far_it_came() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, 0.001))
    n.now = 0.001
    n.handle(Tick())
    n.directory(place())
    assert f"0 of {SIZE} bytes have arrived" in failure(n.directory(Polled(1, ObjectState.READY))).detail


def test_contributors_are_asked_for_once() -> None:
    n = NodeDriver()
    assert n.handle(ContributorsCall(1, R, n.now)) == [SendDirectory(Ask(1, R)), SendDirectory(Poll(1, R))]
    assert "not sealed yet" in failure(n.directory(Polled(1, ObjectState.COMING))).detail
    assert not n.state.calls.asks
    n.handle(ContributorsCall(2, R, n.now))
    assert n.directory(Contributors(2, (ref(2),))) == [ContributorsAre(2, (ref(2),))]
    assert n.directory(Polled(2, ObjectState.READY)) == []


def test_requests_have_time_for_the_answer() -> None:
    n = NodeDriver()
    n.handle(DeleteCall(1, (R,), n.now))
    n.handle(ReduceCall(2, R, (ref(2),), Operation.SUM, 1, n.now))
    n.handle(PutCall(3, ref(3), 3, b"", b"abc", n.now))
    n.now += SETTINGS.suspicion / 2
    assert n.none(n.handle(Tick()), CallFailed)
    assert n.directory(Deleted(1)) == [DeleteDone(1)]
    assert n.only(n.directory(PutAccepted(3, version(3), existing=False)), PutDone).call == 3


# --- a silent directory -----------------------------------------------------------------------------------------


CALLS = {
    "get": lambda now: GetCall(1, R, now),
    "get once": lambda _: GetCall(1, R, LATER, once=True),
    "wait": lambda now: WaitCall(1, (R,), 1, now),
    "contributors": lambda now: ContributorsCall(1, R, now),
    "delete": lambda now: DeleteCall(1, (R,), now),
    "reduce": lambda now: ReduceCall(1, R, (ref(2),), Operation.SUM, 1, now),
    "put": lambda now: PutCall(1, R, 3, b"", b"abc", now),
    "fresh put": lambda now: PutCall(1, R, 3, b"", b"abc", now, fresh=True),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_directory_that_went_away_is_named_with_the_time_since(call: str) -> None:
    n = NodeDriver()
    n.handle(DirectoryLost())
    stand_still(n, 10.0)
    effects = n.handle(CALLS[call](n.now))
    effects += stand_still(n, SETTINGS.suspicion + 0.1)
    failed = failure(effects)
    assert failed.kind is FailureKind.TIMEOUT
    assert "the directory has not answered for 10" in failed.detail
    assert "no node has it" not in failed.detail
    assert "directory runs" in failed.remedy


def test_its_address_is_named() -> None:
    n = NodeDriver(directory="10.0.0.1:7000", joined=False)
    stand_still(n, 5.0)
    assert "the directory at 10.0.0.1:7000 has not answered for 5.0 s" in failure(n.handle(GetCall(1, R, n.now))).detail


def test_one_that_fell_silent_in_its_session_has_some_time_to_answer() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    assert n.none(stand_still(n, SETTINGS.suspicion - 0.1), CallFailed)
    assert "the directory has not answered for 0.8 s" in failure(stand_still(n, 0.1)).detail


def test_a_node_that_is_late_itself_calls_a_silent_directory_silent() -> None:
    """Its own delays are not the directory's silence, but since the question nothing has come."""
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    effects = []
    for _ in range(3):
        n.now += SETTINGS.suspicion / 2
        effects += n.handle(Tick())
    assert "the directory has not answered for" in failure(effects).detail


def test_a_node_that_slept_gives_the_directory_the_rest_of_its_time() -> None:
    """Else whoever asked before would be told that a directory is silent which answered, or was not asked."""
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.now += 60.0
    n.handle(DirectoryLost())  # it had declared us dead
    assert n.none(n.handle(Tick()), CallFailed)
    assert n.sent(n.connect_effects(), Poll) == [Poll(1, R)]
    assert "no node has it" in failure(n.directory(Polled(1, ObjectState.UNKNOWN))).detail


def test_a_node_that_slept_does_not_hope_for_ever() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.now += 60.0
    effects = n.handle(Tick()) + stand_still(n, SETTINGS.suspicion)
    assert "the directory has not answered for 0.8 s" in failure(effects).detail


def test_a_word_on_waking_up_is_not_heard_for_as_long_as_the_node_slept() -> None:
    """The session's messages come before the heartbeat that is late."""
    n = NodeDriver()
    n.now += 60.0
    n.directory(Alive())
    stand_still(n, SETTINGS.suspicion + SETTINGS.heartbeat)
    assert n.none(n.handle(PutCall(5, R, 3, b"", b"abc", None, fresh=True)), PutDone)
    assert DisconnectDirectory() in stand_still(n, SETTINGS.lease)


def test_one_that_answers_others_but_not_this_is_not_called_silent() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    detail = failure(n.beat(4)).detail
    assert "did not answer this call in time" in detail


def test_what_this_node_slept_through_is_not_its_silence() -> None:
    n = NodeDriver()
    n.beat()
    n.now += 60.0
    assert n.none(n.handle(GetCall(1, R, n.now)), CallFailed)
    assert n.only(n.handle(PutCall(5, ref(2), 3, b"", b"abc", None, fresh=True)), PutDone).call == 5


def test_a_question_is_asked_again_in_the_next_session() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.handle(WaitCall(2, (ref(2),), 1, n.now))
    n.handle(DirectoryLost())
    join, *polls = n.sent(n.connect_effects(), Join | Poll)
    assert isinstance(join, Join)
    assert join.wants == (R,)
    assert join.watches == (ref(2),)
    assert polls == [Poll(1, R), Poll(2)]
    n.directory(Ready((ref(2),)))
    assert "no node has it" in failure(n.directory(Polled(1, ObjectState.UNKNOWN))).detail


def test_what_is_being_received_goes_on_without_a_directory() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    stream = n.only(n.directory(place()), Receive).stream
    n.directory(Polled(1, ObjectState.READY))
    n.handle(DirectoryLost())
    for watermark in range(1, 8):
        n.positions[stream] = watermark
        assert n.none(stand_still(n, 0.5), CallFailed)
    assert n.only(n.handle(ReceiveClosed(stream, SIZE, None)), Got).call == 1


def test_what_comes_in_stripes_goes_on_without_a_directory() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.directory(Assemble(V, 5, 2 * MIB, b"", (Stripe(version(7), MIB), Stripe(version(8), MIB)), sealed=True))
    streams = [n.only(n.directory(stripe(number)), Receive).stream for number in (7, 8)]
    n.directory(Polled(1, ObjectState.READY))
    n.handle(DirectoryLost())
    assert n.none(stand_still(n, SETTINGS.lease + SETTINGS.suspicion), CallFailed)
    n.handle(ReceiveClosed(streams[0], MIB, None))
    assert n.only(n.handle(ReceiveClosed(streams[1], MIB, None)), Got).call == 1


def test_stripes_that_do_not_come_are_not_waited_for_without_a_directory() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, LATER, once=True))
    n.directory(Assemble(V, 5, 2 * MIB, b"", (Stripe(version(7), MIB), Stripe(version(8), MIB)), sealed=True))
    n.directory(Polled(1, ObjectState.READY))
    n.handle(DirectoryLost())
    assert "the directory has not answered" in failure(stand_still(n, SETTINGS.lease + SETTINGS.suspicion)).detail


def test_a_wait_tells_what_is_ready_as_far_as_is_known() -> None:
    n = NodeDriver()
    n.handle(WaitCall(1, (ref(1), ref(2)), 2, LATER))
    n.directory(Ready((ref(2),)))
    n.handle(DirectoryLost())
    n.now = LATER
    detail = failure(n.handle(Tick()) + stand_still(n, SETTINGS.suspicion)).detail
    assert "of 2 refs 1 are known to be ready" in detail


def test_a_put_that_nobody_can_hear_of_waits_for_the_directory() -> None:
    n = NodeDriver()
    n.handle(DirectoryLost())
    assert n.none(n.handle(PutCall(5, R, 3, b"", b"abc", 60.0, fresh=True)), PutDone)
    hello = n.connect()
    assert hello.puts == (Put(5, R, 3, b"", b"abc"),)
    assert n.only(n.directory(PutAccepted(5, V, existing=False)), PutDone).call == 5


def test_a_put_into_a_silent_session_waits_too() -> None:
    n = NodeDriver()
    stand_still(n, SETTINGS.suspicion)
    assert n.none(n.handle(PutCall(5, R, 3, b"", b"abc", 60.0, fresh=True)), PutDone)
    assert n.only(n.directory(PutAccepted(5, V, existing=False)), PutDone).call == 5


def test_a_put_that_was_done_is_offered_again_as_such() -> None:
    n = NodeDriver()
    n.handle(PutCall(5, R, 3, b"", b"abc", 60.0, fresh=True))
    n.handle(DirectoryLost())
    assert n.connect().puts == (Put(5, R, 3, b"", b"abc", told=True),)


# --- a directory that does not take the node in -----------------------------------------------------------------


REFUSED = Failure(FailureKind.INVALID, "it speaks protocol 3, the directory 4", "run the same version everywhere")


def test_a_put_is_not_done_before_the_directory_has_taken_the_node_in() -> None:
    n = NodeDriver(joined=False)
    n.handle(DirectoryConnected())
    assert n.none(n.handle(PutCall(5, R, 3, b"", b"abc", 60.0, fresh=True)), PutDone)
    assert n.directory(Rejected(REFUSED)) == [DisconnectDirectory()]
    assert n.none(n.handle(PutCall(6, ref(2), 3, b"", b"abc", 60.0, fresh=True)), PutDone)
    assert {put.call for put in n.connect().puts} == {5, 6}


@pytest.mark.parametrize("call", CALLS)
def test_a_directory_that_refuses_this_node_is_not_called_busy(call: str) -> None:
    n = NodeDriver(joined=False)
    effects = n.handle(CALLS[call](n.now))
    while n.now < 2 * SETTINGS.suspicion:
        n.handle(DirectoryConnected())
        n.directory(Rejected(REFUSED))
        effects += stand_still(n, SETTINGS.heartbeat)
    failed = failure(effects)
    assert failed.detail.startswith(f"this node could not join the directory: {REFUSED.detail}")
    assert failed.remedy == REFUSED.remedy


def test_a_directory_that_took_it_in_later_is_not_said_to_have_refused_it() -> None:
    n = NodeDriver(joined=False)
    n.handle(DirectoryConnected())
    n.directory(Rejected(REFUSED))
    n.connect()
    n.handle(GetCall(1, R, LATER, once=True))
    assert "has not answered for 0.8 s" in failure(stand_still(n, SETTINGS.suspicion)).detail
