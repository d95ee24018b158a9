"""The `Directory` machine: one entry point, one handler per message, and how members join and leave.

`records` and `table` hold what is known of refs, `objects` changes it, `joining` compares it with what nodes announce,
`spread/` spreads one object and `reduce/` makes one of others. This module checks messages and passes them on; then
`settling` decides what follows.

Handlers change state only after they have checked their message; a message that cannot be handled is answered with
`Rejected` and changes nothing.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Self

from hoplite_ucx.protocol import messages
from hoplite_ucx.protocol.directory import tombstones
from hoplite_ucx.protocol.directory.joining import Joining
from hoplite_ucx.protocol.directory.members import Member, Members
from hoplite_ucx.protocol.directory.objects import Objects
from hoplite_ucx.protocol.directory.records import Record, Reduction
from hoplite_ucx.protocol.directory.recovery import Recovery
from hoplite_ucx.protocol.directory.reduce.reduction import Reductions
from hoplite_ucx.protocol.directory.refusals import deleted, invalid, refuse_reduce
from hoplite_ucx.protocol.directory.retiring import Retiring
from hoplite_ucx.protocol.directory.settling import Settling
from hoplite_ucx.protocol.directory.spread import stripes
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.directory.world import Difference, Incident, Tally, World, any_difference
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CombinedBytes,
    CombineFailed,
    DirectoryEffect,
    DirectoryEvent,
    Disconnect,
    FromNode,
    Probed,
    SendNode,
    SessionLost,
    Tick,
)
from hoplite_ucx.protocol.ids import NodeId, Version, label, receiver_key
from hoplite_ucx.protocol.lookups import Answer
from hoplite_ucx.protocol.probation import Probation
from hoplite_ucx.protocol.settings import Settings


class Placed(NamedTuple):
    """A receiver that was given a sender."""

    receiver: NodeId
    sender: NodeId
    version: Version
    size: int
    number: int
    into: bytes


class Directory:
    incarnation: int
    cluster: str
    broadcast_type: type[Broadcast] = Broadcast
    reductions_type: type[Reductions] = Reductions
    retiring_type: type[Retiring] = Retiring

    def __init__(
        self,
        incarnation: int,
        cluster: str,
        settings: Settings | None = None,
        difference: Difference = any_difference,
    ) -> None:
        self.incarnation = incarnation
        self.cluster = cluster
        self.settings = settings or Settings()
        self.world = World(self.settings, incarnation, difference)
        self.members = Members(self.world)
        self.table = Table(self.world, self.members)
        self.records = self.table.records
        self.versions = Versions(self.table, self.broadcast_type)
        self.objects = Objects(self.table, self.versions, self.reductions_type)
        self.reductions = self.objects.reductions
        self._recovery = Recovery(self.table, self.versions, self.objects)
        self._joining = Joining(self.table, self.objects, self._recovery)
        self._settling = Settling(self.table, self.versions, self.objects)
        self._probation = Probation()
        self.retiring = self.retiring_type(self.table)
        self._sweep_due = 0.0
        self._handlers: dict[type, Callable[[Member, Any], None]] = {
            messages.Leave: self._on_leave,
            messages.Retire: self.retiring.begin,
            messages.Heartbeat: self._on_heartbeat,
            messages.Put: self.objects.offer,
            messages.Completed: self.objects.completed,
            messages.Aborted: self._on_aborted,
            messages.Want: self._on_want,
            messages.Unwant: self._on_unwant,
            messages.StreamFailed: self._on_stream_failed,
            messages.Halted: self._on_halted,
            messages.Declined: self._on_declined,
            messages.Evict: self._on_evict,
            messages.Watch: self._on_watch,
            messages.Unwatch: self._on_unwatch,
            messages.Delete: self._on_delete,
            messages.Reduce: self._on_reduce,
            messages.Ask: self._on_ask,
            messages.Describe: self._on_describe,
            messages.Poll: self._on_poll,
            messages.Bound: self._on_bound,
            messages.Consumed: self._on_consumed,
            messages.CombinedInline: self._on_combined_inline,
            messages.Unfit: self._on_unfit,
        }

    def recover(self, now: float) -> None:
        """Begin as the successor of a directory that died: listen to its nodes for a while before deciding anything."""
        self.world.now = now
        self.world.recovering = True
        self.world.timers.set("recover", now + self.settings.lease)

    def successor(self, incarnation: int, event: DirectoryEvent, now: float) -> Self:
        """The machine that continues when this one has raised: a new incarnation, which listens to the nodes as after a
        crash. The node whose message caused it must wait, if it happens again."""
        successor = type(self)(incarnation, self.cluster, self.settings, self.world.difference)
        successor._probation = self._probation
        successor.world.tally = self.world.tally
        successor._probation.note(event.node if isinstance(event, FromNode) else None, now, self.settings.lease)
        successor.recover(now)
        return successor

    def handle(self, event: DirectoryEvent, now: float) -> list[DirectoryEffect]:
        self.world.now = now
        match event:
            case FromNode():
                self._on_message(event.node, event.message)
            case SessionLost(node):
                if (member := self.members.get(node)) is not None:
                    self.members.session_lost(member)
            case Probed(node, accepted):
                member = self.members.get(node)
                if member is not None and self.members.probed(member, accepted, now):
                    self._declare_dead(member, "its port refused a connection")
            case CombinedBytes(version):
                if (reduction := self._reduction_into(version.ref)) is not None:
                    self.reductions.combined_here(reduction, event)
            case CombineFailed(Version() as version):
                if (reduction := self._reduction_into(version.ref)) is not None:
                    self.reductions.combine_failed(reduction, event)
            case Tick():
                self._on_tick()
        self._settling.settle()
        return self.world.take_effects()

    def farewell(self, event: DirectoryEvent, failure: Failure) -> list[DirectoryEffect]:
        """What a machine that raised sends before its sessions end: failures to the calls that it was handling, so that
        the nodes' `Join` does not repeat them."""
        calls, refs = messages.asked_in(event.message) if isinstance(event, FromNode) else ((), ())
        if not isinstance(event, FromNode) or not (calls or refs):
            return []
        return [SendNode(event.node, messages.Unhandled(failure, calls, refs))]

    def look(self, ref: bytes) -> Answer:
        """The answer to a reader about a ref. This changes nothing, and may come between any two events."""
        return self.objects.look(ref)

    def nodes(self) -> list[Member]:
        """The members, for a shell to read."""
        return list(self.members)

    def known_objects(self) -> int:
        return len(self.records)

    def refs(self) -> list[bytes]:
        return list(self.records)

    def placements(self, refs: Iterable[bytes]) -> list[Placed]:
        """Who pulls these from whom now."""
        found = (self.records[ref].broadcast for ref in refs if ref in self.records)
        return [
            Placed(
                receiver.member.node, receiver.sender, broadcast.version, broadcast.size, receiver.number, receiver.into
            )
            for broadcast in found
            if broadcast is not None
            for receiver in broadcast.receivers.values()
            if receiver.sender is not None
        ]

    @property
    def tally(self) -> Tally:
        return self.world.tally

    def wakeup(self) -> float | None:
        """When the shell must send a `Tick` at the latest."""
        return self.world.timers.next()

    def timers(self) -> list[Hashable]:
        """What this machine waits for, by key."""
        return list(self.world.timers)

    def all_records(self) -> list[Record]:
        """Of every ref, as they are now; for `watching`."""
        return list(self.records.values())

    def incidents(self) -> list[Incident]:
        """The last deaths, losses and failures."""
        return list(self.world.incidents)

    def describe(self, ref: bytes) -> messages.Description:
        return self.objects.describe(ref)

    def story(self, ref: bytes) -> list[tuple[float, str]]:
        return self.world.stories.tell(ref)

    # --- members -----------------------------------------------------------------------------------------------

    def _on_message(self, node: NodeId, message: messages.ToDirectory) -> None:
        member, handler = self.members.get(node), self._handlers.get(type(message))
        if member is not None and handler is not None:
            self.members.heard(member, self.world.now)
            handler(member, message)
        elif isinstance(message, messages.Join):
            self._on_join(node, message)
        elif member is not None:
            problem = messages.malformed(f"{type(message).__name__} is not for the directory")
            self.world.send(node, messages.Rejected(problem))
        elif self.members.is_fenced(node):
            self.world.send(node, messages.Fenced(node))
        else:
            self._reject(node, FailureKind.STALE, f"{label(node)} has not joined", "join first")

    def _on_join(self, node: NodeId, join: messages.Join) -> None:
        if join.protocol != messages.PROTOCOL:
            detail = f"it speaks protocol {join.protocol}, and the directory speaks {messages.PROTOCOL}"
            remedy = "run the same version of hoplite-ucx everywhere"
            self._reject(node, FailureKind.INVALID, detail, remedy)
        elif join.cluster != self.cluster:
            detail, remedy = f"this is cluster {self.cluster!r}, not {join.cluster!r}", "check the address"
            self._reject(node, FailureKind.INVALID, detail, remedy)
        elif join.incarnation > self.incarnation:
            detail = f"this directory is incarnation {self.incarnation}, and {join.incarnation} has taken its place"
            self._reject(node, FailureKind.STALE, detail, "stop this directory, or check the address")
        elif join.node != node:
            self._reject(
                node, FailureKind.INVALID, f"{label(node)} joins as {label(join.node)}", "join under its own identity"
            )
        elif self.members.is_fenced(node):
            self.world.send(node, messages.Fenced(node))
            self.world.emit(Disconnect(node))
        elif (wait := max(self._probation.left(who, self.world.now) for who in (node, None))) > 0:
            detail = f"this directory failed {self._times_failed(node)} times; it takes {label(node)} in {wait:.1f} s"
            self._reject(node, FailureKind.INTERNAL, detail, "see the directory's messages, and report this")
        else:
            earlier = self.members.predecessor(join)
            if earlier is not None:
                self._declare_dead(earlier, f"{label(node)} has taken its place")
                self._settling.settle()  # what was lost with it is not there for what this one asks
            member = self.members.join(join, self.world.now)
            if "sweep" not in self.world.timers:
                self._set_sweep()
            self._recovery.expect(join)
            population = self._recovery.population(len(self.members))
            self.world.send(node, messages.Welcome(self.incarnation, self.cluster, self.settings, population))
            self._joining.reconcile(member, join)
            self._repeat_calls(member, join)
            self.world.marks.supply = True
            self._settling.settle()
            for question in join.questions:
                self._on_describe(member, question)
            if self.world.recovering and self._recovery.heard_all():
                self._end_recovery()

    def _times_failed(self, node: NodeId) -> int:
        return max(self._probation.times(who) for who in (node, None))

    def _repeat_calls(self, member: Member, join: messages.Join) -> None:
        """Calls that the node still waits for are handled again: their answers may have been lost."""
        for tombstone in join.tombstones:
            earlier = tombstone.incarnation < self.incarnation and not self.world.recovering
            if earlier and self._recovery.buries(tombstone):
                self._delete(tombstone.ref, member)
        for put in join.puts:
            self.objects.offer(member, put)
        for ref in join.wants:
            self._on_want(member, messages.Want(ref))
        self._watch(member, join.watches)
        for call in (*join.deletes, *join.reduces):
            self._handlers[type(call)](member, call)
        for reduce in join.submitted:
            self._remember_reduction(member, reduce, survivor=join.incarnation < self.incarnation)
        for ask in join.asks:
            self._on_ask(member, ask)

    def _on_leave(self, member: Member, _: messages.Leave) -> None:
        self._remove_member(member, "left")

    def _on_heartbeat(self, member: Member, heartbeat: messages.Heartbeat) -> None:
        if heartbeat.round_trip:
            self.world.measuring.round_trip(member.node, heartbeat.round_trip)
        self.world.send(member.node, messages.Alive(self._recovery.population(len(self.members))))
        for progress in heartbeat.progress:
            if (tree := self.table.tree_of(progress.version)) is not None:
                tree.advanced(receiver_key(member.node, progress.into), progress.watermark)

    def _on_tick(self) -> None:
        for key in self.world.timers.pop_due(self.world.now):
            match key:
                case "sweep":
                    self._sweep()
                case "recover":
                    self._end_recovery()
                case ("probe", int() as node):
                    self.members.ask_again(node)
                case ("place", bytes() as ref):
                    self.table.live_tree(ref).look_for_senders()
                case tombstones.TIMER:
                    self.objects.forget_tombstones()
                case ("reduce", bytes() as ref):
                    self.world.marks.reductions[ref] = None

    def _sweep(self) -> None:
        now = self.world.now
        late = max(0.0, now - self._sweep_due)
        for member in self.members.sweep(now, late):
            self._declare_dead(member, "its lease ran out")
        self._settling.settle()  # what is sealed or lost with them decides which copies are the last
        self.retiring.review()
        if len(self.members):
            self._set_sweep()

    def _end_recovery(self) -> None:
        """Every node had time to come: decide, and do what had to wait."""
        recovery = self._recovery
        self.world.timers.cancel("recover")
        recovery.decide(lambda host, reduce: self._remember_reduction(host, reduce, survivor=True))
        buried = [(ref, member) for ref, (_, member) in recovery.tombstones.items() if recovery.is_buried(ref)]
        self.world.recovering = False
        for ref, member in buried:
            self._delete(ref, member)
        for record in list(self.records.values()):
            if record.broadcast is None:
                self.objects.offer_deferred(record)
            self.world.mark(record.ref)
            if record.reduction is not None:
                self.world.marks.reductions[record.reduction.target] = None
        for node, message in recovery.postponed:  # as if it came now
            self._settling.settle()
            if (asker := self.members.get(node)) is not None:
                self._handlers[type(message)](asker, message)
        recovery.reset()

    def _set_sweep(self) -> None:
        self._sweep_due = self.world.now + self.settings.heartbeat
        self.world.timers.set("sweep", self._sweep_due)

    def _declare_dead(self, member: Member, why: str) -> None:
        self.world.tally.deaths += 1
        self.world.died(member.node, why, next(reversed(member.refs), None))
        self._remove_member(member, f"dead: {why}")

    def _remove_member(self, member: Member, why: str) -> None:
        node = member.node
        touched = [self.records[ref] for ref in member.refs]
        for record in touched:
            self.world.tell(record.ref, "{} {}", label(node), why)
            record.forget_calls(node)
            record.nodes.pop(node, None)
            self.world.mark(record.ref)
            if record.broadcast is not None:
                record.broadcast.forget_node(node)
            if record.slot is not None and record.reduction is not None and record.slot.host is member:
                self.reductions.binder.unbind(record.slot)
        self.members.remove(member)
        self._recovery.forget(member)
        self.retiring.forget(member)
        for record in touched:
            if record.reduction is not None:
                self.reductions.node_lost(record.reduction, node)

    def _reject(self, node: NodeId, kind: FailureKind, detail: str, remedy: str) -> None:
        self.world.send(node, messages.Rejected(Failure(kind, detail, remedy)))

    # --- put and get -------------------------------------------------------------------------------------------

    def _on_aborted(self, member: Member, aborted: messages.Aborted) -> None:
        broadcast = self.table.current(member, aborted.version)
        if broadcast is not None:
            broadcast.aborted = broadcast.producer == member.node
            broadcast.remove(member.node)

    def _on_want(self, member: Member, want: messages.Want) -> None:
        record = self.table.record(want.ref)
        if record.deleted or self._recovery.is_buried(want.ref):
            self.world.send(member.node, messages.Failed(want.ref, deleted(want.ref)))
            self.world.mark(want.ref)
            return
        self.table.involve(record, member)
        self.objects.serve(record, member)

    def _on_unwant(self, member: Member, unwant: messages.Unwant) -> None:
        record = self.records.get(unwant.ref)
        if record is None:
            return
        record.waiting.pop(member.node, None)
        if record.broadcast is not None:
            record.broadcast.unwant(member.node)
        self.world.mark(unwant.ref)

    def _on_stream_failed(self, member: Member, failed: messages.StreamFailed) -> None:
        broadcast = self._reported_tree(member, failed)
        if broadcast is None:
            return
        sender = self.members.get(failed.sender)
        if sender is not None and failed.fault in (messages.StreamFault.BROKEN, messages.StreamFault.STALLED):
            self.members.suspect(sender, broke=failed.fault is messages.StreamFault.BROKEN)
        if not failed.into:
            stripes.leave(self.table, broadcast, member, failed.number)
        key = receiver_key(member.node, failed.into)
        broadcast.failed(key, failed.number, failed.watermark, failed.fault, failed.wanted)

    def _on_halted(self, member: Member, halted: messages.Halted) -> None:
        broadcast = self._reported_tree(member, halted)
        if broadcast is not None:
            broadcast.halted(receiver_key(member.node, halted.into), halted.number, halted.watermark, halted.wanted)

    def _reported_tree(self, member: Member, report: messages.StreamFailed | messages.Halted) -> Broadcast | None:
        """The tree in which the node reports a watermark, unless that cannot be true."""
        broadcast = self.table.current(member, report.version)
        if broadcast is None or report.watermark <= broadcast.size:
            return broadcast
        self.world.blame(member.node, report.version.ref, f"watermark {report.watermark} is beyond {broadcast.size}")
        return None

    def _on_declined(self, member: Member, declined: messages.Declined) -> None:
        broadcast = self.table.current(member, declined.version)
        if broadcast is None:
            return
        record = self.records[declined.version.ref]
        slot = record.slot
        if slot is not None and record.reduction is not None and slot.number == declined.number:
            if slot.host is member:
                self.reductions.binder.declined(record.reduction, slot)
            return
        receiver = broadcast.receivers.get(member.node)
        if receiver is not None and receiver.number == declined.number:
            self.world.tell(declined.version.ref, "{} has no memory for it", label(member.node))
            stripes.leave(self.table, broadcast, member, declined.number)
            broadcast.remove(member.node)
            if slot is not None and record.reduction is not None:
                self.reductions.binder.assembler_declined(record.reduction, slot, member.node)
        elif broadcast.inline is not None:
            broadcast.remove(member.node)  # a result that it was to keep

    # --- wait, evict, delete -----------------------------------------------------------------------------------

    def _on_watch(self, member: Member, watch: messages.Watch) -> None:
        if not self._are_too_many(member, watch.refs):
            self._watch(member, watch.refs)

    def _are_too_many(self, member: Member, refs: tuple[bytes, ...]) -> bool:
        excess = len(refs) > self.settings.max_refs
        if excess:
            self.world.blame(member.node, None, f"{len(refs)} refs are over the limit of {self.settings.max_refs}")
        return excess

    def _watch(self, member: Member, refs: tuple[bytes, ...]) -> None:
        ready = []
        for ref in refs:
            if self.table.state_of(ref) in (messages.ObjectState.READY, messages.ObjectState.DELETED):
                ready.append(ref)
            else:
                record = self.table.record(ref)
                record.watchers[member.node] = member
                self.table.involve(record, member)
                self.reductions.awaited(record)
        if ready:
            self.world.send(member.node, messages.Ready(tuple(ready)))

    def _on_unwatch(self, member: Member, unwatch: messages.Unwatch) -> None:
        for ref in unwatch.refs:
            record = self.records.get(ref)
            if record is not None and record.watchers.pop(member.node, None) is not None:
                self.world.mark(ref)

    def _on_evict(self, member: Member, evict: messages.Evict) -> None:
        record = self.records.get(evict.version.ref)
        broadcast = record.broadcast if record is not None else None
        if broadcast is None or broadcast.version != evict.version:
            answer = messages.Eviction.GRANTED  # a version that is over
        elif record is not None and stripes.is_used(self.table, record, member.node):
            answer = messages.Eviction.IN_USE
        else:
            answer = broadcast.evict(member.node)
            self.world.tell(evict.version.ref, "{} asks to evict it: {}", label(member.node), answer.value)
            if record is not None and answer is messages.Eviction.GRANTED:
                record.waiting.pop(member.node, None)
        self.world.send(member.node, messages.EvictAnswer(evict.version, answer))

    def _on_delete(self, member: Member, delete: messages.Delete) -> None:
        if self._are_too_many(member, delete.refs):
            return
        if self.world.recovering:
            self._recovery.postponed.append((member.node, delete))
            return
        for ref in delete.refs:
            self._delete(ref, member)
        self.world.send(member.node, messages.Deleted(delete.call))

    def _delete(self, ref: bytes, member: Member) -> None:
        if self.table.is_deleted(ref):
            return
        record = self.table.record(ref)
        of_slot = record.reduction is not None and record.reduction.record is not record
        if of_slot or record.stripe_of is not None:
            return  # users cannot delete the output of a slot
        self.world.tell(ref, "deleted by {}", label(member.node))
        self.objects.bury(record)
        for putter, put in record.deferred:
            self.world.send(putter, messages.PutRefused(put.call, deleted(record.ref)))
        record.deferred.clear()
        failure = deleted(record.ref)
        reduction = record.reduction
        if reduction is not None:
            self.reductions.tear_down(reduction)
            self.reductions.ended(reduction)
        record.reduction = record.slot = record.spec = record.contributors = record.decided = None
        self.table.fail_askers(record, failure)
        told = [*record.waiting, *record.watchers]
        record.waiting.clear()
        record.watchers.clear()
        if record.pinned():
            self.objects.hide(record, failure, told)
        else:
            self.versions.end_version(record, failure, also=told)
        self.world.mark(ref)
        self.world.stories.end(ref)

    # --- reduce ------------------------------------------------------------------------------------------------

    def _on_reduce(self, member: Member, reduce: messages.Reduce) -> None:
        failure = refuse_reduce(self.table, reduce)
        self.world.send(member.node, messages.Reduced(reduce.call, failure))
        if failure is not None:
            return
        record = self.table.record(reduce.target)
        if record.reduction is not None:  # asked for before
            record.reduction.requesters[member.node] = None
            self.reductions.retry(record.reduction)
        elif record.spec is not None and record.broadcast is not None:
            self.reductions.hand_over(record, member)  # only after a loss it is done again
        else:
            self._begin_reduction(record, member, reduce)

    def _remember_reduction(self, member: Member, reduce: messages.Reduce, *, survivor: bool) -> None:
        """A node still knows of a reduction. If this directory does not know it, it is decided, unless it belongs to an
        earlier directory."""
        record = self.table.record(reduce.target)
        if record.reduction is not None:
            record.reduction.requesters[member.node] = None
        elif survivor and record.decided is None and refuse_reduce(self.table, reduce) is None:
            self._begin_reduction(record, member, reduce)
        else:
            self.reductions.hand_over(record, member)
            self.world.mark(reduce.target)

    def _begin_reduction(self, record: Record, member: Member, reduce: messages.Reduce) -> None:
        record.spec = reduce
        record.contributors = record.decided = None
        record.reduction = Reduction(record, reduce, member.node, {member.node: None}, no_stripes=not reduce.everywhere)
        self.objects.offer_deferred(record)  # puts that came before it was known: they are refused
        self.world.tell(reduce.target, "{} of {} sources asked for", reduce.count, len(reduce.sources))
        for ref in reduce.sources:
            source = self.table.record(ref)
            if not source.consumers:
                source.outlook = self.table.outlook(source)
            source.consumers[reduce.target] = record.reduction
        self.world.mark(reduce.target)
        self.world.marks.reductions[reduce.target] = None

    def _on_ask(self, member: Member, ask: messages.Ask) -> None:
        record = self.records.get(ask.ref)
        if self.world.recovering:
            self._recovery.postponed.append((member.node, ask))
        elif self.table.is_deleted(ask.ref):
            self.world.send(member.node, messages.Contributors(ask.call, (), deleted(ask.ref)))
        elif record is None or record.spec is None:
            failure = invalid(ask.ref, "it is not the target of a reduction")
            self.world.send(member.node, messages.Contributors(ask.call, (), failure))
        elif record.contributors is not None:
            self.world.send(member.node, messages.Contributors(ask.call, tuple(record.contributors)))
        else:
            record.askers[(member.node, ask.call)] = None
            self.table.involve(record, member)
            self.reductions.awaited(record)

    def _on_describe(self, member: Member, question: messages.Describe) -> None:
        if self.world.recovering:
            self._recovery.postponed.append((member.node, question))
        else:
            known = tuple(self.objects.describe(ref) for ref in question.refs)
            self.world.send(member.node, messages.Described(question.call, known))

    def _on_poll(self, member: Member, poll: messages.Poll) -> None:
        if self.world.recovering:
            self._recovery.postponed.append((member.node, poll))  # it is not known yet what exists
            return
        record = self.records.get(poll.ref) if poll.ref is not None else None
        if record is not None and record.askers.pop((member.node, poll.call), poll) is None:
            self.world.mark(record.ref)
        state = self.table.state_of(poll.ref) if poll.ref is not None else messages.ObjectState.UNKNOWN
        self.world.send(member.node, messages.Polled(poll.call, state))

    def _on_bound(self, member: Member, bound: messages.Bound) -> None:
        broadcast = self.table.current(member, bound.version)
        if broadcast is None:
            return
        record = self.records[bound.version.ref]
        slot = record.slot
        if record.reduction is None or slot is None or slot.host is not member:
            # Given to it by an earlier directory, or not needed now.
            self.world.send(member.node, messages.Drop(bound.version))
            if member.node in broadcast.receivers:  # for the slot it gave up the bytes it had received
                broadcast.remove(member.node)
                self.objects.serve(record, member)
        elif slot.number == bound.number and not slot.bound:
            self.reductions.binder.taken(slot, {version.ref for version in bound.missing})

    def _on_consumed(self, member: Member, consumed: messages.Consumed) -> None:
        slot_record = self.records.get(consumed.into)
        slot = slot_record.slot if slot_record is not None else None
        if slot is not None and slot.host is member and consumed.version.ref in slot.parts:
            slot.consumed.add(consumed.version.ref)
        self._recovery.consumed(member, consumed.version.ref, consumed.into)
        if (tree := self.table.tree_of(consumed.version)) is not None:
            tree.remove(receiver_key(member.node, consumed.into))

    def _on_combined_inline(self, member: Member, combined: messages.CombinedInline) -> None:
        if (reduction := self._reduction_into(combined.version.ref)) is not None:
            self.reductions.inline_result(reduction, member, combined)
        if combined.kept:
            self.table.current(member, combined.version)  # if it came too late, the node is told to drop it

    def _on_unfit(self, member: Member, unfit: messages.Unfit) -> None:
        if (reduction := self._reduction_into(unfit.version.ref)) is not None:
            self.reductions.unfit(reduction, member, unfit)

    def _reduction_into(self, ref: bytes) -> Reduction | None:
        """The undecided reduction that makes this, as its target or for one of its slots."""
        record = self.records.get(ref)
        return record.reduction if record is not None else None
