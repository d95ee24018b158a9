"""What a lost source costs a reduction; and what follows from one change must all be done at once."""

import pytest

from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import SessionLost
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import (
    Bind,
    Bound,
    Completed,
    Consumed,
    Contributors,
    Delete,
    Drop,
    Failed,
    Partial,
    Place,
    StreamFailed,
    StreamFault,
    Want,
)
from tests.tools.machines import LARGE, ref
from tests.tools.reducer import OUTER, TARGET, Reducer, chain

# --- sources that are lost ---------------------------------------------------------------------------------------


def test_a_spare_source_renews_its_slot_and_what_is_above_only() -> None:
    """The chain (2, 1) ← (3, ·) ← (4, ·) with the spare 5: a loss of 3 leaves the lowest slot as it is."""
    d = Reducer("A", "B", "C", "D", "E", "F")
    for number, name in enumerate("ABCDE", 1):
        d.put(name, number)
    d.reduce("F", (1, 2, 3, 4, 5), count=4)
    low, middle, root = d.take("B"), d.take("C"), d.take("D")
    d.quiet()
    d.lose("C")
    renewed = d.take("E")
    assert renewed.parts == (d.version_of(5), low.version)
    assert renewed.version.ref == middle.version.ref
    assert renewed.version > middle.version
    assert Drop(low.version) not in d.heard("B")
    heard = d.heard("D")
    assert Drop(root.version) in heard
    [above] = [m for m in heard if isinstance(m, Bind)]
    assert above.version > root.version
    assert above.parts == (d.version_of(4), renewed.version)
    d.accept("D", above)
    for name, bind in (("B", low), ("E", renewed), ("D", above)):
        d.finish(name, bind)
    assert d.contributors("A") == [Contributors(7, (ref(1), ref(2), ref(5), ref(4)))]


def test_who_gets_the_target_is_told_of_the_new_version() -> None:
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("D", (1, 2, 3), count=2)
    root = d.take("B")
    d.want("D", TARGET)
    d.lose("A")
    assert Drop(root.version) in d.heard("D")
    _, again = d.take_anywhere()
    assert again.parts == (d.version_of(2), d.version_of(3))
    d.tell("D", Want(ref(TARGET)))
    [place] = d.heard_all(Place, "D")
    assert place.version == again.version > root.version


def test_a_getter_that_was_never_placed_is_placed_in_the_new_version() -> None:
    """It has heard nothing that it could want anew."""
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("D", (1, 2, 3), count=2)
    root = d.bind_of("B")
    d.tell("D", Want(ref(TARGET)))
    d.lose("A")
    d.tell("B", Bound(root.version, root.number, (d.version_of(3),)))  # crossed the drop
    _, again = d.take_anywhere()
    [place] = d.heard_all(Place, "D")
    assert place.version == again.version > root.version


def test_without_a_spare_the_target_fails_and_names_the_lost() -> None:
    d, lower, root = chain()
    d.want("E", TARGET)
    assert d.contributors("D") == []
    d.quiet()
    d.lose("A")
    [failed] = d.heard_all(Failed, "E")
    assert failed.ref == ref(TARGET)
    assert failed.failure.kind is FailureKind.LOST
    assert short(ref(1)) in failed.failure.detail
    [told] = d.heard_all(Contributors, "D")
    assert told.failure == failed.failure
    assert Drop(lower.version) in d.heard("B")
    assert Drop(root.version) in d.heard("C")
    d.tell("E", Want(ref(TARGET)))
    assert d.heard_all(Failed, "E") == [failed]


def test_a_source_put_again_reopens_the_reduction() -> None:
    d, _, root = chain()
    d.lose("A")
    d.quiet()
    first = d.put("D", 1)
    binds = d.run("B", "C", "D")
    assert {part for bind in binds for part in bind.parts} >= {first, d.version_of(2), d.version_of(3)}
    assert d.broadcast(TARGET).sealed
    assert d.broadcast(TARGET).version > root.version
    assert sorted(d.contributors("E")[0].refs) == [ref(1), ref(2), ref(3)]


def test_a_lost_source_that_is_in_already_is_not_missed() -> None:
    d, lower, root = chain()
    d.consume("B", lower)
    d.quiet()
    d.lose("A")
    assert d.heard_all(Failed) == []
    assert d.heard_all(Drop) == []
    d.finish("B", lower)
    d.finish("C", root)
    assert d.contributors("E") == [Contributors(7, (ref(1), ref(2), ref(3)))]


def test_a_source_and_its_slot_may_both_be_lost_once_the_parent_has_them() -> None:
    d, lower, root = chain()
    d.finish("B", lower)
    d.consume("C", root)
    d.lose("A")
    d.lose("B")
    assert d.heard_all(Failed) == []
    d.tell("C", Completed(root.version))
    assert d.contributors("E") == [Contributors(7, (ref(1), ref(2), ref(3)))]


def test_a_broken_stream_to_a_slot_is_placed_again_and_nothing_else() -> None:
    d, lower, _ = chain()
    copy = d.want("D", 1)
    d.tell("D", Completed(copy.version))
    receiver = d.broadcast(1).receivers[d["B"], lower.version.ref]
    into = lower.version.ref
    d.quiet()
    d.tell("B", StreamFailed(d.version_of(1), receiver.number, 5, d["A"], StreamFault.BROKEN, True, into))
    d.pass_time(0.1, beating=tuple("BCDE"))
    assert d.feeders(lower) == {short(ref(1)): "D"}
    assert d.heard_all(Bind) == []


