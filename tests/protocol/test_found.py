"""Faults that review and chaos found and no other test shows, in their smallest form (docs/history/faults-found.md)."""

import math
import sys

import pytest
from msgspec import msgpack

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.cost import Costs
from hoplite_ucx.protocol.directory.sender_choice import Nic, SenderPool
from hoplite_ucx.protocol.errors import Failure, FailureKind, InvalidRequestError
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelReceive,
    Combine,
    CombinedBytes,
    DirectoryConnected,
    DirectoryLost,
    Free,
    FromNode,
    GetCall,
    Probed,
    PutCall,
    PutDone,
    PutFinished,
    Receive,
    ReceiveClosed,
    SendDirectory,
    SessionLost,
    Tick,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.messages import (
    MAX_LAYOUT,
    Bind,
    CombinedInline,
    CombineInline,
    Completed,
    Copy,
    Delete,
    Drop,
    Evict,
    Failed,
    Halted,
    Heartbeat,
    Operation,
    Place,
    Put,
    PutAccepted,
    Ready,
    Rejected,
    StreamFailed,
    StreamFault,
    Want,
    Welcome,
    decode_to_node,
)
from hoplite_ucx.protocol.settings import MIB
from hoplite_ucx.protocol.timers import Timers
from tests.tools.machines import LARGE, RATE, DirectoryDriver, NodeDriver, chain_of_three, ref, sealed_in, version
from tests.tools.reducer import OUTER, TARGET, Reducer, chain, small_at_node
from tests.tools.successor import A_SLOT, Successor, copy, partial, slot, spec
from tests.tools.transfers import cached, place, receiving

R = ref(1)
V = version(1)

# --- the directory ----------------------------------------------------------------------------------------------------


def test_a_copy_whose_completion_was_lost_with_its_session_is_read_before_anything_is_lost() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.want("B", 1)
    d.handle(SessionLost(d["B"]))
    d.handle(Probed(d["A"], accepted=False))
    d.join("B", copies=(Copy(V, LARGE, b"layout"),))
    assert d.heard_all(Failed) == []
    assert set(d.broadcast(1).copies) == {d["B"]}


def test_an_orphan_is_placed_where_the_dead_relay_was_fed() -> None:
    d, (_, second, third) = chain_of_three()
    d.tell("D", StreamFailed(V, third.number, MIB, third.sender, StreamFault.BROKEN, wanted=True))
    assert second.sender == d["B"]
    assert [place.sender for place in d.heard_all(Place, "D")] == [d["B"]]


def test_a_get_waits_for_the_next_version_if_that_is_offered_while_the_old_one_dies() -> None:
    d, places = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    d.join("E")
    d.join("F")
    d.tell("E", Put(9, R, LARGE, b""))
    d.heard("F")
    d.tell("F", Want(R))
    for name, placed in zip("BCD", places, strict=True):
        d.tell(name, Halted(V, placed.number, MIB, wanted=True))
    assert [type(message) for message in d.heard("F")] == [Place]


def test_a_directory_that_slept_does_not_take_that_for_the_silence_of_others() -> None:
    d = DirectoryDriver("A", "B")
    d.now += 60
    d.tell("B", Heartbeat())
    d.handle(Tick())
    assert {member.node for member in d.directory.members} == {d["A"], d["B"]}


def test_a_node_may_come_back_with_more_watches_than_one_call_may_have() -> None:
    d = DirectoryDriver("A", "B", settings=Settings(max_refs=2))
    d.handle(SessionLost(d["A"]))
    d.join("A", watches=(ref(1), ref(2), ref(3)))
    assert d.heard_all(Rejected, "A") == []
    d.put("B", 3)
    assert d.heard_all(Ready, "A") == [Ready((ref(3),))]


def test_settings_that_are_not_numbers_are_refused() -> None:
    settings = Settings(heartbeat=math.nan)
    with pytest.raises(InvalidRequestError, match="malformed"):
        decode_to_node(msgpack.encode(Welcome(1, "", settings)))


# --- reductions -------------------------------------------------------------------------------------------------------


