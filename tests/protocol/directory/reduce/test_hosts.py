"""Slots that are taken over in the middle: who combines what from where, and what becomes of the beginning.

B runs the slot (2, 1), C the root (3, slot), as in `test_reduction`; `HALF` is how far whoever pulled has come.
"""

from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.messages import (
    Bind,
    Completed,
    Declined,
    Drop,
    Failed,
    Partial,
    Rejected,
    Sealed,
    SlotReport,
    Want,
)
from tests.tools.machines import LARGE, DirectoryDriver, ref
from tests.tools.reducer import HALF, TARGET, Reducer, chain, copied, split


def taken_over() -> tuple[Reducer, Bind, Bind]:
    """B died, D has source 2, and A combines (2, 1) for C, which has the first half of it."""
    d, lower, root = chain()
    copied(d, "D", 2)
    d.lose("B")
    again = d.take("A")
    assert again.version == lower.version
    d.quiet()
    return d, again, root


# --- the slots below the root -----------------------------------------------------------------------------------


def test_who_takes_over_begins_where_the_slot_above_is() -> None:
    d, again, root = taken_over()
    assert (again.start, again.resume) == (HALF, False)
    assert d.broadcast(2).receivers[d["A"], again.version.ref].watermark == HALF
    d.pass_time(0.1, beating=tuple("ACDE"))
    assert d.broadcast_of(again).receivers[d["C"], root.version.ref].sender == d["A"]


