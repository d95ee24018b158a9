"""Nodes that leave on purpose: other nodes take over the copies that nobody else has, before they go."""

from hoplite_ucx.protocol.events import SessionLost
from hoplite_ucx.protocol.messages import (
    Completed,
    Copy,
    Declined,
    Evict,
    EvictAnswer,
    Eviction,
    Leave,
    MayLeave,
    Place,
    Retire,
    StreamFailed,
    StreamFault,
    ToNode,
    Want,
)
from tests.tools.machines import LARGE, DirectoryDriver, ref, sealed_in, version
from tests.tools.reducer import TARGET, chain, copied

SWEEP = 0.3


def test_a_node_whose_copies_are_elsewhere_may_leave_at_once() -> None:
    d = DirectoryDriver("A", "B")
    put = d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Completed(put))
    d.tell("A", Retire())
    assert d.heard_all(MayLeave, "A") == [MayLeave(0)]


def test_a_last_copy_is_taken_over_by_a_node_that_did_not_ask_for_it() -> None:
    d = DirectoryDriver("A", "B", "C")
    put = d.put("A", 1)
    d.tell("A", Retire())
    [place] = d.heard_all(Place, "B", "C")
    assert place.version == put
    assert place.sender == d["A"]
    assert not d.heard_all(MayLeave, "A")
    d.pass_time(SWEEP, beating=("A", "B", "C"))
    assert not d.heard_all(Place, "B", "C"), "one taker is enough"
    [taker] = [name for name in "BC" if d[name] in d.broadcast(1).receivers]
    d.tell(taker, Completed(put))
    d.pass_time(SWEEP, beating=("A", "B", "C"))
    assert MayLeave(0) in d.heard("A")
    d.tell("A", Leave())
    assert list(d.broadcast(1).copies) == [d[taker]]


def test_whoever_gets_it_anyway_is_waited_for() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.put("A", 1)
    d.want("C", 1)
    d.tell("A", Retire())
    assert not d.heard_all(Place, "B", "C")
    assert not d.heard_all(MayLeave, "A")


def test_a_node_without_room_is_not_asked_for_ever() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.tell("A", Retire())
    for _ in range(3):
        [place] = d.heard_all(Place, "B")
        d.tell("B", Declined(place.version, place.number))
        d.pass_time(SWEEP, beating=("A", "B"))
    assert not d.heard_all(Place, "B")
    assert MayLeave(1) in d.heard("A")


def test_a_taker_whose_stream_breaks_or_who_dies_is_replaced() -> None:
    d = DirectoryDriver("A", "B", "C")
    put = d.put("A", 1)
    d.tell("A", Retire())
    for other in ("B", "C"):
        [name] = [name for name in "BC" if d[name] in d.broadcast(1).receivers]
        [place] = d.heard_all(Place, name)
        if other == "B":
            d.tell(name, StreamFailed(put, place.number, place.sender, 0, StreamFault.ABSENT, wanted=False))
        else:
            d.tell(name, Leave())
        d.pass_time(SWEEP, beating=tuple(n for n in "ABC" if d.directory.members.get(d[n]) is not None))
        assert not d.heard_all(MayLeave, "A")
    assert d.heard_all(Place, "B", "C")


def test_copies_of_those_who_leave_too_do_not_count() -> None:
    d = DirectoryDriver("A", "B", "C")
    put = d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Completed(put))
    d.tell("B", Retire())
    assert d.heard_all(MayLeave, "B") == [MayLeave(0)]
    d.tell("A", Retire())
    assert not d.heard_all(MayLeave, "A")
    assert d.heard_all(Place, "C")
    d.tell("C", Completed(put))
    d.tell("C", Evict(put))
    assert d.heard_all(EvictAnswer, "C") == [EvictAnswer(put, Eviction.LAST_COPY)]


def test_without_another_node_it_may_leave_with_what_it_has() -> None:
    d = DirectoryDriver("A")
    d.put("A", 1)
    d.put("A", 2)
    d.tell("A", Retire())
    assert d.heard_all(MayLeave, "A") == [MayLeave(2)]


def test_a_node_that_cannot_be_used_just_now_is_waited_for() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.handle(SessionLost(d["B"]))
    d.tell("A", Retire())
    assert not d.heard_all(MayLeave, "A")
    d.join("B")
    d.pass_time(SWEEP, beating=("A", "B"))
    assert d.heard_all(Place, "B")


def test_what_is_small_or_deleted_or_wanted_by_nobody_keeps_nobody() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Want(ref(9)))
    d.tell("A", Retire())
    assert d.heard_all(MayLeave, "A") == [MayLeave(0)]


def test_a_new_directory_hears_all_nodes_before_it_decides() -> None:
    d = DirectoryDriver(incarnation=2)
    d.directory.recover(d.now)
    d.join("A", incarnation=1, members=2, copies=(Copy(version(1), LARGE, b"layout", True),))
    d.tell("A", Retire())
    assert not d.heard_all(MayLeave, "A")
    d.join("B", incarnation=1, members=2)
    d.pass_time(SWEEP, beating=("A", "B"))
    assert d.heard_all(Place, "B")


def test_a_result_that_is_decided_when_a_lease_runs_out_is_handed_over() -> None:
    """Until then it could have been made again; now the node that leaves has the only copy."""
    d, lower, root = chain()
    d.finish("B", lower)
    copied(d, "E", TARGET)
    d.tell("E", Retire())
    assert d.heard_all(MayLeave, "E") == [MayLeave(0)]
    heard: list[ToNode] = []
    while not sealed_in(heard):
        d.pass_time(0.05, beating=("A", "B", "D", "E"))
        heard = d.heard("E")
    assert list(d.broadcast(TARGET).copies) == [d["E"]]
    assert not [message for message in heard if isinstance(message, MayLeave)]
    [place] = d.heard_all(Place, "A", "B", "D")
    assert place.version == root.version
