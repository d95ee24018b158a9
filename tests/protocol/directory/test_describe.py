"""What the directory says of refs."""

import pytest

from hoplite_ucx.protocol.messages import (
    MAX_DESCRIBED_HOLDERS,
    MAX_DESCRIBED_LAYOUT,
    Copy,
    Delete,
    Describe,
    Described,
    Description,
    ObjectState,
    Put,
    Unfit,
    Want,
)
from tests.tools.machines import LARGE, DirectoryDriver, ref, version
from tests.tools.reducer import TARGET, Reducer

SIZE = 1 << 20


def described(d: DirectoryDriver, name: str, *numbers: int) -> list[Description]:
    d.heard(name)
    d.tell(name, Describe(7, tuple(map(ref, numbers))))
    [answer] = d.heard_all(Described, name)
    assert answer.call == 7
    assert [each.ref for each in answer.descriptions] == [ref(number) for number in numbers]
    return list(answer.descriptions)


def test_an_object_while_it_is_put_and_afterwards() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1, SIZE, done=False)
    d.now += 3.0
    [coming] = described(d, "B", 1)
    assert coming == Description(
        ref(1), ObjectState.COMING, SIZE, b"layout", creator=f"address{d['A']}", age=pytest.approx(3.0)
    )
    d.put("A", 2, SIZE)
    [ready] = described(d, "B", 2)
    assert (ready.state, ready.copies, ready.holders) == (ObjectState.READY, 1, (f"address{d['A']}",))
    assert ready.age == 0


def test_a_small_object_is_with_the_directory() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Put(1, ref(1), 3, b"layout", b"abc"))
    [small] = described(d, "B", 1)
    assert (small.state, small.inline, small.size, small.copies) == (ObjectState.READY, True, 3, 1)


def test_what_nobody_put_and_what_was_deleted() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.tell("A", Delete(2, (ref(1),)))
    d.tell("B", Want(ref(2)))  # that somebody waits for it makes no difference
    deleted, waited_for, unheard = described(d, "B", 1, 2, 3)
    assert deleted == Description(ref(1), ObjectState.DELETED)
    assert waited_for == Description(ref(2), ObjectState.UNKNOWN)
    assert unheard == Description(ref(3), ObjectState.UNKNOWN)
    assert ref(3) not in d.directory.records  # nothing changes by the question


def test_reductions() -> None:
    d = Reducer("A", "B", "C")
    d.reduce("C", (1, 2))
    [waiting] = described(d, "C", TARGET)
    assert waiting == Description(ref(TARGET), ObjectState.COMING)
    d.put("A", 1)
    d.put("B", 2)
    [growing] = described(d, "C", TARGET)
    assert (growing.state, growing.size, growing.creator) == (ObjectState.COMING, LARGE, None)


def test_a_reduction_that_cannot_be_carried_out() -> None:
    d = Reducer("A", "B")
    d.reduce("B", (1, 2))
    d.put("A", 1)
    d.put("B", 2)
    slot = d.broadcast(TARGET).version
    for name in ("A", "B"):  # the one of them that combines is believed
        d.tell(name, Unfit(slot, "it makes no sense", "do something else"))
    [failed] = described(d, "B", TARGET)
    assert failed == Description(ref(TARGET), ObjectState.FAILED)


def test_many_holders_and_a_long_layout_are_cut_short() -> None:
    names = [f"N{index}" for index in range(MAX_DESCRIBED_HOLDERS + 4)]
    d = DirectoryDriver()
    for name in names:
        d.join(name, copies=())
    held = d.put(names[0], 1, layout=b"x" * (MAX_DESCRIBED_LAYOUT + 1))
    for name in names[1:]:
        d.join(name, copies=(Copy(held, LARGE, b"x" * (MAX_DESCRIBED_LAYOUT + 1)),))
    [known] = described(d, names[0], 1)
    assert (known.copies, len(known.holders), known.layout) == (len(names), MAX_DESCRIBED_HOLDERS, b"")


def test_a_successor_answers_when_it_has_heard_everybody() -> None:
    d = DirectoryDriver(incarnation=2)
    d.directory.recover(d.now)
    d.join(
        "A", incarnation=1, copies=(Copy(version(1), SIZE, b"layout"),), members=2, questions=(Describe(7, (ref(2),)),)
    )
    d.tell("A", Describe(8, (ref(1),)))
    assert d.heard_all(Described, "A") == []
    d.join("B", incarnation=1, copies=(Copy(version(2), SIZE, b"layout"),), members=2)
    answers = {answer.call: answer.descriptions[0] for answer in d.heard_all(Described, "A")}
    assert {call: answer.state for call, answer in answers.items()} == {7: ObjectState.READY, 8: ObjectState.READY}
    assert answers[8].age is None  # an earlier directory saw it begin
