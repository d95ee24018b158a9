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
        tree = self.tree_of(version)
        if tree is None:
            self.world.send(member.node, Drop(version))
        return tree

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
        if (tree := self.tree(part)) is not None:
            tree.remove(receiver_key(node, slot))

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
        """What reductions decide by: whether it is ready, gone, another version or decided. On which nodes it is only
        decides who is asked next."""
        broadcast, reduction = record.broadcast, record.reduction
        return (
            broadcast and broadcast.version,
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

    def is_decided_as(self, version: Version) -> bool:
        """Whether bytes of this version may go into a result: a put's may, a target's if that is what it became."""
        if version.ref in self.tombstones.undecided:
            return False
        record = self.records.get(version.ref)
        return record is None or record.spec is None or record.decided == version

    def became(self, version: Version) -> bool:
        """Whether this is what a target is known to have become."""
        record = self.records.get(version.ref)
        return record is not None and record.decided == version

    def tree(self, ref: bytes) -> Broadcast | None:
        """Of the ref's version, if it has one."""
        record = self.records.get(ref)
        return record.broadcast if record is not None else None

    def tree_of(self, version: Version) -> Broadcast | None:
        """The tree of the version, unless it is over."""
        record = self.records.get(version.ref)
        tree = record.broadcast if record is not None else None
        return tree if tree is not None and tree.version == version else None

    def live_tree(self, ref: bytes) -> Broadcast:
        """Of a ref that is known to have a version."""
        tree = self.records[ref].broadcast
        assert tree is not None
        return tree

    def version_of(self, ref: bytes) -> Version:
        tree = self.records[ref].broadcast
        assert tree is not None
        return tree.version

    def form_of(self, ref: bytes) -> tuple[int, bytes]:
        tree = self.live_tree(ref)
        return tree.size, tree.layout

    def inline_of(self, version: Version) -> bytes | None:
        tree = self.tree_of(version)
        return tree.inline if tree is not None else None

    def home_of(self, ref: bytes) -> NodeId:
        """A node that has the object, preferably one that can be used now."""
        tree = self.live_tree(ref)
        usable = (node for node, member in tree.copies.items() if member.usable())
        anyone = next(iter(tree.copies), tree.producer)
        return next(usable, anyone if anyone is not None else 0)

    def has_part(self, ref: bytes, node: NodeId, *, complete: bool = False, start: int = 0) -> bool:
        """Whether the node has the part or makes it, from `start` on."""
        record = self.records.get(ref)
        if record is None or (tree := record.broadcast) is None:
            return False
        return node in tree.copies or (tree.producer == node and not complete and tree.start <= start)

    def holders_of(self, ref: bytes, *, complete: bool = False) -> list[Member]:
        """Who has the object or makes it."""
        tree = self.tree(ref)
        if tree is None:
            return []
        producer = self.members.get(tree.producer) if tree.producer is not None and not complete else None
        return [*tree.copies.values(), *([producer] if producer is not None else [])]

    def has_copy(self, ref: bytes) -> bool:
        tree = self.tree(ref)
        return tree is not None and bool(tree.copies)
