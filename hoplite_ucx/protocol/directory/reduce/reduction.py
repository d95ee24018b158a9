"""One reduction: which sources go into it, how losses among them are mended, and how it ends.

The sources that become ready are chosen in that order, each once, until there are `count`, and laid into slots (see
`slots`) that nodes are asked to run (see `binding`).

A slot is an ordered list of parts. Its output is an object of its own, with a ref, a version and a tree of receivers
like any other; the root's output is the target. The version stands for the parts' versions and their order, nothing
else: any node that combines the same parts makes the same bytes. Hence the two repairs:
- A slot's *host* is lost: another node takes over under the same version, and whoever was pulling resumes where it was.
- A *part* is lost, or changes its version: another ready source takes its place, and the slot and all above it begin a
  new version. Subtrees that did not change serve what they have.

One choice of sources, one seal and one failure are for all stripes of a target; what changes a source changes every
stripe. Slots of stripes run only where their source is, so that no piece of a source ever travels; if that cannot be,
the same sources are laid anew without stripes.

The target is sealed once, when its root version is complete and what it was made of is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.reduce import stripes
from hoplite_ucx.protocol.directory.reduce.adoption import whole_of
from hoplite_ucx.protocol.directory.reduce.binding import REFUSED_FOR, Binding
from hoplite_ucx.protocol.directory.reduce.slots import Slot
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import NodeId, Version, short
from hoplite_ucx.protocol.messages import CombinedInline, CombineInline, Origin, Reduce, Sealed, SlotReport, Unfit

if TYPE_CHECKING:
    from hoplite_ucx.protocol.directory.objects import Objects, Record


class Reduction(Binding):
    """The layers below this one: `Slots`, the shape of the tree; `Hosts`, who could run it; `Binding`, who does."""

    def __init__(self, objects: Objects, record: Record, spec: Reduce, requester: NodeId) -> None:
        super().__init__(objects, record, spec, requester)
        self.requesters = {requester: None}
        """Nodes that remember that they asked for it."""
        self.failure: Failure | None = None
        self._final = False  # the failure does not go away by itself
        self._seen: set[bytes] = set()  # sources that were ready once: gone, they do not come by themselves
        self._inline_version: Version | None = None
        self._inline_host: NodeId | None = None

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def sealed(self) -> bool:
        return self.record.reduction is not self

    def is_bound(self) -> bool:
        """Whether the target grows: it may then be a part of another reduction. One that is gathered does not."""
        if self.root is None or self.root.gathers:
            return False
        return self.root.bound or self._objects.has_copy(self.record.ref)

    def uses(self, version: Version) -> bool:
        """Whether this is one of the chosen sources of a result that is not decided."""
        return self.chosen.get(version.ref) == version

    # --- what happens --------------------------------------------------------------------------------------------

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

    def output_lost(self, slot: Slot) -> None:
        """Nobody has the output or could turn out to have it."""
        if slot.bound:
            self._unbind(slot)
        self.review()

    def completed(self, slot: Slot) -> None:
        if slot is self.root or slot.parent is self.root:
            self._seal_if_decided()
        if slot is self.root:
            self._ensure_assembler(slot)
        if slot.parent is not None and not slot.bound and self._objects.has_copy(slot.ref):
            self._bind_upwards(slot.parent)  # its host had it all

    def unfit(self, member: Member, unfit: Unfit) -> None:
        """Who was to combine some of it says that nobody can: this is what the user must hear, and no retry helps."""
        slot = self.slots.get(unfit.version.ref)
        combines = slot is not None and slot.host is member and slot.version == unfit.version
        if combines or (member.node == self._inline_host and unfit.version == self._inline_version):
            self._give_up(Failure(FailureKind.INVALID, unfit.detail, unfit.remedy, self.record.ref))

    def adopt(self, reports: dict[bytes, tuple[SlotReport, Member]]) -> bool:
        """Go on with the slots that an earlier directory laid, if they are a whole. What was chosen and not bound to a
        slot is chosen again."""
        named = {part.ref for report, _ in reports.values() for part in report.bind.parts}
        self._seen |= named & set(self.spec.sources)  # they were ready once
        whole = whole_of(self._objects, self.spec, reports)
        if whole is None:
            return False
        self.chosen, self.slots, self.root = whole.chosen, whole.slots, whole.slots.get(self.record.ref)
        self._take_form(whole.size, whole.layout)
        for ref, slot in self.slots.items():
            slot.height = 1 + max((self.slots[part].height for part in slot.parts if part in self.slots), default=0)
            record = self._objects.record(ref)
            record.slot, record.reduction = slot, self
            assert slot.host is not None
            for part in slot.parts:
                if part not in slot.consumed and self._objects.feed(part, slot.host, ref, slot.start):
                    slot.consumed.add(part)
        tops = [slot for slot in self.slots.values() if slot.parent is None and slot is not self.root]
        self._terms = [(slot.ref, slot.height) for slot in tops]
        return True

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

    # --- choosing ------------------------------------------------------------------------------------------------

    def _note_ready(self) -> None:
        for ref in self.spec.sources:
            hidden = self._objects.is_deleted(ref) and ref not in self.chosen  # only others may still use it
            if self._objects.is_ready(ref) and not hidden:
                self._seen.add(ref)
                self._ready.setdefault(ref)
            else:
                self._ready.pop(ref, None)

    def may_come(self, ref: bytes) -> bool:
        """Whether a source can still become ready. A deleted one is not put again, but while those who were getting
        what there is of it have yet to report, one of them may have all that is needed."""
        if ref in self.chosen and self._objects.is_deleted(ref):
            return self._objects.has_version(self.chosen[ref])
        return self._objects.may_come(ref, seen=ref in self._seen)

    def _could_finish(self) -> bool:
        """Enough sources are in, ready, or still to come."""
        hopeful = sum(ref in self._ready or self._is_in(ref) or self.may_come(ref) for ref in self.spec.sources)
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
        each_alone = not chosen_before and len(batch) == self.spec.count
        if each_alone and (count := self._choose_stripes()) > 1:
            self._lay_stripes([(refs[0], node) for node, refs in batch.items()], count)
        else:
            self._add_groups(batch)

    def _fits(self, ref: bytes) -> bool:
        """The first ready source fixes what all must be like."""
        size, layout = self._objects.form_of(ref)
        if not self.chosen:
            self._take_form(size, layout)
            return True
        if (size, layout) == (self._size, self._layout):
            return True
        why = self._world.difference(self._layout, layout)
        if why is None and size == self._size:
            return True
        first = next(iter(self.chosen))
        how = why if why is not None else f"they have {self._size} and {size} bytes"
        detail = f"its sources {short(first)} and {short(ref)} cannot be combined: {how}"
        remedy = "reduce objects of one shape and dtype, all in C or all in Fortran order (numpy.ascontiguousarray)"
        self._give_up(Failure(FailureKind.INVALID, detail, remedy, self.record.ref))
        return False

    # --- mending -------------------------------------------------------------------------------------------------

    def _mend_parts(self) -> bool:
        """A chosen source that is not what it was, and whose bytes are still needed, is updated or replaced. True if a
        slot begins anew for it."""
        renewed = False
        for ref, version in list(self.chosen.items()):
            if (ref in self._ready and self._objects.version_of(ref) == version) or self._is_in(ref):
                continue
            if ref not in self._ready and self.may_come(ref):
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
        """Keep the order of choice: contributors are told in it, and the result has the layout of the first."""
        if ref == next(iter(self.chosen)):
            _, self._layout = self._objects.form_of(spare)
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

    def _add_slot(self, slot: Slot) -> Slot:
        self._objects.record(slot.ref).reduction = self
        return super()._add_slot(slot)

    # --- small objects -------------------------------------------------------------------------------------------

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
            self._world.timers.set(("reduce", self.record.ref), self._world.now + REFUSED_FOR)
            return
        host = candidates[0]
        self._inline_version = self._objects.new_version(self.record.ref)
        self._inline_host = host.node
        self._objects.involve(self.record, host)
        parts = tuple(self._objects.inline_of(ref, version) or b"" for ref, version in self.chosen.items())
        form = (self._layout, self.spec.op)
        self._world.send(host.node, CombineInline(self._inline_version, *form, parts, self._divisor(None)))

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

    # --- the end -------------------------------------------------------------------------------------------------

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

    def _give_up(self, failure: Failure) -> None:
        self._final = True
        self._fail(failure)

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
        gone = [ref for ref in self.spec.sources if not self.may_come(ref)]
        deleted = [ref for ref in gone if self._objects.is_deleted(ref)]
        lost = [ref for ref in gone if ref not in deleted]
        detail = f"only {len(self.spec.sources) - len(gone)} of its sources are left and it needs {self.spec.count}"
        for what, refs in (("lost", lost), ("deleted", deleted)):
            detail += f"; {what}: {', '.join(map(short, refs[:8]))}" if refs else ""
        remedy = "put a lost source again; the reduction then goes on"
        if len(self.spec.sources) - len(deleted) < self.spec.count:
            remedy = "reduce other sources into another ref: deleted objects do not come back"
        return Failure(FailureKind.LOST, detail, remedy, self.record.ref)

    def _tear_down(self) -> None:
        self._drop_slots()
        chosen, self.chosen = self.chosen, {}
        self._objects.release_sources(chosen)
        self._terms.clear()
        self._held = None
        self._inline_version = self._inline_host = None
        self._world.timers.cancel(("reduce", self.record.ref))
