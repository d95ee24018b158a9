"""Who runs the slots of a reduction: asked at once, bound from below, and replaced when lost."""

from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import SessionLost
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.messages import (
    Bind,
    Bound,
    Completed,
    Consumed,
    Declined,
    Delete,
    Drop,
    Failed,
    Partial,
    Place,
    Sealed,
    SlotReport,
    Want,
)
from tests.tools.machines import LARGE, ref, sealed_in
from tests.tools.reducer import OUTER, TARGET, Reducer, asked, chain, sealed_chain

# --- asking ------------------------------------------------------------------------------------------------------


def test_all_slots_are_asked_for_at_once() -> None:
    d, lower, root = asked()
    assert lower.number < root.number, "parts before what is made of them"
    assert root.parts == (d.version_of(3), lower.version)


def test_a_slot_is_pulled_from_when_it_and_all_below_it_are_taken() -> None:
    d, lower, root = asked()
    d.accept("C", root)
    assert d.heard_all(Place) == [], "who knows whether there will be a slot below it"
    d.accept("B", lower)
    assert d.feeders(lower) == {short(ref(1)): "A"}
    assert d.feeders(root) == {short(lower.version.ref): "B"}
    [place] = d.heard_all(Place, "E")
    assert (place.version, place.sender) == (root.version, d["C"])


def test_of_a_target_in_the_making_others_are_made_when_all_its_slots_are_taken() -> None:
    d, lower, root = asked()
    d.put("D", 4)
    d.reduce("D", (TARGET, 4), target=OUTER)
    d.accept("C", root)
    assert d.heard_all(Bind) == []
    d.accept("B", lower)
    assert d.take("D").parts == (d.version_of(4), root.version)


def test_a_slot_that_is_declined_is_taken_elsewhere_and_those_above_stay() -> None:
    d, lower, root = asked()
    d.accept("C", root)
    d.tell("B", Declined(lower.version, lower.number))
    name, again = d.take_anywhere()
    assert (again.version, again.parts) == (lower.version, lower.parts)
    assert name != "B"
    assert d.feeders(root) == {short(lower.version.ref): name}
    assert d.heard_all(Drop, "C") == []


def test_what_is_taken_is_given_back_while_nobody_takes_what_is_below() -> None:
    d, lower, root = asked()
    d.accept("C", root)
    d.tell("B", Declined(lower.version, lower.number))
    while refused := [(name, m) for name in d.ids for m in d.heard(name) if isinstance(m, Bind)]:
        [(name, bind)] = refused
        assert bind.version == lower.version
        d.tell(name, Declined(bind.version, bind.number))
        given_back = [m.version for m in d.waiting_for("C") if isinstance(m, Drop)]
    assert root.version in given_back, "what it holds may be what the slot below lacks"
    d.tell("C", Bound(root.version, root.number, (lower.version,)))  # or it crosses that, and is of no use
    d.pass_time(0.25, beating=tuple("ABCDE"))
    again, above = d.take("B"), d.take("C")
    assert (again.version, above.version) == (lower.version, root.version)
    assert above.number > root.number
    assert d.feeders(above) == {short(lower.version.ref): "B"}


def test_nor_is_anything_taken_further_above() -> None:
    """The slot between has its memory, and bytes that count; the root would take what the lowest needs."""
    d = Reducer(*"ABCDE")
    for number, name in enumerate("ABCD", 1):
        d.put(name, number)
    d.want("E", 2)
    d.tell("E", Completed(d.version_of(2)))
    d.reduce("E", (1, 2, 3, 4))
    lowest, between, root = d.bind_of("B"), d.bind_of("C"), d.bind_of("D")
    d.accept("B", lowest)
    d.accept("C", between)
    d.lose("B")
    for _ in d.ids:
        for name in d.ids:
            for bind in d.heard_all(Bind, name):
                assert bind.version == lowest.version
                d.tell(name, Declined(bind.version, bind.number))
    slots = d.directory.records[ref(TARGET)].reduction
    assert slots is not None
    hosts = [slots.slots[bind.version.ref].host for bind in (lowest, between, root)]
    assert [host is not None for host in hosts] == [False, True, False]


def test_what_is_taken_stays_when_the_host_of_what_is_below_dies() -> None:
    d, lower, root = asked()
    d.accept("C", root)
    d.want("D", 2)
    d.tell("D", Completed(d.version_of(2)))
    d.quiet()
    d.kill("B")
    name, below = d.take_anywhere()
    assert (below.version, below.parts) == (lower.version, lower.parts)
    assert d.feeders(root) == {short(lower.version.ref): name}
    assert d.heard_all(Drop, "C") == []