def test_a_combine_request_that_was_lost_with_its_session_is_repeated() -> None:
    d, combine = small_at_node("A", "B")
    d.handle(SessionLost(d["C"]))
    d.join("C")
    [again] = d.heard_all(CombineInline)
    assert again.parts == combine.parts


def test_a_slot_pulls_from_roots_only() -> None:
    """B, a relay, could be refused its own stream, and then the slot would wait for one."""
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.want("B", 1)
    d.put("C", 2)
    d.reduce("B", (1, 2))
    assert d.feeders(d.take("C")) == {short(R): "A"}


def test_nothing_is_sent_to_an_empty_target_that_is_decided() -> None:
    """It is complete before its parts have come."""
    d = Reducer("A", "B")
    d.put("A", 1, size=0)
    d.put("B", 2, size=0)
    d.reduce("A", (1, 2))
    host, bind = d.take_anywhere()
    sent = d.broadcast(2 if host == "A" else 1)
    assert sent.keys_of(d[host])
    d.tell(host, Completed(bind.version))
    assert sealed_in(d.heard(host)) == [bind.version]
    assert not sent.keys_of(d[host])


def test_a_copy_that_a_getter_has_is_sealed_when_the_host_of_the_root_dies() -> None:
    d, lower, root = chain()
    d.tell("D", Completed(d.want("D", 3).version))  # or else a lost source would make somebody look
    d.want("E", TARGET)
    d.finish("B", lower)
    d.consume("C", root)
    d.tell("E", Completed(root.version))
    assert sealed_in(d.heard("E")) == [], "its host is at work, and would be interrupted"
    d.kill("C")
    assert sealed_in(d.heard("E")) == [root.version]


def test_a_target_does_not_fail_while_a_getter_may_have_all_of_it() -> None:
    d, lower, root = chain()
    d.want("E", TARGET)
    d.finish("B", lower)
    d.consume("C", root)
    for name in "ABC":  # with the only copies of all sources
        d.kill(name)
    assert d.heard_all(Failed, "E") == []
    d.tell("E", Completed(root.version))
    assert sealed_in(d.heard("E")) == [root.version]


def test_a_source_of_a_slot_that_grows_beside_its_parent_is_not_in_yet() -> None:
    """B runs both slots, and uses the lower one in place: what that lacks, both lack."""
    d = Reducer("A", "B", "E")
    d.put("A", 1)
    d.put("B", 2)
    d.reduce("E", (1, 2, 3))
    d.take("B")
    d.put("B", 3)
    d.take("B")
    d.want("E", TARGET)
    d.lose("A")
    [failed] = d.heard_all(Failed, "E")
    assert failed.failure.kind is FailureKind.LOST


