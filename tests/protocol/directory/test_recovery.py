"""A directory that died, and its successor: what it takes up, what it decides when all were heard, what it refuses.

The last tests let whole nodes survive, in the simulator.
"""

from typing import Any

import pytest

from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import DeleteCall, DirectoryConnected, DirectoryLost, Got, SessionLost
from hoplite_ucx.protocol.ids import NodeId, node_id
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import (
    Alive,
    Ask,
    Bind,
    Bound,
    Completed,
    Consumed,
    Contributors,
    Copy,
    Delete,
    Deleted,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Halt,
    Halted,
    Heartbeat,
    Join,
    Operation,
    Over,
    Place,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    Reduce,
    Rejected,
    Sealed,
    StreamFailed,
    StreamFault,
    Tombstone,
    ToNode,
    Want,
    Welcome,
)
from hoplite_ucx.simulate.cluster import Call, Shape, VirtualCluster
from hoplite_ucx.simulate.oracle import Oracle
from tests.tools.machines import CLUSTER, LARGE, DirectoryDriver, NodeDriver, ref, sealed_in, version
from tests.tools.reducer import OUTER, TARGET
from tests.tools.successor import A_SLOT, Successor, combining, copy, origin, partial, slot, spec

INTERRUPTIONS = (Drop, Halt, Place)

# --- objects ----------------------------------------------------------------------------------------------------


def test_a_copy_is_served_before_everybody_was_heard() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B")
    assert successor.want("B", 1).sender == successor["A"]


def test_nothing_is_lost_and_no_put_begins_before_everybody_was_heard() -> None:
    successor = Successor()
    successor.survive("G", partials=(partial(1),))
    successor.survive("P", puts=(Put(7, ref(2), LARGE, b"layout"),))
    assert not successor.told_to("G", Failed)
    assert not successor.told_to("P", PutAccepted)
    successor.decide()
    [failed] = successor.heard_all(Failed, "G")
    assert failed.failure.kind is FailureKind.LOST
    [accepted] = successor.heard_all(PutAccepted, "P")
    assert accepted.version.incarnation == 2


@pytest.mark.parametrize("order", ["ABC", "CBA", "BCA"])
def test_running_streams_never_notice(order: str) -> None:
    """A chain A → B → C, whose nodes come in any order."""
    successor = Successor()
    announced: dict[str, dict[str, Any]] = {
        "A": {"copies": (copy(1),)},
        "B": {"partials": (partial(1, number=3, sender=successor["A"]),)},
        "C": {"partials": (partial(1, number=4, sender=successor["B"], watermark=1),)},
    }
    for name in order:
        successor.survive(name, **announced[name])
    assert successor.senders(1) == {"B": "A", "C": "B"}
    successor.decide()
    for name in order:
        assert not successor.told_to(name, *INTERRUPTIONS)


def test_a_put_goes_on_though_others_have_it_all() -> None:
    """Its last bytes, and that it has them all, were on their way when it came."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("P", producing=(copy(1),), wants=(ref(1),))
    successor.tell("P", Completed(version(1)))
    assert not successor.told_to("P", *INTERRUPTIONS)
    assert set(successor.broadcast(1).copies) == {successor["A"], successor["P"]}


def test_a_stream_runs_on_though_another_was_given_its_place() -> None:
    """The sender has room for one stream, and was heard before the receiver of the one that runs."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),), streams_out=1)
    successor.survive("N")
    place = successor.want("N", 1)
    successor.survive("R", partials=(partial(1, number=4, sender=successor["A"]),))
    successor.decide()
    assert not successor.told_to("R", *INTERRUPTIONS)
    successor.tell("N", StreamFailed(place.version, place.number, 0, successor["A"], StreamFault.BUSY, wanted=True))
    assert successor.state("R", 1) is State.STREAMING