@pytest.mark.parametrize("deleted", [False, True])
def test_nothing_is_replaced_before_those_who_pull_have_reported(deleted: bool) -> None:
    """The flush: B may have all of 1 when A dies; also if 1 was deleted, and lives for the reduction only."""
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("D", (1, 2, 3), count=2)
    root = d.take("B")
    if deleted:
        d.tell("D", Delete(5, (ref(1),)))
    d.quiet()
    d.kill("A")
    assert d.heard_all(Bind) == []
    assert d.broadcast(1).receivers[d["B"], ref(TARGET)].state is State.HALTING
    d.tell("B", Consumed(d.version_of(1), ref(TARGET)))
    assert d.heard_all(Bind) == []
    d.tell("B", Completed(root.version))
    assert d.contributors("D") == [Contributors(7, (ref(1), ref(2)))]


def test_a_deleted_source_is_replaced_when_it_turns_out_to_be_lost() -> None:
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("D", (1, 2, 3), count=2)
    d.take("B")
    d.tell("D", Delete(5, (ref(1),)))
    d.quiet()
    d.lose("A")
    [bind] = d.heard_all(Bind)
    assert {part.ref for part in bind.parts} == {ref(2), ref(3)}


def test_a_source_that_is_deleted_while_it_is_put_again_is_replaced() -> None:
    """What the reduction chose is gone with A; what D has begun to put is not that, and goes with the delete."""
    d = Reducer("A", "B", "C", "D")
    d.put("A", 1)
    d.put("B", 2)
    d.reduce("D", (1, 2, 3), count=2)
    d.take("B")
    d.lose("A")
    d.put("D", 1, done=False)
    d.tell("C", Delete(5, (ref(1),)))
    d.quiet()
    d.put("C", 3)
    [bind] = d.heard_all(Bind)
    assert {part.ref for part in bind.parts} == {ref(2), ref(3)}


def test_a_target_that_is_deleted_undecided_goes_into_nothing() -> None:
    """A takes a slot with what there is of the target, which is deleted meanwhile."""
    d = Reducer("A", "B")
    d.put("A", 1)
    d.put("A", 2)
    d.reduce("B", (1,))
    d.take("A")
    d.reduce("B", (TARGET, 2, 3), count=2, target=OUTER)
    bind = d.bind_of("A")
    assert ref(TARGET) in {part.ref for part in bind.parts}
    d.tell("B", Delete(5, (ref(TARGET),)))
    d.tell("A", Bound(bind.version, bind.number, ()))
    d.tell("A", Completed(bind.version))
    assert d.directory.records[ref(OUTER)].reduction is not None, "it waits for 3"


# --- all at once -------------------------------------------------------------------------------------------------


def test_a_slot_that_begins_anew_takes_its_other_parts_as_they_are_now() -> None:
    d = Reducer("A", "B", "C", "D")
    d.put("A", 1)
    d.put("B", 2)
    d.put("C", 3)
    d.reduce("C", (1, 2, 3))
    slot = d.take("B")
    d.tell("B", Consumed(d.version_of(1), slot.version.ref))
    d.kill("A")  # its bytes are in: nothing happens
    d.put("D", 1)
    before = dict(d.directory.records[ref(TARGET)].reduction.chosen)
    d.lose("B")
    d.put("D", 2)  # now the slot begins anew, and the first source is another one than it was
    after = d.directory.records[ref(TARGET)].reduction.chosen
    assert after[ref(2)] != before[ref(2)]
    assert after[ref(1)] == d.version_of(1) != before[ref(1)]
    check(d.directory)


def test_what_is_made_from_a_target_that_reopens_may_hope_again() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.put("B", 2)
    d.reduce("C", (1, 2))
    d.reduce("C", (TARGET,), target=OUTER)
    d.lose("A")
    outer = d.directory.records[ref(OUTER)].reduction
    assert outer.failure is not None
    d.put("C", 1)
    assert outer.failure is None
    check(d.directory)


def test_who_was_putting_a_hidden_object_keeps_it_for_those_who_chose_it() -> None:
    """A has all of it before P's put is done. Taken for one who still makes it, P would be asked for it for ever."""
    d = Reducer("P", "A", "B", "D")
    put = d.put("P", 1, done=False)
    d.want("A", 1)
    d.tell("A", Completed(put))
    d.put("B", 2)
    d.reduce("D", (1, 2))
    bind = d.take("B")
    d.tell("D", Delete(5, (ref(1),)), Want(ref(TARGET)))
    d.quiet()
    d.tell("P", Completed(put))
    assert d.heard("P") == []
    d.lose("A")
    assert d.feeders(bind)[short(ref(1))] == "P"
    d.lose("P")
    [failed] = d.heard_all(Failed, "D")
    assert failed.failure.kind is FailureKind.LOST


def test_who_comes_back_for_a_hidden_object_is_told_to_drop_it() -> None:
    d = Reducer("A", "B", "C", "D")
    d.put("A", 1)
    d.put("B", 2)
    d.reduce("B", (1, 2))
    d.tell("D", Delete(1, (ref(1),)))
    hidden = d.version_of(1)
    d.handle(SessionLost(d["C"]))
    d.heard("C")
    d.join("C", partials=(Partial(hidden, LARGE, b"layout", 5),))
    assert Drop(hidden) in d.heard("C")
    assert d["C"] not in d.broadcast(1).receivers
    check(d.directory)
