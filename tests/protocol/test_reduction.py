"""Reductions, event by event: what is chosen, who combines it, and what a loss costs.

The nodes are played by the tests: `Reducer.take` accepts a slot as a node would, with what the directory knows it has.
Degrees are those of the cost model: large objects make chains, so that three sources a, b, c in order of arrival give
the slots (b, a) and (c, (b, a)), the latter being the root.
"""

from typing import Any

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.directory.broadcast import Broadcast, State
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import Probed, SessionLost
from hoplite_ucx.protocol.ids import Version, short
from hoplite_ucx.protocol.messages import (
    Ask,
    Bind,
    Bound,
    CombinedInline,
    CombineInline,
    Completed,
    Consumed,
    Contributors,
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
    Inline,
    Operation,
    Partial,
    Place,
    Put,
    PutRefused,
    Ready,
    Reduce,
    Reduced,
    Sealed,
    SlotReport,
    StreamFailed,
    StreamFault,
    ToNode,
    Want,
    Watch,
)
from tests.protocol.harness import LARGE, DirectoryDriver, ref, sealed_in, snapshot

TARGET, OUTER = 100, 200


class Reducer(DirectoryDriver):
    """A directory whose nodes are told to reduce; calls are numbered by themselves."""

    op = Operation.SUM

    def __init__(self, *names: str, settings: Settings | None = None) -> None:
        super().__init__(*names, settings=settings)
        self._calls = 1000

    def reduce(
        self, name: str, sources: tuple[int, ...], count: int | None = None, target: int = TARGET
    ) -> Failure | None:
        """Ask for a reduction; why it was refused is returned. Nobody else's messages are taken."""
        self._calls += 1
        numbers = tuple(map(ref, sources))
        count = len(sources) if count is None else count
        self.tell(name, Reduce(self._calls, ref(target), numbers, self.op, count))
        heard = self.heard(name)
        [answer] = [m for m in heard if isinstance(m, Reduced)]
        self._sent[self[name]] = [m for m in heard if m is not answer]
        assert answer.call == self._calls
        return answer.failure

    def bind_of(self, name: str) -> Bind:
        """The slot that the node was just given; its other messages are taken too."""
        [bind] = self.heard_all(Bind, name)
        return bind

    def accept(self, name: str, bind: Bind) -> None:
        """The node takes the slot: what it has not itself must be sent to it."""
        missing = [part for part in bind.parts if not self.directory.objects.has_part(part.ref, self[name])]
        self.tell(name, Bound(bind.version, bind.number, tuple(missing)))

    def take(self, name: str) -> Bind:
        bind = self.bind_of(name)
        self.accept(name, bind)
        return bind

    def take_anywhere(self) -> tuple[str, Bind]:
        """Whoever was given a slot takes it; other messages stay."""
        names = {node: name for name, node in self.ids.items()}
        [(node, bind)] = [(n, m) for n, sent in self._sent.items() for m in sent if isinstance(m, Bind)]
        self._sent[node].remove(bind)
        self.accept(names[node], bind)
        return names[node], bind

    def consume(self, name: str, bind: Bind) -> None:
        """Every part that is sent to the slot has come."""
        for part in bind.parts:
            record = self.directory.records.get(part.ref)
            if record is None or record.broadcast is None:
                continue
            if (self[name], bind.version.ref) in record.broadcast.receivers:
                self.tell(name, Consumed(part, bind.version.ref))

    def finish(self, name: str, bind: Bind) -> None:
        self.consume(name, bind)
        self.tell(name, Completed(bind.version))

    def kill(self, name: str) -> None:
        self.handle(SessionLost(self[name]))
        self.handle(Probed(self[name], accepted=False))

    def lose(self, name: str) -> None:
        """Kill a node, and let those who were told to halt report."""
        self.kill(name)
        self.report_halts(*self.ids)

    def report_halts(self, *names: str, watermark: int = LARGE // 2) -> None:
        for name in names:
            heard = self.heard(name)
            self._sent[self[name]] = [m for m in heard if not isinstance(m, Halt)]
            for halt in heard:
                if isinstance(halt, Halt):
                    self.tell(name, Halted(halt.version, halt.number, watermark, wanted=True, into=halt.into))

    def version_of(self, number: int) -> Version:
        return self.broadcast(number).version

    def feeders(self, bind: Bind) -> dict[str, str]:
        """Which node sends each streaming part of a slot: by part, in hex."""
        names = {node: name for name, node in self.ids.items()}
        found = {}
        for part in bind.parts:
            record = self.directory.records[part.ref]
            for receiver in record.broadcast.receivers.values() if record.broadcast else ():
                if receiver.into == bind.version.ref and receiver.sender is not None:
                    found[short(part.ref)] = names[receiver.sender]
        return found

    def broadcast_of(self, bind: Bind) -> Broadcast:
        broadcast = self.directory.records[bind.version.ref].broadcast
        assert broadcast is not None
        return broadcast

    def run(self, *names: str) -> list[Bind]:
        """Let the nodes take and finish whatever slots they are given, until nothing more happens."""
        binds = []
        while new := [(name, m) for name in names for m in self.heard(name) if isinstance(m, Bind)]:
            for name, bind in new:
                self.accept(name, bind)
            binds += new
        for name, bind in binds:
            self.finish(name, bind)
        return [bind for _, bind in binds]

    def rejoin(self, name: str, copies: tuple[int, ...] = (), **changes: Any) -> None:
        held = tuple(Copy(self.version_of(number), LARGE, b"layout") for number in copies)
        self.join(name, copies=held, **changes)

    def contributors(self, name: str, number: int = TARGET) -> list[Contributors]:
        self.tell(name, Ask(7, ref(number)))
        return self.heard_all(Contributors, name)

    def waiting_for(self, name: str) -> list[ToNode]:
        """What the node was sent and has not looked at; it stays."""
        return self._sent.get(self[name], [])

    def quiet(self) -> None:
        for name in self.ids:
            self.heard(name)


def chain() -> tuple[Reducer, Bind, Bind]:
    """A, B and C have a source each; B runs the slot (2, 1) and C the root (3, slot); D and E have nothing."""
    d = Reducer("A", "B", "C", "D", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    assert d.reduce("E", (1, 2, 3)) is None
    lower = d.take("B")
    root = d.take("C")
    d.quiet()
    return d, lower, root


def sealed_chain() -> tuple[Reducer, Bind, Bind]:
    d, lower, root = chain()
    d.finish("B", lower)
    d.finish("C", root)
    return d, lower, root


# --- choosing ---------------------------------------------------------------------------------------------------


def test_three_sources_make_a_chain_in_their_order_of_arrival() -> None:
    d = Reducer("A", "B", "C", "D")
    assert d.reduce("D", (1, 2, 3)) is None
    third = d.put("C", 3)
    assert d.heard_all(Bind) == [], "a single source is a leaf and serves its object as it is"
    first = d.put("A", 1)
    lower = d.take("A")
    assert lower.parts == (first, third)
    [place] = d.heard_all(Place, "A")
    assert (place.version, place.sender, place.into) == (third, d["C"], lower.version.ref)
    second = d.put("B", 2)
    root = d.take("B")
    assert root.version.ref == ref(TARGET)
    assert root.parts == (second, lower.version)
    assert d.feeders(root) == {short(lower.version.ref): "A"}, "the slot is pulled from while it grows"


def test_the_first_that_are_ready_are_taken() -> None:
    d = Reducer("A", "B", "C", "D")
    assert d.reduce("D", (1, 2, 3, 4), count=2) is None
    third = d.put("C", 3)
    fourth = d.put("D", 4)
    root = d.take("D")
    assert root.parts == (fourth, third)
    d.put("A", 1)
    d.put("B", 2)
    assert d.heard_all(Bind) == []
    d.finish("D", root)
    assert d.contributors("A") == [Contributors(7, (ref(3), ref(4)))]


def test_one_source_is_combined_where_it_is() -> None:
    d = Reducer("A", "B")
    source = d.put("A", 1)
    assert d.reduce("B", (1,)) is None
    root = d.take("A")
    assert root.parts == (source,)
    d.finish("A", root)
    assert root.version in sealed_in(d.heard("A"))


def test_sources_of_one_node_share_a_slot() -> None:
    d = Reducer("A", "B", "C")
    for name, number in (("A", 1), ("A", 2), ("B", 3)):
        d.put(name, number)
    assert d.reduce("C", (1, 2, 3)) is None
    lower = d.take("A")
    assert lower.parts == (d.version_of(1), d.version_of(2))
    assert d.feeders(lower) == {}, "it has both"
    root = d.take("B")
    assert root.parts == (d.version_of(3), lower.version)


def test_a_source_is_not_ready_before_it_is_complete() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    second = d.put("B", 2, done=False)
    assert d.reduce("C", (1, 2)) is None
    assert d.heard_all(Bind) == []
    d.tell("B", Completed(second))
    assert d.take("B").parts == (second, d.version_of(1))


def asked() -> tuple[Reducer, Bind, Bind]:
    """A, B and C have a source each; B and C were asked to take the slot (2, 1) and the root (3, slot), and have not
    answered; D has room too, and E gets the target."""
    d = Reducer("A", "B", "C", "D", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("E", (1, 2, 3))
    d.tell("E", Want(ref(TARGET)))
    return d, d.bind_of("B"), d.bind_of("C")


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
    d.directory.check = lambda: None  # type: ignore[method-assign]  # it is for small clusters
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


# --- the target -------------------------------------------------------------------------------------------------


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


# --- hosts ------------------------------------------------------------------------------------------------------


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


# --- sources that are lost --------------------------------------------------------------------------------------


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


def test_nothing_is_replaced_before_those_who_pull_have_reported() -> None:
    """The flush: B may have all of 1 when A dies."""
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("D", (1, 2, 3), count=2)
    root = d.take("B")
    d.quiet()
    d.kill("A")
    assert d.heard_all(Bind) == []
    assert d.broadcast(1).receivers[d["B"], ref(TARGET)].state is State.HALTING
    d.tell("B", Consumed(d.version_of(1), ref(TARGET)))
    assert d.heard_all(Bind) == []
    d.tell("B", Completed(root.version))
    assert d.contributors("D") == [Contributors(7, (ref(1), ref(2)))]


# --- refusals ---------------------------------------------------------------------------------------------------


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


# --- delete -----------------------------------------------------------------------------------------------------


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
    assert d.directory.records[ref(1)].broadcast is None
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
    assert short(ref(2)) in failed.failure.detail


def test_a_hidden_source_is_not_chosen_by_others() -> None:
    """Two reductions of 1: one has chosen it before the delete, the other is offered it afterwards."""
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    d.reduce("C", (1, 2), target=TARGET)
    d.tell("C", Delete(5, (ref(1),)))
    failure = d.reduce("C", (1, 3), target=OUTER)
    assert failure is not None


# --- sessions ---------------------------------------------------------------------------------------------------


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


# --- small objects ----------------------------------------------------------------------------------------------


def small(*names: str) -> tuple[Reducer, CombineInline]:
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate(names, 1):
        d.tell(name, Put(number, ref(number), 2, b"layout", bytes([number, number])))
    d.tell("D", Want(ref(TARGET)))
    d.quiet()
    d.reduce("C", tuple(range(1, len(names) + 1)))
    [combine] = d.heard_all(CombineInline, "C")
    return d, combine


def test_small_objects_are_combined_by_one_node() -> None:
    d, combine = small("A", "B", "C")
    assert combine.parts == (b"\1\1", b"\2\2", b"\3\3")
    assert combine.version.ref == ref(TARGET)
    d.tell("C", CombinedInline(combine.version, b"\6\6"))
    assert d.heard_all(Inline, "D") == [Inline(combine.version, b"layout", b"\6\6")]
    assert d.contributors("A") == [Contributors(7, (ref(1), ref(2), ref(3)))]
    assert d.heard_all(Bind) == []


def test_the_node_that_combines_small_objects_may_die() -> None:
    d, combine = small("A", "B")
    d.kill("C")
    [again] = d.heard_all(CombineInline)
    assert again.parts == combine.parts
    assert again.version > combine.version
    d.tell("A", CombinedInline(again.version, b"\3\3"))
    assert d.heard_all(Inline, "D") == [Inline(again.version, b"layout", b"\3\3")]


def test_a_result_that_is_late_or_foreign_is_nothing() -> None:
    d, combine = small("A", "B")
    d.kill("C")
    [again] = d.heard_all(CombineInline)
    before = snapshot(d.directory)
    d.tell("A", CombinedInline(combine.version, b"\3\3"))
    d.tell("B", CombinedInline(Version(ref(1), 1, 1), b"\3\3"))
    assert snapshot(d.directory) == before
    d.tell("A", CombinedInline(again.version, b"\3\3"))
    d.tell("A", CombinedInline(again.version, b"\4\4"))
    assert d.heard_all(Inline, "D") == [Inline(again.version, b"layout", b"\3\3")]


def test_deleting_the_target_of_small_objects_cancels() -> None:
    d, combine = small("A", "B")
    d.tell("A", Delete(5, (ref(TARGET),)))
    d.tell("C", CombinedInline(combine.version, b"\3\3"))
    assert d.directory.records[ref(TARGET)].broadcast is None
    assert [m.failure.kind for m in d.heard_all(Failed, "D")] == [FailureKind.DELETED]


# --- chained reductions -----------------------------------------------------------------------------------------


def chained() -> tuple[Reducer, Bind, Bind]:
    """The inner target (2, 1), bound to B, is a source of the outer (3, inner), bound to C; 5 on E is to spare."""
    d = Reducer("A", "B", "C", "D", "E")
    for name, number in (("A", 1), ("B", 2), ("E", 5)):
        d.put(name, number)
    assert d.reduce("D", (TARGET, 3), target=OUTER) is None
    assert d.reduce("D", (1, 2, 5), count=2) is None
    inner = d.take("B")
    d.put("C", 3)
    outer = d.take("C")
    d.quiet()
    return d, inner, outer


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


# --- races ------------------------------------------------------------------------------------------------------


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
            d.tell(host, Consumed(d.directory.objects.version_of(part), slot.ref))
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