def test_a_stream_without_a_place_ends_with_the_last_root() -> None:
    """B feeds R, which has no place in the accounts; then A, the only root, dies."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B", partials=(partial(1, number=3, sender=successor["A"]),), streams_out=0)
    successor.survive("R", partials=(partial(1, number=4, sender=successor["B"]),))
    successor.decide()
    assert not successor.told_to("R", *INTERRUPTIONS)
    successor.kill("A")
    for name in "BR":
        [halt] = successor.heard_all(Halt, name)
        successor.tell(name, Halted(halt.version, halt.number, LARGE // 2, wanted=name == "B"))
    assert [failed.ref for failed in successor.heard_all(Failed, "B")] == [ref(1)]


def test_a_stream_without_a_place_is_not_kept_from_others_by_one_who_waits() -> None:
    """B feeds R and loses A, whose only stream goes to another object then; which may wait for the one that R has."""
    successor = Successor()
    successor.survive("A", copies=(copy(1), copy(2)), streams_out=1)
    successor.survive("B", partials=(partial(1, number=3, sender=successor["A"]),), streams_out=0)
    successor.survive("R", partials=(partial(1, number=4, sender=successor["B"]),))
    successor.survive("N", wants=(ref(2),))
    successor.decide()
    assert not successor.told_to("R", *INTERRUPTIONS)
    lost = StreamFailed(version(1), 3, 0, successor["A"], StreamFault.BUSY, wanted=True)
    successor.tell("B", lost)
    assert [place.version for place in successor.heard_all(Place, "N")] == [version(2)]
    successor.pass_time(0.1)
    assert successor.told_to("R", Halt)


def test_streams_in_a_circle_are_not_taken_for_a_tree() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    for name, sender in (("B", "C"), ("C", "B"), ("D", "D")):
        successor.survive(name, partials=(partial(1, number=ord(name), sender=successor[sender]),))
    successor.decide()
    for name in "BCD":
        assert successor.told_to(name, Halt)


def test_a_stream_whose_sender_did_not_come_is_placed_anew() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B", partials=(partial(1, number=3, sender=successor["X"]),))
    successor.decide()
    [halt] = successor.heard_all(Halt, "B")
    successor.tell("B", Halted(halt.version, halt.number, LARGE // 2, wanted=True))
    [place] = successor.heard_all(Place, "B")
    assert place.sender == successor["A"]
    assert place.number > halt.number


def test_the_highest_version_wins_whoever_comes_first() -> None:
    for order in ((1, 2), (2, 1)):
        successor = Successor(incarnation=4)
        for incarnation in order:
            successor.survive(f"N{incarnation}", incarnation=incarnation, copies=(copy(1, 1, incarnation),))
        assert Drop(version(1)) in successor.heard("N1")
        assert successor.broadcast(1).version == version(1, 1, 2)


def test_a_get_waits_for_a_put_that_was_not_answered() -> None:
    """The earlier directory had accepted the put and placed a getter behind it, and died before it could say so."""
    successor = Successor()
    successor.survive("G", partials=(partial(1, watermark=0),))
    successor.survive("P", puts=(Put(3, ref(1), LARGE, b"layout"),))
    successor.decide()
    assert not successor.told_to("G", Failed)
    [accepted] = successor.heard_all(PutAccepted, "P")
    successor.tell("G", Want(ref(1)))  # as it was told to drop the version of the earlier directory
    assert successor.senders(1) == {"G": "P"}
    assert successor.broadcast(1).version == accepted.version


def test_evictions_go_on_and_the_last_copy_stays() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B", copies=(copy(1),))
    successor.tell("A", Evict(version(1)))
    successor.tell("B", Evict(version(1)))
    assert successor.heard_all(EvictAnswer, "A", "B") == [
        EvictAnswer(version(1), Eviction.GRANTED),
        EvictAnswer(version(1), Eviction.LAST_COPY),
    ]


def test_waits_and_asks_are_answered_when_there_is_an_answer() -> None:
    successor = Successor()
    successor.survive("W", watches=(ref(1),), asks=(Ask(7, ref(TARGET)),))
    successor.survive("A", copies=(copy(1), copy(TARGET, origin=origin(1))))
    assert successor.heard_all(Ready, "W") == [Ready((ref(1),))]
    successor.decide()
    assert successor.heard_all(Contributors, "W") == [Contributors(7, (ref(1),))]


def test_a_second_crash_before_anything_was_decided() -> None:
    """Some nodes were welcomed by the second directory, some only by the first: the third takes up both."""
    successor = Successor(incarnation=3)
    successor.survive("A", incarnation=2, copies=(copy(1),))
    successor.survive("B", incarnation=1, partials=(partial(1, number=3, sender=successor["A"]),))
    assert successor.senders(1) == {"B": "A"}


def test_a_successor_that_dies_early_does_not_make_the_next_one_hasty() -> None:
    """One of three nodes came to the second directory, which was told so: the third waits for all of them."""
    second = Successor()
    second.survive("A", members=3, copies=(copy(1),))
    second.tell("A", Heartbeat())
    told = [message.members for message in second.heard("A") if isinstance(message, Welcome | Alive)]
    assert told == [3, 3]
    third = Successor(incarnation=3)
    third.survive("A", incarnation=2, members=3, copies=(copy(1),))
    assert third.directory.world.recovering
    third.survive("B", members=3)
    third.survive("B", incarnation=3, members=3)  # again, and it counts once
    assert third.directory.world.recovering
    third.survive("C", members=3)
    assert not third.directory.world.recovering


def test_who_belongs_to_a_later_directory_is_turned_away_unharmed() -> None:
    earlier = DirectoryDriver("A")
    earlier.join("B", incarnation=2, copies=(copy(1, incarnation=2),))
    [rejected] = earlier.heard("B")
    assert isinstance(rejected, Rejected)
    assert rejected.failure.kind is FailureKind.STALE
    assert earlier.directory.members.get(earlier["B"]) is None


# --- deletes ----------------------------------------------------------------------------------------------------


def test_a_deleted_object_does_not_come_back() -> None:
    successor = Successor()
    successor.survive("B", copies=(copy(1),))
    successor.survive("A", tombstones=(Tombstone(ref(1), 1),), wants=(ref(1),))
    [failed] = successor.heard_all(Failed, "A")
    assert failed.failure.kind is FailureKind.DELETED
    successor.decide()
    assert Drop(version(1)) in successor.heard("B")
    assert not successor.knows(1)


def test_a_delete_is_known_from_a_node_that_comes_late() -> None:
    successor = Successor()
    successor.survive("B", copies=(copy(1),))
    successor.decide()
    successor.survive("A", tombstones=(Tombstone(ref(1), 1), Tombstone(ref(2), 1)))
    successor.survive("C", copies=(copy(2),))
    assert Drop(version(1)) in successor.heard("B")
    assert Drop(version(2)) in successor.heard("C")


@pytest.mark.parametrize("late", [False, True])
def test_an_old_delete_does_not_touch_what_was_put_since(late: bool) -> None:
    """Deleted under the first directory, put again under the second, which did not hear of it."""
    successor = Successor(incarnation=3)
    successor.survive("B", incarnation=2, copies=(copy(1, incarnation=2),))
    if late:
        successor.decide()
    successor.survive("A", tombstones=(Tombstone(ref(1), 1),))
    successor.decide()
    assert not successor.told_to("B", Drop)
    assert successor.knows(1)


def test_a_delete_waits_until_everybody_was_heard() -> None:
    successor = Successor()
    successor.survive("A", deletes=(Delete(7, (ref(1),)),))
    assert not successor.told_to("A", Deleted)
    successor.survive("B", copies=(copy(1),))
    successor.decide()
    assert successor.told_to("A", Deleted)
    assert Drop(version(1)) in successor.heard("B")


def test_a_source_that_was_deleted_serves_the_reduction_that_chose_it() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A")
    successor.survive("D", tombstones=(Tombstone(ref(1), 1),))
    successor.decide()
    assert not successor.told_to("A", Drop)
    successor.tell("H", Consumed(version(1), ref(TARGET)), Completed(version(TARGET)))
    assert successor.broadcast(TARGET).sealed
    assert Drop(version(1)) in successor.heard("A")


# --- slots ------------------------------------------------------------------------------------------------------


def test_slots_that_are_a_whole_go_on_as_they_were() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B", copies=(copy(2),))
    combining(successor, "H", "A", "B")
    successor.decide()
    for name in "ABH":
        assert not successor.told_to(name, *INTERRUPTIONS, Bind)
    successor.tell("H", Consumed(version(1), ref(TARGET)), Consumed(version(2), ref(TARGET)))
    successor.tell("H", Completed(version(TARGET)))
    [decided] = successor.heard_all(Sealed, "H")
    assert decided.origin is not None
    assert set(decided.origin.contributors) == {version(1), version(2)}


def test_a_host_that_comes_twice_keeps_its_slot() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A")
    successor.handle(SessionLost(successor["H"]))
    combining(successor, "H", "A", incarnation=2)  # it was welcomed before
    successor.decide()
    assert not successor.told_to("H", *INTERRUPTIONS)


def test_slots_of_an_earlier_try_do_not_spoil_the_whole() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A")
    successor.survive("Z", slots=(slot(version(A_SLOT), version(1), number=2),))
    successor.decide()
    assert not successor.told_to("H", *INTERRUPTIONS)
    assert successor.told_to("Z", Drop)


def test_a_reduction_with_fewer_slots_than_it_needs_goes_on_choosing() -> None:
    """The root was not bound yet: what is there stays, what is missing is chosen again."""
    successor = Successor()
    sources = (version(1), version(2))
    successor.survive("A", copies=(copy(1), copy(2)), slots=(slot(version(A_SLOT), *sources, reduce=spec(1, 2, 3)),))
    successor.survive("C", copies=(copy(3),))
    successor.decide()
    assert not successor.told_to("A", *INTERRUPTIONS)
    [bind] = successor.heard_all(Bind, "C")
    assert [part.ref for part in bind.parts] == [ref(3), ref(A_SLOT)]


def test_a_child_slot_whose_host_died_too_ends_the_whole() -> None:
    """Nobody knows which sources were in it, so that none may be counted."""
    successor = Successor()
    successor.survive("C", copies=(copy(3),))
    root = slot(version(TARGET), version(3), version(A_SLOT), missing=(version(A_SLOT),), reduce=spec(1, 2, 3))
    successor.survive("H", slots=(root,))
    successor.survive("A", copies=(copy(1), copy(2)))
    successor.decide()
    assert Drop(version(TARGET)) in successor.heard("H")
    reduction = successor.directory.records[ref(TARGET)].reduction
    assert reduction is not None
    assert sorted(reduction.chosen) == [ref(1), ref(2), ref(3)]


def test_of_two_hosts_of_a_slot_the_later_one_has_it() -> None:
    for order in ((5, 7), (7, 5)):
        successor = Successor()
        successor.survive("A", copies=(copy(1),))
        for number in order:
            report = slot(version(TARGET), version(1), number=number, missing=(version(1),), reduce=spec(1))
            successor.survive(f"H{number}", slots=(report,))
        successor.decide()
        assert Drop(version(TARGET)) in successor.heard("H5")
        assert not successor.told_to("H7", Drop)


def test_a_host_that_lost_its_slot_after_it_was_complete_has_a_copy() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A")
    done = slot(version(TARGET), version(1), number=5, reduce=spec(1))
    successor.survive("D", copies=(copy(TARGET, sealed=False),), slots=(done,))
    assert successor["D"] in successor.broadcast(TARGET).copies
    assert not successor.told_to("D", Drop)


def test_a_slot_of_a_version_that_was_replaced_is_not_taken_up() -> None:
    """Its host had not heard of the next version, which a getter has bytes of."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A")
    later = partial(TARGET, version=version(TARGET, 5), sealed=False, number=20, sender=successor["X"])
    successor.survive("G", partials=(later,))
    assert Drop(version(TARGET)) in successor.heard("H")
    successor.tell("H", Want(ref(TARGET)))
    successor.decide()
    assert successor.take_bind("A").version.incarnation == 2
    assert successor["H"] in successor.directory.records[ref(TARGET)].waiting


