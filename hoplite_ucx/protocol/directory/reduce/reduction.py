"""A reduction from its request to its seal: which sources go into it, how lost ones are replaced, and how it ends.

The sources that become ready are chosen in that order, each once, until there are `count`, and built into slots
(see `tree_builder`) that nodes are asked to run (see `binding`).

A slot is an ordered list of parts. Its output is an object of its own, with a ref, a version and a tree of receivers
like any other; the root's output is the target. The version stands for the parts' versions and their order, nothing
else: any node that combines the same parts makes the same bytes. Hence the two repairs:
- A slot's *host* is lost: another node takes over under the same version, and its receivers resume.
- A *part* is lost, or changes its version: another ready source replaces it, and the slot and all above it start over
  under a new version. Subtrees that did not change serve what they have.

One choice of sources, one seal and one failure are for all stripes of a target; what changes a source changes every
stripe. Slots of stripes run only where their source is, so that no piece of a source ever travels; if that is
impossible, the same sources are built without stripes.

The target is sealed once, when its root version is complete and what it was made of is decided.
"""

from msgspec.structs import replace

from hoplite_ucx.protocol.cost import choose_degree, choose_stripes
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record, Reduction, Slot
from hoplite_ucx.protocol.directory.reduce.adoption import whole_of
from hoplite_ucx.protocol.directory.reduce.binding import Binder
from hoplite_ucx.protocol.directory.reduce.hosts import Hosts
from hoplite_ucx.protocol.directory.reduce.tree_builder import TreeBuilder
from hoplite_ucx.protocol.directory.spread import stripes
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.states import ReductionState
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import CombineBytes, CombinedBytes, CombineFailed
from hoplite_ucx.protocol.ids import NodeId, Version, short
from hoplite_ucx.protocol.messages import (
    CombinedInline,
    CombineInline,
    Contributors,
    Failed,
    Operation,
    Origin,
    Over,
    Result,
    Sealed,
    SlotReport,
    Unfit,
)

_COMBINED_HERE = 1 << 20
"""Small objects of so many bytes together the directory combines itself, in about the time of a few messages. More of
them a node combines: all others would wait meanwhile."""
_LAYOUT_COMBINED_HERE = 1 << 10
"""The same for their layout: a long one describes many arrays, and each of them costs as much as a large one."""
_WORK_OF_LAYOUT = 64
"""To combine an object takes at least as long as this many times the bytes of its layout, however small it is."""


