"""Room in a node's store: who is given it, who waits for it and for how long, and who is told that there is none."""

import pytest
from msgspec.structs import replace

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    Combined,
    GetCall,
    PutCall,
    PutFinished,
    PutReady,
    Receive,
    ReceiveClosed,
    ServeClosed,
    Tick,
    Unpin,
    WaitCall,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId
from hoplite_ucx.protocol.messages import (
    Declined,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Operation,
    Origin,
    PutRefused,
    Reduce,
    Sealed,
    StreamFault,
    Want,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import NodeDriver, ref, version
from tests.tools.transfers import (
    OTHER,
    RECEIVER,
    R,
    V,
    cached,
    fed_slot,
    place,
    request,
)


def test_the_least_recently_used_copies_are_evicted_by_asking() -> None:
    n = NodeDriver(memory=30)
    for number in (1, 2, 3):
        cached(n, number, 10, at=float(number))
    n.now = 4.0
    n.handle(GetCall(50, ref(1), None))
    n.handle(Unpin(50))
    effects = n.handle(PutCall(5, ref(9), 15, b"", None, None))
    assert n.sent(effects, Evict) == [Evict(version(2)), Evict(version(3))]
    assert n.none(n.directory(EvictAnswer(version(2), Eviction.GRANTED)), PutReady)
    effects = n.directory(EvictAnswer(version(3), Eviction.GRANTED))
    assert n.only(effects, PutReady).call == 5
    assert set(n.state.memory.holdings) == {version(1)}


def test_a_copy_that_must_stay_is_not_asked_for_again_at_once() -> None:
    n = NodeDriver(memory=20)
    cached(n, 1, 10, at=1.0)
    n.handle(PutCall(5, ref(9), 15, b"", None, None))
    failed = n.only(n.directory(EvictAnswer(version(1), Eviction.LAST_COPY)), CallFailed)
    assert failed.failure.kind is FailureKind.STORE_FULL
    assert n.sent(n.handle(PutCall(6, ref(9), 15, b"", None, None)), Evict) == []
    n.beat(2)
    assert n.sent(n.handle(PutCall(7, ref(9), 15, b"", None, None)), Evict) == [Evict(version(1))]


def test_a_full_store_names_what_fills_it() -> None:
    n = NodeDriver(memory=20)
    cached(n, 1, 12, at=1.0)
    n.handle(GetCall(50, ref(1), None))
    [failed] = n.handle(PutCall(5, ref(9), 15, b"", None, None))
    assert isinstance(failed, CallFailed)
    assert failed.failure.kind is FailureKind.STORE_FULL
    assert f"{ref(1).hex()[:8]} (12 bytes)" in failed.failure.detail


def test_an_object_larger_than_the_store_never_fits() -> None:
    n = NodeDriver(memory=20)
    [failed] = n.handle(PutCall(5, R, 21, b"", None, None))
    assert isinstance(failed, CallFailed)
    assert failed.failure.kind is FailureKind.STORE_FULL


def test_a_put_waits_while_something_ends_by_itself() -> None:
    n = NodeDriver(memory=20)
    cached(n, 1, 12, at=1.0)
    n.peer(RECEIVER, request(1, of=version(1)))
    assert n.handle(PutCall(5, ref(9), 15, b"", None, None)) == [], "the copy is being served"
    effects = n.handle(ServeClosed(StreamId(RECEIVER, 1)))
    assert n.sent(effects, Evict) == [Evict(version(1))]
    assert n.only(n.directory(EvictAnswer(version(1), Eviction.GRANTED)), PutReady).call == 5


def test_a_put_waits_for_room_while_bytes_move() -> None:
    """A receiver that takes nothing may wait for the very put that waits for the memory it is served from."""
    n = NodeDriver(memory=20)
    cached(n, 1, 12, at=1.0)
    n.now = 100.0
    n.peer(RECEIVER, request(1, of=version(1)))
    n.handle(PutCall(5, ref(9), 15, b"", None, None))
    for position in range(1, 5):
        n.positions[StreamId(RECEIVER, 1)] = position
        assert n.none(n.beat(12), CallFailed), "three seconds are not too long"
    failed = n.only(n.beat(5), CallFailed)
    assert failed.call == 5
    assert failed.failure.kind is FailureKind.STORE_FULL


@pytest.mark.parametrize("call", [PutCall(5, ref(9), 15, b"", None, None), GetCall(5, R, None)], ids=["put", "get"])
def test_a_copy_that_is_in_use_for_ever_is_not_waited_for(call: PutCall | GetCall) -> None:
    """It may be of use to a slot that lacks something else, which is not to be seen from here."""
    n = NodeDriver(memory=20)
    cached(n, 2, 12, at=1.0)
    effects = n.handle(call)
    began, number, failed = n.now, 9, []
    while not failed and n.now < began + 10.0:
        if n.sent(effects, Evict):
            effects = n.directory(EvictAnswer(version(2), Eviction.IN_USE))
        elif n.sent(effects, Want):
            number += 1
            effects = n.directory(place(number, size=15))
        else:
            effects = n.beat()
        failed = [effect for effect in effects if isinstance(effect, CallFailed)]
    assert [each.failure.kind for each in failed] == [FailureKind.STORE_FULL]
    assert 4.0 <= n.now - began <= 5.0, "whoever uses it may be done soon"


def test_a_put_that_waits_for_room_has_a_deadline() -> None:
    n = NodeDriver(memory=20)
    cached(n, 1, 12, at=1.0)
    n.peer(RECEIVER, request(1, of=version(1)))
    n.handle(PutCall(5, ref(9), 15, b"", None, 3.0))
    n.now = 3.0
    failed = n.only(n.handle(Tick()), CallFailed)
    assert failed.failure.kind is FailureKind.STORE_FULL


def test_a_placement_without_room_is_declined_and_wanted_again_when_there_is_some() -> None:
    n = get_behind_a_stream()
    assert n.sent(n.handle(ServeClosed(StreamId(RECEIVER, 1))), Want) == [Want(R)]
    assert n.sent(n.directory(place(10, size=15)), Evict) == [Evict(version(2))]
    assert n.only(n.directory(EvictAnswer(version(2), Eviction.GRANTED)), Receive).size == 15


def test_what_a_seal_says_is_kept_while_the_target_waits_for_room() -> None:
    n = NodeDriver(memory=20)
    cached(n, 2, 12, at=1.0)
    n.handle(GetCall(1, R, None))
    n.directory(replace(place(9, size=15), sealed=False))
    origin = Origin(Reduce(7, R, (ref(3),), Operation.SUM, 1), (version(3),))
    n.directory(Sealed(V, origin))
    receive = n.only(n.directory(EvictAnswer(version(2), Eviction.GRANTED)), Receive)
    n.handle(ReceiveClosed(receive.stream, 15, None))
    assert [copy.origin for copy in n.connect().copies if copy.version == V] == [origin]


def test_a_get_that_can_never_have_room_fails() -> None:
    n = NodeDriver(memory=20)
    n.handle(GetCall(1, R, None))
    effects = n.directory(place(size=21))
    assert n.sent(effects, Declined) == [Declined(V, 1)]
    assert n.only(effects, CallFailed).failure.kind is FailureKind.STORE_FULL
    assert not n.state.fetching.fetches


def test_a_copy_that_is_dropped_while_its_eviction_is_asked_for_is_not_waited_for() -> None:
    n = NodeDriver(memory=20)
    cached(n, 1, 12, at=1.0)
    n.handle(PutCall(5, ref(9), 15, b"", None, None))
    n.handle(GetCall(50, ref(1), None))
    failed = n.only(n.directory(Drop(version(1))), CallFailed)
    assert failed.failure.kind is FailureKind.STORE_FULL, "it is mapped and will not go by itself"
    assert n.directory(EvictAnswer(version(1), Eviction.GRANTED)) == []


def test_a_store_full_of_last_copies_is_found_out_soon() -> None:
    """One question for each copy. The answers take longer than a heartbeat, but refusals are kept in mind."""
    n = NodeDriver(memory=10 * 60)
    for number in range(60):
        cached(n, 10 + number, 10, at=1.0)
    effects, asked, rounds = n.handle(PutCall(5, ref(9), 10, b"", None, None)), set(), 0
    while n.none(effects, CallFailed):
        questions = {question.version for question in n.sent(effects, Evict)}
        assert not questions & asked
        asked |= questions
        rounds += 1
        assert rounds < 10
        effects = n.beat()
        for question in questions:
            effects += n.directory(EvictAnswer(question, Eviction.LAST_COPY))
    assert len(asked) == 60


# --- what is waited for, and how long ----------------------------------------------------------------------------


def put_behind_a_stream(served: int = 0) -> NodeDriver:
    """A put that waits for the memory of a copy which somebody reads."""
    n = NodeDriver(memory=20)
    cached(n, 1, 12, at=1.0)
    cached(n, 2, 2, at=1.0)
    n.peer(RECEIVER, request(1, of=version(1)))
    n.positions[StreamId(RECEIVER, 1)] = served
    n.handle(PutCall(5, ref(9), 15, b"", None, None))
    return n


def test_what_is_too_small_to_help_is_not_waited_for() -> None:
    n = put_behind_a_stream()
    effects = []
    for number in range(2, 12):
        n.peer(OTHER, request(number, of=version(2), receiver=OTHER))
        effects += n.handle(ServeClosed(StreamId(OTHER, number))) + n.beat(2)
    assert n.only(effects, CallFailed).failure.kind is FailureKind.STORE_FULL


def test_readers_too_quick_for_heartbeats_are_waited_for() -> None:
    """Each has come and gone before a heartbeat tells how far it is, and always there is a next one."""
    n, effects = put_behind_a_stream(), []
    for number in range(1, 40):
        n.peer(reader(number + 1), request(number + 1, of=version(1), receiver=reader(number + 1)))
        effects += n.handle(ServeClosed(StreamId(reader(number), number))) + n.beat(2)
    assert n.none(effects, CallFailed)


def reader(number: int) -> NodeId:
    return RECEIVER if number % 2 else OTHER


@pytest.mark.parametrize("moved", [False, True])
def test_who_slept_does_not_lose_patience(moved: bool) -> None:
    n = put_behind_a_stream(served=1)
    n.beat()
    n.now += 60.0
    if moved:
        n.positions[StreamId(RECEIVER, 1)] = 11
    assert n.none(n.handle(Tick(dict(n.positions))), CallFailed)
    n.handle(ServeClosed(StreamId(RECEIVER, 1)))
    assert n.only(n.directory(EvictAnswer(version(1), Eviction.GRANTED)), PutReady).call == 5


def get_behind_a_stream() -> NodeDriver:
    """A get that was declined for want of the memory of a copy which somebody reads."""
    n = NodeDriver(memory=20)
    cached(n, 2, 12, at=1.0)
    n.peer(RECEIVER, request(1, of=version(2)))
    n.handle(GetCall(1, R, None))
    assert n.sent(n.directory(place(9, size=15)), Declined) == [Declined(V, 9)]
    return n


def test_a_get_does_not_lose_patience_while_its_node_sleeps() -> None:
    n = get_behind_a_stream()
    n.beat()
    n.now += 60.0
    assert n.none(n.handle(WaitCall(77, (ref(50),), 1, None)), CallFailed), "something else came before the heartbeat"


def test_what_comes_in_is_waited_for_though_its_sender_broke_off() -> None:
    n = NodeDriver(memory=20)
    n.handle(GetCall(1, R, None))
    first = n.only(n.directory(place(1, size=12)), Receive)
    n.handle(PutCall(5, ref(9), 15, b"", None, None))
    n.positions[first.stream] = 8
    n.beat()
    assert n.none(n.handle(ReceiveClosed(first.stream, 8, StreamFault.BROKEN)) + n.beat(4), CallFailed)
    again = n.only(n.directory(place(2, size=12, sender=OTHER)), Receive)
    n.handle(CancelCall(1))  # the copy is nobody's when it is complete
    n.handle(ReceiveClosed(again.stream, 12, None))
    assert n.only(n.directory(EvictAnswer(V, Eviction.GRANTED)), PutReady).call == 5


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_comes_in_slowly_is_waited_for(broken_off: bool) -> None:
    """By a stream that goes on, or by one after the other that breaks off before a heartbeat sees it move."""
    n = NodeDriver(memory=40)
    n.handle(GetCall(1, R, None))
    stream = n.only(n.directory(place(1, size=30)), Receive).stream
    effects = n.handle(PutCall(5, ref(9), 35, b"", None, None))
    for come in range(1, 30):
        if broken_off:
            effects += n.handle(ReceiveClosed(stream, come, StreamFault.BROKEN))
            stream = n.only(n.directory(place(1 + come, size=30, sender=OTHER)), Receive).stream
        else:
            n.positions[stream] = come
        effects += n.beat()
    assert n.none(effects, CallFailed)


def test_a_slot_is_waited_for_while_it_is_combined() -> None:
    n, first, second = fed_slot(memory=12 * MIB)
    effects = n.handle(PutCall(5, ref(9), 8 * MIB, b"", None, None))
    for stream in (first.stream, second.stream):
        effects += n.handle(ReceiveClosed(stream, 8 * MIB, None))
    for step in range(1, 30):
        n.combined[second.segment] = step * MIB // 4
        effects += n.beat()
    assert n.none(effects, CallFailed)


def test_a_slot_is_waited_for_until_it_is_decided() -> None:
    n, first, second = fed_slot(memory=12 * MIB)
    n.handle(PutCall(5, ref(9), 8 * MIB, b"", None, None))
    for stream in (first.stream, second.stream):
        assert n.none(n.handle(ReceiveClosed(stream, 8 * MIB, None)), CallFailed)
    n.handle(Combined(second.segment))
    n.directory(Sealed(version(1)))
    assert n.only(n.directory(EvictAnswer(version(1), Eviction.GRANTED)), PutReady).call == 5


def test_a_refused_put_is_waited_for_while_its_user_writes() -> None:
    n = NodeDriver(memory=20)
    n.handle(PutCall(1, R, 12, b"", None, None))
    n.directory(PutRefused(1, Failure(FailureKind.DELETED, "", "", R)))
    n.handle(PutCall(5, ref(9), 15, b"", None, None))
    for written in range(1, 12):
        n.positions[1] = written
        assert n.none(n.beat(2), CallFailed)
    assert n.only(n.handle(PutFinished(1)), PutReady).call == 5


def test_a_get_that_is_declined_again_much_later_is_as_patient_as_before() -> None:
    n = get_behind_a_stream()
    assert n.sent(n.handle(ServeClosed(StreamId(RECEIVER, 1))), Want) == [Want(R)]
    n.beat(240)  # nobody has it for a minute
    n.peer(RECEIVER, request(2, of=version(2)))
    effects = n.directory(place(10, size=15))
    assert n.sent(effects, Declined) == [Declined(V, 10)]
    assert n.none(effects, CallFailed)