def test_what_was_sealed_is_known_from_whoever_heard_it() -> None:
    """The host made the target and did not hear that it is decided: its copy stays when slots are ended."""
    successor = Successor()
    done = slot(version(TARGET), version(1), reduce=spec(1))
    successor.survive("H", copies=(copy(1), copy(TARGET, sealed=False)), slots=(done,))
    successor.survive("W", watches=(ref(TARGET),))
    successor.survive("G", copies=(copy(TARGET, origin=origin(1)),))
    assert version(TARGET) in sealed_in(successor.heard("H"))
    assert successor.told_to("W", Ready)
    successor.decide()
    assert not successor.told_to("H", Drop)
    assert successor.broadcast(TARGET).copies.keys() == {successor["H"], successor["G"]}


def test_watchers_hear_of_a_seal_that_only_a_getter_knew() -> None:
    successor = Successor()
    successor.survive("H", copies=(copy(TARGET, sealed=False),))
    successor.survive("W", watches=(ref(TARGET),))
    successor.survive("G", partials=(partial(TARGET, origin=origin(1)),))
    assert successor.told_to("W", Ready)


def test_a_seal_that_is_heard_late_comes_from_the_reduction_itself() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A")
    successor.decide()
    successor.survive("G", copies=(copy(TARGET, origin=origin(1)),))
    successor.tell("H", Consumed(version(1), ref(TARGET)), Completed(version(TARGET)))
    assert successor.broadcast(TARGET).copies.keys() == {successor["H"], successor["G"]}
    assert successor.broadcast(TARGET).sealed