def test_a_long_chain_is_asked_for_at_once() -> None:
    names = tuple(f"n{number}" for number in range(1200))
    d = Reducer("getter")
    d.checked = False
    for name in names:
        d.join(name)
    for number, name in enumerate(names, 1000):
        d.put(name, number, size=1 << 34)
    d.reduce("getter", tuple(range(1000, 1000 + len(names))))
    binds = {name: bind for name in names for bind in d.heard_all(Bind, name)}
    assert len(binds) == len(names) - 1
    for name, bind in reversed(binds.items()):
        d.tell(name, Bound(bind.version, bind.number, bind.parts[1:]))
    assert d.want("getter", TARGET).sender == d[names[-1]]


# --- hosts -------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_declined_goes_to_another_host() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.put("B", 2)
    d.reduce("C", (1, 2))
    first = d.bind_of("B")
    d.tell("B", Declined(first.version, first.number))
    second = d.bind_of("A")
    assert second.version == first.version
    assert second.number > first.number
    d.accept("A", second)
    assert d.feeders(second) == {short(ref(2)): "B"}


def test_a_slot_that_nobody_has_room_for_fails_after_a_while() -> None:
    d = Reducer("A", "B")
    d.put("A", 1)
    d.put("B", 2)
    d.tell("B", Want(ref(TARGET)))
    d.reduce("B", (1, 2))
    failed: list[Failed] = []
    for _ in range(100):
        for name in "AB":
            for message in d.heard(name):
                if isinstance(message, Bind):
                    d.tell(name, Declined(message.version, message.number))
                elif isinstance(message, Failed):
                    failed.append(message)
        d.pass_time(0.05, beating=("A", "B"))
    assert failed
    assert failed[0].failure.kind is FailureKind.STORE_FULL
    assert failed[0].ref == ref(TARGET)


def test_another_host_takes_over_under_the_same_version() -> None:
    """The root's host dies and its source lives elsewhere: nothing below or above begins anew."""
    d, lower, root = chain()
    third = d.want("D", 3)
    d.tell("D", Completed(third.version))
    getter = d.want("E", TARGET)
    d.quiet()
    d.kill("C")
    d.report_halts("E", watermark=0)
    host, again = d.take_anywhere()
    assert again.version == root.version
    assert again.parts == root.parts
    assert again.number > root.number
    d.pass_time(0.1, beating=tuple("ABDE"))
    heard = d.heard("E")
    assert [m for m in heard if isinstance(m, Drop)] == []
    [resumed] = [m for m in heard if isinstance(m, Place)]
    assert (resumed.version, resumed.sender) == (getter.version, d[host])
    assert d.heard_all(Drop, "B") == []
    d.finish("B", lower)
    d.finish(host, again)
    assert sealed_in(d.heard("E")) == [root.version]


def test_a_lower_slot_is_taken_over_and_its_parent_resumes() -> None:
    d, lower, root = chain()
    second = d.want("D", 2)
    d.tell("D", Completed(second.version))
    d.quiet()
    d.lose("B")
    host, again = d.take_anywhere()
    assert (again.version, again.parts) == (lower.version, lower.parts)
    assert d.heard_all(Drop, *"ACDE") == []
    d.pass_time(0.1, beating=tuple("ACDE"))
    assert d.feeders(root) == {short(lower.version.ref): host}
    assert d.broadcast_of(lower).receivers[d["C"], root.version.ref].watermark == LARGE // 2


def test_nothing_is_done_if_the_parent_has_all_of_a_lost_slot() -> None:
    d, lower, root = chain()
    d.finish("B", lower)
    d.consume("C", root)
    d.quiet()
    d.lose("B")
    assert d.heard_all(Bind) == []
    assert d.heard_all(Failed) == []
    d.tell("C", Completed(root.version))
    assert sealed_in(d.heard("C")) == [root.version]


# --- sessions ----------------------------------------------------------------------------------------------------


def test_a_host_that_comes_back_with_its_slot_goes_on() -> None:
    d, lower, _ = chain()
    receiver = d.broadcast(1).receivers[d["B"], lower.version.ref]
    first = d.version_of(1)
    before = (receiver.number, receiver.sender)
    d.handle(SessionLost(d["B"]))
    d.rejoin(
        "B",
        copies=(2,),
        partials=(Partial(first, d.broadcast(1).size, b"", 5, receiver.number, into=lower.version.ref),),
        slots=(SlotReport(lower, (first,)),),
    )
    assert d.heard_all(Drop, "B") == []
    assert d.heard_all(Bind) == []
    receiver = d.broadcast(1).receivers[d["B"], lower.version.ref]
    assert (receiver.number, receiver.sender) == before


