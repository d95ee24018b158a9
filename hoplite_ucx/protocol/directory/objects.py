"""The life of objects: how a put becomes a version, how it is got, and how it ends. `settling` decides what follows."""

import itertools

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.reduce.reduction import Reductions
from hoplite_ucx.protocol.directory.refusals import invalid, refuse_put
from hoplite_ucx.protocol.directory.spread import stripes
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.spread.cutting import share_if_placed
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import SendNode
from hoplite_ucx.protocol.ids import NodeId, label
from hoplite_ucx.protocol.lookups import Absent, Answer, Found
from hoplite_ucx.protocol.messages import (
    MAX_DESCRIBED_HOLDERS,
    MAX_DESCRIBED_LAYOUT,
    Bind,
    Completed,
    Copy,
    Description,
    Drop,
    Failed,
    ObjectState,
    Origin,
    Partial,
    Put,
    PutAccepted,
    PutRefused,
    Sealed,
)


class Objects:
    def __init__(self, table: Table, versions: Versions, reductions_type: type[Reductions]) -> None:
        self._table = table
        self._versions = versions
        self._world = table.world
        self._members = table.members
        self.reductions = reductions_type(table, versions)

    # --- how a version begins ----------------------------------------------------------------------------------

    def offer(self, member: Member, put: Put) -> None:
        """A put begins a version, or is answered with the existing one, or waits for the outcome of that one."""
        refusal = refuse_put(self._table, put)
        if refusal is not None:
            self._world.send(member.node, PutRefused(put.call, refusal))
            return
        record = self._table.record(put.ref)
        self._table.involve(record, member)
        broadcast = record.broadcast
        if broadcast is None and not self._world.recovering:
            self._begin(record, member, put)
        elif broadcast is not None and record.put == (member.node, put.call):
            self._world.send(member.node, PutAccepted(put.call, broadcast.version, existing=False))
        elif broadcast is not None and broadcast.complete():
            self._world.send(member.node, PutAccepted(put.call, broadcast.version, existing=True))
        elif (member.node, put) not in record.deferred:
            record.deferred.append((member.node, put))

    def _begin(self, record: Record, member: Member, put: Put) -> None:
        broadcast = self._versions.begin_put(record, member, put)
        version = broadcast.version
        self._world.tell(put.ref, "{} put {} of {} bytes", label(member.node), version, put.size)
        if put.data is not None:
            broadcast.add_copy(member)
        else:
            broadcast.produce(member)
        self._world.emit(SendNode(member.node, PutAccepted(put.call, version, existing=False), patient=put.told))

    def revive(self, member: Member, found: Copy | Partial | Bind, *, sealed: bool, origin: Origin | None) -> None:
        """A survivor of an earlier directory has bytes of a version: the version continues, unless there is a higher
        one."""
        version = found.version
        known = self._table.records.get(version.ref)
        current = known.broadcast if known is not None else None
        if version.incarnation >= self._world.incarnation or self._table.is_deleted(version.ref):
            return
        if known is not None and current is not None and current.version >= version:
            if current.version == version and sealed and not current.sealed and self._world.recovering:
                self._note_seal(known, origin)  # others did not know yet
            return
        if not self._world.recovering and not (sealed and self._gives_way(known)):
            return  # it comes too late: what was undecided is made anew
        record = self._table.record(version.ref)
        if current is not None:
            stripes.end(self._table, current)
        self._table.reset(record)
        record.broadcast = self._versions.tree(version, found.size, found.layout, member.nic.up)
        record.broadcast.sealed = False
        self._table.involve(record, member)
        self._world.tell(version.ref, "{} is known again from {}", version, label(member.node))
        if record.reduction is None:
            record.put = record.spec = record.contributors = record.decided = None
        self.reductions.binder.known_again(record)
        self._world.mark(record.ref)
        if sealed:
            self._note_seal(record, origin)

    def _gives_way(self, record: Record | None) -> bool:
        """Whether a decided version that comes late is accepted. A reduction that was started again without it stops,
        unless it already has a version of its own."""
        reduction = record.reduction if record is not None else None
        if record is None or reduction is None:
            return True
        if reduction.record is not record or record.broadcast is not None:
            return False
        self.reductions.tear_down(reduction)
        return True

    def _note_seal(self, record: Record, origin: Origin | None) -> None:
        """A survivor knows that the version was decided before us."""
        broadcast = record.broadcast
        assert broadcast is not None
        broadcast.sealed = True
        for node in broadcast.nodes():
            self._world.send(node, Sealed(broadcast.version, origin))
        if origin is not None:
            self._versions.decide(record, origin)
        else:  # it was put: a reduction into it was requested in error
            record.spec = record.contributors = record.decided = None
            self._table.fail_askers(record, invalid(record.ref, "it is not the target of a reduction"))
        if record.reduction is not None:
            reduction, record.reduction = record.reduction, None
            self.reductions.ended(reduction)
        self._world.mark(record.ref)

    # --- how it is got -----------------------------------------------------------------------------------------

    def completed(self, member: Member, held: Completed | Copy, *, joining: bool = False) -> None:
        """A node reports that it has every byte."""
        version = held.version
        broadcast = self._table.current(member, version)
        if broadcast is None:
            return
        record = self._table.records[version.ref]
        node, host = member.node, record.slot.host if record.slot is not None else None
        known = node in broadcast.copies or node in broadcast.receivers or broadcast.producer == node or host is member
        if not known and not joining:
            self._world.send(member.node, Drop(version))  # the message crossed this one
            return
        if node == broadcast.producer and broadcast.start and not joining:
            self._world.blame(node, version.ref, f"it makes {version} from {broadcast.start} on, and has not all of it")
            return
        if record.deleted and node not in broadcast.copies and node != broadcast.producer:
            self._world.send(member.node, Drop(version))  # only those who had it, or made it, keep it for reductions
            return
        self._table.involve(record, member)
        if broadcast.sealed:
            record.waiting.pop(member.node, None)
        broadcast.add_copy(member)
        if broadcast.cut:
            share_if_placed(self._table, broadcast, member)

    def look(self, ref: bytes) -> Answer:
        """The bytes, if a want would be answered with them now."""
        record = self._table.records.get(ref)
        if record is None or record.deleted or record.reduction is not None:
            return Absent(ref)
        broadcast = record.broadcast
        if broadcast is None or broadcast.inline is None or not broadcast.sealed or self._world.recovering:
            return Absent(ref)
        return Found(broadcast.version, broadcast.layout, broadcast.inline)

    def describe(self, ref: bytes) -> Description:
        """What users may know of a ref. This changes nothing."""
        state, record = self._table.state_of(ref), self._table.records.get(ref)
        broadcast = self._table.tree(ref)
        if record is None or broadcast is None or state not in (ObjectState.READY, ObjectState.COMING):
            return Description(ref, state)
        putter = self._members.get(record.put[0]) if record.put is not None else None
        seen = broadcast.version.incarnation == self._world.incarnation
        holders = itertools.islice(broadcast.copies.values(), MAX_DESCRIBED_HOLDERS)
        return Description(
            ref,
            state,
            broadcast.size,
            broadcast.layout if len(broadcast.layout) <= MAX_DESCRIBED_LAYOUT else b"",
            broadcast.inline is not None,
            len(broadcast.copies),
            tuple(holder.address for holder in holders),
            putter.address if putter is not None else None,
            max(0.0, self._world.now - broadcast.began) if seen else None,
        )

    def serve(self, record: Record, member: Member) -> None:
        """Answer a want with the bytes or a place in the tree, or let it wait."""
        broadcast = record.broadcast
        if broadcast is None or self.waits_outside(record, broadcast, member):
            record.waiting[member.node] = member
            self.reductions.awaited(record)
        elif broadcast.inline is not None:
            broadcast.give(member)
        else:
            broadcast.want(member)

    def waits_outside(self, record: Record, broadcast: Broadcast, member: Member) -> bool:
        """Whether a want has no place in the tree: its node makes the object itself, and its own gets find it; or the
        version has no root yet, or is dying while the next one is already offered."""
        if broadcast.producer == member.node or member.node in broadcast.copies:
            return True
        return not broadcast.has_root() and (bool(record.deferred) or not broadcast.sealed)

    # --- how it ends -------------------------------------------------------------------------------------------

    def offer_deferred(self, record: Record) -> None:
        """What the puts waited for is over: the first of them begins a version."""
        deferred, record.deferred = record.deferred, []
        for node, put in deferred:
            self.offer(self._members[node], put)

    def bury(self, record: Record) -> None:
        """From now on it is deleted, for as long as a tombstone lasts."""
        record.deleted = True
        self._table.tombstones.add(record.ref, undecided=record.reduction is not None)
        if self._table.tombstones.overflow():
            self.forget_tombstones()

    def forget_tombstones(self) -> None:
        """Deleted refs whose time is over may be used again, unless a reduction still needs a hidden version, or has
        bytes of one that was never decided."""
        for ref, undecided in self._table.tombstones.pop_over():
            record = self._table.records.get(ref)
            if record is not None and (record.broadcast is not None or (undecided and record.is_chosen())):
                self._table.tombstones.add(ref, undecided=undecided)
            elif record is not None:
                record.deleted = False
                self._world.mark(ref)

    def hide(self, record: Record, failure: Failure, told: list[NodeId]) -> None:
        """Gets do not see it any more, but the reductions that chose it still need its bytes."""
        broadcast = record.broadcast
        assert broadcast is not None
        getters = [key for key in broadcast.receivers if not isinstance(key, tuple)]
        for node in dict.fromkeys([*told, *getters]):
            self._world.send(node, Failed(record.ref, failure))
        for node in getters:
            broadcast.remove(node)
            self._world.send(node, Drop(broadcast.version))