def test_a_decided_target_that_comes_late_is_better_than_waiting_for_its_sources() -> None:
    successor = Successor()
    successor.survive("A", submitted=(spec(1, 2),), wants=(ref(TARGET),))
    successor.decide()
    successor.survive("C", copies=(copy(TARGET, origin=origin(1, 2)),))
    assert not successor.told_to("C", Drop)
    heard = successor.heard("A")
    assert Over(ref(TARGET)) in heard
    assert any(isinstance(message, Place) for message in heard)


@pytest.mark.parametrize("bound", ["before the loss", "while it is lost", "after the return"])
@pytest.mark.parametrize("announced", ["copies", "producing"])
def test_a_slot_is_sent_a_lost_source_that_a_late_node_brings_back(announced: str, bound: str) -> None:
    """Source 1 is lost with A while the slot on B needs it, and source 3 may still take its place. C has the same
    version of it, from before the restart."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B", copies=(copy(2),))
    successor.decide()
    successor.tell("B", Reduce(7, ref(TARGET), (ref(1), ref(2), ref(3)), Operation.SUM, 2))
    bind = successor.take_bind("B")
    assert version(1) in bind.parts
    answer = Bound(bind.version, bind.number, (version(1),))
    if bound == "before the loss":
        successor.tell("B", answer)
        [place] = successor.heard_all(Place, "B")
        lost_stream = StreamFailed(
            version(1), place.number, LARGE // 2, place.sender, StreamFault.BROKEN, wanted=True, into=ref(TARGET)
        )
        successor.tell("B", lost_stream)
    successor.kill("A")
    assert not successor.knows(1)
    if bound == "while it is lost":
        successor.tell("B", answer)
    assert not successor.heard_all(Place, "B")
    successor.survive("C", **{announced: (copy(1),)})
    if bound == "after the return":
        successor.tell("B", answer)
    [again] = successor.heard_all(Place, "B")
    assert (again.version, again.sender, again.into) == (version(1), successor["C"], ref(TARGET))
    assert not successor.told_to("C", Drop)
    successor.tell("B", Consumed(version(1), ref(TARGET)), Completed(bind.version))
    assert successor.broadcast(TARGET).sealed


def test_a_slot_is_not_sent_again_what_it_has_taken() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    successor.survive("B", copies=(copy(2),))
    successor.decide()
    successor.tell("B", Reduce(7, ref(TARGET), (ref(1), ref(2), ref(3)), Operation.SUM, 2))
    bind = successor.take_bind("B")
    successor.tell("B", Bound(bind.version, bind.number, (version(1),)), Consumed(version(1), ref(TARGET)))
    successor.kill("A")
    successor.heard("B")
    successor.survive("C", copies=(copy(1),))
    assert not successor.told_to("B", *INTERRUPTIONS)


def test_a_reduction_whose_sources_died_with_the_directory_fails() -> None:
    """They were chosen, so they were there once: nobody waits for them to come."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    combining(successor, "H", "A", "X", wants=(ref(TARGET),))
    successor.decide()
    [failed] = [message for message in successor.heard("H") if isinstance(message, Failed)]
    assert failed.ref == ref(TARGET)
    assert failed.failure.kind is FailureKind.LOST


