"""The table of refs, and questions about it.

A ref is *pending* (it has no version; nodes may wait for it), *live* (it has a version, whose tree is a `Broadcast`) or
*deleted* (a tombstone that expires, see `tombstones`). A loss takes a live ref back to pending; a later put gives it a
new version.

Code that changes a record *marks* it; `settling` looks at the consequences before the event is over.
"""

from hoplite_ucx.protocol.directory.members import Member, Members
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.tombstones import Tombstones
from hoplite_ucx.protocol.directory.world import World
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.ids import NodeId, Version, receiver_key
from hoplite_ucx.protocol.messages import Contributors, Drop, ObjectState, Ready


class Table:
    def __init__(self, world: World, members: Members) -> None:
        self.world = world
        self.members = members
        self.records: dict[bytes, Record] = {}
        self.tombstones = Tombstones(world)
        self.starving: dict[bytes, None] = {}  # refs with receivers that have no sender, in the accounts

    def record(self, ref: bytes) -> Record:
        record = self.records.get(ref)
        if record is None:
            record = self.records[ref] = Record(ref, deleted=ref in self.tombstones)
        return record

    def involve(self, record: Record, member: Member) -> None:
        record.nodes[member.node] = member
        member.refs[record.ref] = None

    def current(self, member: Member, version: Version) -> Broadcast | None:
        """The tree of a version that still counts; a node that names another version is told to drop it."""
        record = self.records.get(version.ref)
        if record is not None and record.broadcast is not None and record.broadcast.version == version:
            return record.broadcast
        self.world.send(member.node, Drop(version))
        return None

    def forget(self, record: Record) -> None:
        if self.records.get(record.ref) is record:
            del self.records[record.ref]
            for member in record.nodes.values():
                member.refs.pop(record.ref, None)

    def reset(self, record: Record) -> None:
        """The version is over without being lost or deleted: nodes that waited for it wait for the next one. Those that
        were placed ask again when they are notified; the others do not know of the version."""
        if record.broadcast is not None:
            if not record.is_stripe():
                record.waiting |= record.broadcast.waiting_stores()
            record.broadcast.drop_everywhere()
            record.broadcast = None
        self.end_tree(record)

    def end_tree(self, record: Record) -> None:
        """The version is over: no receiver of it waits for a sender."""
        self.world.timers.cancel(("place", record.ref))
        self.starving.pop(record.ref, None)
        self.world.mark(record.ref)

    def unfeed(self, part: bytes, node: NodeId, slot: bytes) -> None:
        record = self.records.get(part)
        if record is not None and record.broadcast is not None:
            record.broadcast.forget(receiver_key(node, slot))

    def tell_ready(self, record: Record) -> None:
        """A get would return at once, with a value or a failure."""
        for node in record.watchers:
            self.world.send(node, Ready((record.ref,)))
        record.watchers.clear()

    def fail_askers(self, record: Record, failure: Failure) -> None:
        for node, call in record.askers:
            self.world.send(node, Contributors(call, (), failure))
        record.askers.clear()

    # --- what is asked -----------------------------------------------------------------------------------------

    def state_of(self, ref: bytes) -> ObjectState:
        if self.is_deleted(ref):
            return ObjectState.DELETED
        record = self.records.get(ref)
        broadcast = record.broadcast if record is not None else None
        if record is None or (broadcast is None and record.reduction is None):
            return ObjectState.UNKNOWN
        if record.reduction is not None and record.reduction.failure is not None:
            return ObjectState.FAILED
        return ObjectState.READY if broadcast is not None and broadcast.complete() else ObjectState.COMING

    def is_ready(self, ref: bytes) -> bool:
        """Whether a reduction may use it: it is complete, or it is itself a target that has begun to grow."""
        record = self.records.get(ref)
        if record is None or record.broadcast is None or (record.deleted and not record.pinned()):
            return False
        if record.reduction is not None:
            return record.reduction.is_bound()
        return bool(record.broadcast.copies) or record.broadcast.inline is not None

    def outlook(self, record: Record) -> tuple[object, ...]:
        """What reductions decide by: whether it is ready, gone, another version, decided, or on more nodes."""
        broadcast, reduction = record.broadcast, record.reduction
        return (
            broadcast and (broadcast.version, len(broadcast.copies)),
            self.is_ready(record.ref),
            record.deleted,
            reduction and reduction.state,
        )

    def may_come(self, ref: bytes, *, seen: bool) -> bool:
        """Whether it can still become ready. A source that existed and is gone does not come until it is put again."""
        if self.is_deleted(ref):
            return False
        record = self.records.get(ref)
        if record is None:
            return not seen
        if record.reduction is not None:
            return record.reduction.failure is None
        return not seen or record.broadcast is not None

    def is_deleted(self, ref: bytes) -> bool:
        return ref in self.tombstones

    def is_undecided(self, ref: bytes) -> bool:
        record = self.records.get(ref)
        return ref in self.tombstones.undecided or (record is not None and record.reduction is not None)

    def is_decided_as(self, ref: bytes, version: Version) -> bool:
        """Whether bytes of this version may go into a result: a put's may, a target's if that is what it became."""
        if ref in self.tombstones.undecided:
            return False
        record = self.records.get(ref)
        return record is None or record.spec is None or record.decided == version

    def became(self, ref: bytes, version: Version) -> bool:
        """Whether this is what a target is known to have become."""
        record = self.records.get(ref)
        return record is not None and record.decided == version

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
        """A node that has the object, preferably one that can be used now."""
        broadcast = self.records[ref].broadcast
        assert broadcast is not None
        usable = (node for node, member in broadcast.copies.items() if member.usable())
        anyone = next(iter(broadcast.copies), broadcast.producer)
        return next(usable, anyone if anyone is not None else 0)

    def has_part(self, ref: bytes, node: NodeId, *, complete: bool = False, start: int = 0) -> bool:
        """Whether the node has the part or makes it, from `start` on."""
        record = self.records.get(ref)
        broadcast = record.broadcast if record is not None else None
        if broadcast is None:
            return False
        return node in broadcast.copies or (broadcast.producer == node and not complete and broadcast.start <= start)

    def holders_of(self, ref: bytes, *, complete: bool = False) -> list[Member]:
        """Who has the object or makes it."""
        record = self.records.get(ref)
        broadcast = record.broadcast if record is not None else None
        if broadcast is None:
            return []
        producer = self.members.get(broadcast.producer) if broadcast.producer is not None and not complete else None
        return [*broadcast.copies.values(), *([producer] if producer is not None else [])]

    def has_version(self, version: Version) -> bool:
        record = self.records.get(version.ref)
        return record is not None and record.broadcast is not None and record.broadcast.version == version

    def has_copy(self, ref: bytes) -> bool:
        record = self.records.get(ref)
        return record is not None and record.broadcast is not None and bool(record.broadcast.copies)
