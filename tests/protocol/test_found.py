"""Faults that review and chaos found and that no other test shows, each in its smallest form (docs/faults.md)."""

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.cost import Costs
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelReceive,
    DirectoryConnected,
    DirectoryLost,
    GetCall,
    Probed,
    PutCall,
    PutDone,
    PutFinished,
    Receive,
    SessionLost,
    Tick,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.messages import (
    MAX_LAYOUT,
    Copy,
    Evict,
    Failed,
    Halted,
    Heartbeat,
    Place,
    Put,
    PutAccepted,
    Ready,
    Rejected,
    StreamFailed,
    StreamFault,
    Want,
)
from hoplite_ucx.protocol.placement import Nic, SenderPool
from hoplite_ucx.protocol.settings import MIB
from hoplite_ucx.protocol.timers import Timers
from tests.protocol.harness import LARGE, RATE, DirectoryDriver, NodeDriver, ref, version
from tests.protocol.test_directory import chain_of_three
from tests.protocol.test_node import place, receiving
from tests.protocol.test_room import cached

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