def test_bytes_of_an_undecided_target_do_not_go_into_another_one() -> None:
    """The outer slot has all of the inner target, whose hosts died: nobody can tell what that will become."""
    successor = Successor()
    successor.survive("A", copies=(copy(1),))
    report = slot(
        version(OUTER),
        version(1),
        version(TARGET),
        missing=(version(1),),
        undecided=(version(TARGET),),
        reduce=spec(1, TARGET, target=OUTER),
        target=OUTER,
    )
    successor.survive("H", slots=(report,))
    successor.decide()
    assert Drop(version(OUTER)) in successor.heard("H")


def test_a_target_that_nobody_knows_the_making_of_is_lost_for_all_who_wait() -> None:
    successor = Successor()
    successor.survive("G", partials=(partial(TARGET, sealed=False),))
    successor.survive("W", wants=(ref(TARGET),))
    successor.decide()
    assert len(successor.heard_all(Failed, "G", "W")) == 2


def test_a_slot_that_was_bound_across_the_restart_is_let_go() -> None:
    """Its host waited for memory when the directory died, and takes a slot that nobody knows of."""
    successor = Successor()
    successor.survive("P", partials=(partial(A_SLOT, sealed=False, number=4, sender=successor["X"]),))
    successor.survive("H")
    successor.tell("H", Bound(version(A_SLOT), 6, ()))
    assert successor.told_to("H", Drop)


