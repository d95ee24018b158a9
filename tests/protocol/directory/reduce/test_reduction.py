"""Reductions, event by event: the target, what is refused, deletes, small objects, and targets made of targets."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import SessionLost
from hoplite_ucx.protocol.ids import Version, short
from hoplite_ucx.protocol.messages import (
    Ask,
    Bind,
    CombinedInline,
    CombineInline,
    Completed,
    Contributors,
    Delete,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Inline,
    Place,
    Put,
    PutRefused,
    Ready,
    Sealed,
    Want,
    Watch,
)
from tests.tools.machines import LARGE, ref, sealed_in, snapshot
from tests.tools.reducer import (
    LONG,
    OUTER,
    TARGET,
    Reducer,
    chain,
    chained,
    sealed_chain,
    small_at_node,
)

# --- the target --------------------------------------------------------------------------------------------------


def test_the_target_is_got_while_it_grows_and_answered_after_the_seal() -> None:
    d, lower, root = chain()
    place = d.want("D", TARGET)
    assert place.version == root.version
    assert place.sender == d["C"]
    assert not place.sealed
    d.tell("D", Watch((ref(TARGET),)))
    d.finish("B", lower)
    assert d.heard_all(Sealed) == []
    assert d.heard_all(Ready) == []
    d.finish("C", root)
    assert root.version in sealed_in(d.heard("C"))
    heard = d.heard("D")
    assert root.version in sealed_in(heard)
    assert Ready((ref(TARGET),)) in heard
    d.tell("D", Completed(root.version))
    assert d.want("E", TARGET).sealed


def test_a_want_before_anything_is_there_is_placed_when_the_root_is_bound() -> None:
    d = Reducer("A", "B", "C")
    d.tell("C", Want(ref(TARGET)))
    d.reduce("C", (1, 2))
    d.put("A", 1)
    d.put("B", 2)
    root = d.bind_of("B")
    assert d.heard_all(Place, "C") == []
    d.accept("B", root)
    [place] = d.heard_all(Place, "C")
    assert (place.version, place.sender) == (root.version, d["B"])


def test_what_made_the_target_goes_with_the_seal() -> None:
    d, lower, _ = sealed_chain()
    assert Drop(lower.version) in d.heard("B")
    assert lower.version.ref not in d.directory.records
    assert [number for number in (1, 2, 3) if d.directory.records[ref(number)].consumers] == []
    assert d.broadcast(TARGET).copies.keys() == {d["C"]}


def test_what_streams_to_slots_is_no_location_and_takes_no_stream_of_a_node() -> None:
    d, _, _ = chain()
    assert d.broadcast(1).pool.locations.keys() == {d["A"]}
    members = d.directory.members
    assert [(members[d[name]].receiving, members[d[name]].sending) for name in "ABC"] == [(0, 0)] * 3
    assert members[d["A"]].nic.sending == {ref(1): 1}
    assert d.want("D", 1).sender == d["A"], "not the slot"


def test_contributors_are_told_when_they_are_decided() -> None:
    d, lower, root = chain()
    assert d.contributors("D") == []
    d.finish("B", lower)
    d.finish("C", root)
    assert d.heard_all(Contributors, "D") == [Contributors(7, (ref(1), ref(2), ref(3)))]
    assert d.contributors("E") == [Contributors(7, (ref(1), ref(2), ref(3)))]


def test_contributors_of_what_is_no_target() -> None:
    d, _, _ = chain()
    for number in (1, 999):
        [answer] = d.contributors("E", number)
        assert answer.failure is not None
        assert (answer.failure.kind, answer.failure.ref) == (FailureKind.INVALID, ref(number))


def test_an_undecided_copy_is_not_evicted() -> None:
    d, _, _ = chain()
    place = d.want("D", TARGET)
    d.tell("D", Completed(place.version))
    d.tell("D", Evict(place.version))
    assert d.heard_all(EvictAnswer, "D") == [EvictAnswer(place.version, Eviction.LAST_COPY)]


def test_a_put_of_the_target_is_refused() -> None:
    d, _, _ = chain()
    d.tell("D", Put(5, ref(TARGET), LARGE, b"layout"))
    [refused] = d.heard_all(PutRefused, "D")
    assert refused.failure.ref == ref(TARGET)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_sources_of_different_layouts_fail_the_target_and_are_named() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.put("B", 2, size=LARGE - 8)
    d.tell("C", Want(ref(TARGET)))
    d.reduce("C", (1, 2))
    [failed] = d.heard_all(Failed, "C")
    assert failed.failure.kind is FailureKind.INVALID
    assert short(ref(1)) in failed.failure.detail
    assert short(ref(2)) in failed.failure.detail
    assert d.heard_all(Bind) == []
    d.reduce("C", (1,), target=OUTER)
    assert d.bind_of("A").parts == (d.version_of(1),), "other reductions of them go on"


def _by_letters(one: bytes, other: bytes) -> str | None:
    """Layouts are the same in any order of their letters."""
    return None if sorted(one) == sorted(other) else f"{one!r} is not like {other!r}"


def test_what_differs_in_layouts_is_said_by_the_shell() -> None:
    d = Reducer("A", "B", "C")
    d.directory.world.difference = _by_letters
    d.put("A", 1, layout=b"ab")
    d.put("B", 2, layout=b"ac")
    d.tell("C", Want(ref(TARGET)))
    d.reduce("C", (1, 2))
    [failed] = d.heard_all(Failed, "C")
    assert failed.failure.detail == (
        f"its sources {short(ref(1))} and {short(ref(2))} cannot be combined: b'ab' is not like b'ac'"
    )


def test_layouts_that_are_the_same_to_the_shell_must_have_one_size() -> None:
    d = Reducer("A", "B", "C")
    d.directory.world.difference = _by_letters
    d.put("A", 1, layout=b"ab")
    d.put("B", 2, size=LARGE - 8, layout=b"ba")
    d.tell("C", Want(ref(TARGET)))
    d.reduce("C", (1, 2))
    [failed] = d.heard_all(Failed, "C")
    assert f"they have {LARGE} and {LARGE - 8} bytes" in failed.failure.detail


def test_a_result_has_the_layout_of_its_first_contributor() -> None:
    d = Reducer("A", "B", "C", "D")
    d.directory.world.difference = _by_letters
    for number, (name, layout) in enumerate([("A", b"ab"), ("B", b"ba"), ("C", b"ba")], 1):
        d.put(name, number, layout=layout)
    d.reduce("D", (1, 2, 3), count=2)
    assert d.take("B").layout == b"ab"
    d.quiet()
    d.lose("A")  # 3 takes its place
    name, again = d.take_anywhere()
    assert again.layout == b"ba"
    assert d.want("D", TARGET).layout == b"ba"
    d.finish(name, again)
    assert d.contributors("D") == [Contributors(7, (ref(3), ref(2)))]


@pytest.mark.parametrize(
    ("sources", "count", "named"),
    [
        ((1, 1), 2, 1),
        ((1, 2, 1), 1, 1),
        ((1, 2), 0, TARGET + 1),
        ((1, 2), 3, TARGET + 1),
        ((), 0, TARGET + 1),
        ((1, TARGET + 1), 2, TARGET + 1),  # itself
        ((1, 9), 2, 9),  # deleted
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(sources: tuple[int, ...], count: int, named: int) -> None:
    d, _, _ = chain()
    d.tell("A", Delete(1, (ref(9),)))
    before = snapshot(d.directory)
    failure = d.reduce("D", sources, count, target=TARGET + 1)
    assert failure is not None
    assert failure.kind in (FailureKind.INVALID, FailureKind.DELETED)
    assert failure.ref == ref(TARGET + 1)
    assert named == TARGET + 1 or short(ref(named)) in failure.detail
    assert snapshot(d.directory) == before


def test_a_cycle_is_refused() -> None:
    d = Reducer("A")
    assert d.reduce("A", (2, 3), target=1) is None
    assert d.reduce("A", (4, 5), target=2) is None
    before = snapshot(d.directory)
    failure = d.reduce("A", (1, 6), target=4)
    assert failure is not None
    assert short(ref(1)) in failure.detail
    assert snapshot(d.directory) == before


def test_a_deleted_target_is_refused() -> None:
    d = Reducer("A")
    d.tell("A", Delete(1, (ref(TARGET),)))
    failure = d.reduce("A", (1, 2))
    assert failure is not None
    assert failure.kind is FailureKind.DELETED


def test_a_target_that_has_an_object_is_refused() -> None:
    d = Reducer("A")
    d.put("A", TARGET)
    failure = d.reduce("A", (1, 2))
    assert failure is not None
    assert failure.kind is FailureKind.INVALID


def test_a_reduction_asked_for_twice_is_one() -> None:
    d, _, _ = chain()
    slots = list(d.directory.records[ref(TARGET)].reduction.slots)
    assert d.reduce("D", (1, 2, 3)) is None
    assert list(d.directory.records[ref(TARGET)].reduction.slots) == slots
    before = snapshot(d.directory)
    assert d.reduce("D", (1, 2, 3)) is None
    assert snapshot(d.directory) == before
    failure = d.reduce("D", (1, 2), count=2)
    assert failure is not None
    assert snapshot(d.directory) == before


# --- delete ------------------------------------------------------------------------------------------------------


def test_deleting_the_target_cancels_and_frees_its_sources() -> None:
    d, lower, root = chain()
    d.want("E", TARGET)
    d.tell("D", Ask(7, ref(TARGET)))
    d.tell("D", Delete(5, (ref(TARGET),)))
    assert Drop(lower.version) in d.heard("B")
    assert Drop(root.version) in d.heard("C")
    heard = d.heard("E")
    assert Drop(root.version) in heard
    [told] = d.heard_all(Contributors, "D")
    assert told.failure is not None
    d.tell("E", Want(ref(TARGET)))
    [failed] = [m for m in heard + d.heard("E") if isinstance(m, Failed)][:1]
    assert failed.failure.kind is FailureKind.DELETED
    assert not any(d.directory.records[ref(number)].consumers for number in (1, 2, 3))
    assert not any(d.broadcast(number).receivers for number in (1, 2, 3))
    assert lower.version.ref not in d.directory.records


def test_a_chosen_source_that_is_deleted_is_hidden_until_the_seal() -> None:
    d, lower, root = chain()
    d.want("D", 1)
    d.tell("E", Delete(5, (ref(1),)))
    heard = d.heard("D")
    assert [m.failure.kind for m in heard if isinstance(m, Failed)] == [FailureKind.DELETED]
    assert Drop(lower.parts[1]) in heard
    d.tell("D", Want(ref(1)))
    [failed] = d.heard_all(Failed, "D")
    assert failed.failure.kind is FailureKind.DELETED
    assert d.heard_all(Drop, "A") == []
    d.finish("B", lower)
    d.finish("C", root)
    assert Drop(lower.parts[1]) in d.heard("A")
    assert ref(1) not in d.directory.records
    assert d.contributors("E") == [Contributors(7, (ref(1), ref(2), ref(3)))]


def test_a_hidden_source_goes_with_a_reduction_that_fails() -> None:
    d, lower, _ = chain()
    d.tell("E", Delete(5, (ref(1),)))
    d.quiet()
    d.lose("C")
    assert Drop(lower.parts[1]) in d.heard("A")


def test_a_source_deleted_before_it_was_chosen_is_not_used() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.tell("C", Want(ref(TARGET)))
    d.reduce("C", (1, 2))
    d.tell("A", Delete(5, (ref(2),)))
    [failed] = d.heard_all(Failed, "C")
    assert failed.failure.kind is FailureKind.LOST
    assert f"deleted: {short(ref(2))}" in failed.failure.detail
    assert "other sources" in failed.failure.remedy, "to put it again would be refused"


def test_of_sources_that_were_lost_and_deleted_it_is_said_which_can_come_back() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.put("B", 2)
    d.tell("C", Want(ref(TARGET)))
    d.reduce("C", (1, 2, 3, 4), count=3)
    d.tell("C", Delete(5, (ref(3),)))
    d.lose("A")
    [failed] = d.heard_all(Failed, "C")
    assert f"lost: {short(ref(1))}; deleted: {short(ref(3))}" in failed.failure.detail
    assert failed.failure.remedy.startswith("put a lost source again")


def test_a_hidden_source_is_not_chosen_by_others() -> None:
    """Two reductions of 1: one has chosen it before the delete, the other is offered it afterwards."""
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.reduce("C", (1, 2), target=TARGET)
    d.tell("C", Delete(5, (ref(1),)))
    failure = d.reduce("C", (1, 3), target=OUTER)
    assert failure is not None


# --- small objects -----------------------------------------------------------------------------------------------


def test_small_objects_are_combined_by_one_node() -> None:
    d, combine = small_at_node("A", "B", "C")
    assert combine.parts == (b"\1\1", b"\2\2", b"\3\3")
    assert combine.version.ref == ref(TARGET)
    d.tell("C", CombinedInline(combine.version, b"\6\6"))
    assert d.heard_all(Inline, "D") == [Inline(combine.version, LONG, b"\6\6")]
    assert d.contributors("A") == [Contributors(7, (ref(1), ref(2), ref(3)))]
    assert d.heard_all(Bind) == []


def test_the_node_that_combines_small_objects_may_die() -> None:
    d, combine = small_at_node("A", "B")
    d.kill("C")
    [again] = d.heard_all(CombineInline)
    assert again.parts == combine.parts
    assert again.version > combine.version
    d.tell("A", CombinedInline(again.version, b"\3\3"))
    assert d.heard_all(Inline, "D") == [Inline(again.version, LONG, b"\3\3")]


def test_a_small_reduction_outlives_every_node() -> None:
    """Its sources are with the directory."""
    d, _ = small_at_node("A", "B")
    for name in "ABDC":  # the one that combines is the last
        d.kill(name)
    d.join("E")
    d.tell("E", Want(ref(TARGET)))
    d.pass_time(1.0, beating=("E",))
    assert len(d.heard_all(CombineInline, "E")) == 1


def test_a_small_reduction_ends_although_the_directory_has_no_room_when_a_node_comes() -> None:
    d = Reducer("A", "B", settings=Settings(inline_limit=2, inline_total=6))
    for number in (1, 2):
        d.tell("A", Put(number, ref(number), 2, LONG, bytes([number, number])))
    d.reduce("B", (1, 2))
    d.handle(SessionLost(d["A"]))
    d.kill("B")  # it was to combine them, and there is no other node
    d.join("C")
    d.tell("C", Put(3, ref(3), 2, LONG, b"\7\7"), Want(ref(TARGET)))
    d.pass_time(1.0, beating=("C",))
    bind = d.take("C")
    d.finish("C", bind)
    assert sealed_in(d.heard("C")) == [bind.version]


def test_a_result_that_is_late_or_foreign_is_nothing() -> None:
    d, combine = small_at_node("A", "B")
    d.kill("C")
    [again] = d.heard_all(CombineInline)
    before = snapshot(d.directory)
    d.tell("A", CombinedInline(combine.version, b"\3\3"))
    d.tell("B", CombinedInline(Version(ref(1), 1, 1), b"\3\3"))
    assert snapshot(d.directory) == before
    d.tell("A", CombinedInline(again.version, b"\3\3"))
    d.tell("A", CombinedInline(again.version, b"\4\4"))
    assert d.heard_all(Inline, "D") == [Inline(again.version, LONG, b"\3\3")]


def test_deleting_the_target_of_small_objects_cancels() -> None:
    d, combine = small_at_node("A", "B")
    d.tell("A", Delete(5, (ref(TARGET),)))
    d.tell("C", CombinedInline(combine.version, b"\3\3"))
    assert ref(TARGET) not in d.directory.records
    assert [m.failure.kind for m in d.heard_all(Failed, "D")] == [FailureKind.DELETED]


# --- chained reductions ------------------------------------------------------------------------------------------


def test_a_target_is_a_source_while_it_grows() -> None:
    d, inner, outer = chained()
    assert set(outer.parts) == {d.version_of(3), inner.version}
    assert d.feeders(outer) == {short(ref(TARGET)): "B"}


def test_the_outer_target_is_sealed_after_the_inner_one() -> None:
    d, inner, outer = chained()
    d.finish("C", outer)
    assert d.heard_all(Sealed) == [], "the inner one could still become another version"
    d.finish("B", inner)
    assert inner.version in sealed_in(d.heard("B"))
    assert outer.version in sealed_in(d.heard("C"))
    assert d.contributors("A", OUTER) == [Contributors(7, (ref(TARGET), ref(3)))]


@pytest.mark.parametrize("consumed", [False, True])
def test_a_new_version_of_the_inner_target_renews_the_outer_one(consumed: bool) -> None:
    d, inner, outer = chained()
    if consumed:
        d.consume("C", outer)
        d.tell("C", Completed(outer.version))
    d.quiet()
    d.lose("A")
    inner_host, again = d.take_anywhere()
    assert again.version > inner.version
    assert set(again.parts) == {d.version_of(2), d.version_of(5)}
    assert Drop(outer.version) in d.waiting_for("C")
    outer_host, renewed = d.take_anywhere()
    assert renewed.version > outer.version
    assert set(renewed.parts) == {d.version_of(3), again.version}
    d.finish(inner_host, again)
    d.finish(outer_host, renewed)
    assert renewed.version in sealed_in(d.heard(outer_host))


@pytest.mark.parametrize("consumed", [False, True])
def test_an_inner_target_that_fails_fails_the_outer_one(consumed: bool) -> None:
    d, _, outer = chained()
    if consumed:
        d.consume("C", outer)
    d.want("D", OUTER)
    d.lose("E")
    d.lose("A")
    [failed] = d.heard_all(Failed, "D")
    assert failed.ref == ref(OUTER)
    assert short(ref(TARGET)) in failed.failure.detail


@pytest.mark.parametrize("consumed", [False, True])
def test_deleting_the_inner_target_ends_it_for_the_outer_one(consumed: bool) -> None:
    d, _, outer = chained()
    if consumed:
        d.consume("C", outer)
    d.want("D", OUTER)
    d.tell("E", Delete(5, (ref(TARGET),)))
    d.report_halts(*d.ids)
    [failed] = d.heard_all(Failed, "D")
    assert failed.ref == ref(OUTER)


def test_the_inner_target_moves_to_another_host_and_the_outer_one_stays() -> None:
    d, inner, outer = chained()
    copy = d.want("D", 2)
    d.tell("D", Completed(copy.version))
    d.quiet()
    d.lose("B")
    host, again = d.take_anywhere()
    assert again.version == inner.version
    assert d.heard_all(Drop, "C") == []
    d.pass_time(0.1, beating=tuple("ACDE"))
    d.finish(host, again)
    d.finish("C", outer)
    assert outer.version in sealed_in(d.heard("C"))


def test_the_get_of_the_roots_own_host_outlives_the_version() -> None:
    """C completed a version that is renewed before the seal: its own want still counts."""
    d, _, outer = chained()
    d.tell("C", Want(ref(OUTER)))
    d.finish("C", outer)
    d.lose("A")
    d.take_anywhere()
    assert Drop(outer.version) in d.waiting_for("C")
    assert d["C"] in d.directory.records[ref(OUTER)].waiting


def test_the_get_of_the_roots_own_host_hears_of_a_failure() -> None:
    d, _, outer = chained()
    d.tell("C", Want(ref(OUTER)))
    d.finish("C", outer)
    d.lose("E")
    d.lose("A")
    assert [failed.ref for failed in d.heard_all(Failed, "C")] == [ref(OUTER)]


def test_what_was_deleted_undecided_goes_into_nothing_also_when_its_tombstone_is_over() -> None:
    d = Reducer("A", "B", "C", "D")
    for name, number in (("A", 1), ("B", 2)):
        d.put(name, number)
    d.reduce("D", (TARGET, 3, 4), count=2, target=OUTER)
    d.reduce("D", (1, 2))
    d.take("B")
    d.put("C", 3)
    outer = d.take("C")
    d.finish("C", outer)  # it has all of the target before that is decided
    d.tell("A", Delete(5, (ref(TARGET),)))
    d.quiet()
    d.pass_time(d.directory.settings.tombstone * 2.5, beating=("A", "B", "C", "D"), step=0.5)
    assert not sealed_in(d.heard("C"))
    d.put("D", 4)
    [bind] = d.heard_all(Bind)
    assert {part.ref for part in bind.parts} == {ref(3), ref(4)}
