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
from hoplite_ucx.protocol.ids import NodeId, Version, label, short
from hoplite_ucx.protocol.messages import (
    PROTOCOL,
    Aborted,
    Alive,
    Completed,
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
    Rejected,
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

    def idle(self) -> bool:
        return not (self.broadcast or self.waiting or self.watchers or self.deferred or self.deleted)


class Directory:
    broadcast_type: type[Broadcast] = Broadcast

    def __init__(self, incarnation: int, cluster: str, settings: Settings | None = None) -> None:
        self.incarnation = incarnation
        self.cluster = cluster
        self.settings = settings or Settings()
        self._world = World(self.settings)
        self.members = Members(self._world)
        self.records: dict[bytes, Record] = {}
        self._starving: set[bytes] = set()  # refs with receivers that have no sender
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
        if self._world.take_supply_change():
            for ref in list(self._starving):
                self._place_again(self.records[ref])
        return self._world.take_effects()

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
        announced = {copy.version for copy in join.copies} | {partial.version for partial in join.partials}
        announced |= set(join.producing)
        offered = {(node, put.call) for put in join.puts}
        known = [self.records[ref] for ref in member.refs]
        for record in known:
            record.watchers.pop(node, None)
            record.waiting.pop(node, None)
            record.deferred = [(putter, put) for putter, put in record.deferred if putter != node]
            broadcast = record.broadcast
            if broadcast is not None and broadcast.version not in announced and record.put not in offered:
                broadcast.remove(node)
        for copy in join.copies:
            self._on_completed(member, Completed(copy.version))
        for partial in join.partials:
            broadcast = self._current(member, partial.version)
            if broadcast is not None and partial.watermark > broadcast.size:
                self._reject_about(member, partial.version.ref, f"watermark {partial.watermark} is beyond its size")
            elif broadcast is not None:
                self._involve(self.records[partial.version.ref], member)
                broadcast.adopt(member, partial.watermark, partial.number)
        for version in join.producing:
            self._readmit_producer(member, version)
        for put in join.puts:
            self._on_put(member, put)
        for ref in join.wants:
            self._on_want(member, Want(ref))
        self._watch(member, join.watches)
        for delete in join.deletes:
            self._on_delete(member, delete)
        for record in [*known, *(self.records[ref] for ref in member.refs)]:
            self._settle(record)

    def _readmit_producer(self, member: Member, version: Version) -> None:
        """A node that was taken for dead in the middle of a put goes on with it, if it is still needed."""
        broadcast = self._current(member, version)
        if broadcast is None or broadcast.producer == member.node:
            return
        if broadcast.has_root() or member.node in broadcast.receivers:
            self._world.send(member.node, Drop(version))  # others have it all: offered again, it is a no-op
        else:
            self._involve(self.records[version.ref], member)
            broadcast.produce(member)

    def _on_leave(self, member: Member, _: Leave) -> None:
        self._remove_member(member, "left", fence=True)

    def _on_heartbeat(self, member: Member, heartbeat: Heartbeat) -> None:
        self._world.send(member.node, Alive())
        for progress in heartbeat.progress:
            record = self.records.get(progress.version.ref)
            if record is not None and record.broadcast and record.broadcast.version == progress.version:
                record.broadcast.advanced(member.node, progress.watermark)

    def _on_tick(self) -> None:
        for key in self._world.timers.pop_due(self._world.now):
            match key:
                case "sweep":
                    self._sweep()
                case ("place", bytes() as ref):
                    self._place_again(self.records[ref])
                case ("tombstone", bytes() as ref):
                    record = self.records[ref]
                    record.deleted = False
                    self._settle(record)

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
            if record.broadcast is not None:
                record.broadcast.remove(node)
        self.members.remove(member, fence=fence)
        for record in touched:
            self._settle(record)

    # --- put ---------------------------------------------------------------------------------------------------

    def _on_put(self, member: Member, put: Put) -> None:
        refusal = self._refuse_put(put)
        if refusal is not None:
            self._world.send(member.node, PutRefused(put.call, refusal))
            return
        record = self._record(put.ref)
        self._involve(record, member)
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
        if put.size > self.settings.max_object:
            detail = f"{put.size} bytes are over the limit of {self.settings.max_object}"
            return Failure(FailureKind.INVALID, detail, "put it in parts", put.ref)
        if put.data is not None and (len(put.data) != put.size or put.size > self.settings.inline_limit):
            detail = f"{len(put.data)} bytes came with the put of an object of {put.size}"
            return Failure(FailureKind.INVALID, detail, f"inline at most {self.settings.inline_limit}", put.ref)
        return None

    def _begin(self, record: Record, member: Member, put: Put) -> None:
        self._counter += 1
        version = Version(put.ref, self.incarnation, self._counter)
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
        self._place(record)

    def _on_completed(self, member: Member, completed: Completed) -> None:
        broadcast = self._current(member, completed.version)
        if broadcast is None:
            return
        record = self.records[completed.version.ref]
        self._involve(record, member)
        record.waiting.pop(member.node, None)
        broadcast.add_copy(member)
        self._announce_if_ready(record)
        self._settle(record)

    def _on_aborted(self, member: Member, aborted: Aborted) -> None:
        broadcast = self._current(member, aborted.version)
        if broadcast is not None:
            broadcast.aborted = broadcast.producer == member.node
            broadcast.remove(member.node)
            self._settle(self.records[aborted.version.ref])

    # --- get ---------------------------------------------------------------------------------------------------

    def _on_want(self, member: Member, want: Want) -> None:
        record = self._record(want.ref)
        if record.deleted:
            self._world.send(member.node, Failed(want.ref, _deleted(want.ref)))
            return
        self._involve(record, member)
        self._serve(record, member)
        self._place(record)

    def _serve(self, record: Record, member: Member) -> None:
        """Answer a want with the bytes, a place in the tree, or patience."""
        broadcast = record.broadcast
        if broadcast is None or self._waits_outside(record, broadcast, member):
            record.waiting[member.node] = member
        elif broadcast.inline is not None:
            self._world.send(member.node, Inline(broadcast.version, broadcast.layout, broadcast.inline))
        else:
            broadcast.want(member)

    def _waits_outside(self, record: Record, broadcast: Broadcast, member: Member) -> bool:
        """Whether a want has no place in the tree: of a node that puts the object itself, and its own gets find it; and
        when the version is dying while the next one is offered already."""
        if broadcast.producer == member.node or member.node in broadcast.copies:
            return True
        return bool(record.deferred) and not broadcast.has_root()

    def _on_unwant(self, member: Member, unwant: Unwant) -> None:
        record = self.records.get(unwant.ref)
        if record is None:
            return
        record.waiting.pop(member.node, None)
        if record.broadcast is not None:
            record.broadcast.unwant(member.node)
        self._settle(record)

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
        broadcast.failed(member.node, failed.number, failed.watermark, failed.fault, failed.wanted)
        self._settle(self.records[failed.version.ref])

    def _on_halted(self, member: Member, halted: Halted) -> None:
        broadcast = self._current(member, halted.version)
        if broadcast is None:
            return
        if halted.watermark > broadcast.size:
            self._reject_about(member, halted.version.ref, f"watermark {halted.watermark} is beyond {broadcast.size}")
            return
        broadcast.halted(member.node, halted.number, halted.watermark, halted.wanted)
        self._settle(self.records[halted.version.ref])

    def _on_declined(self, member: Member, declined: Declined) -> None:
        broadcast = self._current(member, declined.version)
        if broadcast is None:
            return
        receiver = broadcast.receivers.get(member.node)
        if receiver is not None and receiver.number == declined.number:
            self._world.tell(declined.version.ref, "{} has no memory for it", label(member.node))
            broadcast.remove(member.node)
            self._settle(self.records[declined.version.ref])

    # --- wait, evict, delete -----------------------------------------------------------------------------------

    def _on_watch(self, member: Member, watch: Watch) -> None:
        if len(watch.refs) > self.settings.max_refs:
            self._reject_about(member, None, f"{len(watch.refs)} refs are over the limit of {self.settings.max_refs}")
            return
        self._watch(member, watch.refs)

    def _watch(self, member: Member, refs: tuple[bytes, ...]) -> None:
        ready = []
        for ref in refs:
            record = self._record(ref)
            if record.deleted:
                self._world.send(member.node, Failed(ref, _deleted(ref)))
            elif record.broadcast is not None and record.broadcast.complete():
                ready.append(ref)
            else:
                record.watchers[member.node] = member
                self._involve(record, member)
        if ready:
            self._world.send(member.node, Ready(tuple(ready)))

    def _on_unwatch(self, member: Member, unwatch: Unwatch) -> None:
        for ref in unwatch.refs:
            record = self.records.get(ref)
            if record is not None and record.watchers.pop(member.node, None) is not None:
                self._settle(record)

    def _announce_if_ready(self, record: Record) -> None:
        if record.watchers and record.broadcast is not None and record.broadcast.complete():
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
            self._delete(self._record(ref), member)
        self._world.send(member.node, Deleted(delete.call))

    def _delete(self, record: Record, member: Member) -> None:
        if record.deleted:
            return
        self._world.tell(record.ref, "deleted by {}", label(member.node))
        record.deleted = True
        self._world.timers.set(("tombstone", record.ref), self._world.now + self.settings.tombstone)
        for putter, put in record.deferred:
            self._world.send(putter, PutRefused(put.call, _deleted(record.ref)))
        record.deferred.clear()
        self._end_version(record, _deleted(record.ref), also=[*record.waiting, *record.watchers])
        record.waiting.clear()
        record.watchers.clear()

    # --- the end of a version, and tidying up ------------------------------------------------------------------

    def _end_version(self, record: Record, failure: Failure, also: Iterable[NodeId] = ()) -> None:
        broadcast, record.broadcast, record.put = record.broadcast, None, None
        told = dict.fromkeys(also)
        if broadcast is not None:
            told |= dict.fromkeys(broadcast.receivers)
        for node in told:
            self._world.send(node, Failed(record.ref, failure))
        if broadcast is not None:
            if broadcast.inline is not None:
                self._inline_total -= broadcast.size
            broadcast.drop_everywhere()
        self._world.timers.cancel(("place", record.ref))
        self._starving.discard(record.ref)

    def _settle(self, record: Record) -> None:
        """After any change: declare a loss that has become certain, place who waits, forget what is empty."""
        broadcast = record.broadcast
        if broadcast is not None:
            for member in list(record.waiting.values()):
                if not self._waits_outside(record, broadcast, member):
                    del record.waiting[member.node]  # its put came to nothing, and it still wants the object
                    self._serve(record, member)
        if broadcast is not None and broadcast.is_lost():
            self._world.tell(record.ref, "{} is lost", broadcast.version)
            self._end_version(record, _aborted(record.ref) if broadcast.aborted else _lost(record.ref))
            deferred, record.deferred = record.deferred, []
            for node, put in deferred:
                self._on_put(self.members[node], put)
        elif broadcast is not None and record.deferred and broadcast.complete():
            deferred, record.deferred = record.deferred, []
            for node, put in deferred:
                self._world.send(node, PutAccepted(put.call, broadcast.version, existing=True))
        self._place(record)
        if record.idle() and self.records.get(record.ref) is record:
            del self.records[record.ref]
            for member in record.nodes.values():
                member.refs.discard(record.ref)

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
            self._starving.add(record.ref)
        else:
            self._starving.discard(record.ref)

    def _current(self, member: Member, version: Version) -> Broadcast | None:
        """The tree of a version that still counts; whoever speaks of another one is told to drop it."""
        record = self.records.get(version.ref)
        if record is not None and record.broadcast is not None and record.broadcast.version == version:
            return record.broadcast
        self._world.send(member.node, Drop(version))
        return None

    def _record(self, ref: bytes) -> Record:
        record = self.records.get(ref)
        if record is None:
            record = self.records[ref] = Record(ref)
        return record

    def _involve(self, record: Record, member: Member) -> None:
        record.nodes[member.node] = member
        member.refs.add(record.ref)

    def _reject(self, node: NodeId, kind: FailureKind, detail: str, remedy: str) -> None:
        self._world.send(node, Rejected(Failure(kind, detail, remedy)))

    def _reject_about(self, member: Member, ref: bytes | None, detail: str) -> None:
        failure = Failure(FailureKind.INVALID, detail, "this is a fault of the node that sent it", ref)
        self._world.send(member.node, Rejected(failure))


def _deleted(ref: bytes) -> Failure:
    return Failure(FailureKind.DELETED, "it was deleted", "put the value under a new ref", ref)


def _aborted(ref: bytes) -> Failure:
    return Failure(FailureKind.ABORTED, "the process that was putting it ended", "put it again", ref)


def _lost(ref: bytes) -> Failure:
    return Failure(
        FailureKind.LOST, "every complete copy of it died", f"put {short(ref)} again; gets will then succeed", ref
    )
