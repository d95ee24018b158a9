"""Targets in stripes, event by event: how they are laid, put together, changed, decided and let go of.

The nodes are played by the tests. Three sources a, b, c make three stripes, whose chains end at a, b and c.
"""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.cost import choose_stripes
from hoplite_ucx.protocol.directory.spread.stripes import cuts
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.events import (
    Probed,
    SessionLost,
)
from hoplite_ucx.protocol.messages import (
    BIND_ALIGNMENT,
    RANKS,
    Assemble,
    Bind,
    Completed,
    Copy,
    Declined,
    Delete,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Halt,
    Halted,
    Operation,
    Place,
    Reduce,
    Sealed,
    StreamFailed,
    StreamFault,
    Want,
)
from tests.tools.allreduce import SOURCES, Allreduce
from tests.tools.machines import LARGE, DirectoryDriver, ref
from tests.tools.reducer import TARGET

# --- cutting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 4096, 64 * 7 + 1, LARGE, LARGE - 1])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_stripes_fill_the_object_and_split_no_element(size: int, count: int) -> None:
    pieces = cuts(size, count)
    assert [offset for offset, _ in pieces] == [sum(size for _, size in pieces[:i]) for i in range(len(pieces))]
    assert sum(size for _, size in pieces) == size
    assert all(offset % BIND_ALIGNMENT == 0 and size > 0 for offset, size in pieces)
    assert len(pieces) <= count


@pytest.mark.parametrize(
    ("size", "counts", "stripes"),
    [
        (LARGE, (1, 2, 3, 8, 16, 17, 64), [1, 1, 3, 8, 16, 17, 64]),
        (1 << 20, (8, 16, 32, 64), [8, 16, 32, 1]),  # along a ring of 64, hops take longer than a tree's bytes
        (1 << 16, (3, 8, 16, 64), [3, 8, 1, 1]),
        (1000, (3, 8, 64), [1, 1, 1]),
    ],
)
def test_the_ring_must_be_faster_than_a_tree(size: int, counts: tuple[int, ...], stripes: list[int]) -> None:
    assert [choose_stripes(size, count, 125e6, Settings(slot_cost=0.0)) for count in counts] == stripes


@pytest.mark.parametrize(("slot_cost", "first"), [(0.7e-3, 64), (0.1e-3, 2)])
def test_from_which_size_stripes_pay_is_as_the_setting_says(slot_cost: float, first: int) -> None:
    """At 10 Gbit/s: `Settings.slot_cost` tells operators so."""
    sizes = [1 << mib for mib in range(10)]
    settings = Settings(slot_cost=slot_cost)
    assert next(mib for mib in sizes if choose_stripes(mib << 20, 8, 1.25e9, settings) > 1) == first


def test_stripes_must_spare_more_than_their_slots_cost() -> None:
    costly = Settings(slot_cost=1e-3)
    assert [choose_stripes(size << 20, 8, 125e6, costly) for size in (1, 4, 8, 12, 16, 64)] == [1, 1, 1, 4, 4, 4]
    assert choose_stripes(64 << 20, 8, 1.25e9, costly) == 1
    assert choose_stripes(64 << 20, 64, 125e6, costly) == 1


# --- building ----------------------------------------------------------------------------------------------------


def test_every_source_ends_one_chain() -> None:
    d = Allreduce()
    d.bind_all()
    trees = [d.directory.records[stripe.version.ref] for stripe in d.assembly_of("a").stripes]
    assert [record.slot.host.node for record in trees if record.slot and record.slot.host] == [d["a"], d["b"], d["c"]]
    assert len(d.directory.records[ref(TARGET)].reduction.slots) == 10  # type: ignore[union-attr]


def test_getters_stand_in_the_order_of_the_ring() -> None:
    d = Allreduce()
    d.bind_all()
    first, second, third = (stripe.version.ref for stripe in d.assembly_of("a").stripes)
    broadcasts = [d.directory.records[stripe].broadcast for stripe in (first, second, third)]
    senders = [{k: r.sender for k, r in b.receivers.items() if not r.into} for b in broadcasts if b is not None]
    assert senders == [
        {d["b"]: d["a"], d["c"]: d["b"]},
        {d["c"]: d["b"], d["a"]: d["c"]},
        {d["a"]: d["c"], d["b"]: d["a"]},
    ]