def test_a_hidden_source_is_not_hoped_for_by_others() -> None:
    """1 is deleted, and lives for the first reduction only: when 3 is lost, the second one has too few."""
    d = Reducer("A", "B", "C", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("E", (1, 4))
    d.reduce("E", (2, 3, 1), count=2, target=OUTER)
    d.quiet()
    d.tell("E", Want(ref(OUTER)), Delete(5, (R,)))
    d.lose("C")
    [failed] = d.heard_all(Failed, "E")
    assert failed.ref == ref(OUTER)


def test_what_is_left_of_a_target_whose_root_died_with_the_directory_is_dropped() -> None:
    """The slot below the root goes on, and the target begins a new version."""
    successor = Successor()
    lower = version(A_SLOT)
    successor.survive("A", copies=(copy(1), copy(3)))
    report = slot(lower, version(2), version(1), missing=(version(1),), reduce=spec(1, 2, 3))
    successor.survive("B", copies=(copy(2),), slots=(report,))
    successor.survive("E", partials=(partial(TARGET, number=7, sender=successor["C"], sealed=False),))
    successor.decide()
    reduction = successor.directory.records[ref(TARGET)].reduction
    assert reduction is not None
    assert reduction.slots, "what B combines goes on"
    heard = successor.heard("E")
    assert Drop(version(TARGET)) in heard
    assert not any(isinstance(message, Failed) for message in heard)


# --- a node -----------------------------------------------------------------------------------------------------------


def test_a_wait_goes_on_when_what_it_waits_for_is_lost() -> None:
    n = NodeDriver()
    n.handle(GetCall(1, R, None))
    n.handle(WaitCall(2, (R,), 1, None))
    effects = n.directory(Failed(R, Failure(FailureKind.LOST, "gone", "put it again", R)))
    assert n.only(effects, CallFailed).call == 1
    assert n.none(effects, Waited)
    assert n.only(n.directory(Ready((R,))), Waited).ready == (R,)


def test_a_layout_that_the_directory_could_not_read_is_refused() -> None:
    n = NodeDriver()
    [failed] = n.handle(PutCall(1, R, 10, bytes(MAX_LAYOUT + 1), None, None))
    assert isinstance(failed, CallFailed)
    assert failed.failure.kind is FailureKind.INVALID


def test_a_node_that_slept_does_not_accuse_its_senders() -> None:
    n = NodeDriver()
    receiving(n)
    n.now += 60
    assert n.none(n.handle(Tick()), CancelReceive)


def test_a_put_waits_for_the_session_while_copies_could_be_evicted() -> None:
    n = NodeDriver(memory=30)
    for number in (1, 2, 3):
        cached(n, number, 10, at=float(number))
    n.handle(DirectoryLost())
    assert n.none(n.handle(PutCall(5, ref(9), 15, b"", None, None)), CallFailed)
    assert len(n.sent(n.handle(DirectoryConnected()), Evict)) == 2


def test_a_node_is_not_sent_what_it_is_putting_itself() -> None:
    n = NodeDriver()
    n.handle(PutCall(1, R, LARGE, b"layout", None, None))
    n.directory(PutAccepted(1, V, existing=False))
    mine = n.state.memory.get(V)
    assert n.none(n.directory(place(5)), Receive)
    assert n.state.memory.get(V) is mine
    assert n.only(n.handle(PutFinished(1)), PutDone).version == V


def test_a_copy_that_came_from_the_host_before_stays_when_its_getter_is_made_host() -> None:
    """The directory has not heard yet that it is complete."""
    n = NodeDriver()
    receive = receiving(n)
    n.handle(ReceiveClosed(receive.stream, receive.size, None))
    effects = n.directory(Bind(V, 5, receive.size, b"layout", Operation.SUM, (version(2), version(3)), R))
    assert n.sent(effects, Completed) == [Completed(V)]
    assert n.none(effects, Combine, Free)


def test_a_small_result_does_not_wait_for_room_to_be_kept() -> None:
    n = NodeDriver(memory=30)
    for number in (1, 2, 3):
        cached(n, number, 10, at=float(number))
    made = version(9)
    n.directory(CombineInline(made, b"", Operation.SUM, (b"ab", b"cd")))
    assert n.handle(CombinedBytes(made, b"ef")) == [SendDirectory(CombinedInline(made, b"ef"))]


# --- what grows -------------------------------------------------------------------------------------------------------


def test_a_timer_that_is_moved_again_and_again_leaves_nothing_behind() -> None:
    timers = Timers()
    for at in range(10_000):
        timers.set("beat", float(at))
    assert len(timers._heap) < 200


def test_a_location_whose_end_is_revised_again_and_again_leaves_nothing_behind() -> None:
    pool = SenderPool(R, MIB, Costs(Settings()))
    pool.add(0, Nic(RATE, RATE), 0.0, 0)
    for finish in range(10_000):
        pool.set_finish(0, float(finish))
    assert sum(map(len, pool._heaps.values())) < 200


def test_a_report_in_a_flush_costs_the_same_however_many_receivers_there_are() -> None:
    assert calls_in_a_flush(400) < 3 * calls_in_a_flush(200)


def calls_in_a_flush(receivers: int) -> int:
    """How many functions are called while everybody reports after the death of the only copy."""
    d = DirectoryDriver("A", *map(str, range(receivers)), settings=Settings(stripes=1))
    d.put("A", 1)
    places = [d.want(str(number), 1) for number in range(receivers)]
    d.handle(Probed(d["A"], accepted=False))
    reports = [
        FromNode(d[str(number)], Halted(V, place.number, MIB, wanted=True)) for number, place in enumerate(places)
    ]
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for report in reports[:-1]:  # the last one ends the version, for all
            d.directory.handle(report, d.now)
    finally:
        sys.setprofile(before)
    return calls
