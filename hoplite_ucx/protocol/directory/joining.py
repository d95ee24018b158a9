"""Reconciles what a node announces in `Join` with what the directory knew of it before its session was lost.

What a node does not announce it does not have, and what it asked for it asks for again: the directory forgets both
first. Then it takes up the node's copies, partial streams, slots and unfinished puts where they can continue, and tells
the node to drop the rest. The handlers of the `Directory` take the calls that the node repeats.
"""

from collections.abc import Container, Iterable

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.objects import Objects
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.recovery import Recovery
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.ids import Version, receiver_key
from hoplite_ucx.protocol.messages import Drop, Join, Sealed, SlotReport


class Joining:
    def __init__(self, table: Table, objects: Objects, recovery: Recovery) -> None:
        self._table = table
        self._objects = objects
        self._reductions = objects.reductions
        self._world = table.world
        self._recovery = recovery

    def reconcile(self, member: Member, join: Join) -> None:
        """Make our knowledge of a node equal to what it announces. All of it is taken up before any of it decides
        anything."""
        survivor = 0 < join.incarnation < self._world.incarnation
        held = dict.fromkeys(copy.version for copy in (*join.copies, *join.producing))
        slots = {report.bind.version: report for report in join.slots}
        known = [self._table.records[ref] for ref in member.refs]
        self._forget_unannounced(member, join, known, {*held, *slots})
        self._recovery.forget(member)
        if survivor or (join.incarnation and self._world.recovering):  # it may come twice before anything is decided
            self._recovery.hear(member, join)
        self._reconcile_slots(member, slots, known, held)
        for copy in join.copies:
            self._objects.completed(member, copy, joining=True)
        self._readmit_partials(member, join, survivor=survivor)
        self._repeat_seals(member, [*held, *(partial.version for partial in join.partials)])
        for producing in join.producing:
            self._readmit_producer(member, producing.version)
        self._link_streams(member)
        for record in known:
            self._world.mark(record.ref)

    def _forget_unannounced(
        self, member: Member, join: Join, known: list[Record], announced: Container[Version]
    ) -> None:
        """What the node asked for, and what we thought it has and it does not announce."""
        node = member.node
        held = {copy.version for copy in (*join.copies, *join.producing)}
        received = {(partial.version, receiver_key(node, partial.into)) for partial in join.partials}
        offered = {(node, put.call) for put in join.puts}
        for record in known:
            record.forget_calls(node)
            if record.reduction is not None:  # its request to combine may not have reached it
                self._reductions.node_lost(record.reduction, node)
            broadcast = record.broadcast
            if broadcast is None:
                continue
            version = broadcast.version
            for key in broadcast.keys_of(node):
                if version not in held and (version, key) not in received:
                    broadcast.remove(key)
            if not (version in announced or (version, node) in received or record.put in offered):
                broadcast.remove(node)

    def _readmit_partials(self, member: Member, join: Join, *, survivor: bool) -> None:
        """Streams that run, and receivers that wait."""
        for partial in join.partials:
            if partial.into and not self._runs_slot(member, partial.into):
                continue  # it was told to drop the slot
            broadcast = self._table.current(member, partial.version)
            if broadcast is None:
                continue
            if self._table.is_deleted(partial.version.ref) and not partial.into:
                self._world.send(member.node, Drop(partial.version))  # only reductions that chose it still use it
            elif partial.watermark > broadcast.size:
                self._world.blame(member.node, partial.version.ref, f"watermark {partial.watermark} is beyond its size")
            else:
                self._table.involve(self._table.records[partial.version.ref], member)
                broadcast.readmit(member, partial, survivor=survivor)

    def _repeat_seals(self, member: Member, versions: Iterable[Version]) -> None:
        """The first message may have been lost."""
        for version in versions:
            tree = self._table.tree(version.ref)
            if tree is not None and self._table.became(version):
                self._world.send(member.node, Sealed(version, tree.origin))

    def _link_streams(self, member: Member) -> None:
        """Streams that run come before those that are possible."""
        for ref in member.refs:
            self._world.mark(ref)
            broadcast = self._table.records[ref].broadcast
            if broadcast is not None:
                broadcast.link_adopted()
                if not self._world.recovering:
                    broadcast.halt_adopted()

    def _reconcile_slots(
        self, member: Member, reports: dict[Version, SlotReport], known: list[Record], held: Container[Version]
    ) -> None:
        """Slots that both sides know continue; those that only we know are bound again; those that only the node knows
        end, unless the node has a complete copy of something that is still being made."""
        for record in known:
            slot, reduction = record.slot, record.reduction
            if slot is None or reduction is None or slot.host is not member or slot.version is None:
                continue
            report = reports.pop(slot.version, None)
            if report is not None and report.bind.number == slot.number:
                self._reductions.binder.resumed(slot, {version.ref for version in report.missing})
            else:
                self._reductions.binder.unbind(slot)
        for version in reports:
            useful = (self._table.tree_of(version) is not None and version in held) or self._table.became(version)
            if not useful and not self._recovery.runs_slot(member, version.ref):
                self._world.send(member.node, Drop(version))

    def _runs_slot(self, member: Member, ref: bytes) -> bool:
        record = self._table.records.get(ref)
        slot = record.slot if record is not None else None
        return self._recovery.runs_slot(member, ref) or (slot is not None and slot.bound and slot.host is member)

    def _readmit_producer(self, member: Member, version: Version) -> None:
        """A node that was declared dead during a put continues it, if it is still needed."""
        broadcast = self._table.current(member, version)
        if broadcast is None or broadcast.producer == member.node:
            return
        if broadcast.producer is not None or not broadcast.sealed or broadcast.inline is not None:
            self._world.send(
                member.node, Drop(version)
            )  # others make it, or we have it: offering it again changes nothing
            return
        # It continues even if others have it all by now: its last bytes, and that it has them, may be on their way to
        # us.
        broadcast.remove(member.node)
        self._table.involve(self._table.records[version.ref], member)
        broadcast.produce(member)