def of_four(getters: str = "abcd") -> Allreduce:
    """Slots cost so much that there are half as many stripes as hosts."""
    d = Allreduce("a", "b", "c", "d", count=4, getters=getters, settings=Settings(slot_cost=5e-3))
    d.bind_all()
    return d


def test_every_second_source_ends_a_chain_where_slots_cost_much() -> None:
    d = of_four()
    stripes = [stripe.version.ref for stripe in d.assembly_of("a").stripes]
    trees = [d.directory.records[stripe] for stripe in stripes]
    assert [record.slot.host.node for record in trees if record.slot and record.slot.host] == [d["a"], d["c"]]
    broadcasts = [record.broadcast for record in trees if record.broadcast is not None]
    senders = [{k: r.sender for k, r in b.receivers.items() if not r.into} for b in broadcasts]
    assert senders == [
        {d["b"]: d["a"], d["c"]: d["b"], d["d"]: d["c"]},
        {d["d"]: d["c"], d["a"]: d["d"], d["b"]: d["a"]},
    ]


def test_bytes_with_a_long_way_to_go_have_the_lower_rank() -> None:
    d = of_four()
    first = d.assembly_of("a").stripes[0].version.ref
    places = [m for name in "abcd" for m in d.said[name] if isinstance(m, Place)]
    into_slots = [m.rank - RANKS for m in places if m.into]
    to_stores = [m.rank - RANKS for m in places if m.version.ref == first and not m.into]
    assert sorted(into_slots) == [1, 1, 2, 2, 3, 3]  # of both stripes
    assert to_stores == [4, 5, 6]


def test_what_was_asked_for_first_has_the_lower_rank_all_the_way() -> None:
    d = of_four()
    before = [m.rank for said in d.said.values() for m in said if isinstance(m, Place)]
    for name, number in zip("abcd", range(11, 15), strict=True):
        d.put(name, number)
        d.tell(name, Want(ref(TARGET + 1)))
    d.said = {name: [] for name in d.ids}
    d.tell("a", Reduce(2, ref(TARGET + 1), tuple(map(ref, range(11, 15))), d.op, 4, everywhere=True))
    d.bind_all()
    after = [m.rank for said in d.said.values() for m in said if isinstance(m, Place)]
    assert len(after) == len(before) > 0
    assert max(before) < min(after)


def test_the_ring_waits_for_who_is_yet_to_ask() -> None:
    d = of_four(getters="abc")
    assert not any(isinstance(m, Assemble) for name in d.ids for m in d.said[name])
    d.tell("d", Want(ref(TARGET)))
    d.listen()
    assert all(any(isinstance(m, Assemble) for m in d.said[name]) for name in d.ids)


def test_the_ring_does_not_wait_for_long() -> None:
    d = of_four(getters="abc")
    d.pass_time(0.05)
    d.listen()
    asked = [name for name in d.ids if any(isinstance(m, Assemble) for m in d.said[name])]
    assert asked == ["a", "b", "c"]
    d.tell("d", Want(ref(TARGET)))  # it hangs on what is there
    stripes = [stripe.version.ref for stripe in d.assembly_of("d").stripes]
    assert all(d.directory.records[stripe].broadcast.receivers[d["d"]].sender for stripe in stripes)  # type: ignore[union-attr]


def test_the_ring_does_not_wait_for_the_dead() -> None:
    d = of_four(getters="abc")
    d.handle(SessionLost(d["d"]))
    d.tell("a", Want(ref(TARGET)))
    assert d.heard_all(Assemble)


def test_without_the_word_there_are_no_stripes() -> None:
    d = DirectoryDriver("a", "b", "c")
    for name, number in SOURCES.items():
        d.put(name, number)
    d.tell("a", Reduce(1, ref(TARGET), tuple(map(ref, SOURCES.values())), Operation.SUM, 3))
    assert all(bind.offset is None for bind in d.heard_all(Bind))


def test_sources_that_come_one_by_one_make_a_chain() -> None:
    d = DirectoryDriver("a", "b", "c")
    d.tell("a", Reduce(1, ref(TARGET), tuple(map(ref, SOURCES.values())), Operation.SUM, 3, everywhere=True))
    for name, number in SOURCES.items():
        d.put(name, number)
    assert all(bind.offset is None for bind in d.heard_all(Bind))