def test_who_takes_over_begins_at_the_first_byte_if_nobody_has_pulled() -> None:
    d = Reducer("A", "B", "C", "D", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    assert d.reduce("E", (1, 2, 3)) is None
    d.take("B")
    d.bind_of("C")  # which has not answered
    copied(d, "D", 2)
    d.kill("B")
    assert d.bind_of("A").start == 0


def test_nobody_takes_over_before_it_is_known_how_far_the_slot_above_is() -> None:
    d, _, _ = chain()
    copied(d, "D", 2)
    d.kill("B")
    d.put("E", 4)  # whatever makes the directory look again
    assert d.heard_all(Bind, "A") == []
    d.report_halts("C", watermark=137)
    assert d.bind_of("A").start == 128  # at an element's beginning


def test_the_end_of_a_slot_is_no_copy_of_it() -> None:
    d, again, _ = taken_over()
    d.consume("A", again)
    d.tell("A", Completed(again.version))
    [refusal] = d.heard_all(Rejected, "A")
    assert refusal.failure.kind is FailureKind.INVALID
    assert d.broadcast_of(again).copies == {}


def test_a_slot_begins_lower_again_when_the_one_above_it_is_lost() -> None:
    """The root begins anew at E, which needs the first half of what A makes."""
    d, again, root = taken_over()
    copied(d, "E", 3)
    d.consume("A", again)
    d.lose("C")
    new_root = d.take("E")
    assert (new_root.version, new_root.start) == (root.version, 0)
    heard = d.heard("A")
    [lower] = [m for m in heard if isinstance(m, Bind)]
    assert heard.index(Drop(again.version)) < heard.index(lower)
    assert (lower.version, lower.parts, lower.start) == (again.version, again.parts, 0)
    assert lower.number > again.number
    d.accept("A", lower)
    assert d.feeders(new_root)
    d.finish("A", lower)
    d.finish("E", new_root)
    assert [seal.version for seal in d.heard_all(Sealed, "E")] == [root.version]


def test_a_source_that_is_in_is_not_missed_while_the_beginning_is_above() -> None:
    d, again, root = taken_over()
    d.consume("A", again)
    d.lose("D")
    assert d.heard_all(Failed) == []
    d.consume("C", root)
    d.tell("C", Completed(root.version))
    assert [seal.version for seal in d.heard_all(Sealed, "C")] == [root.version]


def test_a_source_is_missed_when_the_beginning_is_lost_too() -> None:
    """Source 2 is gone, A has the end of it, and C had the rest."""
    d, again, _ = taken_over()
    copied(d, "E", 3)
    d.tell("E", Want(ref(TARGET)))
    d.consume("A", again)
    d.lose("D")
    d.quiet()
    d.kill("C")
    d.report_halts("E", watermark=0)
    [failed] = d.heard_all(Failed, "E")
    assert failed.failure.kind is FailureKind.LOST


def test_a_host_that_comes_back_goes_on_with_the_end() -> None:
    d, again, _ = taken_over()
    missing = tuple(part for part in again.parts if part.ref == ref(2))
    d.rejoin(
        "A",
        copies=(1,),
        slots=(SlotReport(again, missing),),
        partials=tuple(Partial(part, LARGE, b"layout", HALF + 5, into=again.version.ref) for part in missing),
    )
    assert d.heard_all(Drop, "A") == []
    assert d.broadcast_of(again).start == HALF
    assert d.broadcast(2).receivers[d["A"], again.version.ref].watermark >= HALF


# --- the root ---------------------------------------------------------------------------------------------------


def test_a_getter_that_has_the_source_makes_the_rest_itself() -> None:
    d, _, root = chain()
    copied(d, "D", 3)
    d.want("D", TARGET)
    d.lose("C")
    bind = d.take("D")
    assert (bind.version, bind.parts) == (root.version, root.parts)
    assert (bind.start, bind.resume) == (HALF, True)
    assert d.broadcast(TARGET).start == 0  # the node has the beginning
    d.finish("D", bind)
    assert [seal.version for seal in d.heard_all(Sealed, "D")] == [root.version]


def test_another_node_combines_the_rest_for_a_getter_without_the_source() -> None:
    d, below, rest = split()
    assert d.feeders(rest) == {short(below.version.ref): "D"}
    d.consume("D", below)
    d.finish("E", rest)
    assert [seal.version for seal in d.heard_all(Sealed, "E")] == [rest.version]


def test_a_getter_that_has_let_go_of_its_bytes_declines() -> None:
    d, _, root = chain()
    copied(d, "D", 3)
    d.want("D", TARGET)
    d.lose("C")
    bind = d.bind_of("D")
    d.tell("D", Declined(bind.version, bind.number))
    assert d.receiver("D", TARGET).watermark == 0
    assert d.receiver("D", TARGET).state is State.WAITING
    host, again = d.take_anywhere()
    assert (again.version, again.start, host == "D") == (root.version, 0, False)


def test_all_begins_lower_when_the_getter_with_the_beginning_dies() -> None:
    d, below, rest = split()
    d.tell("A", Want(ref(TARGET)))
    d.kill("E")
    d.report_halts("A", watermark=0)
    host, again = d.take_anywhere()
    assert (again.version, again.start) == (rest.version, 0)
    lower = d.take("D") if host != "D" else None
    assert lower is None or (lower.version, lower.start) == (below.version, 0)


def test_the_next_getter_goes_on_when_the_first_dies() -> None:
    d, below, rest = split()
    d.tell("A", Want(ref(TARGET)))
    d.lose("E")  # A reports as much
    bind = d.take("A")
    assert (bind.version, bind.start, bind.resume) == (rest.version, HALF, True)
    assert d.heard_all(Bind, "D") == []
    assert d.feeders(bind) == {short(below.version.ref): "D"}


# --- placing behind a slot --------------------------------------------------------------------------------------


def test_nobody_is_placed_behind_a_slot_that_begins_above_him() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.put("A", 1, done=False)
    tree = d.broadcast(1)
    tree.start = HALF
    for name, watermark in (("B", HALF - 1), ("C", HALF)):
        tree.want(d.directory.members[d[name]], watermark)
    plans = {name: tree.choose_sender(d.receiver(name, 1)) for name in "BC"}
    assert plans["B"] is None
    assert plans["C"] is not None
