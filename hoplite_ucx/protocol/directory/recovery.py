"""How a new directory learns from the nodes of an earlier one what exists.

The directory's state is soft: nodes announce the versions they hold, what they receive and from whom, their slots, what
they asked for and what they deleted. For one lease after its start, or until as many nodes have come as there were, the
directory only listens. It takes up copies, streams and slots as they are announced, and serves gets from them, but
declares nothing lost, replaces no source, begins no version for a put and deletes nothing. Then it decides: complete
sets of slots continue, incomplete ones end, streams whose senders did not come are placed again, and postponed work is
done. A running stream does not notice.

Numbers and versions of an incarnation are above those of every earlier one, so that "the newest wins" still holds. A
node that comes later keeps decided versions that no other node has; it is told to drop the rest.
"""

from collections.abc import Callable
from graphlib import TopologicalSorter

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.objects import Objects
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.refusals import lost
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.messages import Ask, Delete, Describe, Drop, Join, Poll, Reduce, Sealed, SlotReport, Tombstone


class Recovery:
    def __init__(self, table: Table, versions: Versions, objects: Objects) -> None:
        self._table = table
        self._versions = versions
        self._objects = objects
        self._world = table.world
        self.reset()

    def reset(self) -> None:
        """Nothing is heard yet, or all of it is decided."""
        self._slots: dict[bytes, dict[bytes, tuple[SlotReport, Member]]] = {}  # by target and by the slot's ref
        self.tombstones: dict[bytes, tuple[Tombstone, Member]] = {}
        self.postponed: list[tuple[NodeId, Delete | Ask | Describe | Poll]] = []
        self._expected = (0, 0)  # the last directory that any node knew, and how many nodes it had
        self._heard: set[NodeId] = set()

    # --- while nodes are heard ---------------------------------------------------------------------------------

    def hear(self, member: Member, join: Join) -> None:
        """Take up what a survivor of an earlier directory announces, before it is compared with what is known."""
        for copy in (*join.copies, *join.producing):
            if not copy.piece:
                self._objects.revive(member, copy, sealed=copy.sealed, origin=copy.origin)
        if self._world.recovering:
            for partial in join.partials:
                knows = partial.number or not partial.into  # what it waits for
                if knows and not partial.piece:
                    self._objects.revive(member, partial, sealed=partial.sealed, origin=partial.origin)
            self._heard.add(member.node)
            for report in join.slots:
                if report.bind.offset is None:  # stripes are built again
                    self._hear_slot(member, report)
            for tombstone in join.tombstones:
                known = self.tombstones.get(tombstone.ref)
                if known is None or known[0].incarnation < tombstone.incarnation:
                    self.tombstones[tombstone.ref] = (tombstone, member)

    def expect(self, join: Join) -> None:
        """Record how many nodes the earlier directory had."""
        if 0 < join.incarnation < self._world.incarnation:
            self._expected = max(self._expected, (join.incarnation, join.members))

    def population(self, members: int) -> int:
        """The number of nodes, as they are told it: nodes that have not come yet count until the decision; otherwise
        our own successor would not wait for them."""
        return max(members, self._expected[1]) if self._world.recovering else members

    def heard_all(self) -> bool:
        """Whether as many nodes have come as there were."""
        return len(self._heard) >= self._expected[1] > 0

    def _hear_slot(self, member: Member, report: SlotReport) -> None:
        """If two nodes were given the same slot, the later one has it."""
        bind = report.bind
        self._objects.revive(member, bind, sealed=False, origin=None)
        broadcast = self._table.tree_of(bind.version)
        if broadcast is None or broadcast.sealed:
            return  # comparing tells the node what to do with it
        record = self._table.records[bind.version.ref]
        slots = self._slots.setdefault(bind.target, {})
        rival = slots.get(record.ref)
        if rival is not None and rival[1] is not member:
            if rival[0].bind.number > bind.number:
                return
            self._end_slot(*rival)
        slots[record.ref] = (report, member)
        self._table.involve(record, member)
        if member.node not in broadcast.copies and broadcast.producer is None:
            self._versions.produce(record, member, bind.available_from)

    def _end_slot(self, report: SlotReport, host: Member) -> None:
        version = report.bind.version
        self._world.send(host.node, Drop(version))
        broadcast = self._table.tree_of(version)
        if broadcast is not None:
            broadcast.remove(host.node)
        for part in report.bind.parts:
            self._table.unfeed(part.ref, host.node, version.ref)

    def runs_slot(self, member: Member, ref: bytes) -> bool:
        return any(ref in slots and slots[ref][1] is member for slots in self._slots.values())

    def consumed(self, member: Member, part: bytes, slot: bytes) -> None:
        """A slot does not need a part any more."""
        for slots in self._slots.values():
            if slot in slots and slots[slot][1] is member:
                report = slots[slot][0]
                missing = tuple(version for version in report.missing if version.ref != part)
                slots[slot] = (SlotReport(report.bind, missing, report.undecided), member)

    def buries(self, tombstone: Tombstone) -> bool:
        """Whether the existing version of the ref is the one that was deleted, and not a later put."""
        record = self._table.records.get(tombstone.ref)
        if record is not None and record.broadcast is not None:
            return record.broadcast.version.incarnation <= tombstone.incarnation
        return record is None or record.reduction is None or self._world.recovering

    def is_buried(self, ref: bytes) -> bool:
        return ref in self.tombstones and self.buries(self.tombstones[ref][0])

    def forget(self, member: Member) -> None:
        """The node is gone, or announces itself again."""
        self._heard.discard(member.node)
        for slots in self._slots.values():
            for ref in [ref for ref, (_, host) in slots.items() if host is member]:
                del slots[ref]

    # --- when all had their chance -----------------------------------------------------------------------------

    def decide(self, begin: Callable[[Member, Reduce], None]) -> None:
        """Take up the reductions whose slots are complete; end slots that belong to nothing. `begin` makes a reduction
        that only its slots know."""
        for slots in self._slots.values():
            for report, host in slots.values():
                if report.bind.spec is not None:
                    begin(host, report.bind.spec)
        for record in self._targets_in_order():
            reduction = record.reduction
            assert reduction is not None
            slots_of = self._slots.get(record.ref, {})
            current = {ref: slot for ref, slot in slots_of.items() if self._table.tree_of(slot[0].bind.version)}
            if self._objects.reductions.adopt(reduction, current):
                self._world.tell(record.ref, "goes on as it was, with {} slots", len(reduction.slots))
            if reduction.root is None:
                self._table.reset(record)  # what there was of the target had another root
        for slots in self._slots.values():
            for report, host in slots.values():
                self._end_if_useless(report, host)
        for record in list(self._table.records.values()):
            self._tidy(record)

    def _end_if_useless(self, report: SlotReport, host: Member) -> None:
        """A slot that was not taken up ends; but if it made a version that others know as decided, its copy stays."""
        version = report.bind.version
        record, broadcast = self._table.records.get(version.ref), self._table.tree_of(version)
        if record is None or broadcast is None:
            self._end_slot(report, host)
        elif broadcast.sealed and host.node in broadcast.copies:
            self._world.send(host.node, Sealed(version, broadcast.origin))
        elif record.slot is None:
            self._end_slot(report, host)

    def _targets_in_order(self) -> list[Record]:
        """Targets that are sources of others come first."""
        targets = {ref: record for ref, record in self._table.records.items() if record.reduction is not None}
        made_from = {
            ref: [source for source in record.reduction.spec.sources if source in targets]
            for ref, record in targets.items()
            if record.reduction is not None
        }
        return [targets[ref] for ref in TopologicalSorter(made_from).static_order()]

    def _tidy(self, record: Record) -> None:
        broadcast = record.broadcast
        if broadcast is None:
            return
        broadcast.link_adopted()
        broadcast.halt_adopted()
        for key in [key for key in broadcast.receivers if isinstance(key, tuple)]:
            into = self._table.records.get(key[1])
            slot = into.slot if into is not None else None
            if slot is None or slot.host is None or slot.host.node != key[0] or record.ref in slot.consumed:
                broadcast.remove(key)
        if not broadcast.sealed and record.slot is None:
            self._world.tell(record.ref, "{} was undecided, and its reduction is unknown", broadcast.version)
            self._versions.end_version(record, lost(record.ref), also=record.waiting)
            record.waiting.clear()