def test_if_nobody_gets_the_target_someone_is_asked_to() -> None:
    d = Allreduce(getters="")
    d.bind_all()
    d.pass_time(0.05)
    d.listen()
    asked = [name for name in d.ids if any(isinstance(m, Assemble) for m in d.said[name])]
    assert len(asked) == 1
    number = d.assembly_of(asked[0]).number
    d.tell(asked[0], Declined(d.assembly_of(asked[0]).version, number))
    d.listen()
    others = [name for name in d.ids if name not in asked and any(isinstance(m, Assemble) for m in d.said[name])]
    assert len(others) == 1


def test_someone_is_asked_to_assemble_the_target_when_a_lost_stripe_grows_again() -> None:
    """The one who was asked gave up meanwhile."""
    d = Allreduce(getters="")
    d.bind_all()
    d.pass_time(0.05)
    d.listen()
    [asked] = [name for name in d.ids if any(isinstance(m, Assemble) for m in d.said[name])]
    assemble = d.assembly_of(asked)
    back = next(name for name in d.ids if name != asked)
    source = Copy(d.broadcast(SOURCES[back]).version, d.broadcast(SOURCES[back]).size, b"layout")
    d.handle(SessionLost(d[back]))
    d.join(back, incarnation=1, copies=(source,))
    d.tell(asked, StreamFailed(assemble.version, assemble.number, 0, 0, StreamFault.ABSENT, wanted=False))
    d.listen()
    for name, said in d.said.items():
        for halt in [m for m in said if isinstance(m, Halt)]:
            d.tell(name, Halted(halt.version, halt.number, 0, wanted=True, into=halt.into))
        said[:] = [m for m in said if not isinstance(m, Assemble)]
    d.bind_all()
    assert any(isinstance(m, Assemble) for said in d.said.values() for m in said)


def test_a_host_without_room_for_its_stripes_ends_them() -> None:
    d = Allreduce()
    bind = d.last("b", Bind)
    assert isinstance(bind, Bind)
    d.tell("b", Declined(bind.version, bind.number))
    d.listen()
    reduction = d.directory.records[ref(TARGET)].reduction
    assert reduction is not None
    assert reduction.root is not None
    assert not reduction.root.gathers
    assert set(reduction.chosen) == {ref(1), ref(2), ref(3)}


# --- deciding ---------------------------------------------------------------------------------------------------


def test_the_target_is_decided_once_and_stripes_outlive_that_while_needed() -> None:
    d = Allreduce()
    d.bind_all()
    stripes = d.assembly_of("a").stripes
    for name, stripe in zip("abc", stripes, strict=True):
        d.tell(name, Completed(stripe.version))
    d.finish("a")
    assert d.directory.records[ref(TARGET)].reduction is None
    assert isinstance(d.last("b", Sealed), Sealed)
    assert all(stripe.version.ref in d.directory.records for stripe in stripes)
    d.finish("b")
    d.finish("c")
    assert not any(stripe.version.ref in d.directory.records for stripe in stripes)
    assert set(d.broadcast(TARGET).copies) == {d["a"], d["b"], d["c"]}


def test_a_stripe_is_not_evicted_from_who_puts_the_target_together_with_it() -> None:
    d = Allreduce()
    d.bind_all()
    stripes = d.assembly_of("a").stripes
    for name, stripe in zip("abc", stripes, strict=True):
        d.tell(name, Completed(stripe.version))
    d.finish("a")
    d.tell("c", Completed(stripes[1].version))
    d.tell("b", Evict(stripes[1].version))  # the others have it too
    assert d.last("b", EvictAnswer) == EvictAnswer(stripes[1].version, Eviction.IN_USE)


def test_a_root_at_work_is_not_interrupted() -> None:
    d = Allreduce()
    d.bind_all()
    assemble = d.assembly_of("a")
    d.tell("a", Completed(assemble.version))
    assert d.directory.records[ref(TARGET)].reduction is not None
    for name, stripe in zip("abc", assemble.stripes, strict=True):
        d.tell(name, Completed(stripe.version))
    assert d.directory.records[ref(TARGET)].reduction is None


