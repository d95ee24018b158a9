"""What follows from one change to a reduction must all be done at once: nothing may wait for the next event."""

from hoplite_ucx.protocol.events import SessionLost
from hoplite_ucx.protocol.messages import Consumed, Delete, Drop, Partial
from tests.protocol.harness import LARGE, ref
from tests.protocol.test_reduction import OUTER, TARGET, Reducer


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
    d.directory.check()


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
    d.directory.check()


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
    d.directory.check()
