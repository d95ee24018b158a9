"""Small objects: the directory combines them, and gives the result to the nodes that asked for it."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import CombineBytes, CombinedBytes, CombineFailed, SessionLost
from hoplite_ucx.protocol.messages import (
    Bind,
    CombinedInline,
    CombineInline,
    Contributors,
    Copy,
    Declined,
    Delete,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Inline,
    Operation,
    Origin,
    Over,
    Put,
    Reduce,
    Reduced,
    Result,
    Retire,
    Unfit,
    Want,
)
from tests.tools.machines import ref, snapshot, version
from tests.tools.reducer import LONG, OUTER, TARGET, Reducer, small, small_at_node

SUM = b"\3\3"


def decided() -> tuple[Reducer, Result]:
    """C asked for the sum of two small objects and has it; D wanted it."""
    d, combine = small("A", "B")
    d.handle(CombinedBytes(combine.version, SUM))
    [result] = d.heard_all(Result, "C")
    return d, result


def holders(d: Reducer) -> set[str]:
    return {name for name, node in d.ids.items() if node in d.broadcast(TARGET).copies}


def test_the_directory_combines_them() -> None:
    d, combine = small("A", "B")
    assert combine == CombineBytes(combine.version, b"layout", Operation.SUM, (b"\1\1", b"\2\2"))
    assert combine.version.ref == ref(TARGET)
    d.handle(CombinedBytes(combine.version, SUM))
    assert d.heard_all(Inline, "D") == [Inline(combine.version, b"layout", SUM)]
    assert d.contributors("A") == [Contributors(7, (ref(1), ref(2)))]
    assert d.heard_all(CombineInline) == []
    assert d.heard_all(Bind) == []


def test_the_node_that_asked_gets_the_result_at_once_and_is_a_holder() -> None:
    d, combine = small("A", "B")
    d.handle(CombinedBytes(combine.version, SUM))
    [result] = d.heard("C")
    assert isinstance(result, Result)
    spec = Reduce(1001, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2)
    contributors = (d.version_of(1), d.version_of(2))
    assert result == Result(combine.version, b"layout", SUM, Origin(spec, contributors))
    assert holders(d) == {"C"}


def test_everyone_who_asks_gets_the_result_with_the_answer() -> None:
    d, first = decided()
    d.tell("A", Reduce(1, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2, everywhere=True))
    assert d.heard("A") == [Reduced(1), first]
    assert holders(d) == {"A", "C"}
    d.tell("A", Reduce(2, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2, everywhere=True))
    assert d.heard("A") == [Reduced(2), Over(ref(TARGET))]


def test_a_node_that_asked_and_wants_it_gets_it_once() -> None:
    d, combine = small("A", "B")
    d.tell("C", Want(ref(TARGET)))
    d.handle(CombinedBytes(combine.version, SUM))
    assert [type(message) for message in d.heard("C")] == [Result]


def test_a_want_that_crossed_the_result_is_answered_by_it() -> None:
    d, _ = decided()
    d.tell("C", Want(ref(TARGET)))
    assert d.heard("C") == []


def test_a_node_without_room_for_the_result_is_sent_it_when_it_asks() -> None:
    d, result = decided()
    d.tell("C", Declined(result.version, 0))
    assert holders(d) == set()
    d.tell("C", Want(ref(TARGET)))
    assert d.heard("C") == [Inline(result.version, b"layout", SUM)]


def test_a_want_that_waited_for_a_declined_result_is_answered() -> None:
    d, result = decided()
    d.tell("C", Want(ref(TARGET)), Declined(result.version, 0))
    assert d.heard("C") == [Inline(result.version, b"layout", SUM)]


def test_who_is_cut_off_gets_the_result_when_it_comes_back() -> None:
    d, combine = small("A", "B")
    d.handle(SessionLost(d["C"]))
    d.handle(CombinedBytes(combine.version, SUM))
    assert holders(d) == {"A"}, "somebody keeps it in case the directory is lost"
    asked = Reduce(1001, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2)
    d.quiet()
    d.join("C", incarnation=1, submitted=(asked,))
    [result] = d.heard_all(Result, "C")
    assert result.version == combine.version
    assert holders(d) == {"A", "C"}


def test_a_result_that_was_lost_with_its_session_is_given_again() -> None:
    d, result = decided()
    d.handle(SessionLost(d["C"]))
    asked = Reduce(1001, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2)
    d.join("C", incarnation=1, submitted=(asked,))
    assert d.heard_all(Result, "C") == [result]
    d.handle(SessionLost(d["C"]))
    d.join("C", incarnation=1, copies=(Copy(result.version, 2, b"layout", origin=result.origin),))
    assert d.heard_all(Result, "C") == []
    assert holders(d) == {"C"}


def test_without_any_node_the_result_is_with_the_directory() -> None:
    d, combine = small("A", "B")
    for name in "ABCD":
        d.kill(name)
    d.handle(CombinedBytes(combine.version, SUM))
    d.join("E")
    d.tell("E", Want(ref(TARGET)))
    assert d.heard_all(Inline, "E") == [Inline(combine.version, b"layout", SUM)]


def test_a_node_that_stays_keeps_the_result_rather_than_one_that_leaves() -> None:
    d, combine = small("A", "B")
    d.tell("A", Retire())
    d.handle(SessionLost(d["C"]))
    d.handle(CombinedBytes(combine.version, SUM))
    assert holders(d) == {"B"}


def test_a_copy_of_a_small_result_is_evicted_if_another_stays() -> None:
    d, result = decided()
    d.tell("A", Reduce(1, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2))
    d.tell("C", Evict(result.version))
    assert d.heard_all(EvictAnswer, "C") == [EvictAnswer(result.version, Eviction.GRANTED)]
    d.tell("A", Evict(result.version))
    assert d.heard_all(EvictAnswer, "A") == [EvictAnswer(result.version, Eviction.LAST_COPY)]
    assert holders(d) == {"A"}


def test_a_delete_reaches_everyone_who_has_the_result() -> None:
    d, result = decided()
    d.quiet()
    d.tell("B", Delete(5, (ref(TARGET),)))
    assert Drop(result.version) in d.heard("C")
    d.tell("A", Reduce(1, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2))
    [reduced] = d.heard("A")
    assert isinstance(reduced, Reduced)
    assert reduced.failure is not None
    assert reduced.failure.kind is FailureKind.DELETED


def test_deleting_the_target_before_it_is_combined_cancels() -> None:
    d, combine = small("A", "B")
    d.tell("A", Delete(5, (ref(TARGET),)))
    assert d.heard_all(Over, "C") == [Over(ref(TARGET))]
    d.handle(CombinedBytes(combine.version, SUM))
    assert ref(TARGET) not in d.directory.records
    assert [m.failure.kind for m in d.heard_all(Failed, "D")] == [FailureKind.DELETED]


def test_a_source_that_is_deleted_meanwhile_still_counts() -> None:
    d, combine = small("A", "B")
    d.tell("A", Delete(5, (ref(1),)))
    d.handle(CombinedBytes(combine.version, SUM))
    assert d.heard_all(Inline, "D") == [Inline(combine.version, b"layout", SUM)]
    assert ref(1) not in d.directory.records


def test_a_result_of_another_version_or_size_is_nothing() -> None:
    d, combine = small("A", "B")
    before = snapshot(d.directory)
    d.handle(CombinedBytes(version(TARGET, 99), SUM))
    d.handle(CombinedBytes(combine.version, b"\3"))
    d.handle(CombineFailed(version(TARGET, 99), Failure(FailureKind.INVALID, "", "")))
    d.tell("C", CombinedInline(combine.version, SUM), Unfit(combine.version, "", ""))
    assert snapshot(d.directory) == before


def test_what_a_node_combines_does_not_come_from_the_directory() -> None:
    d, combine = small_at_node("A", "B")
    before = snapshot(d.directory)
    d.handle(CombinedBytes(combine.version, SUM))
    d.handle(CombineFailed(combine.version, Failure(FailureKind.INVALID, "", "")))
    assert snapshot(d.directory) == before


def test_what_the_directory_cannot_combine_a_node_does() -> None:
    """A directory need not have the libraries for every type."""
    d, combine = small("A", "B")
    d.handle(CombineFailed(combine.version, Failure(FailureKind.INVALID, "unknown", "install it")))
    [again] = d.heard_all(CombineInline, "C")
    assert (again.layout, again.op, again.parts) == (combine.layout, combine.op, combine.parts)
    d.handle(CombinedBytes(combine.version, SUM))
    assert d.heard_all(Inline, "D") == [], "the directory's own attempt is over"
    d.tell("C", CombinedInline(again.version, SUM, kept=True))
    assert d.heard_all(Inline, "D") == [Inline(again.version, b"layout", SUM)]
    assert holders(d) == {"C"}


def test_an_undefined_operation_fails_until_it_is_asked_for_again() -> None:
    d, combine = small("A", "B")
    d.handle(CombineFailed(combine.version, Failure(FailureKind.INVALID, "senseless", "do not")))
    [again] = d.heard_all(CombineInline, "C")
    d.tell("C", Unfit(again.version, "senseless", "do not"))
    [failed] = d.heard_all(Failed, "D")
    assert failed == Failed(ref(TARGET), Failure(FailureKind.INVALID, "senseless", "do not", ref(TARGET)))
    assert d.reduce("A", (1, 2)) is None
    assert [type(effect) for effect in d.effects if isinstance(effect, CombineBytes)] == [CombineBytes]


def test_what_no_node_is_there_to_combine_fails() -> None:
    d, combine = small("A", "B")
    for name in "ABCD":
        d.handle(SessionLost(d[name]))
    d.handle(CombineFailed(combine.version, Failure(FailureKind.INVALID, "senseless", "do not")))
    asked = Reduce(1001, ref(TARGET), (ref(1), ref(2)), Operation.SUM, 2)
    d.join("C", incarnation=1, submitted=(asked,), wants=(ref(TARGET),))
    assert [m.failure.detail for m in d.heard_all(Failed, "C")] == ["senseless"]


def test_without_room_for_the_result_nodes_make_it() -> None:
    d = Reducer("A", "B", settings=Settings(inline_limit=2, inline_total=6))
    for number in (1, 2):
        d.tell("A", Put(number, ref(number), 2, b"layout", bytes([number, number])))
    d.reduce("B", (1, 2))
    [combine] = [effect for effect in d.effects if isinstance(effect, CombineBytes)]
    d.tell("A", Put(3, ref(3), 2, b"layout", b"\7\7"))
    d.handle(CombinedBytes(combine.version, SUM))
    assert d.take_anywhere()[1].version.ref == ref(TARGET)


@pytest.mark.parametrize(("count", "size", "layout"), [(33, 32 << 10, b""), (2, 32 << 10, LONG), (33, 8, bytes(512))])
def test_what_would_take_long_a_node_combines(count: int, size: int, layout: bytes) -> None:
    """Many bytes, many arrays, or many objects of several."""
    d = Reducer("A")
    for number in range(1, count + 1):
        d.tell("A", Put(number, ref(number), size, layout, bytes(size)))
    d.reduce("A", tuple(range(1, count + 1)))
    assert len(d.heard_all(CombineInline, "A")) == 1


def test_the_result_is_a_source_of_another() -> None:
    d = Reducer("A", "B")
    for number in (1, 2, 3):
        d.tell("A", Put(number, ref(number), 1, b"", bytes([number])))
    d.reduce("B", (TARGET, 3), target=OUTER)
    d.reduce("B", (1, 2))
    [inner] = [effect for effect in d.effects if isinstance(effect, CombineBytes)]
    d.handle(CombinedBytes(inner.version, b"\3"))
    [outer] = [effect for effect in d.effects if isinstance(effect, CombineBytes)]
    assert (outer.version.ref, sorted(outer.parts)) == (ref(OUTER), [b"\3", b"\3"])