def test_calls_that_contradict_what_is_heard_later_are_refused() -> None:
    successor = Successor()
    successor.survive("A", puts=(Put(3, ref(TARGET), LARGE, b"layout"),))
    successor.survive("B", submitted=(spec(1),))
    assert successor.told_to("A", PutRefused)
    successor.tell("A", Reduce(4, ref(2), (ref(1),), Operation.SUM, 1))
    successor.survive("C", copies=(copy(2),))
    successor.decide()
    successor.heard("A")
    successor.tell("A", Ask(5, ref(2)))
    [answer] = successor.heard_all(Contributors, "A")
    assert answer.failure is not None
    assert successor.knows(2)


def test_a_late_slot_leaves_nothing_behind() -> None:
    successor = Successor()
    successor.survive("A")
    successor.decide()
    successor.survive("H", slots=(slot(version(A_SLOT), version(1), reduce=spec(1)),))
    assert Drop(version(A_SLOT)) in successor.heard("H")
    assert ref(A_SLOT) not in successor.directory.records


# --- nonsense ---------------------------------------------------------------------------------------------------


HUGE = (1 << 62) - 1
a, b = version(A_SLOT), version(A_SLOT + 1)
NONSENSE: dict[str, dict[str, Any]] = {
    "a watermark beyond the size": {"partials": (partial(1, watermark=HUGE, number=1, sender=1),)},
    "a stream from itself": {"partials": (partial(1, number=1, sender=node_id(2)),)},
    "another size than others say": {"copies": (copy(1, size=HUGE),), "partials": (partial(1, size=0),)},
    "a slot that is made of itself": {"slots": (slot(version(TARGET), version(TARGET), reduce=spec(1)),)},
    "slots that are made of each other": {"slots": (slot(a, b, reduce=spec(1)), slot(b, a, number=2))},
    "a part twice": {"slots": (slot(version(TARGET), version(1), version(1), reduce=spec(1)),)},
    "a part that is no source": {"slots": (slot(version(TARGET), version(7), reduce=spec(1)),)},
    "a slot that lacks what is no part": {"slots": (slot(version(TARGET), version(1), missing=(a,), reduce=spec(1)),)},
    "more sources than it may have": {"slots": (slot(version(TARGET), version(1), version(2), reduce=spec(1)),)},
    "a spec of another target": {"slots": (slot(a, version(1), reduce=spec(1, target=OUTER)),)},
    "a spec that is refused": {
        "slots": (slot(version(TARGET), version(1), reduce=spec(1, 1)),),
        "submitted": (spec(1, 1),),
    },
    "targets made of each other": {"submitted": (spec(OUTER), spec(TARGET, target=OUTER))},
    "a put of what is made by a slot": {"producing": (copy(A_SLOT),), "slots": (slot(a, version(1), reduce=spec(1)),)},
    "versions of the future": {
        "copies": (copy(1, incarnation=9),),
        "slots": (slot(version(TARGET, 1, 9), version(1)),),
    },
    "an origin of something else": {"copies": (copy(3, origin=origin(7)),)},
    "a tombstone of the future": {"tombstones": (Tombstone(ref(9), 9),)},
}