def test_a_stripe_that_is_lost_after_the_decision_is_not_needed() -> None:
    d = Allreduce("a", "b", "c", "d", getters="abcd")
    d.bind_all()
    stripes = d.assembly_of("a").stripes
    for name, stripe in zip("abc", stripes, strict=True):
        d.tell(name, Completed(stripe.version))
    d.tell("b", Completed(d.assembly_of("b").version))
    d.handle(Probed(d["a"], accepted=False))  # the only one with the first stripe
    first = stripes[0].version
    for name in "bcd":
        number = d.directory.records[first.ref].broadcast.receivers[d[name]].number  # type: ignore[union-attr]
        d.tell(name, StreamFailed(first, number, 0, d["a"], StreamFault.BROKEN, wanted=name != "b"))
    dropped = [m.version for m in d.heard_all(Drop, "d")]
    assert {stripe.version for stripe in stripes} & set(dropped)
    for name in "cd":
        assemble = d.assembly_of(name)
        d.tell(name, StreamFailed(assemble.version, assemble.number, 0, d[name], StreamFault.ABSENT, wanted=True))
    assert {d.receiver(name, TARGET).state for name in "cd"} == {State.STREAMING}


# --- losses -----------------------------------------------------------------------------------------------------


def test_a_decided_target_is_lost_with_the_last_who_assembles_it() -> None:
    d = Allreduce("a", "b", "c", "d")
    d.bind_all()
    stripes = d.assembly_of("a").stripes
    for name, stripe in zip("abc", stripes, strict=True):
        d.tell(name, Completed(stripe.version))
    d.finish("b")
    for name in "bac":  # the only copy first, then those who still put it together
        assert ref(TARGET) in d.directory.records
        d.handle(Probed(d[name], accepted=False))
    assert ref(TARGET) not in d.directory.records


def test_another_source_changes_every_stripe_and_the_target() -> None:
    d = Allreduce("a", "b", "c", "d")
    d.bind_all()
    before = d.assembly_of("a")
    d.handle(Probed(d["b"], accepted=False))
    d.listen()
    dropped = {m.version for m in d.said["a"] if isinstance(m, Drop)}
    assert dropped >= {before.version, *(s.version for s in before.stripes)}
    d.tell("a", Want(ref(TARGET)))
    d.bind_all()
    d.pass_time(0.05)
    after = d.assembly_of("a")
    assert after.version > before.version
    assert not {stripe.version for stripe in before.stripes} & {stripe.version for stripe in after.stripes}
    reduction = d.directory.records[ref(TARGET)].reduction
    assert reduction is not None
    assert set(reduction.chosen) == {ref(1), ref(3), ref(4)}


def test_who_had_the_last_copy_of_a_stripe_and_lets_it_go_has_its_source_replaced() -> None:
    """What a made is with e alone, and f, which was getting it, has yet to say how far it came."""
    d = Allreduce(*"abcdef", getters="ef")
    d.bind_all()
    d.pass_time(0.05)
    d.finish("e", whole=False)
    d.handle(Probed(d["a"], accepted=False))
    reduction = d.directory.records[ref(TARGET)].reduction
    assert reduction is not None
    assert list(reduction.chosen) == [ref(1), ref(2), ref(3)], "e has what came from it"
    assembly = d.assembly_of("e")
    d.tell("e", StreamFailed(assembly.version, assembly.number, 0, d["e"], StreamFault.ABSENT, wanted=True))
    assert list(reduction.chosen) == [ref(4), ref(2), ref(3)]


def test_too_few_sources_fail_the_target_for_all() -> None:
    d = Allreduce()
    d.bind_all()
    d.handle(Probed(d["b"], accepted=False))
    assert isinstance(d.last("a", Failed), Failed)
    assert isinstance(d.last("c", Failed), Failed)


def test_a_delete_ends_all_stripes() -> None:
    d = Allreduce()
    d.bind_all()
    stripes = d.assembly_of("a").stripes
    d.tell("a", Delete(2, (ref(TARGET),)))
    assert not any(stripe.version.ref in d.directory.records for stripe in stripes)
    assert {m.version for m in d.heard_all(Drop, "c")} >= {stripe.version for stripe in stripes}
