"""What follows from an event is decided when all of the event is known, and not after a part of it."""

import pytest

from hoplite_ucx.protocol.directory.records import Record, Reduction
from hoplite_ucx.protocol.directory.reduce.reduction import Reductions
from hoplite_ucx.protocol.directory.settling import Settling
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import SessionLost
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.messages import (
    Bind,
    Completed,
    Copy,
    Delete,
    Describe,
    Described,
    Drop,
    Evict,
    Failed,
    ObjectState,
    Operation,
    Over,
    Put,
    Ready,
    Reduce,
    SlotReport,
    Want,
    Watch,
)
from tests.tools.machines import LARGE, ref, sealed_in
from tests.tools.reducer import TARGET, Reducer, chain


def test_all_that_is_lost_with_a_node_is_known_before_a_reduction_fails() -> None:
    d = Reducer("A", "B", "C")
    for number, name in enumerate("AAB", 1):
        d.put(name, number)
    d.reduce("C", (1, 2, 3))
    d.tell("C", Want(ref(TARGET)))
    d.quiet()
    d.lose("A")
    [failed] = d.heard_all(Failed, "C")
    assert all(short(ref(number)) in failed.failure.detail for number in (1, 2))


def test_a_spare_that_dies_with_the_source_is_not_chosen_in_its_place() -> None:
    d = Reducer("A", "B", "C", "D")
    for name, number in (("A", 1), ("B", 2), ("A", 3)):
        d.put(name, number)
    d.reduce("D", (1, 2, 3, 4), count=2)
    d.take_anywhere()
    d.quiet()
    d.lose("A")
    assert d.heard_all(Bind) == []
    d.put("C", 4)
    [bind] = d.heard_all(Bind)
    assert {part.ref for part in bind.parts} == {ref(2), ref(4)}


def test_a_node_that_brings_a_lost_source_is_not_told_that_the_target_failed() -> None:
    d, _, _ = chain()
    d.lose("A")
    d.quiet()
    d.handle(SessionLost(d["D"]))
    again = Put(50, ref(1), LARGE, b"layout")
    d.join("D", puts=(again,), wants=(ref(TARGET),), watches=(ref(TARGET),))
    heard = d.heard("D")
    assert not [message for message in heard if isinstance(message, Failed | Ready)]
    record = d.directory.records[ref(TARGET)]
    assert d["D"] in record.waiting
    assert d["D"] in record.watchers


def test_without_the_source_it_is_told() -> None:
    d, _, _ = chain()
    d.lose("A")
    d.quiet()
    d.tell("D", Want(ref(TARGET)), Watch((ref(TARGET),)))
    failed, ready = d.heard("D")
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.LOST
    assert ready == Ready((ref(TARGET),))


def test_who_gets_a_target_that_is_deleted_with_its_sources_hears_that() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.reduce("C", (1, 2))
    d.tell("B", Want(ref(TARGET)))
    d.tell("C", Delete(7, (ref(1), ref(2), ref(TARGET))))
    [failed] = d.heard_all(Failed, "B")
    assert failed.failure.kind is FailureKind.DELETED


def test_a_target_that_failed_for_a_deleted_source_stays_failed_until_that_is_put_again() -> None:
    """When the tombstone is over, the source may come again, but nobody has said that it will."""
    d = Reducer("A", "B")
    d.put("A", 1)
    d.reduce("B", (1, 2))
    d.tell("B", Delete(7, (ref(2),)))
    d.pass_time(d.directory.settings.tombstone + 1, beating=("A", "B"), step=0.5)
    d.quiet()
    d.tell("B", Want(ref(TARGET)))
    assert d.heard_all(Failed, "B")
    d.put("A", 2)
    d.tell("B", Want(ref(TARGET)))
    assert not d.heard_all(Failed, "B")


def test_a_host_that_comes_back_with_the_output_has_it_all() -> None:
    """Its answer that it took the slot was lost with its session, and it was quicker than the next."""
    d = Reducer("A", "B")
    d.put("A", 1)
    d.reduce("B", (1,))
    bind = d.bind_of("A")
    d.handle(SessionLost(d["A"]))
    copies = (Copy(d.version_of(1), LARGE, b"layout"), Copy(bind.version, LARGE, b"layout", sealed=False))
    question = Describe(9, (ref(TARGET),))
    d.join("A", incarnation=1, copies=copies, slots=(SlotReport(bind, (), ()),), questions=(question,))
    heard = d.heard("A")
    assert bind.version in sealed_in(heard)
    assert Drop(bind.version) not in heard
    [described] = [message for message in heard if isinstance(message, Described)]
    assert described.descriptions[0].state is ObjectState.READY
    assert d["A"] in d.broadcast(TARGET).copies


def test_a_reduction_does_not_look_again_at_all_its_sources_for_each_copy_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = Reducer("A", "B", "C")
    source = d.put("A", 1)
    d.reduce("C", (1, 2))
    reviewed = []
    review = Reductions.review

    def counted(reductions: Reductions, reduction: Reduction) -> None:
        reviewed.append(reduction.target)
        review(reductions, reduction)

    monkeypatch.setattr(Reductions, "review", counted)
    d.want("B", 1)
    d.tell("B", Completed(source))
    d.tell("B", Evict(source))
    assert reviewed == []
    d.put("B", 2)
    assert ref(TARGET) in reviewed


def test_a_fault_that_marks_for_ever_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor then continues; a directory that never answered again would not have one."""
    d = Reducer("A", "B")
    d.put("A", 1)
    settle_record = Settling._settle_record

    def marks_again(settling: Settling, record: Record) -> None:
        settle_record(settling, record)
        settling._world.mark(record.ref)

    monkeypatch.setattr(Settling, "_settle_record", marks_again)
    with pytest.raises(AssertionError, match="does not settle"):
        d.put("B", 2)


def test_a_node_that_takes_the_place_of_another_may_ask_again_for_what_was_lost_with_it() -> None:
    d = Reducer("A", "B")
    for name, number in (("A", 1), ("B", 2), ("B", 3)):
        d.put(name, number)
    d.reduce("A", (1, 2, 3), count=2)
    d.run("A", "B")
    assert list(d.broadcast(TARGET).copies) == [d["A"]]
    d.quiet()
    again = Reduce(9, ref(TARGET), (ref(1), ref(2), ref(3)), Operation.SUM, 2)
    d.join("A again", address=f"address{d['A']}", reduces=(again,), wants=(ref(TARGET),))
    assert not [message for message in d.heard("A again") if isinstance(message, Over | Failed)]
    bind = d.take("B")
    assert {part.ref for part in bind.parts} == {ref(2), ref(3)}
    d.finish("B", bind)
    assert bind.version in sealed_in(d.heard("A again"))