@pytest.mark.parametrize("announced", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_harms_nobody_else(announced: dict[str, Any]) -> None:
    """The invariants are looked at after every event by the driver."""
    for late in (False, True):
        successor = Successor()
        successor.survive("A", copies=(copy(1), copy(2)))
        if late:
            successor.decide()
        successor.survive("B", **announced)
        successor.survive("B", incarnation=2, **announced)
        successor.decide()
        successor.kill("B")
        assert successor["A"] in successor.broadcast(2).copies


# --- whole nodes ------------------------------------------------------------------------------------------------


class Survivors(VirtualCluster):
    """A simulated cluster whose directory dies at a given moment and is back at once; what it then says is kept."""

    def __init__(self, nodes: int, *, crashes: tuple[float, ...] = ()) -> None:
        self.said: list[ToNode] = []
        super().__init__(Shape(nodes=nodes), checked=True)
        self.clock.run(until=0.05)
        for moment in crashes:
            self.clock.at(self.clock.now + moment, self._replace_directory)

    def _replace_directory(self) -> None:
        self.said.clear()
        self.crash_directory()
        self.restart_directory()

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        self.said.append(message)
        super().directory_says(node, message)

    def end(self, *calls: Call) -> list[Any]:
        """Let the calls end, and return their answers."""
        self.clock.run(until=self.clock.now + 30.0)
        assert not any(call.open for call in calls)
        return [call.answer for call in calls]

    def interruptions(self) -> list[ToNode]:
        return [message for message in self.said if isinstance(message, INTERRUPTIONS)]


@pytest.mark.parametrize("crashes", [(0.2,), (0.2, 0.25), (0.2, 0.25, 0.3)])
def test_a_broadcast_takes_no_longer(crashes: tuple[float, ...]) -> None:
    """Also when the second directory dies while it hears the nodes."""
    times = []
    for moments in ((), crashes):
        cluster = Survivors(4, crashes=moments)
        item = cluster.new_ref()
        calls = [cluster.put(0, item, LARGE), *(cluster.get(index, item) for index in (1, 2, 3))]
        cluster.end(*calls)
        times.append(max(call.ended or 0.0 for call in calls))
        assert not moments or not cluster.interruptions()
    assert times[1] == pytest.approx(times[0], rel=0.01)


@pytest.mark.parametrize("count", [4, 3])
def test_a_reduction_goes_on_and_counts_each_source_once(count: int) -> None:
    """No stream is touched; only the seal waits until everybody was heard."""
    cluster = Survivors(5, crashes=(0.3,))
    sources = tuple(cluster.new_ref() for _ in range(4))
    target = cluster.new_ref()
    Oracle(cluster)  # judges the bytes
    for index, source in enumerate(sources):
        cluster.put(index, source, LARGE)
    cluster.reduce(4, target, sources, count)
    began = cluster.clock.now
    get = cluster.get(4, target)
    [got] = cluster.end(get)
    assert isinstance(got, Got)
    assert got.version.incarnation == 1
    assert get.ended is not None
    assert get.ended <= began + 0.3 + cluster.settings.lease + 0.01
    assert not [message for message in cluster.said if isinstance(message, Halt | Place | Bind)]
    [told] = cluster.end(cluster.contributors(4, target))
    assert len(set(told.refs)) == count


def test_small_objects_and_small_results_survive() -> None:
    cluster = Survivors(3, crashes=(0.2,))
    sources = tuple(cluster.new_ref() for _ in range(3))
    target = cluster.new_ref()
    for index, source in enumerate(sources):
        cluster.put(index, source, 1000, inline=True)
    cluster.reduce(0, target, sources, 3)
    [before] = cluster.end(cluster.get(1, target))
    calls = [cluster.get(2, target), cluster.get(2, sources[0]), cluster.contributors(2, target)]
    after, source, told = cluster.end(*calls)
    assert after.version == before.version
    assert isinstance(source, Got)
    assert set(told.refs) == set(sources)


def test_empty_objects_are_reduced_after_a_restart() -> None:
    """They live in the directory; its successor knows them only as copies, and the slot is complete at once."""
    cluster = Survivors(3, crashes=(0.2,))
    sources = tuple(cluster.new_ref() for _ in range(3))
    target = cluster.new_ref()
    puts = [cluster.put(index, source, 0, inline=True) for index, source in enumerate(sources)]
    cluster.end(*puts)
    cluster.reduce(0, target, sources, 3)
    [got] = cluster.end(cluster.get(1, target))
    assert isinstance(got, Got)
    check(cluster.directory.machine)


def test_a_slot_says_how_what_it_pulls_came_about() -> None:
    """A decided target that is a part of another one: the successor may hear of it from the slot first."""
    node = NodeDriver()
    bind = Bind(version(OUTER), 1, LARGE, b"layout", Operation.SUM, (version(TARGET),), ref(OUTER))
    node.directory(bind)
    place = Place(version(TARGET), 2, LARGE, b"layout", 9, "there", 1 << 20, 1e8, True, origin(1), into=ref(OUTER))
    node.directory(place)
    node.handle(DirectoryLost())
    hello = node.connect()
    [announced] = hello.partials
    assert announced.origin == origin(1)
    [report] = hello.slots
    assert report.undecided == ()


def test_a_node_remembers_which_directory_deleted() -> None:
    node = NodeDriver()
    node.directory(Welcome(5, CLUSTER, node.settings))
    node.handle(DeleteCall(7, (ref(1),), None))
    node.directory(Deleted(7))
    node.handle(DirectoryLost())
    [hello] = node.sent(node.handle(DirectoryConnected()), Join)
    assert hello.tombstones == (Tombstone(ref(1), 5),)


# --- stripes ----------------------------------------------------------------------------------------------------


def test_pieces_of_a_striped_target_are_not_taken_up() -> None:
    d = Successor()
    d.survive("A", copies=(Copy(version(1), LARGE, b"layout", piece=True), Copy(version(2), LARGE, b"layout")))
    assert Drop(version(1)) in d.heard("A")
    assert ref(1) not in d.directory.records
    assert d.directory.records[ref(2)].broadcast is not None
