"""The `Directory` machine: one entry point, one handler per message, and the life of a ref.

A ref is *pending* (nobody has put it; nodes may wait for it), *live* (it has a version, whose tree is a
`Broadcast`), or *deleted* (a tombstone that expires). A loss takes a live ref back to pending; a later put gives
it a new version. Small objects live here, in the answer itself, up to a total; beyond that they stream like others.

Handlers change state only after they have checked their message; what cannot be handled is answered with
`Rejected` and changes nothing.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.protocol.directory.broadcast import Broadcast
from hoplite_ucx.protocol.directory.invariants import check_directory
from hoplite_ucx.protocol.directory.members import Member, Members
from hoplite_ucx.protocol.directory.reduction import Reduction, Slot
from hoplite_ucx.protocol.directory.world import World
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    DirectoryEffect,
    DirectoryEvent,
    Disconnect,
    FromNode,
    Probed,
    SessionLost,
    Tick,
)
from hoplite_ucx.protocol.ids import NodeId, Version, label, receiver_key, short
from hoplite_ucx.protocol.messages import (
    PROTOCOL,
    Aborted,
    Alive,
    Ask,
    Bound,
    CombinedInline,
    Completed,
    Consumed,
    Contributors,
    Declined,
    Delete,
    Deleted,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Fenced,
    Halted,
    Heartbeat,
    Inline,
    Join,
    Leave,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    Reduce,
    Reduced,
    Rejected,
    Sealed,
    SlotReport,
    StreamFailed,
    StreamFault,
    ToDirectory,
    Unwant,
    Unwatch,
    Want,
    Watch,
    Welcome,
    malformed,
)
from hoplite_ucx.protocol.settings import Settings


@dataclass(slots=True)
class Record:
    """One ref. `waiting` holds the nodes that want it and have no place in a tree: while it has no version, and
    the node that is putting it, whose own gets are answered when its put is complete."""

    ref: bytes
    broadcast: Broadcast | None = None
    waiting: dict[NodeId, Member] = field(default_factory=dict)
    watchers: dict[NodeId, Member] = field(default_factory=dict)
    put: tuple[NodeId, int] | None = None
    """Whose call made the current version, so that a put sent twice is known as one."""
    deferred: list[tuple[NodeId, Put]] = field(default_factory=list)
    """Puts that arrived while the version was not complete and could still come to nothing."""
    deleted: bool = False
    nodes: dict[NodeId, Member] = field(default_factory=dict)
    """Every node that has to do with the ref; the other side of `Member.refs`."""
    reduction: Reduction | None = None
    """What makes the object, while it is not decided: it is the target, or the output of one of its slots."""
    slot: Slot | None = None
    consumers: dict[bytes, Reduction] = field(default_factory=dict)
    """Undecided reductions of which the ref is a source, by target."""
    spec: Reduce | None = None
    contributors: dict[bytes, Version] | None = None
    """What went into a target that is decided."""
    decided: Version | None = None
    """The version that a target became."""
    askers: dict[tuple[NodeId, int], None] = field(default_factory=dict)

    def idle(self) -> bool:
        return not (
            self.broadcast
            or self.waiting
            or self.watchers
            or self.deferred
            or self.deleted
            or self.reduction
            or self.consumers
            or self.askers
        )

    def pinned(self) -> bool:
        """Chosen by a reduction that is not decided: a delete hides it, and frees it later."""
        return any(reduction.uses(self.ref) for reduction in self.consumers.values())


class Directory:
    broadcast_type: type[Broadcast] = Broadcast
    reduction_type: type[Reduction] = Reduction

    def __init__(self, incarnation: int, cluster: str, settings: Settings | None = None) -> None:
        self.incarnation = incarnation
        self.cluster = cluster
        self.settings = settings or Settings()
        self.world = self._world = World(self.settings)
        self.members = Members(self._world)
        self.records: dict[bytes, Record] = {}
        self._starving: dict[bytes, None] = {}  # refs with receivers that have no sender
        self._unsettled: dict[bytes, None] = {}  # refs to look at before the event is over
        self._inline_total = 0
        self._counter = 0
        self._sweep_due = 0.0
        self._handlers: dict[type, Callable[[Member, Any], None]] = {
            Leave: self._on_leave,
            Heartbeat: self._on_heartbeat,
            Put: self._on_put,
            Completed: self._on_completed,
            Aborted: self._on_aborted,
            Want: self._on_want,
            Unwant: self._on_unwant,
            StreamFailed: self._on_stream_failed,
            Halted: self._on_halted,
            Declined: self._on_declined,
            Evict: self._on_evict,
            Watch: self._on_watch,
            Unwatch: self._on_unwatch,
            Delete: self._on_delete,
            Reduce: self._on_reduce,
            Ask: self._on_ask,
            Bound: self._on_bound,
            Consumed: self._on_consumed,
            CombinedInline: self._on_combined_inline,
        }

    def handle(self, event: DirectoryEvent, now: float) -> list[DirectoryEffect]:
        self._world.now = now
        match event:
            case FromNode(node, message):
                self._on_message(node, message)
            case SessionLost(node):
                if (member := self.members.get(node)) is not None:
                    self.members.session_lost(member)
            case Probed(node, accepted):
                member = self.members.get(node)
                if member is not None and self.members.probed(member, accepted, now):
                    self._declare_dead(member, "its port refused a connection")
            case Tick():
                self._on_tick()
        self._settle_all()
        if self._world.take_supply_change():
            for ref in list(self._starving):
                self._place_again(self.records[ref])
        return self._world.take_effects()

    def _settle_all(self) -> None:
        """What reductions let go of in passing: settled here, so that they are not changed while they are at work."""
        while self._unsettled:
            ref, _ = self._unsettled.popitem()
            if (record := self.records.get(ref)) is not None:
                self.settle(record)

    def wakeup(self) -> float | None:
        """When the shell must send a `Tick` at the latest."""
        return self._world.timers.next()

    def timers(self) -> list[Hashable]:
        """What this machine waits for, by key."""
        return list(self._world.timers)

    def story(self, ref: bytes) -> list[tuple[float, str]]:
        return self._world.stories.tell(ref)

    def check(self) -> None:
        check_directory(self)

    # --- members -----------------------------------------------------------------------------------------------

    def _on_message(self, node: NodeId, message: ToDirectory) -> None:
        if isinstance(message, Join):
            self._on_join(node, message)
            return
        member = self.members.get(node)
        if member is None:
            if self.members.is_fenced(node):
                self._world.send(node, Fenced(node))
            else:
                self._reject(node, FailureKind.STALE, f"{label(node)} has not joined", "join first")
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            self._world.send(node, Rejected(malformed(f"{type(message).__name__} is not for the directory")))
            return
        self.members.heard(member, self._world.now)
        handler(member, message)

    def _on_join(self, node: NodeId, join: Join) -> None:
        if join.protocol != PROTOCOL:
            detail, remedy = f"protocol {join.protocol} is not {PROTOCOL}", "run the same hoplite-ucx everywhere"
            self._reject(node, FailureKind.INVALID, detail, remedy)
        elif join.cluster != self.cluster:
            detail, remedy = f"this is cluster {self.cluster!r}, not {join.cluster!r}", "check the address"
            self._reject(node, FailureKind.INVALID, detail, remedy)
        elif join.node != node:
            self._reject(node, FailureKind.INVALID, f"{label(node)} joins as {label(join.node)}", "join as yourself")
        elif self.members.is_fenced(node):
            self._world.send(node, Fenced(node))
            self._world.emit(Disconnect(node))
        else:
            earlier = self.members.predecessor(join)
            if earlier is not None:
                self._declare_dead(earlier, f"{label(node)} has taken its place")
            member = self.members.join(join, self._world.now)
            if "sweep" not in self._world.timers:
                self._set_sweep()
            self._world.send(node, Welcome(self.incarnation, self.cluster, self.settings))
            self._reconcile(member, join)
            self._world.supply_changed()

    def _reconcile(self, member: Member, join: Join) -> None:
        """Make what we know of a node equal to what it announces; only what it asks for is answered."""
        node = member.node
        held = dict.fromkeys([*(copy.version for copy in join.copies), *join.producing])
        received = {(partial.version, receiver_key(node, partial.into)) for partial in join.partials}
        offered = {(node, put.call) for put in join.puts}
        slots = {report.version: report for report in join.slots}
        known = [self.records[ref] for ref in member.refs]
        for record in known:
            record.watchers.pop(node, None)
            record.waiting.pop(node, None)
            record.deferred = [(putter, put) for putter, put in record.deferred if putter != node]
            self._forget_askers(record, node)
            if record.reduction is not None:
                record.reduction.node_lost(node)  # what it was asked to combine may not have reached it
            broadcast = record.broadcast
            if broadcast is None:
                continue
            version = broadcast.version
            for key in broadcast.keys_of(node):
                if version not in held and (version, key) not in received:
                    broadcast.forget(key)
            kept = version in held or version in slots or (version, node) in received or record.put in offered
            if not kept:
                broadcast.remove(node)
        self._reconcile_slots(member, slots, known)
        for version in (copy.version for copy in join.copies):  # all of them, before one of them decides anything
            record_of = self.records.get(version.ref)
            current = record_of.broadcast if record_of is not None and not record_of.deleted else None
            if record_of is not None and current is not None and current.version == version:
                self.involve(record_of, member)
                current.add_copy(member)
        for copy in join.copies:
            self._on_completed(member, Completed(copy.version), joining=True)
        for partial in join.partials:
            if partial.into and not self._runs_slot(member, partial.into):
                continue  # it was told to drop the slot
            broadcast = self._current(member, partial.version)
            if broadcast is not None and partial.watermark > broadcast.size:
                self._reject_about(member, partial.version.ref, f"watermark {partial.watermark} is beyond its size")
            elif broadcast is not None:
                self.involve(self.records[partial.version.ref], member)
                broadcast.adopt(member, partial.watermark, partial.number, partial.into)
        for version in [*held, *(partial.version for partial in join.partials)]:
            record_of = self.records.get(version.ref)
            if record_of is not None and record_of.decided == version:
                self._world.send(node, Sealed(version))  # the first may have been lost
        for version in join.producing:
            self._readmit_producer(member, version)
        for put in join.puts:
            self._on_put(member, put)
        for ref in join.wants:
            self._on_want(member, Want(ref))
        self._watch(member, join.watches)
        for delete in join.deletes:
            self._on_delete(member, delete)
        for reduce in join.reduces:
            self._on_reduce(member, reduce)
        for ask in join.asks:
            self._on_ask(member, ask)
        for record in [*known, *(self.records[ref] for ref in member.refs)]:
            self.settle(record)

    def _reconcile_slots(self, member: Member, reports: dict[Version, SlotReport], known: list[Record]) -> None:
        """Slots that both sides know of go on; what only we know of is bound anew, what only the node knows of ends."""
        for record in known:
            slot, reduction = record.slot, record.reduction
            if slot is None or reduction is None or slot.host is not member or slot.version is None:
                continue
            report = reports.pop(slot.version, None)
            if report is not None and report.number == slot.number:
                reduction.resumed(slot, {version.ref for version in report.missing})
            else:
                reduction.host_lost(slot)
        for version in reports:
            record_of = self.records.get(version.ref)
            if record_of is None or record_of.decided != version:
                self._world.send(member.node, Drop(version))

    def _runs_slot(self, member: Member, ref: bytes) -> bool:
        record = self.records.get(ref)
        return record is not None and record.slot is not None and record.slot.bound and record.slot.host is member

    def _readmit_producer(self, member: Member, version: Version) -> None:
        """A node that was taken for dead in the middle of a put goes on with it, if it is still needed."""
        broadcast = self._current(member, version)
        if broadcast is None or broadcast.producer == member.node:
            return
        if broadcast.has_root() or member.node in broadcast.receivers:
            self._world.send(member.node, Drop(version))  # others have it all: offered again, it is a no-op
        else:
            self.involve(self.records[version.ref], member)
            broadcast.produce(member)

    def _on_leave(self, member: Member, _: Leave) -> None:
        self._remove_member(member, "left", fence=True)

    def _on_heartbeat(self, member: Member, heartbeat: Heartbeat) -> None:
        self._world.send(member.node, Alive())
        for progress in heartbeat.progress:
            record = self.records.get(progress.version.ref)
            if record is not None and record.broadcast and record.broadcast.version == progress.version:
                record.broadcast.advanced(receiver_key(member.node, progress.into), progress.watermark)

    def _on_tick(self) -> None:
        for key in self._world.timers.pop_due(self._world.now):
            match key:
                case "sweep":
                    self._sweep()
                case ("place", bytes() as ref):
                    self._place_again(self.records[ref])
                case ("tombstone", bytes() as ref):
                    self._tombstone_expired(self.records[ref])
                case ("reduce", bytes() as ref):
                    if (reduction := self.records[ref].reduction) is not None:
                        reduction.review()

    def _sweep(self) -> None:
        now = self._world.now
        late = max(0.0, now - self._sweep_due)
        for member in self.members.sweep(now, late):
            self._declare_dead(member, "its lease ran out")
        if len(self.members):
            self._set_sweep()

    def _set_sweep(self) -> None:
        self._sweep_due = self._world.now + self.settings.heartbeat
        self._world.timers.set("sweep", self._sweep_due)

    def _declare_dead(self, member: Member, why: str) -> None:
        self._remove_member(member, f"dead: {why}", fence=True)

    def _remove_member(self, member: Member, why: str, *, fence: bool) -> None:
        node = member.node
        touched = [self.records[ref] for ref in member.refs]
        for record in touched:
            self._world.tell(record.ref, "{} {}", label(node), why)
            record.watchers.pop(node, None)
            record.waiting.pop(node, None)
            record.nodes.pop(node, None)
            record.deferred = [(putter, put) for putter, put in record.deferred if putter != node]
            self._forget_askers(record, node)
            if record.broadcast is not None:
                record.broadcast.forget_node(node)
            if record.slot is not None and record.reduction is not None and record.slot.host is member:
                record.reduction.host_lost(record.slot)
        self.members.remove(member, fence=fence)
        for record in touched:
            if record.reduction is not None:
                record.reduction.node_lost(node)
        for record in touched:
            self.settle(record)

    # --- put ---------------------------------------------------------------------------------------------------

    def _on_put(self, member: Member, put: Put) -> None:
        refusal = self._refuse_put(put)
        if refusal is not None:
            self._world.send(member.node, PutRefused(put.call, refusal))
            return
        record = self.record(put.ref)
        self.involve(record, member)
        broadcast = record.broadcast
        if broadcast is None:
            self._begin(record, member, put)
        elif record.put == (member.node, put.call):
            self._world.send(member.node, PutAccepted(put.call, broadcast.version, existing=False))
        elif broadcast.complete():
            self._world.send(member.node, PutAccepted(put.call, broadcast.version, existing=True))
        elif (member.node, put) not in record.deferred:
            record.deferred.append((member.node, put))

    def _refuse_put(self, put: Put) -> Failure | None:
        record = self.records.get(put.ref)
        if record is not None and record.deleted:
            return _deleted(put.ref)
        if record is not None and record.reduction is not None:
            return Failure(FailureKind.INVALID, "it is the target of a reduction", "put under another ref", put.ref)
        if put.size > self.settings.max_object:
            detail = f"{put.size} bytes are over the limit of {self.settings.max_object}"
            return Failure(FailureKind.INVALID, detail, "put it in parts", put.ref)
        if put.data is not None and (len(put.data) != put.size or put.size > self.settings.inline_limit):
            detail = f"{len(put.data)} bytes came with the put of an object of {put.size}"
            return Failure(FailureKind.INVALID, detail, f"inline at most {self.settings.inline_limit}", put.ref)
        return None

    def _begin(self, record: Record, member: Member, put: Put) -> None:
        version = self.new_version(put.ref)
        inline = put.data
        if inline is not None and self._inline_total + put.size > self.settings.inline_total:
            inline = None
        broadcast = self.broadcast_type(self._world, self.members, version, put.size, put.layout, member.nic.up, inline)
        record.broadcast = broadcast
        record.put = (member.node, put.call)
        self._world.tell(put.ref, "{} put {} of {} bytes", label(member.node), version, put.size)
        if inline is not None:
            self._inline_total += put.size
        if put.data is not None:
            broadcast.add_copy(member)
        else:
            broadcast.produce(member)
        self._world.send(member.node, PutAccepted(put.call, version, existing=False))
        waiting, record.waiting = record.waiting, {}
        for waiter in waiting.values():
            self._serve(record, waiter)
        self._announce_if_ready(record)
        self.source_changed(record.ref)  # a reduction that gave up for want of it may hope again
        self._place(record)

    def _on_completed(self, member: Member, completed: Completed, *, joining: bool = False) -> None:
        broadcast = self._current(member, completed.version)
        if broadcast is None:
            return
        record = self.records[completed.version.ref]
        node, host = member.node, record.slot.host if record.slot is not None else None
        known = node in broadcast.copies or node in broadcast.receivers or broadcast.producer == node or host is member
        if not known and not joining:
            self._world.send(member.node, Drop(completed.version))  # it was told so before, and this crossed it
            return
        if record.deleted and member.node not in broadcast.copies:
            self._world.send(member.node, Drop(completed.version))  # only those who had it keep it for reductions
            return
        self.involve(record, member)
        if broadcast.sealed:
            record.waiting.pop(member.node, None)
        broadcast.add_copy(member)
        if record.slot is not None and record.reduction is not None:
            record.reduction.completed(record.slot)
        self._announce_if_ready(record)
        self.settle(record)

    def _on_aborted(self, member: Member, aborted: Aborted) -> None:
        broadcast = self._current(member, aborted.version)
        if broadcast is not None:
            broadcast.aborted = broadcast.producer == member.node
            broadcast.remove(member.node)
            self.settle(self.records[aborted.version.ref])

    # --- get ---------------------------------------------------------------------------------------------------

    def _on_want(self, member: Member, want: Want) -> None:
        record = self.record(want.ref)
        if record.deleted:
            self._world.send(member.node, Failed(want.ref, _deleted(want.ref)))
            return
        self.involve(record, member)
        self._serve(record, member)
        self._place(record)

    def _serve(self, record: Record, member: Member) -> None:
        """Answer a want with the bytes, a place in the tree, or patience."""
        broadcast = record.broadcast
        if record.reduction is not None and record.reduction.failure is not None:
            self._world.send(member.node, Failed(record.ref, record.reduction.failure))
        elif broadcast is None or self._waits_outside(record, broadcast, member):
            record.waiting[member.node] = member
        elif broadcast.inline is not None:
            self._world.send(member.node, Inline(broadcast.version, broadcast.layout, broadcast.inline))
        else:
            broadcast.want(member)

    def _waits_outside(self, record: Record, broadcast: Broadcast, member: Member) -> bool:
        """Whether a want has no place in the tree: of a node that makes the object itself, and its own gets find it;
        and when the version has no root yet, or is dying while the next one is offered already."""
        if broadcast.producer == member.node or member.node in broadcast.copies:
            return True
        return not broadcast.has_root() and (bool(record.deferred) or not broadcast.sealed)

    def _on_unwant(self, member: Member, unwant: Unwant) -> None:
        record = self.records.get(unwant.ref)
        if record is None:
            return
        record.waiting.pop(member.node, None)
        if record.broadcast is not None:
            record.broadcast.unwant(member.node)
        self.settle(record)

    def _on_stream_failed(self, member: Member, failed: StreamFailed) -> None:
        broadcast = self._current(member, failed.version)
        if broadcast is None:
            return
        if failed.watermark > broadcast.size:
            self._reject_about(member, failed.version.ref, f"watermark {failed.watermark} is beyond {broadcast.size}")
            return
        sender = self.members.get(failed.sender)
        if sender is not None and failed.fault in (StreamFault.BROKEN, StreamFault.STALLED):
            self.members.suspect(sender)
        key = receiver_key(member.node, failed.into)
        broadcast.failed(key, failed.number, failed.watermark, failed.fault, failed.wanted)
        self.settle(self.records[failed.version.ref])

    def _on_halted(self, member: Member, halted: Halted) -> None:
        broadcast = self._current(member, halted.version)
        if broadcast is None:
            return
        if halted.watermark > broadcast.size:
            self._reject_about(member, halted.version.ref, f"watermark {halted.watermark} is beyond {broadcast.size}")
            return
        broadcast.halted(receiver_key(member.node, halted.into), halted.number, halted.watermark, halted.wanted)
        self.settle(self.records[halted.version.ref])

    def _on_declined(self, member: Member, declined: Declined) -> None:
        broadcast = self._current(member, declined.version)
        if broadcast is None:
            return
        record = self.records[declined.version.ref]
        slot = record.slot
        if slot is not None and record.reduction is not None and slot.number == declined.number:
            if slot.host is member:
                record.reduction.declined(slot)
            return
        receiver = broadcast.receivers.get(member.node)
        if receiver is not None and receiver.number == declined.number:
            self._world.tell(declined.version.ref, "{} has no memory for it", label(member.node))
            broadcast.remove(member.node)
            self.settle(self.records[declined.version.ref])

    # --- wait, evict, delete -----------------------------------------------------------------------------------

    def _on_watch(self, member: Member, watch: Watch) -> None:
        if len(watch.refs) > self.settings.max_refs:
            self._reject_about(member, None, f"{len(watch.refs)} refs are over the limit of {self.settings.max_refs}")
            return
        self._watch(member, watch.refs)

    def _watch(self, member: Member, refs: tuple[bytes, ...]) -> None:
        ready = []
        for ref in refs:
            record = self.record(ref)
            if record.deleted:
                self._world.send(member.node, Failed(ref, _deleted(ref)))
            elif self._answers_at_once(record):
                ready.append(ref)
            else:
                record.watchers[member.node] = member
                self.involve(record, member)
        if ready:
            self._world.send(member.node, Ready(tuple(ready)))

    def _answers_at_once(self, record: Record) -> bool:
        if record.reduction is not None and record.reduction.failure is not None:
            return True
        return record.broadcast is not None and record.broadcast.complete()

    def _on_unwatch(self, member: Member, unwatch: Unwatch) -> None:
        for ref in unwatch.refs:
            record = self.records.get(ref)
            if record is not None and record.watchers.pop(member.node, None) is not None:
                self.settle(record)

    def _announce_if_ready(self, record: Record) -> None:
        if record.broadcast is None or not record.broadcast.complete():
            return
        self._tell_ready(record)
        self.source_changed(record.ref)

    def _tell_ready(self, record: Record) -> None:
        """A get would answer at once, with a value or a failure."""
        for node in record.watchers:
            self._world.send(node, Ready((record.ref,)))
        record.watchers.clear()

    def _on_evict(self, member: Member, evict: Evict) -> None:
        record = self.records.get(evict.version.ref)
        broadcast = record.broadcast if record is not None else None
        if broadcast is None or broadcast.version != evict.version:
            answer = Eviction.GRANTED  # a version that is over
        else:
            answer = broadcast.evict(member.node)
            self._world.tell(evict.version.ref, "{} asks to evict it: {}", label(member.node), answer.value)
            if record is not None and answer is Eviction.GRANTED:
                record.waiting.pop(member.node, None)
        self._world.send(member.node, EvictAnswer(evict.version, answer))

    def _on_delete(self, member: Member, delete: Delete) -> None:
        if len(delete.refs) > self.settings.max_refs:
            self._reject_about(member, None, f"{len(delete.refs)} refs are over the limit of {self.settings.max_refs}")
            return
        for ref in delete.refs:
            self._delete(self.record(ref), member)
        self._world.send(member.node, Deleted(delete.call))

    def _delete(self, record: Record, member: Member) -> None:
        if record.deleted or (record.reduction is not None and record.reduction.record is not record):
            return  # the output of a slot is nobody's to delete
        self._world.tell(record.ref, "deleted by {}", label(member.node))
        record.deleted = True
        self._world.timers.set(("tombstone", record.ref), self._world.now + self.settings.tombstone)
        for putter, put in record.deferred:
            self._world.send(putter, PutRefused(put.call, _deleted(record.ref)))
        record.deferred.clear()
        failure = _deleted(record.ref)
        reduction = record.reduction
        if reduction is not None:
            reduction.cancel()
            self.reduction_ended(reduction)
        record.reduction = record.slot = record.spec = record.contributors = record.decided = None
        self._fail_askers(record, failure)
        told = [*record.waiting, *record.watchers]
        record.waiting.clear()
        record.watchers.clear()
        if record.pinned() and record.broadcast is not None:
            self._hide(record, failure, told)
        else:
            self._end_version(record, failure, also=told)
        self.source_changed(record.ref)

    def _hide(self, record: Record, failure: Failure, told: list[NodeId]) -> None:
        """Nobody gets it any more, but the reductions that chose it still need its bytes."""
        broadcast = record.broadcast
        assert broadcast is not None
        getters = [key for key in broadcast.receivers if not isinstance(key, tuple)]
        for node in dict.fromkeys([*told, *getters]):
            self._world.send(node, Failed(record.ref, failure))
        for node in getters:
            broadcast.forget(node)
            self._world.send(node, Drop(broadcast.version))
        self.look_at(record.ref)

    def _tombstone_expired(self, record: Record) -> None:
        if record.broadcast is not None:
            self._world.timers.set(("tombstone", record.ref), self._world.now + self.settings.tombstone)
        else:
            record.deleted = False
            self.settle(record)

    # --- reduce ------------------------------------------------------------------------------------------------

    def _on_reduce(self, member: Member, reduce: Reduce) -> None:
        failure = self._refuse_reduce(reduce)
        self._world.send(member.node, Reduced(reduce.call, failure))
        if failure is not None:
            return
        record = self.record(reduce.target)
        if record.spec is not None and (record.reduction is not None or record.broadcast is not None):
            if record.reduction is not None:
                record.reduction.retry()
            return  # asked for before; only after a loss it is done again
        record.spec = reduce
        record.contributors = record.decided = None
        record.reduction = self.reduction_type(self, record, reduce, member.node)
        self._world.tell(reduce.target, "{} of {} sources asked for", reduce.count, len(reduce.sources))
        for ref in reduce.sources:
            self.record(ref).consumers[reduce.target] = record.reduction
        record.reduction.review()
        self.settle(record)

    def _refuse_reduce(self, reduce: Reduce) -> Failure | None:
        target = self.records.get(reduce.target)
        if target is not None and target.deleted:
            return _deleted(reduce.target)
        if target is not None and target.spec is not None:
            same = (target.spec.sources, target.spec.op, target.spec.count) == (reduce.sources, reduce.op, reduce.count)
            return None if same else _invalid(reduce.target, "it is the target of another reduction")
        if target is not None and target.broadcast is not None:
            return _invalid(reduce.target, "it has an object already")
        problem = self._problem_with_sources(reduce)
        return _invalid(reduce.target, problem) if problem else None

    def _problem_with_sources(self, reduce: Reduce) -> str | None:
        sources = set(reduce.sources)
        if not 1 <= reduce.count <= len(reduce.sources) <= self.settings.max_refs:
            return f"a count of {reduce.count} is not within 1 and its {len(reduce.sources)} sources"
        if len(sources) != len(reduce.sources):
            twice = next(ref for ref in reduce.sources if reduce.sources.count(ref) > 1)
            return f"source {short(twice)} stands more than once"
        for ref in reduce.sources:
            record = self.records.get(ref)
            if record is not None and record.deleted:
                return f"source {short(ref)} was deleted"
        pending = [reduce.target]
        seen: set[bytes] = set()
        while pending:  # whatever is made from the target must not be a source of it
            ref = pending.pop()
            if ref in sources:
                return f"source {short(ref)} is itself made from {short(reduce.target)}"
            if ref not in seen and (record := self.records.get(ref)) is not None:
                seen.add(ref)
                pending.extend(record.consumers)
        return None

    def _on_ask(self, member: Member, ask: Ask) -> None:
        record = self.records.get(ask.ref)
        if record is not None and record.deleted:
            self._world.send(member.node, Contributors(ask.call, (), _deleted(ask.ref)))
        elif record is None or record.spec is None:
            failure = _invalid(ask.ref, "it is not the target of a reduction")
            self._world.send(member.node, Contributors(ask.call, (), failure))
        elif record.contributors is not None:
            self._world.send(member.node, Contributors(ask.call, tuple(record.contributors)))
        elif record.reduction is not None and record.reduction.failure is not None:
            self._world.send(member.node, Contributors(ask.call, (), record.reduction.failure))
        else:
            record.askers[(member.node, ask.call)] = None
            self.involve(record, member)

    def _on_bound(self, member: Member, bound: Bound) -> None:
        if self._current(member, bound.version) is None:
            return
        record = self.records[bound.version.ref]
        slot = record.slot
        if record.reduction is None or slot is None or slot.host is not member or slot.number != bound.number:
            return
        if not slot.bound:
            record.reduction.bound(slot, {version.ref for version in bound.missing})

    def _on_consumed(self, member: Member, consumed: Consumed) -> None:
        slot_record = self.records.get(consumed.into)
        slot = slot_record.slot if slot_record is not None else None
        if slot is not None and slot.host is member and consumed.version.ref in slot.parts:
            slot.consumed.add(consumed.version.ref)
        record = self.records.get(consumed.version.ref)
        if record is not None and record.broadcast is not None and record.broadcast.version == consumed.version:
            record.broadcast.forget(receiver_key(member.node, consumed.into))
            self.settle(record)

    def _on_combined_inline(self, member: Member, combined: CombinedInline) -> None:
        record = self.records.get(combined.version.ref)
        if record is not None and record.reduction is not None:
            record.reduction.inline_result(member, combined.version, combined.data)
            self._announce_if_ready(record)
            self.settle(record)

    # --- what reductions ask and do ----------------------------------------------------------------------------

    def is_ready(self, ref: bytes) -> bool:
        """Whether a reduction may use it: it is complete, or it is itself a target that has begun to grow."""
        record = self.records.get(ref)
        if record is None or record.broadcast is None or (record.deleted and not record.pinned()):
            return False
        if record.reduction is not None:
            return record.reduction.is_bound()
        return bool(record.broadcast.copies) or record.broadcast.inline is not None

    def may_come(self, ref: bytes, *, seen: bool) -> bool:
        """Whether it can still become ready. What was there once and is gone does not come until it is put again."""
        record = self.records.get(ref)
        if record is None:
            return not seen
        if record.deleted:
            return False
        if record.reduction is not None:
            return record.reduction.failure is None
        return not seen or record.broadcast is not None

    def is_deleted(self, ref: bytes) -> bool:
        record = self.records.get(ref)
        return record is not None and record.deleted

    def is_undecided(self, ref: bytes) -> bool:
        record = self.records.get(ref)
        return record is not None and record.reduction is not None

    def version_of(self, ref: bytes) -> Version:
        broadcast = self.records[ref].broadcast
        assert broadcast is not None
        return broadcast.version

    def form_of(self, ref: bytes) -> tuple[int, bytes]:
        broadcast = self.records[ref].broadcast
        assert broadcast is not None
        return broadcast.size, broadcast.layout

    def inline_of(self, ref: bytes, version: Version) -> bytes | None:
        record = self.records.get(ref)
        if record is None or record.broadcast is None or record.broadcast.version != version:
            return None
        return record.broadcast.inline

    def home_of(self, ref: bytes) -> NodeId:
        """A node that has the object, for choice one that can be used now."""
        broadcast = self.records[ref].broadcast
        assert broadcast is not None
        usable = (node for node, member in broadcast.copies.items() if member.usable())
        anyone = next(iter(broadcast.copies), broadcast.producer)
        return next(usable, anyone if anyone is not None else 0)

    def has_part(self, ref: bytes, node: NodeId, *, complete: bool = False) -> bool:
        record = self.records.get(ref)
        broadcast = record.broadcast if record is not None else None
        if broadcast is None:
            return False
        return node in broadcast.copies or (broadcast.producer == node and not complete)

    def has_copy(self, ref: bytes) -> bool:
        record = self.records.get(ref)
        return record is not None and record.broadcast is not None and bool(record.broadcast.copies)

    def new_version(self, ref: bytes) -> Version:
        self._counter += 1
        return Version(ref, self.incarnation, self._counter)

    def begin_output(self, ref: bytes, size: int, layout: bytes, host: Member) -> Version:
        """A slot begins a version of its output."""
        record = self.record(ref)
        version = self.new_version(ref)
        record.broadcast = self.broadcast_type(self._world, self.members, version, size, layout, host.nic.up)
        record.broadcast.sealed = False
        return version

    def begin_inline(self, record: Record, version: Version, layout: bytes, data: bytes) -> None:
        """A small result has come: it lives here like a small put."""
        record.broadcast = self.broadcast_type(self._world, self.members, version, len(data), layout, 1.0, data)
        self._inline_total += len(data)

    def produce(self, record: Record, host: Member) -> None:
        """A slot's output begins to grow at its host, whose own gets will find it there."""
        assert record.broadcast is not None
        if host.node in record.broadcast.receivers:
            record.broadcast.forget(host.node)
            record.waiting[host.node] = host
        record.broadcast.produce(host)

    def feed(self, part: bytes, host: Member, slot: bytes) -> bool:
        """Send the part to a slot's host; True if it is so small that it went with the message."""
        record = self.record(part)
        self.involve(record, host)
        if record.broadcast is None:
            return False
        record.broadcast.want(host, into=slot)
        self.settle(record)
        return record.broadcast.inline is not None

    def unfeed(self, part: bytes, node: NodeId, slot: bytes) -> None:
        record = self.records.get(part)
        if record is not None and record.broadcast is not None:
            record.broadcast.forget(receiver_key(node, slot))
            self.look_at(part)

    def look_at(self, ref: bytes) -> None:
        self._unsettled[ref] = None

    def reset(self, record: Record) -> None:
        """The version is over without being lost or deleted: whoever waited for it waits for the next one. Those who
        were placed ask again when they are told; the others have not heard of the version."""
        if record.broadcast is not None:
            record.waiting |= record.broadcast.waiting_stores()
            record.broadcast.drop_everywhere()
            record.broadcast = None
        self._world.timers.cancel(("place", record.ref))
        self._starving.pop(record.ref, None)

    def forget_slot(self, ref: bytes) -> None:
        """The slot is no more; of the target only its slot goes, not what makes it."""
        record = self.records[ref]
        record.slot = None
        if record.spec is None:
            record.reduction = None
        self.settle(record)

    def source_changed(self, ref: bytes) -> None:
        record = self.records.get(ref)
        if record is not None:
            for reduction in list(record.consumers.values()):
                reduction.review()

    def fail_waiters(self, record: Record, failure: Failure) -> None:
        getters = [key for key in record.broadcast.receivers if not isinstance(key, tuple)] if record.broadcast else []
        for node in dict.fromkeys([*record.waiting, *getters]):
            self._world.send(node, Failed(record.ref, failure))
        record.waiting.clear()
        self._tell_ready(record)
        self._fail_askers(record, failure)
        self.source_changed(record.ref)

    def has_inline_room(self, size: int) -> bool:
        return self._inline_total + size <= self.settings.inline_total

    def is_decided_as(self, ref: bytes, version: Version) -> bool:
        """Whether bytes of this version may go into a result: a put's may, a target's if that is what it became."""
        record = self.records.get(ref)
        return record is None or record.spec is None or record.decided == version

    def release_sources(self, refs: Iterable[bytes]) -> None:
        """Sources that are not chosen any more: those deleted meanwhile go."""
        for ref in refs:
            record = self.records.get(ref)
            if record is not None and record.deleted and record.broadcast is not None and not record.pinned():
                self._end_version(record, _deleted(ref))

    def reduction_ended(self, reduction: Reduction) -> None:
        """Decided or cancelled: its sources are free, and those deleted meanwhile go."""
        target = reduction.record
        if target.contributors is not None:
            for node, call in target.askers:
                self._world.send(node, Contributors(call, tuple(target.contributors)))
            target.askers.clear()
        for ref in reduction.spec.sources:
            record = self.records.get(ref)
            if record is None:
                continue
            record.consumers.pop(target.ref, None)
            self.release_sources([ref])
            self.settle(record)
        self._announce_if_ready(target)
        self.source_changed(target.ref)

    def _forget_askers(self, record: Record, node: NodeId) -> None:
        for asker in [asker for asker in record.askers if asker[0] == node]:
            del record.askers[asker]

    def _fail_askers(self, record: Record, failure: Failure) -> None:
        for node, call in record.askers:
            self._world.send(node, Contributors(call, (), failure))
        record.askers.clear()

    # --- the end of a version, and tidying up ------------------------------------------------------------------

    def _end_version(self, record: Record, failure: Failure, also: Iterable[NodeId] = ()) -> None:
        broadcast, record.broadcast, record.put = record.broadcast, None, None
        told = dict.fromkeys(also)
        if broadcast is not None:
            told |= dict.fromkeys(key for key in broadcast.receivers if not isinstance(key, tuple))
        for node in told:
            self._world.send(node, Failed(record.ref, failure))
        if broadcast is not None:
            if broadcast.inline is not None:
                self._inline_total -= broadcast.size
            broadcast.drop_everywhere()
        self._world.timers.cancel(("place", record.ref))
        self._starving.pop(record.ref, None)

    def settle(self, record: Record) -> None:
        """After any change: declare a loss that has become certain, place who waits, forget what is empty."""
        broadcast = record.broadcast
        if broadcast is not None:
            for member in list(record.waiting.values()):
                if not self._waits_outside(record, broadcast, member):
                    del record.waiting[member.node]  # its put came to nothing, and it still wants the object
                    self._serve(record, member)
        if record.slot is not None and record.reduction is not None:
            if broadcast is not None and broadcast.is_lost() and record.slot.host is None:
                record.reduction.output_lost(record.slot)
        elif broadcast is not None and broadcast.is_lost():
            self._world.tell(record.ref, "{} is lost", broadcast.version)
            self._end_version(record, _aborted(record.ref) if broadcast.aborted else _lost(record.ref))
            deferred, record.deferred = record.deferred, []
            for node, put in deferred:
                self._on_put(self.members[node], put)
            self.source_changed(record.ref)
        elif broadcast is not None and record.deferred and broadcast.complete():
            deferred, record.deferred = record.deferred, []
            for node, put in deferred:
                self._world.send(node, PutAccepted(put.call, broadcast.version, existing=True))
        self._place(record)
        if record.idle() and self.records.get(record.ref) is record:
            del self.records[record.ref]
            for member in record.nodes.values():
                member.refs.pop(record.ref, None)

    def _place_again(self, record: Record) -> None:
        """Something outside the tree has changed: whoever found no sender may find one now."""
        if record.broadcast is not None:
            record.broadcast.reconsider()
        self._place(record)

    def _place(self, record: Record) -> None:
        broadcast = record.broadcast
        if broadcast is not None and broadcast.waits():
            broadcast.place()
        if broadcast is not None and broadcast.waits():
            self._starving[record.ref] = None
        else:
            self._starving.pop(record.ref, None)

    def _current(self, member: Member, version: Version) -> Broadcast | None:
        """The tree of a version that still counts; whoever speaks of another one is told to drop it."""
        record = self.records.get(version.ref)
        if record is not None and record.broadcast is not None and record.broadcast.version == version:
            return record.broadcast
        self._world.send(member.node, Drop(version))
        return None

    def record(self, ref: bytes) -> Record:
        record = self.records.get(ref)
        if record is None:
            record = self.records[ref] = Record(ref)
        return record

    def involve(self, record: Record, member: Member) -> None:
        record.nodes[member.node] = member
        member.refs[record.ref] = None

    def _reject(self, node: NodeId, kind: FailureKind, detail: str, remedy: str) -> None:
        self._world.send(node, Rejected(Failure(kind, detail, remedy)))

    def _reject_about(self, member: Member, ref: bytes | None, detail: str) -> None:
        failure = Failure(FailureKind.INVALID, detail, "this is a fault of the node that sent it", ref)
        self._world.send(member.node, Rejected(failure))


def _deleted(ref: bytes) -> Failure:
    return Failure(FailureKind.DELETED, "it was deleted", "put the value under a new ref", ref)


def _invalid(ref: bytes, detail: str) -> Failure:
    return Failure(FailureKind.INVALID, detail, "correct the call", ref)


def _aborted(ref: bytes) -> Failure:
    return Failure(FailureKind.ABORTED, "the process that was putting it ended", "put it again", ref)


def _lost(ref: bytes) -> Failure:
    return Failure(
        FailureKind.LOST, "every complete copy of it died", f"put {short(ref)} again; gets will then succeed", ref
    )