class Reductions:
    """Handles all reductions. The builder has the shape of their trees, `hosts` knows the nodes that could run a slot,
    and the binder asks them."""

    builder_type: type[TreeBuilder] = TreeBuilder
    hosts_type: type[Hosts] = Hosts
    binder_type: type[Binder] = Binder

    def __init__(self, table: Table, versions: Versions) -> None:
        self._table = table
        self._versions = versions
        self._world = table.world
        self.builder = self.builder_type(table.world.next_number)
        self.hosts = self.hosts_type(table)
        self.binder = self.binder_type(table, versions, self.builder, self.hosts)

    # --- what happens --------------------------------------------------------------------------------------------

    def review(self, reduction: Reduction) -> None:
        """Something about a source or a slot has changed: choose, repair, bind, fail or seal, whatever is due."""
        if self._world.recovering:
            return
        self._note_ready(reduction)
        if reduction.state is ReductionState.FAILED and self.could_finish(reduction):
            self._reopen(reduction)
        if reduction.failure is not None:
            self._fail_waiters(reduction, reduction.failure)
            return
        while self._replace_lost(reduction):
            pass  # a slot that starts over needs its parts again
        if not self._choose_ready(reduction):
            return  # they do not fit together
        if self.could_finish(reduction):
            self._advance(reduction)
        elif not self._may_be_complete(reduction):
            self._fail(reduction, self._shortage(reduction))

    def _advance(self, reduction: Reduction) -> None:
        """Bind what can be bound."""
        if self._all_inline(reduction):
            self._combine_inline(reduction)
            return
        for slot in reduction.tops():
            if (failure := self.binder.ensure(reduction, slot)) is not None:
                self._fail(reduction, failure, ReductionState.GIVEN_UP)
                return
        self._seal_if_decided(reduction)

    def output_changed(self, reduction: Reduction, slot: Slot, broadcast: Broadcast | None) -> None:
        """Something about the slot, its output or what goes into it has changed."""
        self.binder.settle_slot(reduction, slot, broadcast)
        if slot is reduction.root or slot.parent is reduction.root:
            self._seal_if_decided(reduction)
        if slot is reduction.root:
            self.binder.ensure_assembler(reduction, slot)

    def unfit(self, reduction: Reduction, member: Member, unfit: Unfit) -> None:
        """The node that was to combine some of it says that the operation is undefined: the user gets this error, and
        no retry helps."""
        slot = reduction.slots.get(unfit.version.ref)
        combines = slot is not None and slot.host is member and slot.version == unfit.version
        if combines or (member.node == reduction.inline_host and unfit.version == reduction.inline_version):
            failure = Failure(FailureKind.INVALID, unfit.detail, unfit.remedy, reduction.target)
            self._fail(reduction, failure, ReductionState.GIVEN_UP)

    def adopt(self, reduction: Reduction, reports: dict[bytes, tuple[SlotReport, Member]]) -> bool:
        """Continue with the slots that an earlier directory made, if they are complete. Sources that were chosen and
        not bound to a slot are chosen again."""
        named = {part.ref for report, _ in reports.values() for part in report.bind.parts}
        reduction.seen |= named & set(reduction.spec.sources)  # they were ready once
        whole = whole_of(self._table, reduction.spec, reports)
        if whole is None:
            return False
        reduction.chosen, reduction.slots = whole.chosen, whole.slots
        reduction.root = whole.slots.get(reduction.target)
        self._take_form(reduction, whole.size, whole.layout)
        self.binder.lay(reduction, reduction.slots.values())
        for ref, slot in reduction.slots.items():
            slot.height = 1 + max((below.height for below in reduction.below(slot)), default=0)
            assert slot.host is not None
            for part in slot.parts:
                if part not in slot.consumed and self.binder.feed(part, slot.host, ref, slot.start):
                    slot.consumed.add(part)
        tops = [slot for slot in reduction.slots.values() if slot.parent is None and slot is not reduction.root]
        reduction.terms = [(slot.ref, slot.height) for slot in tops]
        return True

    def node_lost(self, reduction: Reduction, node: NodeId) -> None:
        if node == reduction.inline_host:
            self._restart(reduction)

    def retry(self, reduction: Reduction) -> None:
        """The user asks again for a reduction that failed for good."""
        if reduction.state is ReductionState.GIVEN_UP:
            self._reopen(reduction)
            self._world.marks.reductions[reduction.target] = None

    def awaited(self, record: Record) -> None:
        """A node asked for the target. If that failed, the node hears so, unless what else it said helps the target."""
        if record.reduction is not None and record.reduction.failure is not None:
            self._world.marks.reductions[record.reduction.target] = None

    # --- choosing ------------------------------------------------------------------------------------------------

    def _note_ready(self, reduction: Reduction) -> None:
        for ref in reduction.spec.sources:
            deleted = self._table.is_deleted(ref)
            ready = self._table.is_ready(ref)
            if ready or deleted:
                reduction.seen.add(ref)  # also when its tombstone is over
            if ready and (not deleted or ref in reduction.chosen):  # else only others may still use it
                reduction.ready.setdefault(ref)
            else:
                reduction.ready.pop(ref, None)

    def may_come(self, reduction: Reduction, ref: bytes) -> bool:
        """Whether a source can still become ready. A deleted one is not put again, but until its receivers have
        reported, one of them may have all that is needed."""
        if ref in reduction.chosen and self._table.is_deleted(ref):
            return self._table.tree_of(reduction.chosen[ref]) is not None
        return self._table.may_come(ref, seen=ref in reduction.seen)

    def could_finish(self, reduction: Reduction) -> bool:
        """Enough sources are in, ready, or still to come."""
        hopeful = 0
        for ref in reduction.spec.sources:
            hopeful += ref in reduction.ready or self._is_in(reduction, ref) or self.may_come(reduction, ref)
        return hopeful >= reduction.spec.count

    def _may_be_complete(self, reduction: Reduction) -> bool:
        """The root's host died, and a getter of the target may have all of it; likewise for every stripe."""
        if reduction.root is None:
            return False
        makers = reduction.makers(reduction.root)
        return all(self._may_have_all(slot) for slot in makers)

    def _may_have_all(self, slot: Slot) -> bool:
        broadcast = self._table.tree(slot.ref)
        return slot.host is None and broadcast is not None and not broadcast.is_lost()

    def _is_in(self, reduction: Reduction, ref: bytes) -> bool:
        """Chosen, and not needed any more: its bytes are in a slot that has them."""
        if ref not in reduction.chosen or not self._table.is_decided_as(reduction.chosen[ref]):
            return False
        slots = self.builder.slots_with(reduction, ref)
        return bool(slots) and all(self._is_in_above(reduction, ref, slot) for slot in slots)

    def _is_in_above(self, reduction: Reduction, part: bytes, slot: Slot) -> bool:
        above: Slot | None = slot
        while above is not None:
            if self._has_all_of(reduction, above, part) or self._table.has_copy(above.ref):
                return True
            part, above = above.ref, above.parent
        return False

    def _has_all_of(self, reduction: Reduction, slot: Slot, part: bytes) -> bool:
        """Whether the part is not needed any more for the slot's output."""
        return self.hosts.has_taken(reduction, slot, part) and self.hosts.is_above(reduction, slot, slot.available_from)

    def _choose_ready(self, reduction: Reduction) -> bool:
        """Choose ready sources until there are enough; those of one node share a slot. False if one does not fit."""
        if reduction.state is not ReductionState.OPEN:
            return False
        batch: dict[NodeId, list[bytes]] = {}
        chosen_before = len(reduction.chosen)
        for ref in reduction.ready:
            if len(reduction.chosen) == reduction.spec.count:
                break
            if ref in reduction.chosen:
                continue
            if not self._fits(reduction, ref):
                return False
            reduction.chosen[ref] = self._table.version_of(ref)
            batch.setdefault(self._table.home_of(ref), []).append(ref)
            self._world.tell(
                reduction.target, "chose {} as {} of {}", short(ref), len(reduction.chosen), reduction.spec.count
            )
        each_alone = not chosen_before and len(batch) == reduction.spec.count
        if each_alone and (count := self.choose_stripes(reduction)) > 1:
            reduction.turn = self._versions.next_turn()
            ring = [(refs[0], node) for node, refs in batch.items()]
            self.binder.lay(reduction, self.builder.build_stripes(reduction, ring, count))
            self._world.tell(reduction.target, "built in {} stripes", len(reduction.tops()[0].parts))
        else:
            self.binder.lay(reduction, self.builder.add_groups(reduction, batch))
        return True

    def choose_stripes(self, reduction: Reduction) -> int:
        """More than one if it saves time, and all sources are ready: complete, decided, and not so small that they live
        in the directory."""
        if reduction.no_stripes or not all(
            self._table.has_copy(ref) and not self._table.is_undecided(ref) and self._table.inline_of(version) is None
            for ref, version in reduction.chosen.items()
        ):
            return 1
        bandwidth = self._table.members.bandwidth()
        return choose_stripes(reduction.size, reduction.spec.count, bandwidth, self._world.settings)

    def _take_form(self, reduction: Reduction, size: int, layout: bytes) -> None:
        reduction.size, reduction.layout = size, layout
        bandwidth = self._table.members.bandwidth()
        reduction.degree = choose_degree(size, reduction.spec.count, bandwidth, self._world.costs)

    def _fits(self, reduction: Reduction, ref: bytes) -> bool:
        """The first ready source fixes the size and layout of all."""
        size, layout = self._table.form_of(ref)
        if not reduction.chosen:
            self._take_form(reduction, size, layout)
            return True
        if (size, layout) == (reduction.size, reduction.layout):
            return True
        why = self._world.difference(reduction.layout, layout)
        if why is None and size == reduction.size:
            return True
        first = next(iter(reduction.chosen))
        how = why if why is not None else f"they have {reduction.size} and {size} bytes"
        detail = f"its sources {short(first)} and {short(ref)} cannot be combined: {how}"
        remedy = "reduce objects of one shape and dtype, all in C or all in Fortran order (numpy.ascontiguousarray)"
        failure = Failure(FailureKind.INVALID, detail, remedy, reduction.target)
        self._fail(reduction, failure, ReductionState.GIVEN_UP)
        return False

    # --- sources that are lost ----------------------------------------------------------------------------------

    def _replace_lost(self, reduction: Reduction) -> bool:
        """A chosen source that is not what it was, and whose bytes are still needed, is updated or replaced. True if a
        slot starts over for it."""
        renewed = False
        for ref, version in list(reduction.chosen.items()):
            if (ref in reduction.ready and self._table.version_of(ref) == version) or self._is_in(reduction, ref):
                continue
            if ref not in reduction.ready and self.may_come(reduction, ref):
                continue  # it is not known to be lost
            slots = self.builder.slots_with(reduction, ref)
            others = (source for source in reduction.ready if source not in reduction.chosen)
            spare = ref if ref in reduction.ready else next(others, None)
            if spare is None:
                continue  # a spare may come
            if not self._fits(reduction, spare):
                return False
            self._world.tell(reduction.target, "{} takes the place of {}", short(spare), short(ref))
            self._replace(reduction, ref, spare)
            for slot in slots:
                self._renew(slot)
                slot.parts = [spare if part == ref else part for part in slot.parts]
                slot.prefers = self._table.home_of(spare)
            if slots:
                renewed = True
                continue
            if reduction.held is not None and ref in reduction.held[0]:
                held = [spare if part == ref else part for part in reduction.held[0]]
                reduction.held = (held, self._table.home_of(spare))
            else:
                reduction.terms = [(spare if term == ref else term, height) for term, height in reduction.terms]
        return renewed

    def _replace(self, reduction: Reduction, ref: bytes, spare: bytes) -> None:
        """Keep the order of choice: contributors are listed in it, and the result has the layout of the first."""
        if ref == next(iter(reduction.chosen)):
            _, reduction.layout = self._table.form_of(spare)
        before, new = reduction.chosen, (spare, self._table.version_of(spare))
        reduction.chosen = dict(new if source == ref else (source, version) for source, version in before.items())
        self._versions.release_sources(before)

    def _renew(self, slot: Slot) -> None:
        """The slot's parts have changed: it and everything above begins a new version."""
        above: Slot | None = slot
        while above is not None:
            self.binder.end_output(above)
            above = above.parent

    # --- small objects -------------------------------------------------------------------------------------------

    def _all_inline(self, reduction: Reduction) -> bool:
        if reduction.inline_version is not None:
            return True
        if len(reduction.chosen) < reduction.spec.count or not self._versions.has_inline_room(reduction.size):
            return False
        return all(self._table.inline_of(version) is not None for version in reduction.chosen.values())

    def _combine_inline(self, reduction: Reduction) -> None:
        """The bytes are all here, and are combined here; if they are many, one node does it and sends back the
        result."""
        if reduction.inline_version is not None:
            return
        if self._is_quick(reduction):
            self.binder.drop_slots(reduction)
            self._world.emit(CombineBytes(*self._begin_inline(reduction)))
        elif (host := self._inline_host(reduction)) is not None:
            self.binder.drop_slots(reduction)
            self._combine_at(reduction, host)
        else:  # keep the slots: by then there may be no room for the result here
            self._world.timers.set(("reduce", reduction.target), self._world.now + self._world.settings.declined)

    def _is_quick(self, reduction: Reduction) -> bool:
        layout = len(reduction.layout)
        work = max(reduction.size, layout * _WORK_OF_LAYOUT) * len(reduction.chosen)
        return work <= _COMBINED_HERE and layout <= _LAYOUT_COMBINED_HERE

    def _begin_inline(self, reduction: Reduction) -> tuple[Version, bytes, Operation, tuple[bytes, ...], int]:
        """What is to be combined, as a version of its own."""
        reduction.inline_version = self._versions.new_version(reduction.target)
        parts = tuple(self._table.inline_of(version) or b"" for version in reduction.chosen.values())
        divisor = self.binder.divisor(reduction, None)
        return reduction.inline_version, reduction.layout, reduction.spec.op, parts, divisor

    def _inline_host(self, reduction: Reduction) -> Member | None:
        """The node that is to combine small objects: the requester's, or any other."""
        requester = self._table.members.get(reduction.requester)
        if requester is not None and requester.usable():
            return requester
        return next((member for member in self._table.members if member.usable()), None)

    def _combine_at(self, reduction: Reduction, host: Member) -> None:
        reduction.inline_host = host.node
        self._table.involve(reduction.record, host)
        self._world.send(host.node, CombineInline(*self._begin_inline(reduction)))

    def inline_result(self, reduction: Reduction, member: Member, combined: CombinedInline) -> None:
        """A node has combined small objects."""
        if member.node == reduction.inline_host:
            keeper = member if combined.kept else None
            self._take_result(reduction, combined.version, combined.data, keeper)

    def combined_here(self, reduction: Reduction, combined: CombinedBytes) -> None:
        if reduction.inline_host is None:
            self._take_result(reduction, combined.version, combined.data, None)

    def _take_result(self, reduction: Reduction, version: Version, data: bytes, keeper: Member | None) -> None:
        if version != reduction.inline_version or len(data) != reduction.size:
            return
        if not self._versions.has_inline_room(len(data)):
            self._restart(reduction)  # others were quicker: combine it where objects live
            return
        self._versions.begin_inline(reduction.record, version, reduction.layout, data)
        if keeper is not None:
            self._table.live_tree(reduction.target).add_copy(keeper)
        self._finish(reduction)
        if not reduction.record.has_copy():
            self._hand_to_any(reduction.record)

    def combine_failed(self, reduction: Reduction, failed: CombineFailed) -> None:
        """What cannot be combined here a node may be able to: a directory need not have the libraries for every type.
        Only if a node cannot either, the user gets the error."""
        if failed.what != reduction.inline_version or reduction.inline_host is not None:
            return
        if (host := self._inline_host(reduction)) is not None:
            self._combine_at(reduction, host)
        else:
            self._fail(reduction, replace(failed.failure, ref=reduction.target), ReductionState.GIVEN_UP)

    def _hand_to_any(self, record: Record) -> None:
        """Nobody who asked for the target can keep it: another node does, preferably one that stays, so that it
        outlives this directory."""
        usable = (member for member in self._table.members if member.usable())
        keeper = min(usable, key=lambda member: member.retiring, default=None)
        if keeper is not None:
            self.hand_over(record, keeper)

    def hand_over(self, record: Record, member: Member) -> None:
        """The target is decided or cancelled, and a node that asked for it hears so. If it is small, that comes with
        its bytes: the node will probably get it, and keeps it in case this directory is lost."""
        node, tree = member.node, record.broadcast
        inline, origin = (None, None) if tree is None else (tree.inline, tree.origin)
        if tree is None or inline is None or origin is None or record.deleted:
            self._world.send(node, Over(record.ref))
        elif node in tree.copies or not member.connected:
            self._world.send(node, Over(record.ref))  # it has it, or says with its next `Join` that it does not
        else:
            self._world.send(node, Result(tree.version, tree.layout, inline, origin))
            self._table.involve(record, member)
            record.waiting.pop(node, None)
            tree.add_copy(member)

    # --- the end -------------------------------------------------------------------------------------------------

    def _seal_if_decided(self, reduction: Reduction) -> None:
        """Seal a complete root, unless a source of it could still get another version. A host that still works has all
        the bytes that a getter has, and will report next; it is not interrupted."""
        root = reduction.root
        if root is None or root.version is None or not self._table.has_copy(root.ref):
            return
        makers = reduction.makers(root)
        for slot in makers:
            if slot.host is not None and not self._table.has_part(slot.ref, slot.host.node, complete=True):
                return
        if not any(self._table.is_undecided(ref) for ref in reduction.chosen):
            self._seal(reduction)

    def _seal(self, reduction: Reduction) -> None:
        broadcast = reduction.record.broadcast
        assert broadcast is not None
        broadcast.sealed = True
        self._world.tell(reduction.target, "{} is sealed", broadcast.version)
        self._finish(reduction)

    def _finish(self, reduction: Reduction) -> None:
        """The target is an ordinary object now; its slots end."""
        reduction.move(ReductionState.DECIDED)
        broadcast = reduction.record.broadcast
        assert broadcast is not None
        origin = Origin(reduction.spec, tuple(reduction.chosen.values()))
        self._versions.decide(reduction.record, origin)
        for node in broadcast.copies:
            reduction.record.waiting.pop(node, None)
        for node in broadcast.nodes():
            self._world.send(node, Sealed(broadcast.version, origin))
        if reduction.root is not None and reduction.root.host is not None:
            self.binder.stop_feeding(reduction.root, reduction.root.host)  # of an empty object nothing need have come
        reduction.record.reduction = reduction.record.slot = None
        self._world.timers.cancel(("reduce", reduction.target))
        self.binder.drop_slots(reduction, keep=[reduction.target, *stripes.outlive(self._table, reduction.record)])
        self.ended(reduction)

    def _fail(self, reduction: Reduction, failure: Failure, state: ReductionState = ReductionState.FAILED) -> None:
        reduction.move(state)
        reduction.failure = failure
        self._world.tell(reduction.target, "failed: {}", failure.detail)
        self._world.failed(reduction.target, failure)
        self._fail_waiters(reduction, failure)
        self.tear_down(reduction)
        reduction.record.waiting.clear()  # they were told

    def _fail_waiters(self, reduction: Reduction, failure: Failure) -> None:
        record = reduction.record
        getters = [key for key in record.broadcast.receivers if not isinstance(key, tuple)] if record.broadcast else []
        for node in dict.fromkeys([*record.waiting, *getters]):
            self._world.send(node, Failed(record.ref, failure))
        record.waiting.clear()
        self._table.tell_ready(record)
        self._table.fail_askers(record, failure)
        self._world.mark(record.ref)

    def ended(self, reduction: Reduction) -> None:
        """Decided or cancelled: its sources are free, and those deleted meanwhile go."""
        if reduction.state is not ReductionState.DECIDED:
            reduction.move(ReductionState.CANCELLED)
        target = reduction.record
        for node in reduction.requesters:
            if (member := self._table.members.get(node)) is not None:
                self.hand_over(target, member)
        if target.contributors is not None:
            for node, call in target.askers:
                self._world.send(node, Contributors(call, tuple(target.contributors)))
            target.askers.clear()
        for ref in reduction.spec.sources:
            record = self._table.records.get(ref)
            if record is None:
                continue
            record.consumers.pop(target.ref, None)
            self._versions.release_sources([ref])
            self._world.mark(ref)
        self._world.mark(target.ref)

    def _restart(self, reduction: Reduction) -> None:
        self.tear_down(reduction)
        self._world.marks.reductions[reduction.target] = None

    def _reopen(self, reduction: Reduction) -> None:
        """A missing source has been put again: start over."""
        reduction.move(ReductionState.OPEN)
        reduction.failure = None
        self._world.tell(reduction.target, "reopened")
        self._world.mark(reduction.target)  # reductions made from it may continue

    def _shortage(self, reduction: Reduction) -> Failure:
        spec = reduction.spec
        gone = [ref for ref in spec.sources if not self.may_come(reduction, ref)]
        deleted = [ref for ref in gone if self._table.is_deleted(ref)]
        lost = [ref for ref in gone if ref not in deleted]
        detail = f"only {len(spec.sources) - len(gone)} of its sources are left and it needs {spec.count}"
        for what, refs in (("lost", lost), ("deleted", deleted)):
            detail += f"; {what}: {', '.join(map(short, refs[:8]))}" if refs else ""
        remedy = "put a lost source again; the reduction then goes on"
        if len(spec.sources) - len(deleted) < spec.count:
            remedy = "reduce other sources into another ref: deleted objects do not come back"
        return Failure(FailureKind.LOST, detail, remedy, reduction.target)

    def tear_down(self, reduction: Reduction) -> None:
        """All work for the target stops."""
        self.binder.drop_slots(reduction)
        chosen, reduction.chosen = reduction.chosen, {}
        self._versions.release_sources(chosen)
        reduction.terms.clear()
        reduction.held = None
        reduction.inline_version = reduction.inline_host = None
        self._world.timers.cancel(("reduce", reduction.target))
