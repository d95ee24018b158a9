"""The table of refs: a `Record` for each that anyone has to do with, and the life of its versions.

A ref is *pending* (nobody has put it; nodes may wait for it), *live* (it has a version, whose tree is a `Broadcast`) or
*deleted* (a tombstone that expires, see `tombstones`). A loss takes a live ref back to pending; a later put gives it a
new version. Small objects live here, in the answer itself, up to a total; beyond that they stream like others.

`Objects` owns the records, the versions' numbers and the inline bytes. After any change to a record it is *settled*:
losses are declared, waiters placed, empty records forgotten. Reductions ask and act through it.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from hoplite_ucx.protocol.directory.members import Member, Members
from hoplite_ucx.protocol.directory.reduce import stripes
from hoplite_ucx.protocol.directory.reduce.reduction import Reduction
from hoplite_ucx.protocol.directory.reduce.slots import Slot
from hoplite_ucx.protocol.directory.refusals import aborted, deleted, invalid, lost, refuse_put
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.tombstones import Tombstones
from hoplite_ucx.protocol.directory.world import World
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import SendNode
from hoplite_ucx.protocol.ids import NodeId, Version, label, receiver_key
from hoplite_ucx.protocol.lookups import Absent, Answer, Found
from hoplite_ucx.protocol.messages import (
    MAX_DESCRIBED_HOLDERS,
    MAX_DESCRIBED_LAYOUT,
    RANKS,
    Bind,
    Contributors,
    Copy,
    Description,
    Drop,
    Failed,
    ObjectState,
    Origin,
    Over,
    Partial,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    Reduce,
    Sealed,
)


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
    stripe_of: bytes | None = None
    """The decided target that some still put together from this."""

    def idle(self) -> bool:
        return not (
            self.broadcast
            or self.waiting
            or self.watchers
            or self.deferred
            or self.reduction
            or self.consumers
            or self.askers
        )

    def is_stripe(self) -> bool:
        """Nobody waits for a stripe: it is sent to those who get the target, while that has this version of it."""
        return self.stripe_of is not None or (self.slot is not None and self.slot.cut is not None)

    def pinned(self) -> bool:
        """Chosen, in this version, by a reduction that is not decided: a delete hides it, and frees it later."""
        version = self.broadcast.version if self.broadcast is not None else None
        return version is not None and any(reduction.uses(version) for reduction in self.consumers.values())

    def forget_calls(self, node: NodeId) -> None:
        """What the node has asked for, but not what it holds."""
        self.watchers.pop(node, None)
        self.waiting.pop(node, None)
        self.deferred = [(putter, put) for putter, put in self.deferred if putter != node]
        for asker in [asker for asker in self.askers if asker[0] == node]:
            del self.askers[asker]


class Objects:
    """Methods without an underscore are for the handlers of messages, for `Reduction`, and for the invariants."""

    def __init__(self, world: World, members: Members, broadcast_type: type[Broadcast]) -> None:
        self.world = world
        self.members = members
        self.records: dict[bytes, Record] = {}
        self.tombstones = Tombstones(world)
        self.inline_total = 0
        self.starving: dict[bytes, None] = {}  # refs with receivers that have no sender, in the accounts
        self._unsettled: dict[bytes, None] = {}  # refs to look at before the event is over
        self._broadcast_type = broadcast_type
        self._counter = 0
        self._turns = 0

    # --- the table ---------------------------------------------------------------------------------------------

    def record(self, ref: bytes) -> Record:
        record = self.records.get(ref)
        if record is None:
            record = self.records[ref] = Record(ref, deleted=ref in self.tombstones)
        return record

    def involve(self, record: Record, member: Member) -> None:
        record.nodes[member.node] = member
        member.refs[record.ref] = None

    def current(self, member: Member, version: Version) -> Broadcast | None:
        """The tree of a version that still counts; whoever speaks of another one is told to drop it."""
        record = self.records.get(version.ref)
        if record is not None and record.broadcast is not None and record.broadcast.version == version:
            return record.broadcast
        self.world.send(member.node, Drop(version))
        return None

    def look_at(self, ref: bytes) -> None:
        self._unsettled[ref] = None

    def settle_all(self) -> None:
        """What reductions let go of in passing: settled here, so that they are not changed while they are at work."""
        while self._unsettled:
            ref, _ = self._unsettled.popitem()
            if (record := self.records.get(ref)) is not None:
                self.settle(record)

    def place_starving(self) -> None:
        """A node can send again: receivers without a sender may find one. What runs already comes before what could, of
        any object."""
        for ref in self.starving:
            if (broadcast := self.records[ref].broadcast) is not None:
                broadcast.link_adopted()
        for ref in list(self.starving):
            self.place_again(self.records[ref])

    # --- how a version begins ----------------------------------------------------------------------------------

    def offer(self, member: Member, put: Put) -> None:
        """A put begins a version, or is told of the one that there is, or waits for what becomes of that."""
        refusal = refuse_put(self, put)
        if refusal is not None:
            self.world.send(member.node, PutRefused(put.call, refusal))
            return
        record = self.record(put.ref)
        self.involve(record, member)
        broadcast = record.broadcast
        if broadcast is None and not self.world.recovering:
            self._begin(record, member, put)
        elif broadcast is not None and record.put == (member.node, put.call):
            self.world.send(member.node, PutAccepted(put.call, broadcast.version, existing=False))
        elif broadcast is not None and broadcast.complete():
            self.world.send(member.node, PutAccepted(put.call, broadcast.version, existing=True))
        elif (member.node, put) not in record.deferred:
            record.deferred.append((member.node, put))

    def _begin(self, record: Record, member: Member, put: Put) -> None:
        version = self.new_version(put.ref)
        inline = put.data
        if inline is not None and self.inline_total + put.size > self.world.settings.inline_total:
            inline = None
        broadcast = self._broadcast_type(self.world, self.members, version, put.size, put.layout, member.nic.up, inline)
        record.broadcast = broadcast
        record.put = (member.node, put.call)
        self.world.tell(put.ref, "{} put {} of {} bytes", label(member.node), version, put.size)
        if inline is not None:
            self.inline_total += put.size
        if put.data is not None:
            broadcast.add_copy(member)
        else:
            broadcast.produce(member)
        self.world.emit(SendNode(member.node, PutAccepted(put.call, version, existing=False), patient=put.told))
        waiting, record.waiting = record.waiting, {}
        for waiter in waiting.values():
            self.serve(record, waiter)
        self.announce_if_ready(record)
        self.source_changed(record.ref)  # a reduction that gave up for want of it may hope again
        self.place(record)

    def begin_output(self, ref: bytes, size: int, layout: bytes, host: Member | None, whole: int) -> Version:
        """A slot begins a version of its output, which is all or a stripe of `whole` bytes; without a host it is
        gathered from others'."""
        record = self.record(ref)
        version = self.new_version(ref)
        rate = self.members.bandwidth() if host is None else host.nic.up
        record.broadcast = self._broadcast_type(self.world, self.members, version, size, layout, rate)
        record.broadcast.counted = not record.is_stripe()
        record.broadcast.whole = whole
        if record.slot is not None and record.reduction is not None and record.is_stripe():
            record.broadcast.rank = record.reduction.turn * RANKS + record.slot.height
        record.broadcast.sealed = False
        return version

    def begin_inline(self, record: Record, version: Version, layout: bytes, data: bytes) -> None:
        """A small result has come: it lives here like a small put."""
        record.broadcast = self._broadcast_type(self.world, self.members, version, len(data), layout, 1.0, data)
        self.inline_total += len(data)

    def revive(self, member: Member, found: Copy | Partial | Bind, *, sealed: bool, origin: Origin | None) -> None:
        """A survivor of an earlier directory has bytes of a version: it goes on, unless there is a higher one."""
        version = found.version
        known = self.records.get(version.ref)
        current = known.broadcast if known is not None else None
        if version.incarnation >= self.world.incarnation or self.is_deleted(version.ref):
            return
        if known is not None and current is not None and current.version >= version:
            if current.version == version and sealed and not current.sealed and self.world.recovering:
                self._note_seal(known, origin)  # others did not know yet
            return
        if not self.world.recovering and not (sealed and self._gives_way(known)):
            return  # it comes too late: what was undecided is made anew
        record = self.record(version.ref)
        self.reset(record)
        record.broadcast = self._broadcast_type(
            self.world, self.members, version, found.size, found.layout, member.nic.up
        )
        record.broadcast.sealed = False
        self.involve(record, member)
        self.world.tell(version.ref, "{} is known again from {}", version, label(member.node))
        if record.reduction is None:
            record.put = record.spec = record.contributors = record.decided = None
        if sealed:
            self._note_seal(record, origin)

    def _gives_way(self, record: Record | None) -> bool:
        """Whether a decided version that comes late is taken up. A reduction that was begun anew for want of it stops,
        unless it has got as far as a version of its own."""
        reduction = record.reduction if record is not None else None
        if record is None or reduction is None:
            return True
        if reduction.record is not record or record.broadcast is not None:
            return False
        reduction.cancel()
        return True

    def _note_seal(self, record: Record, origin: Origin | None) -> None:
        """A survivor knows that the version was decided before us."""
        broadcast = record.broadcast
        assert broadcast is not None
        broadcast.sealed = True
        for node in broadcast.nodes():
            self.world.send(node, Sealed(broadcast.version, origin))
        if origin is not None:
            self.decide(record, origin)
        else:  # it was put: whoever asked for a reduction into it was in error
            record.spec = record.contributors = record.decided = None
            self.fail_askers(record, invalid(record.ref, "it is not the target of a reduction"))
        if record.reduction is not None:
            reduction, record.reduction = record.reduction, None
            self.reduction_ended(reduction)
        self.announce_if_ready(record)
        self.look_at(record.ref)

    def decide(self, record: Record, origin: Origin) -> None:
        """The version that there is of a target is what the reduction became."""
        assert record.broadcast is not None
        record.broadcast.origin = origin
        record.spec, record.decided = origin.spec, record.broadcast.version
        record.contributors = {source.ref: source for source in origin.contributors}

    def produce(self, record: Record, host: Member, start: int) -> None:
        """A slot's output begins to grow at its host, whose own gets will find it there."""
        assert record.broadcast is not None
        if host.node in record.broadcast.receivers:
            record.broadcast.forget(host.node)
            if not record.is_stripe():  # else it was for a target that begins anew there
                record.waiting[host.node] = host
        record.broadcast.produce(host, start)

    def new_version(self, ref: bytes) -> Version:
        self._counter += 1
        return Version(ref, self.world.incarnation, self._counter)

    def next_turn(self) -> int:
        """Of reductions in stripes, whose streams go in the order in which they were laid."""
        self._turns += 1
        return self._turns

    # --- how it is got -----------------------------------------------------------------------------------------

    def completed(self, member: Member, version: Version, *, joining: bool = False) -> None:
        """A node says that it has every byte."""
        broadcast = self.current(member, version)
        if broadcast is None:
            return
        record = self.records[version.ref]
        node, host = member.node, record.slot.host if record.slot is not None else None
        known = node in broadcast.copies or node in broadcast.receivers or broadcast.producer == node or host is member
        if not known and not joining:
            self.world.send(member.node, Drop(version))  # it was told so before, and this crossed it
            return
        if node == broadcast.producer and broadcast.start:
            self.world.blame(node, version.ref, f"it makes {version} from {broadcast.start} on, and has not all of it")
            return
        if record.deleted and node not in broadcast.copies and node != broadcast.producer:
            self.world.send(member.node, Drop(version))  # only those who had it, or made it, keep it for reductions
            return
        self.involve(record, member)
        if broadcast.sealed:
            record.waiting.pop(member.node, None)
        broadcast.add_copy(member)
        self.announce_if_ready(record)
        self.settle(record)

    def look(self, ref: bytes) -> Answer:
        """The bytes, if a want would be answered with them now."""
        record = self.records.get(ref)
        if record is None or record.deleted or record.reduction is not None:
            return Absent(ref)
        broadcast = record.broadcast
        if broadcast is None or broadcast.inline is None or not broadcast.sealed or self.world.recovering:
            return Absent(ref)
        return Found(broadcast.version, broadcast.layout, broadcast.inline)

    def describe(self, ref: bytes) -> Description:
        """What users may know of a ref. This changes nothing."""
        state, record = self.state_of(ref), self.records.get(ref)
        broadcast = record.broadcast if record is not None else None
        if record is None or broadcast is None or state not in (ObjectState.READY, ObjectState.COMING):
            return Description(ref, state)
        putter = self.members.get(record.put[0]) if record.put is not None else None
        seen = broadcast.version.incarnation == self.world.incarnation
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
            max(0.0, self.world.now - broadcast.began) if seen else None,
        )

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

    def serve(self, record: Record, member: Member) -> None:
        """Answer a want with the bytes, a place in the tree, or patience."""
        broadcast = record.broadcast
        if record.reduction is not None and record.reduction.failure is not None:
            self.world.send(member.node, Failed(record.ref, record.reduction.failure))
        elif broadcast is None or self._waits_outside(record, broadcast, member):
            record.waiting[member.node] = member
        elif broadcast.inline is not None:
            broadcast.give(member)
        else:
            broadcast.want(member)

    def _waits_outside(self, record: Record, broadcast: Broadcast, member: Member) -> bool:
        """Whether a want has no place in the tree: of a node that makes the object itself, and its own gets find it;
        and when the version has no root yet, or is dying while the next one is offered already."""
        if broadcast.producer == member.node or member.node in broadcast.copies:
            return True
        return not broadcast.has_root() and (bool(record.deferred) or not broadcast.sealed)

    def place_again(self, record: Record) -> None:
        """Something outside the tree has changed: whoever found no sender may find one now."""
        if record.broadcast is not None:
            record.broadcast.reconsider()
        self.place(record)

    def place(self, record: Record) -> None:
        broadcast = record.broadcast
        if broadcast is not None and broadcast.waits():
            broadcast.place()
            stripes.assemble(self, record)
        if broadcast is not None and broadcast.waits():
            self.starving[record.ref] = None
        else:
            self.starving.pop(record.ref, None)

    def announce_if_ready(self, record: Record) -> None:
        if record.broadcast is None or not record.broadcast.complete():
            return
        self._tell_ready(record)
        self.source_changed(record.ref)

    def _tell_ready(self, record: Record) -> None:
        """A get would answer at once, with a value or a failure."""
        for node in record.watchers:
            self.world.send(node, Ready((record.ref,)))
        record.watchers.clear()

    # --- how it ends -------------------------------------------------------------------------------------------

    def settle(self, record: Record) -> None:
        """After any change: declare a loss that has become certain, place who waits, forget what is empty."""
        broadcast = record.broadcast
        if broadcast is not None:
            for member in list(record.waiting.values()):
                if not self._waits_outside(record, broadcast, member):
                    del record.waiting[member.node]  # its put came to nothing, and it still wants the object
                    self.serve(record, member)
        lost_now = broadcast is not None and broadcast.is_lost() and not self.world.recovering
        if record.slot is not None and record.reduction is not None:
            if lost_now and record.slot.host is None:
                record.reduction.output_lost(record.slot)
            elif broadcast is not None and broadcast.lacks_beginning():
                record.reduction.beginning_lacks(record.slot)
            elif broadcast is not None and record.slot.host is None and not broadcast.copies:
                record.reduction.review()  # what went into it may be needed again
            else:
                record.reduction.completed(record.slot)
        elif record.stripe_of is not None:
            target = self.records[record.stripe_of].broadcast
            if target is not None and lost_now:
                stripes.end(self, target)
        elif broadcast is not None and lost_now:
            self.world.tell(record.ref, "{} is lost", broadcast.version)
            if record.deferred and broadcast.version.incarnation < self.world.incarnation:
                self.reset(record)  # its put, or another one, is here and begins anew: getters wait for that
            else:
                self.end_version(record, aborted(record.ref) if broadcast.aborted else lost(record.ref))
            self.offer_deferred(record)
            self.source_changed(record.ref)
        elif broadcast is not None and record.deferred and broadcast.complete():
            deferred, record.deferred = record.deferred, []
            for node, put in deferred:
                self.world.send(node, PutAccepted(put.call, broadcast.version, existing=True))
        stripes.end_if_unused(self, record)
        self.place(record)
        if record.idle() and self.records.get(record.ref) is record:
            del self.records[record.ref]
            for member in record.nodes.values():
                member.refs.pop(record.ref, None)

    def offer_deferred(self, record: Record) -> None:
        """What the puts waited for is over: the first of them begins a version."""
        deferred, record.deferred = record.deferred, []
        for node, put in deferred:
            self.offer(self.members[node], put)

    def end_version(self, record: Record, failure: Failure, also: Iterable[NodeId] = ()) -> None:
        broadcast, record.broadcast, record.put = record.broadcast, None, None
        told = dict.fromkeys(also)
        if broadcast is not None:
            told |= dict.fromkeys(key for key in broadcast.receivers if not isinstance(key, tuple))
        for node in told:
            self.world.send(node, Failed(record.ref, failure))
        if broadcast is not None:
            if broadcast.inline is not None:
                self.inline_total -= broadcast.size
            broadcast.drop_everywhere()
            stripes.end(self, broadcast)
        self.world.timers.cancel(("place", record.ref))
        self.starving.pop(record.ref, None)

    def bury(self, record: Record) -> None:
        """From now on it is deleted, for as long as a tombstone lasts."""
        record.deleted = True
        self.tombstones.add(record.ref, undecided=record.reduction is not None)
        if self.tombstones.overflow():
            self.forget_tombstones()

    def forget_tombstones(self) -> None:
        """Deleted refs whose time is over are as good as new, unless a reduction still needs what was hidden."""
        for ref in self.tombstones.pop_over():
            record = self.records.get(ref)
            if record is not None and record.broadcast is not None:
                self.tombstones.add(ref)
            elif record is not None:
                record.deleted = False
                self.settle(record)

    def hide(self, record: Record, failure: Failure, told: list[NodeId]) -> None:
        """Nobody gets it any more, but the reductions that chose it still need its bytes."""
        broadcast = record.broadcast
        assert broadcast is not None
        getters = [key for key in broadcast.receivers if not isinstance(key, tuple)]
        for node in dict.fromkeys([*told, *getters]):
            self.world.send(node, Failed(record.ref, failure))
        for node in getters:
            broadcast.forget(node)
            self.world.send(node, Drop(broadcast.version))
        self.look_at(record.ref)

    def reset(self, record: Record) -> None:
        """The version is over without being lost or deleted: whoever waited for it waits for the next one. Those who
        were placed ask again when they are told; the others have not heard of the version."""
        if record.broadcast is not None:
            if not record.is_stripe():
                record.waiting |= record.broadcast.waiting_stores()
            record.broadcast.drop_everywhere()
            record.broadcast = None
        self.world.timers.cancel(("place", record.ref))
        self.starving.pop(record.ref, None)

    def fail_waiters(self, record: Record, failure: Failure) -> None:
        getters = [key for key in record.broadcast.receivers if not isinstance(key, tuple)] if record.broadcast else []
        for node in dict.fromkeys([*record.waiting, *getters]):
            self.world.send(node, Failed(record.ref, failure))
        record.waiting.clear()
        self._tell_ready(record)
        self.fail_askers(record, failure)
        self.source_changed(record.ref)

    def fail_askers(self, record: Record, failure: Failure) -> None:
        for node, call in record.askers:
            self.world.send(node, Contributors(call, (), failure))
        record.askers.clear()

    # --- what reductions do ------------------------------------------------------------------------------------

    def feed(self, part: bytes, host: Member, slot: bytes, start: int) -> bool:
        """Send the part, from `start` on, to a slot's host; True if it is so small that it went with the message."""
        record = self.record(part)
        self.involve(record, host)
        if record.broadcast is None:
            return False
        record.broadcast.want(host, start, into=slot)
        self.settle(record)
        return record.broadcast.inline is not None

    def unfeed(self, part: bytes, node: NodeId, slot: bytes) -> None:
        record = self.records.get(part)
        if record is not None and record.broadcast is not None:
            record.broadcast.forget(receiver_key(node, slot))
            self.look_at(part)

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

    def release_sources(self, refs: Iterable[bytes]) -> None:
        """Sources that are not chosen any more: those deleted meanwhile go."""
        for ref in refs:
            record = self.records.get(ref)
            if record is not None and record.deleted and record.broadcast is not None and not record.pinned():
                self.end_version(record, deleted(ref))

    def reduction_ended(self, reduction: Reduction) -> None:
        """Decided or cancelled: its sources are free, and those deleted meanwhile go."""
        target = reduction.record
        for node in reduction.requesters:
            if self.members.get(node) is not None:
                self.world.send(node, Over(target.ref))
        if target.contributors is not None:
            for node, call in target.askers:
                self.world.send(node, Contributors(call, tuple(target.contributors)))
            target.askers.clear()
        for ref in reduction.spec.sources:
            record = self.records.get(ref)
            if record is None:
                continue
            record.consumers.pop(target.ref, None)
            self.release_sources([ref])
            self.settle(record)
        self.announce_if_ready(target)
        self.source_changed(target.ref)

    # --- what reductions ask -----------------------------------------------------------------------------------

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
        """A node that has the object, for choice one that can be used now."""
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

    def has_inline_room(self, size: int) -> bool:
        return self.inline_total + size <= self.world.settings.inline_total
