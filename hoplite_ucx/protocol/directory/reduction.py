"""One reduction: which sources go into it, the tree of slots that combines them, and how the tree is mended.

The sources that become ready are chosen in that order, each once, until there are `count`. A *term* is a source or the
output of a slot; an arriving source becomes the head of a slot that takes the last terms of equal height as its other
parts, or a term of its own. So every slot's parts are older than itself, neighbours in time are neighbours in the tree,
each slot can start at once, and the last arrival is the root. With degree 1 this is a chain.

A slot is an ordered list of parts. Its output is an object of its own, with a ref, a version and a tree of receivers
like any other; the root's output is the target. The version stands for the parts' versions and their order, nothing
else: any node that combines the same parts makes the same bytes. Hence the two repairs:
- A slot's *host* is lost: another node takes over under the same version, and whoever was pulling resumes where it was.
- A *part* is lost, or changes its version: another ready source takes its place, and the slot and all above it begin a
  new version. Subtrees that did not change serve what they have.

A target that everybody gets may be laid in *stripes* (see `stripes`): each has a chain of slots of its own, made of the
same sources, and the root gathers them. One choice of sources, one seal and one failure are for all of them; what
changes a source changes every stripe. Slots of stripes run only where their source is, so that no piece of a source
ever travels; if that cannot be, the same sources are laid anew without stripes.

All slots are asked for at once, parts before what is made of them: a chain costs one round trip, not one a slot. What
a host has *taken* is *bound* once every slot below it is bound; only then does it pull, is it pulled from, and may
other reductions use it. Memory is taken with the slot, and nobody holds memory while it waits for others' memory: a
host answers a `Bind` at once, with yes or no, so a slot that is taken and not bound waits for answers only; and if
nobody takes one of those below, it is given back, to be asked for again after that. Of two reductions that want the
same memory one gets all of it, since nodes hear what the directory asks in the order in which it asks. The bytes that a
getter has are not staked so: who is to go on with them is asked when everything below is bound.

The target is sealed once, when its root version is complete and what it was made of is decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from hoplite_ucx.protocol.cost import choose_degree, choose_stripes
from hoplite_ucx.protocol.directory import stripes
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import REF_BYTES, NodeId, Version, label, short
from hoplite_ucx.protocol.messages import (
    BIND_ALIGNMENT,
    Bind,
    CombinedInline,
    CombineInline,
    Drop,
    Operation,
    Origin,
    Reduce,
    Sealed,
    SlotReport,
    Stripe,
    Unfit,
)

if TYPE_CHECKING:
    from hoplite_ucx.protocol.directory.objects import Objects, Record

_REFUSED_FOR = 0.2
# So many slots are told what the reduction is, beside the root: it outlives the directory and its requester.
_SLOTS_THAT_KNOW = 8


@dataclass(slots=True, eq=False)
class Slot:
    ref: bytes
    parts: list[bytes]
    height: int
    prefers: NodeId
    parent: Slot | None = None
    version: Version | None = None
    host: Member | None = None
    number: int = 0
    lacking: set[bytes] | None = None
    """Taken by the host, and not bound: the parts that it does not have."""
    bound: bool = False
    start: int = 0
    """The first byte that the host combines."""
    lacks: int = 0
    """The host has nothing below this; it is 0 or `start`."""
    consumed: set[bytes] = field(default_factory=set)
    """Parts that the host does not need any more, or has itself."""
    unsure: set[bytes] = field(default_factory=set)
    """Of an adopted slot: parts that were not sealed as far as its host knows."""
    refused: dict[NodeId, float] = field(default_factory=dict)
    homeless_since: float | None = None
    cut: tuple[int, int] | None = None
    """Of a stripe: where it begins within the sources, and its size."""
    gathers: bool = False
    """The root of a striped target: its parts are the stripes, and whoever gets it puts them together."""


class Reduction:
    def __init__(self, objects: Objects, record: Record, spec: Reduce, requester: NodeId) -> None:
        self._objects = objects
        self._world = objects.world
        self._requester = requester
        self.requesters = {requester: None}
        """Nodes that remember that they asked for it."""
        self.record = record
        self.spec = spec
        self.chosen: dict[bytes, Version] = {}
        self.slots: dict[bytes, Slot] = {}
        self.root: Slot | None = None
        self.failure: Failure | None = None
        self._final = False  # the failure does not go away by itself
        self._terms: list[tuple[bytes, int]] = []  # ref, height
        self._held: tuple[list[bytes], NodeId] | None = None  # a getter's own sources: they go in last, at the root
        self._ready: dict[bytes, None] = {}  # in the order of becoming so
        self._seen: set[bytes] = set()  # sources that were ready once: gone, they do not come by themselves
        self._size = 0
        self._layout = b""
        self._degree = 1
        self._no_stripes = not spec.everywhere
        self._inline_version: Version | None = None
        self._inline_host: NodeId | None = None

    # --- what is known -----------------------------------------------------------------------------------------

    @property
    def sealed(self) -> bool:
        return self.record.reduction is not self

    def is_bound(self) -> bool:
        """Whether the target grows: it may then be a part of another reduction. One that is gathered does not."""
        if self.root is None or self.root.gathers:
            return False
        return self.root.bound or self._objects.has_copy(self.record.ref)

    def uses(self, ref: bytes) -> bool:
        """Whether the ref is one of the chosen sources of a result that is not decided."""
        return ref in self.chosen

    # --- what happens ------------------------------------------------------------------------------------------

    def review(self) -> None:
        """Something about a source or a slot has changed: choose, mend, bind, fail or seal, whatever is due."""
        if self.sealed or self._final or self._world.recovering:
            return
        self._note_ready()
        if self.failure is not None:
            if self._could_finish():
                self._reopen()
            else:
                return
        while self._mend_parts():
            pass  # a slot that begins anew needs again what it had
        if self.failure is None:
            self._choose_ready()
        if self.failure is not None:
            return
        if self._could_finish():
            self._advance()
        elif not self._may_be_complete():
            self._fail(self._shortage())

    def taken(self, slot: Slot, missing: set[bytes]) -> None:
        """The host has memory for the slot."""
        slot.homeless_since = None
        slot.lacking = missing
        self._bind_upwards(slot)

    def _bind_upwards(self, slot: Slot) -> None:
        """Whatever was taken and waited only for what is below it is bound."""
        above: Slot | None = slot
        while above is not None and above.lacking is not None and self.is_bound_below(above):
            self._begin_pulling(above, above.lacking)
            above = above.parent
        if above is not None and above.host is None and self.is_bound_below(above):
            self._advance(above)

    def is_bound_below(self, slot: Slot) -> bool:
        """Whether all that the slot pulls from slots has begun to grow. Of an empty object there is nothing to pull."""
        below = [part for part in slot.parts if part in self.slots]
        return self._size == 0 or all(self.slots[part].bound or self._objects.has_copy(part) for part in below)

    def _begin_pulling(self, slot: Slot, missing: set[bytes]) -> None:
        assert slot.host is not None
        slot.bound = True
        slot.lacking = None
        slot.consumed = {part for part in slot.parts if part not in missing}
        record = self._objects.record(slot.ref)
        self._objects.produce(record, slot.host, slot.lacks)
        for part in slot.parts:
            if part in missing and self._objects.feed(part, slot.host, slot.ref, slot.start):
                slot.consumed.add(part)
        self._objects.settle(record)
        if slot is self.root:
            self._objects.source_changed(self.record.ref)

    def resumed(self, slot: Slot, missing: set[bytes]) -> None:
        """The host came back with the slot: it says itself what it still lacks."""
        if not slot.bound:
            self.taken(slot, missing)
            return
        assert slot.host is not None
        slot.consumed -= missing
        for part in slot.parts:
            if part not in missing and part not in slot.consumed:
                slot.consumed.add(part)
                self._objects.unfeed(part, slot.host.node, slot.ref)

    def declined(self, slot: Slot) -> None:
        assert slot.host is not None
        slot.refused[slot.host.node] = self._world.now + _REFUSED_FOR
        self._unbind(slot)
        if slot.cut is not None:
            self._lay_without_stripes()
        self._advance()

    def host_lost(self, slot: Slot) -> None:
        """Its host is gone. Whether it is needed again is known when those who pull from it have reported."""
        self._unbind(slot)

    def output_lost(self, slot: Slot) -> None:
        """Nobody has the output or could turn out to have it."""
        if slot.bound:
            self._unbind(slot)
        self.review()

    def beginning_lacks(self, slot: Slot) -> None:
        """Its host began where those who pulled from it were; who pulls now needs more, and so it begins lower."""
        self._world.tell(self.record.ref, "{} is needed from lower on than {}", slot.version, slot.start)
        self._unbind(slot)

    def completed(self, slot: Slot) -> None:
        if slot is self.root or slot.parent is self.root:
            self._seal_if_decided()
        if slot is self.root:
            self._ensure_assembler(slot)
        if slot.parent is not None and not slot.bound and self._objects.has_copy(slot.ref):
            self._bind_upwards(slot.parent)  # its host had it all

    def inline_result(self, member: Member, combined: CombinedInline) -> None:
        version, data = combined.version, combined.data
        if version != self._inline_version or member.node != self._inline_host or len(data) != self._size:
            return
        if not self._objects.has_inline_room(len(data)):
            self._restart()  # others were quicker: combine it where objects live
        else:
            self._objects.begin_inline(self.record, version, self._layout, data)
            if combined.kept and self.record.broadcast is not None:
                self.record.broadcast.add_copy(member)
            self._finish()

    def unfit(self, member: Member, unfit: Unfit) -> None:
        """Who was to combine some of it says that nobody can: this is what the user must hear, and no retry helps."""
        slot = self.slots.get(unfit.version.ref)
        combines = slot is not None and slot.host is member and slot.version == unfit.version
        if combines or (member.node == self._inline_host and unfit.version == self._inline_version):
            self._final = True
            self._fail(Failure(FailureKind.INVALID, unfit.detail, unfit.remedy, self.record.ref))

    def adopt(self, reports: dict[bytes, tuple[SlotReport, Member]]) -> bool:
        """Go on with the slots that an earlier directory laid, if they are a whole: trees in which every part is known
        and each source stands once. What was chosen and not bound to a slot is chosen again."""
        binds = {ref: report.bind for ref, (report, _) in reports.items()}
        named = {part.ref for bind in binds.values() for part in bind.parts}
        self._seen |= named & set(self.spec.sources)  # they were ready once
        if self.record.ref in binds:
            binds = _below(self.record.ref, binds)  # slots that belong to no root are of an earlier try
        slots = {ref: self._adopted_slot(*reports[ref]) for ref in binds}
        order = _children_first(slots)
        if order is None or len({(bind.size, bind.layout, bind.op) for bind in binds.values()}) != 1:
            return False
        chosen: dict[bytes, Version] = {}
        for ref, slot in slots.items():
            if not self._is_sound(slot, binds[ref], slots, chosen):
                return False
        root = slots.get(self.record.ref)
        if len(chosen) > self.spec.count or (root is not None) != (len(chosen) == self.spec.count):
            return False
        if root is not None and any(slot.parent is None for slot in slots.values() if slot is not root):
            return False
        self.chosen, self.slots, self.root = chosen, slots, root
        self._seen |= chosen.keys()
        bind = next(iter(binds.values()))
        self._take_form(bind.size, bind.layout)
        for ref in order:
            slot = slots[ref]
            slot.height = 1 + max((slots[part].height for part in slot.parts if part in slots), default=0)
            record = self._objects.record(ref)
            record.slot, record.reduction = slot, self
            assert slot.host is not None
            for part in slot.parts:
                if part not in slot.consumed and self._objects.feed(part, slot.host, ref, slot.start):
                    slot.consumed.add(part)
        self._terms = [(ref, slot.height) for ref, slot in slots.items() if slot.parent is None and slot is not root]
        return True

    def _adopted_slot(self, report: SlotReport, host: Member) -> Slot:
        parts = [version.ref for version in report.bind.parts]
        slot = Slot(report.bind.version.ref, parts, 1, host.node, version=report.bind.version, host=host)
        slot.number, slot.bound = report.bind.number, True
        slot.start, slot.lacks = report.bind.start, report.bind.lacks
        slot.consumed = set(parts) - {version.ref for version in report.missing}
        slot.unsure = {version.ref for version in report.undecided}
        return slot

    def _is_sound(self, slot: Slot, bind: Bind, slots: dict[bytes, Slot], chosen: dict[bytes, Version]) -> bool:
        """Whether the slot's parts are what they were; what they are is noted on the way."""
        for version in bind.parts:
            child = slots.get(version.ref)
            if child is not None and child.parent is None and child.version == version:
                child.parent = slot
            elif version.ref in self.spec.sources and version.ref not in chosen and self._goes_on(slot, version):
                chosen[version.ref] = version
            else:
                return False
        return True

    def _goes_on(self, slot: Slot, version: Version) -> bool:
        """Whether a source can still be had in this version, or need not be."""
        ref = version.ref
        if self._objects.is_ready(ref) and self._objects.version_of(ref) == version:
            return True
        if ref in slot.unsure:
            return self._objects.became(ref, version)
        return ref in slot.consumed and self._objects.is_decided_as(ref, version)

    def node_lost(self, node: NodeId) -> None:
        if node == self._inline_host:
            self._restart()

    def retry(self) -> None:
        """The user asks again for what failed for good."""
        if self._final:
            self._final = False
            self._reopen()
            self.review()

    def cancel(self) -> None:
        """The target is deleted: everything that worked for it stops."""
        self._tear_down()

    # --- choosing ----------------------------------------------------------------------------------------------

    def _note_ready(self) -> None:
        for ref in self.spec.sources:
            hidden = self._objects.is_deleted(ref) and ref not in self.chosen  # only others may still use it
            if self._objects.is_ready(ref) and not hidden:
                self._seen.add(ref)
                self._ready.setdefault(ref)
            else:
                self._ready.pop(ref, None)

    def _could_finish(self) -> bool:
        """Enough sources are in, ready, or still to come."""
        hopeful = sum(
            ref in self._ready or self._is_in(ref) or self._objects.may_come(ref, seen=ref in self._seen)
            for ref in self.spec.sources
        )
        return hopeful >= self.spec.count

    def _may_be_complete(self) -> bool:
        """The root's host died, and someone who was getting the target may have all of it; of every stripe likewise."""
        if self.root is None:
            return False
        makers = [self.slots[ref] for ref in self.root.parts] if self.root.gathers else [self.root]
        return all(self._may_have_all(slot) for slot in makers)

    def _may_have_all(self, slot: Slot) -> bool:
        broadcast = self._objects.record(slot.ref).broadcast
        return slot.host is None and broadcast is not None and not broadcast.is_lost()

    def _is_in(self, ref: bytes) -> bool:
        """Chosen, and not needed any more: its bytes are in a slot that has them."""
        if ref not in self.chosen or not self._objects.is_decided_as(ref, self.chosen[ref]):
            return False
        slots = self._slots_with(ref)
        return bool(slots) and all(self._is_in_above(ref, slot) for slot in slots)

    def _is_in_above(self, part: bytes, slot: Slot) -> bool:
        above: Slot | None = slot
        while above is not None:
            if self._has_all_of(above, part) or self._objects.has_copy(above.ref):
                return True
            part, above = above.ref, above.parent
        return False

    def _has_all_of(self, slot: Slot, part: bytes) -> bool:
        """Whether nobody needs the part any more for what the slot makes."""
        return self.has_taken(slot, part) and self.is_above(slot, slot.lacks)

    def has_taken(self, slot: Slot, part: bytes) -> bool:
        """Whether the slot's host needs the part no more. Of a slot that runs beside it, it needs what is to come."""
        child = self.slots.get(part)
        grows_beside = child is not None and child.host is slot.host and not self._objects.has_copy(part)
        return slot.bound and part in slot.consumed and not grows_beside

    def is_above(self, slot: Slot, end: int) -> bool:
        """Whether all of the slot's output below `end` is in the slots above it, and will not be asked for again."""
        while end > 0:
            parent = slot.parent
            if parent is None:
                return False
            if parent.bound:
                end = parent.lacks
            elif self._begins_at(parent) < end:
                return False
            elif parent is self.root:
                return True
            slot = parent
        return True

    def _choose_ready(self) -> None:
        """Choose ready sources until there are enough; those of one node that are chosen together share a slot."""
        batch: dict[NodeId, list[bytes]] = {}
        chosen_before = len(self.chosen)
        for ref in self._ready:
            if len(self.chosen) == self.spec.count:
                break
            if ref in self.chosen:
                continue
            if not self._fits(ref):
                return
            self.chosen[ref] = self._objects.version_of(ref)
            batch.setdefault(self._home_of(ref), []).append(ref)
            self._world.tell(self.record.ref, "chose {} as {} of {}", short(ref), len(self.chosen), self.spec.count)
        if not chosen_before and len(batch) == self.spec.count and self._wants_stripes():
            self._lay_stripes([(refs[0], node) for node, refs in batch.items()])
        else:
            self._add_groups(batch)

    def _add_groups(self, batch: dict[NodeId, list[bytes]]) -> None:
        for index, (node, refs) in enumerate(batch.items()):
            last = len(self.chosen) == self.spec.count and index == len(batch) - 1
            self._add_group(refs, node, last)

    def _fits(self, ref: bytes) -> bool:
        """The first ready source fixes size and layout for all."""
        size, layout = self._objects.form_of(ref)
        if not self.chosen:
            self._take_form(size, layout)
            return True
        if (size, layout) == (self._size, self._layout):
            return True
        first = next(iter(self.chosen))
        detail = f"its sources {short(first)} and {short(ref)} differ in shape or dtype"
        self._final = True
        self._fail(Failure(FailureKind.INVALID, detail, "reduce objects of one shape and dtype", self.record.ref))
        return False

    def _take_form(self, size: int, layout: bytes) -> None:
        self._size, self._layout = size, layout
        bandwidth = self._objects.members.bandwidth()
        self._degree = choose_degree(size, self.spec.count, bandwidth, self._world.costs)

    def _add_group(self, refs: list[bytes], node: NodeId, last: bool) -> None:
        """A getter's own sources are kept for the root: elsewhere its network card would have to take in both what its
        slot combines and the result. If everybody gets it, that is so for whoever comes last, and nothing is kept."""
        gets = node == self._requester or node in self.record.waiting
        if gets and not last and self._held is None and not self.spec.everywhere:
            self._held = (refs, node)
            return
        if last and self._held is not None:
            (held, at), self._held = self._held, None
            self._add_term(refs, node, last=False)
            refs, node = held, at
        self._add_term(refs, node, last)

    def _add_term(self, refs: list[bytes], node: NodeId, last: bool) -> None:
        if last:
            taken, self._terms = self._terms, []
        elif len(self._terms) >= self._degree and len({height for _, height in self._terms[-self._degree :]}) == 1:
            taken, self._terms = self._terms[-self._degree :], self._terms[: -self._degree]
        elif len(refs) == 1:
            self._terms.append((refs[0], 0))
            return
        else:
            taken = []
        height = 1 + max((height for _, height in taken), default=0)
        ref = self.record.ref if last else self._slot_ref()
        slot = self._add_slot(Slot(ref, [*refs, *(term for term, _ in taken)], height, node))
        if last:
            self.root = slot
        else:
            self._terms.append((ref, height))

    def _add_slot(self, slot: Slot) -> Slot:
        for part in slot.parts:
            if part in self.slots:
                self.slots[part].parent = slot
        self.slots[slot.ref] = slot
        self._objects.record(slot.ref).slot = slot
        self._objects.record(slot.ref).reduction = self
        return slot

    # --- stripes -----------------------------------------------------------------------------------------------

    def _wants_stripes(self) -> bool:
        """Whether it pays, and all sources are there: complete, decided, and not so small that they live here."""
        if self._no_stripes or not all(
            self._objects.has_copy(ref)
            and not self._objects.is_undecided(ref)
            and self._objects.inline_of(ref, version) is None
            for ref, version in self.chosen.items()
        ):
            return False
        return choose_stripes(self._size, self.spec.count) > 1

    def _lay_stripes(self, ring: list[tuple[bytes, NodeId]]) -> None:
        """As many chains as there are sources, each along the same ring and each with another end."""
        root = self._add_slot(Slot(self.record.ref, [], 0, ring[0][1], gathers=True))
        for last, cut in enumerate(stripes.cuts(self._size, len(ring))):
            below: Slot | None = None
            for source, node in ring[last + 1 :] + ring[: last + 1]:
                parts, height = ([source, below.ref], below.height + 1) if below is not None else ([source], 1)
                slot = self._add_slot(Slot(self._slot_ref(), parts, height, node, cut=cut))
                if below is not None:
                    below.parent = slot
                below = slot
            assert below is not None
            below.parent = root
            root.parts.append(below.ref)
        self.root = root
        self._world.tell(self.record.ref, "laid in {} stripes", len(root.parts))

    def _lay_without_stripes(self) -> None:
        """A source's host has no room for its stripes, or nobody has the source: any node can take a whole one."""
        self._no_stripes = True
        self._drop_slots()
        self._world.tell(self.record.ref, "laid anew without stripes")
        batch: dict[NodeId, list[bytes]] = {}
        for ref in self.chosen:
            home = self._home_of(ref) if ref in self._ready else self._requester
            batch.setdefault(home, []).append(ref)
        self._add_groups(batch)

    def _gather(self, root: Slot) -> None:
        """All stripes are on their way: the target has a version, and someone puts it together."""
        target = self.record.broadcast
        if target is None:
            outputs = [(self.slots[ref], self._objects.version_of(ref)) for ref in root.parts]
            sizes = [(version, slot.cut[1]) for slot, version in outputs if slot.cut is not None]
            root.version = self._objects.begin_output(root.ref, self._size, self._layout, None)
            root.bound = True
            target = self._objects.record(root.ref).broadcast
            assert target is not None
            target.stripes = tuple(Stripe(version, size) for version, size in sizes)
            self._objects.look_at(root.ref)  # who waits is served when the event is over
            if self.record.waiting:
                return
        if target.getters() or self.record.waiting:
            return
        host = self._choose_host(root)
        if host is None:
            self._wait_for_room(root)
            return
        if host.node not in root.refused:
            root.homeless_since = None
        self._objects.involve(self.record, host)
        target.want(host)
        self._objects.look_at(root.ref)

    def assembler_declined(self, root: Slot, node: NodeId) -> None:
        root.refused[node] = self._world.now + _REFUSED_FOR
        self._advance()

    def _ensure_assembler(self, root: Slot) -> None:
        """If nobody gets the target any more, someone must be asked to."""
        target = self.record.broadcast
        if root.gathers and target is not None and not (target.copies or target.getters() or self.record.waiting):
            self._world.timers.set_if_absent(("reduce", self.record.ref), self._world.now + _REFUSED_FOR)

    def _slot_ref(self) -> bytes:
        name = self.record.ref + self._world.next_number().to_bytes(8, "big")
        return hashlib.blake2b(name, digest_size=REF_BYTES).digest()

    def _home_of(self, ref: bytes) -> NodeId:
        return self._objects.home_of(ref)

    # --- mending -----------------------------------------------------------------------------------------------

    def _mend_parts(self) -> bool:
        """A chosen source that is not what it was, and whose bytes are still needed, is updated or replaced. True if a
        slot begins anew for it."""
        renewed = False
        for ref, version in list(self.chosen.items()):
            if (ref in self._ready and self._objects.version_of(ref) == version) or self._is_in(ref):
                continue
            if ref not in self._ready and self._objects.may_come(ref, seen=True):
                continue  # it is not known to be lost
            slots = self._slots_with(ref)
            spare = ref if ref in self._ready else next((s for s in self._ready if s not in self.chosen), None)
            if spare is None:
                continue  # perhaps one comes
            if not self._fits(spare):
                return False
            self._world.tell(self.record.ref, "{} takes the place of {}", short(spare), short(ref))
            self._replace(ref, spare)
            for slot in slots:
                self._renew(slot)
                slot.parts = [spare if part == ref else part for part in slot.parts]
                slot.prefers = self._home_of(spare)
            if slots:
                renewed = True
                continue
            if self._held is not None and ref in self._held[0]:
                self._held = ([spare if part == ref else part for part in self._held[0]], self._home_of(spare))
            else:
                self._terms = [(spare if term == ref else term, height) for term, height in self._terms]
        return renewed

    def _replace(self, ref: bytes, spare: bytes) -> None:
        """Keep the order of choice: contributors are told in it."""
        before, self.chosen = self.chosen, self._chosen_with(ref, spare)
        self._objects.release_sources(before)

    def _chosen_with(self, ref: bytes, spare: bytes) -> dict[bytes, Version]:
        return {
            (spare if source == ref else source): (
                self._objects.version_of(spare) if source == ref else self.chosen[source]
            )
            for source in self.chosen
        }

    def _renew(self, slot: Slot) -> None:
        """The slot's parts are not the same any more: it and everything above begins a new version."""
        above: Slot | None = slot
        while above is not None:
            self._end_output(above)
            above = above.parent

    def _end_output(self, slot: Slot) -> None:
        self._unbind(slot)
        if slot.version is None:
            return
        slot.version = None
        slot.homeless_since = None
        self._objects.reset(self._objects.record(slot.ref))
        if slot is self.root:
            self._objects.source_changed(self.record.ref)

    def _unbind(self, slot: Slot) -> None:
        """Nobody runs the slot. What its host pulled for it is not wanted any more."""
        host, slot.host = slot.host, None
        slot.bound = False
        slot.lacking = None
        slot.consumed.clear()
        if host is None:
            return
        self._stop_feeding(slot, host)
        broadcast = self._objects.record(slot.ref).broadcast
        if broadcast is not None and broadcast.producer == host.node:
            broadcast.remove(host.node)
            self._objects.look_at(slot.ref)
        if broadcast is not None and slot.version is not None and self._objects.members.get(host.node) is host:
            self._world.send(host.node, Drop(slot.version))
            broadcast.told_to_drop(host.node)

    def _stop_feeding(self, slot: Slot, host: Member) -> None:
        for part in slot.parts:
            self._objects.unfeed(part, host.node, slot.ref)

    def _slots_with(self, part: bytes) -> list[Slot]:
        """The slot that the part goes into; of a source, one in each stripe."""
        return [slot for slot in self.slots.values() if part in slot.parts]

    # --- binding -----------------------------------------------------------------------------------------------

    def _advance(self, above: Slot | None = None) -> None:
        """Bind what can be bound. Of many slots, look only at those that matter: a slot `above` what has changed, and
        below it."""
        if self.sealed or self.failure is not None:
            return
        if self._all_inline():
            self._combine_inline()
            return
        tops = [self.root] if self.root is not None else [self.slots[t] for t, _ in self._terms if t in self.slots]
        for slot in tops if above is None else [above]:
            self._ensure(slot)
        self._seal_if_decided()

    def _ensure(self, top: Slot) -> None:
        """Bind the slot and those below it that nobody runs and that are needed, parts before what is made of them."""
        for slot in self._needed_of(top):
            if self.slots.get(slot.ref) is not slot:
                return  # one of them made everything end, or be laid anew
            if slot.gathers:
                if self.is_bound_below(slot) and not (slot.version is not None and self._objects.has_copy(slot.ref)):
                    self._gather(slot)
            elif slot.host is None and self._are_parts_to_come(slot) and self._is_needed_anew(slot):
                self._bind(slot)

    def _needed_of(self, top: Slot) -> list[Slot]:
        """The slot and those below it whose output has not all been pulled, each after those below it."""
        found: list[Slot] = []
        pending = [top]
        while pending:
            slot = pending.pop()
            found.append(slot)
            pending += [self.slots[p] for p in slot.parts if p in self.slots and not self.has_taken(slot, p)]
        return found[::-1]

    def _are_parts_to_come(self, slot: Slot) -> bool:
        """Whether every part is there, or somebody has been asked to make it."""
        for part in slot.parts:
            child = self.slots.get(part)
            if child is not None:
                if child.host is None and not self._objects.has_copy(part):
                    return False
            elif part not in self._ready or self._objects.version_of(part) != self.chosen.get(part):
                return False
        return True

    def _is_needed_anew(self, slot: Slot) -> bool:
        """Nobody has the output, and everyone who pulled it has said how far it came."""
        broadcast = self._objects.record(slot.ref).broadcast
        return broadcast is None or broadcast.is_lost()

    def _begins_at(self, slot: Slot) -> int:
        """Where the slot's host begins, or would if there were one. It is a guess only as long as nobody pulls."""
        while slot.host is None:
            if slot is self.root:
                host = self._choose_host(slot)
                return self._received(slot, host) if host is not None else 0
            known, above = self._known_need(slot), slot.parent
            if known is not None or above is None:
                return known or 0
            slot = above
        return slot.start

    def _lowest_needed(self, slot: Slot) -> int:
        """The first byte of the output that anyone lacks: who pulls from it, or will."""
        known = self._known_need(slot)
        if known is None and slot.parent is not None:
            return self._begins_at(slot.parent)
        return known or 0

    def _known_need(self, slot: Slot) -> int | None:
        """The first byte that those who pull from the slot lack; None if that depends on where the slot above begins.
        Of the root's output someone must have all, and of small ones and stripes all comes at once."""
        above = slot.parent
        small = slot.cut is not None or self._size <= self._world.settings.inline_limit
        if above is None or small:
            return 0
        broadcast = self._objects.record(slot.ref).broadcast
        if broadcast is not None and broadcast.receivers:
            return _aligned(broadcast.lowest())
        return 0 if above.bound or above.version is None else None

    def _bind(self, slot: Slot) -> None:
        if slot is self.root and self._splits_root(slot):
            self._split(slot)
            self._ensure(slot)
            return
        host = self._choose_host(slot)
        if host is None:
            self._wait_for_room(slot)
            return
        received = self._received(slot, host)
        if received and not self.is_bound_below(slot):
            return  # asked when that is so: what the getter has would be lost if it were asked in vain
        size = self._size if slot.cut is None else slot.cut[1]
        if slot.version is None:
            slot.version = self._objects.begin_output(slot.ref, size, self._layout, host)
        slot.start = received or self._lowest_needed(slot)  # which depends on who else could be asked
        slot.lacks = 0 if received else slot.start
        slot.host = host
        slot.number = self._world.next_number()
        self._objects.involve(self._objects.record(slot.ref), host)
        parts = tuple(self._objects.version_of(part) for part in slot.parts)
        self._world.tell(self.record.ref, "{} combines {} parts into {}", label(host.node), len(parts), slot.version)
        known = slot is self.root or len(self.slots) <= _SLOTS_THAT_KNOW
        self._world.send(
            host.node,
            Bind(
                slot.version,
                slot.number,
                size,
                self._layout,
                self.spec.op,
                parts,
                self.record.ref,
                self.spec if known else None,
                slot.start,
                resume=received > 0,
                offset=None if slot.cut is None else slot.cut[0],
                divisor=self._divisor(slot),
            ),
        )

    def _divisor(self, made_by: Slot | None) -> int:
        """A mean is divided where the target is made, by its root or the root of each stripe, and nowhere below: slots
        that feed others sum. Without a slot it is combined at once."""
        if self.spec.op is not Operation.MEAN:
            return 0
        ends_stripe = made_by is not None and made_by.parent is not None and made_by.parent.gathers
        return self.spec.count if made_by is None or made_by is self.root or ends_stripe else 0

    def _wait_for_room(self, slot: Slot) -> None:
        """Nobody takes the slot now: look again soon, and not for ever. What those above it have taken may be what it
        waits for, and is given back."""
        now = self._world.now
        above = slot.parent
        while above is not None:
            if not above.bound:
                self._unbind(above)
            above = above.parent
        slot.homeless_since = now if slot.homeless_since is None else slot.homeless_since
        if now - slot.homeless_since < self._world.settings.lease:
            self._world.timers.set(("reduce", self.record.ref), now + _REFUSED_FOR)
        elif slot.cut is not None:
            self._lay_without_stripes()
            self._world.timers.set(("reduce", self.record.ref), now)
        else:
            detail = f"no node has room for a part of it ({self._size} bytes)"
            remedy = "delete objects or raise the stores' limits, and reduce again"
            self._final = True
            self._fail(Failure(FailureKind.STORE_FULL, detail, remedy, self.record.ref))

    def _splits_root(self, root: Slot) -> bool:
        """Whether the root is sooner done if a getter goes on with what it has, and another node combines the rest of
        the parts for it: no getter that has much has parts too."""
        if len(root.parts) == 1:
            return False
        usable = self._usable_for(root)
        ahead = max((self._received(root, member) for member in usable), default=0)
        if ahead == 0:
            return False
        lacking = min(self._lacking(root, member, ahead) for member in usable)
        alone = min(self._to_pull(root, member, 0) for member in usable)
        return max(lacking, 1) * (self._size - ahead) < alone

    def _split(self, root: Slot) -> None:
        """The root's parts go into a new slot, and that alone into the root: the same bytes, so the same version."""
        self._world.tell(self.record.ref, "its parts are combined for a getter that has a part of it")
        below = Slot(self._slot_ref(), root.parts, root.height, root.prefers, parent=root)
        root.parts, root.height = [below.ref], root.height + 1
        self._add_slot(below)

    def _received(self, slot: Slot, member: Member) -> int:
        """How much of the slot's output the node has because it was getting it, and can go on with."""
        if slot.cut is not None or slot.gathers:
            return 0
        broadcast = self._objects.record(slot.ref).broadcast
        receiver = broadcast.receivers.get(member.node) if broadcast is not None else None
        return _aligned(receiver.watermark) if receiver is not None else 0

    def _choose_host(self, slot: Slot) -> Member | None:
        """Who has the least to pull; among equals the node that the slot was made for, then the one with most of its
        sources, since what another slot makes is sent on by its host in any case, then the one that waits for its
        output: what a node sends to itself does not cross its busy uplink."""
        usable = self._usable_for(slot)
        if len(usable) < 2:
            return usable[0] if usable else None
        sources = [part for part in slot.parts if part not in self.slots]
        lowest = self._lowest_needed(slot)
        return max(
            usable,
            key=lambda member: (
                -self._to_pull(slot, member, lowest),
                member.node == slot.prefers,
                sum(self._objects.has_part(source, member.node) for source in sources),
                slot.parent is not None and member is slot.parent.host,
                -member.node,
            ),
        )

    def _usable_for(self, slot: Slot) -> list[Member]:
        """Who could be its host: those who are better than others for some reason, or if none of them can be asked now,
        anybody. A stripe's slot cuts its piece out of the source, which must be there for that."""
        if slot.cut is not None:
            return self._askable(slot, self._objects.holders_of(slot.parts[0], complete=True))
        return self._askable(slot, self._favoured(slot)) or self._askable(slot, self._objects.members)

    def _favoured(self, slot: Slot) -> list[Member]:
        """The node that the slot was made for, and whoever has a part, makes one, or pulls the output."""
        found: dict[NodeId, Member] = {}
        prefers = self._objects.members.get(slot.prefers)
        hosts = [slot.parent.host if slot.parent is not None else None]
        hosts += [self.slots[part].host for part in slot.parts if part in self.slots]
        for member in (prefers, *hosts):
            if member is not None:
                found[member.node] = member
        for part in slot.parts:
            found.update((member.node, member) for member in self._objects.holders_of(part))
        broadcast = self._objects.record(slot.ref).broadcast
        for receiver in broadcast.receivers.values() if broadcast is not None else ():
            found[receiver.member.node] = receiver.member
        return list(found.values())

    def _askable(self, slot: Slot, members: Iterable[Member]) -> list[Member]:
        now = self._world.now
        return [m for m in members if m.usable() and slot.refused.get(m.node, 0.0) <= now]

    def _to_pull(self, slot: Slot, member: Member, lowest: int) -> int:
        """How many bytes the node would have to pull as the slot's host."""
        start = self._received(slot, member) or lowest
        return self._lacking(slot, member, start) * (self._size - start)

    def _lacking(self, slot: Slot, member: Member, start: int) -> int:
        return sum(not self._will_have(part, member, start) for part in slot.parts)

    def _will_have(self, part: bytes, member: Member, start: int) -> bool:
        """Whether the node has the part from `start` on, or has been asked to make it."""
        child = self.slots.get(part)
        makes_it = child is not None and child.host is member and child.lacks <= start
        return makes_it or self._objects.has_part(part, member.node, start=start)

    # --- small objects -----------------------------------------------------------------------------------------

    def _all_inline(self) -> bool:
        if self._inline_version is not None:
            return True
        if len(self.chosen) < self.spec.count or not self._objects.has_inline_room(self._size):
            return False
        return all(self._objects.inline_of(ref, version) is not None for ref, version in self.chosen.items())

    def _combine_inline(self) -> None:
        """The bytes are all here: one node combines them and sends back the result."""
        if self._inline_version is not None:
            return
        self._drop_slots()
        requester = self._objects.members.get(self._requester)
        candidates = [requester] if requester is not None and requester.usable() else []
        candidates += [member for member in self._objects.members if member.usable()]
        if not candidates:
            self._world.timers.set(("reduce", self.record.ref), self._world.now + _REFUSED_FOR)
            return
        host = candidates[0]
        self._inline_version = self._objects.new_version(self.record.ref)
        self._inline_host = host.node
        self._objects.involve(self.record, host)
        parts = tuple(self._objects.inline_of(ref, version) or b"" for ref, version in self.chosen.items())
        form = (self._layout, self.spec.op)
        self._world.send(host.node, CombineInline(self._inline_version, *form, parts, self._divisor(None)))

    # --- the end -----------------------------------------------------------------------------------------------

    def _seal_if_decided(self) -> None:
        """Seal a complete root, unless a source of it could still turn out to be another version. A host that is still
        at work has all the bytes that a getter has, and says so next; it is not interrupted."""
        root = self.root
        if root is None or root.version is None or not self._objects.has_copy(root.ref):
            return
        makers = [self.slots[ref] for ref in root.parts] if root.gathers else [root]
        for slot in makers:
            if slot.host is not None and not self._objects.has_part(slot.ref, slot.host.node, complete=True):
                return
        if not any(self._objects.is_undecided(ref) for ref in self.chosen):
            self._seal()

    def _seal(self) -> None:
        broadcast = self.record.broadcast
        assert broadcast is not None
        broadcast.sealed = True
        self._world.tell(self.record.ref, "{} is sealed", broadcast.version)
        self._finish()

    def _finish(self) -> None:
        """The target is an object like any other now; what made it goes."""
        broadcast = self.record.broadcast
        assert broadcast is not None
        origin = Origin(self.spec, tuple(self.chosen.values()))
        self._objects.decide(self.record, origin)
        for node in broadcast.copies:
            self.record.waiting.pop(node, None)
        for node in broadcast.nodes():
            self._world.send(node, Sealed(broadcast.version, origin))
        if self.root is not None and self.root.host is not None:
            self._stop_feeding(self.root, self.root.host)  # of an empty object nothing need have come
        self.record.reduction = self.record.slot = None
        self._world.timers.cancel(("reduce", self.record.ref))
        self._drop_slots(keep=[self.record.ref, *stripes.outlive(self._objects, self.record)])
        self._objects.reduction_ended(self)

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        self._world.tell(self.record.ref, "failed: {}", failure.detail)
        self._objects.fail_waiters(self.record, failure)
        self._tear_down()
        self.record.waiting.clear()  # they were told

    def _restart(self) -> None:
        self._tear_down()
        self.review()

    def _reopen(self) -> None:
        """A source that was missing has been put again: begin anew."""
        self.failure = None
        self._world.tell(self.record.ref, "reopened")
        self._objects.source_changed(self.record.ref)  # what is made from it may hope again

    def _shortage(self) -> Failure:
        lost = [short(ref) for ref in self.spec.sources if not self._objects.may_come(ref, seen=ref in self._seen)]
        detail = f"only {len(self.spec.sources) - len(lost)} of its sources are left and it needs {self.spec.count}"
        detail += f" (gone: {', '.join(lost[:8])})"
        return Failure(FailureKind.LOST, detail, "put a lost source again; the reduction then goes on", self.record.ref)

    def _tear_down(self) -> None:
        self._drop_slots()
        chosen, self.chosen = self.chosen, {}
        self._objects.release_sources(chosen)
        self._terms.clear()
        self._held = None
        self._inline_version = self._inline_host = None
        self._world.timers.cancel(("reduce", self.record.ref))

    def _drop_slots(self, keep: Sequence[bytes] = ()) -> None:
        for slot in list(self.slots.values()):
            if slot.ref not in keep:
                self._end_output(slot)
                self._objects.forget_slot(slot.ref)
        self.slots.clear()
        self.root = None


def _aligned(watermark: int) -> int:
    """Where a slot can begin: not within an element of any dtype."""
    return watermark - watermark % BIND_ALIGNMENT


def _below(root: bytes, binds: dict[bytes, Bind]) -> dict[bytes, Bind]:
    """The slots that the root is made of, and it."""
    found = {root: binds[root]}
    pending = [binds[root]]
    while pending:
        for part in pending.pop().parts:
            child = binds.get(part.ref)
            if child is not None and child.version == part and part.ref not in found:
                found[part.ref] = child
                pending.append(child)
    return found


def _children_first(slots: dict[bytes, Slot]) -> list[bytes] | None:
    """The slots in an order in which each comes after what it is made of; None if there is no such order."""
    try:
        made_from = {ref: [part for part in slot.parts if part in slots] for ref, slot in slots.items()}
        return list(TopologicalSorter(made_from).static_order())
    except CycleError:
        return None