def test_what_was_consumed_without_a_session_is_known_afterwards() -> None:
    d, lower, _ = chain()
    d.handle(SessionLost(d["B"]))
    d.rejoin("B", copies=(2,), slots=(SlotReport(lower, ()),))
    assert not d.broadcast(1).receivers
    d.lose("A")
    assert d.heard_all(Failed) == []


def test_a_host_that_comes_back_without_its_slot_is_given_it_again() -> None:
    d, lower, _ = chain()
    d.handle(SessionLost(d["B"]))
    d.rejoin("B", copies=(2,))
    d.report_halts("C")
    again = d.bind_of("B")
    assert (again.version, again.parts) == (lower.version, lower.parts)
    assert again.number > lower.number


def test_a_slot_that_was_renewed_meanwhile_is_dropped() -> None:
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("D", (1, 2, 3), count=2)
    root = d.take("B")
    receiver = d.broadcast(1).receivers[d["B"], ref(TARGET)]
    first, size = d.version_of(1), d.broadcast(1).size
    d.handle(SessionLost(d["B"]))
    d.kill("A")
    d.tell("D", Delete(1, (ref(TARGET),)))
    d.quiet()
    d.rejoin(
        "B",
        copies=(2,),
        partials=(Partial(first, size, b"", 5, receiver.number, into=ref(TARGET)),),
        slots=(SlotReport(root, (first,)),),
    )
    assert Drop(root.version) in d.heard("B")


def test_a_seal_that_was_lost_is_told_again() -> None:
    d, _, root = sealed_chain()
    d.handle(SessionLost(d["C"]))
    d.quiet()
    d.rejoin("C", copies=(3, TARGET), slots=(SlotReport(root, ()),))
    heard = d.heard("C")
    assert root.version in sealed_in(heard)
    assert Drop(root.version) not in heard
    assert d.broadcast(TARGET).copies.keys() == {d["C"]}


# --- races -------------------------------------------------------------------------------------------------------


def test_a_getter_of_the_target_may_become_its_host() -> None:
    d, lower, root = chain()
    third = d.want("D", 3)
    d.tell("D", Completed(third.version))
    d.want("D", TARGET)
    d.quiet()
    d.kill("C")
    d.report_halts("D")
    again = d.take("D")
    assert again.version == root.version
    assert d["D"] not in d.broadcast(TARGET).receivers
    d.finish("B", lower)
    d.finish("D", again)
    assert root.version in sealed_in(d.heard("D"))


def test_a_getter_that_turns_out_to_be_complete_seals_the_target() -> None:
    """The root's host died, another has begun to take over, and then the getter's last report arrives."""
    d = Reducer("A", "B", "C", "D", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("E", (1, 2, 3, 4), count=3)
    lower, root = d.take("B"), d.take("C")
    third = d.want("D", 3)
    d.tell("D", Completed(third.version))
    d.want("E", TARGET)
    d.finish("B", lower)
    d.consume("C", root)
    d.kill("C")
    d.put("A", 4)  # whatever makes the directory look at the reduction again
    if any(isinstance(m, Bind) for name in d.ids for m in d.waiting_for(name)):
        d.take_anywhere()
    d.tell("E", Completed(root.version))
    slot = d.directory.records[ref(TARGET)].slot
    if slot is not None and slot.host is not None:  # a host at work is not interrupted
        assert d.heard_all(Sealed, "E") == []
        host = next(name for name, node in d.ids.items() if node == slot.host.node)
        for part in slot.parts:
            d.tell(host, Consumed(d.directory.table.version_of(part), slot.ref))
        d.tell(host, Completed(root.version))
    assert sealed_in(d.heard("E")) == [root.version]
    assert d["E"] in d.broadcast(TARGET).copies
    assert d.broadcast(TARGET).producer is None, "what is sealed is not made any more"
    assert not any(d.broadcast(number).receivers for number in (1, 2, 3))


def test_a_slot_whose_own_node_has_the_last_copy_of_a_part_is_fed() -> None:
    """B lacked 1 when it took the slot, got it for itself, and then A died."""
    d, lower, _ = chain()
    mine = d.want("B", 1)
    d.tell("B", Completed(mine.version))
    d.lose("A")
    d.pass_time(3.0, beating=tuple("BCDE"))
    slot = d.directory.records[lower.version.ref].slot
    assert slot is not None
    fed = d.broadcast(1).receivers.get((d["B"], lower.version.ref))
    assert fed is None or fed.state is State.STREAMING
