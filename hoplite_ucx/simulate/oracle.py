"""The judge of a simulated run: compares the promises to users with what the simulator knows to be true.

While a run goes on: every get returns exactly the bytes of the put that made its version, all of them written; an
object is declared lost only if no node that still counts has a complete copy; every failure has its reason. At the end,
once faults have stopped: every wait that could be satisfied has ended, the directory knows exactly what the nodes hold,
and after everything was deleted nothing is left: no stream, no timer, no pin, no byte.
"""

from collections.abc import Callable

from hoplite_ucx.protocol.directory.records import Reduction
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    ContributorsAre,
    ContributorsCall,
    DeleteCall,
    DescribeCall,
    GetCall,
    Got,
    PutCall,
    PutDone,
    ReduceCall,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.ids import CallId, NodeId, Version, generation_of, identity_of, label, short
from hoplite_ucx.protocol.messages import (
    CombineInline,
    EvictAnswer,
    Eviction,
    Failed,
    MayLeave,
    Origin,
    PutAccepted,
    Ready,
    Reduce,
    Sealed,
    StreamFailed,
    StreamFault,
    ToDirectory,
    ToNode,
    Unhandled,
)
from hoplite_ucx.protocol.node.memory import Phase
from hoplite_ucx.simulate.cluster import Call, VirtualCluster
from hoplite_ucx.simulate.node import VirtualNode

# Timers of a cluster at rest: everybody's heartbeat, and nothing else.
_RESTING_TIMERS = {"beat", "sweep"}


class BrokenPromiseError(AssertionError):
    """A promise that was broken; `ref` is the object to tell the story of, where there is one."""

    def __init__(self, what: str, ref: bytes | None = None) -> None:
        super().__init__(what)
        self.ref = ref


class Oracle:
    def __init__(self, cluster: VirtualCluster, *, fair_weather: bool = False) -> None:
        """In fair weather nothing is broken, so that no stream may be given up and nothing lost."""
        self._cluster = cluster
        self._fair_weather = fair_weather
        self._puts: dict[Version, Call] = {}
        self._made_of: dict[Version, int] = {}  # decided versions, and the token of their bytes
        self._contributors: dict[bytes, set[bytes]] = {}  # their order may be another after a restart
        self._given_up: set[bytes] = set()
        self._judged: list[Failure | None] = []
        self._deleted: set[bytes] = set()
        self._aborted: set[bytes] = set()
        self._evicted: set[tuple[NodeId, Version]] = set()
        self._polls: dict[CallId, set[bytes]] = {}  # what a call that asks once must find
        self._unhandled: set[tuple[NodeId, CallId | bytes]] = set()  # what the directory raised over
        cluster.observers.append(self)

    # --- what users will do, told beforehand -------------------------------------------------------------------

    def expect_delete(self, ref: bytes) -> None:
        self._deleted.add(ref)

    def expect_abort(self, ref: bytes) -> None:
        self._aborted.add(ref)

    def ready_now(self, node: VirtualNode, refs: tuple[bytes, ...]) -> set[bytes]:
        """Which of these are complete, as the directory knows or the node itself."""
        records = self._cluster.directory.machine.records
        found = ((ref, records[ref].broadcast) for ref in refs if ref in records)
        known = {ref for ref, broadcast in found if broadcast is not None and broadcast.complete()}
        return known | {ref for ref in refs if node.machine.memory.complete_copy(ref) is not None}

    def expect_ready(self, poll: Call, ready: set[bytes]) -> None:
        """Without faults, a call that asks once finds everything that was ready when it asked."""
        if self._fair_weather:
            self._polls[poll.event.call] = ready
            self._judge_poll(poll)

    def _judge_poll(self, call: Call) -> None:
        if call.answer is None:
            return
        missed = self._polls.pop(call.event.call, set()) - self._deleted
        match call.answer:
            case Waited(rest=rest):
                missed &= set(rest)
            case CallFailed(failure=Failure(kind=FailureKind.TIMEOUT, ref=bytes() as ref)):
                missed &= {ref}
            case _:
                return
        for ref in missed:
            raise BrokenPromiseError(f"{call.event} at {call.node.host} did not find {short(ref)}: {call.answer}", ref)

    # --- while the run goes on ---------------------------------------------------------------------------------

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        match message:
            case PutAccepted(call, version, existing):
                if not existing:
                    known = self._puts.setdefault(version, self._cluster.calls[call])
                    _require(known is self._cluster.calls[call], f"{version} was given to two puts", version.ref)
            case Unhandled(calls=calls, refs=refs):
                self._unhandled |= {(node, call) for call in calls} | {(node, ref) for ref in refs}
            case EvictAnswer(version, Eviction.GRANTED):
                self._evicted.add((node, version))
                self._judge_eviction(node, version)
            case MayLeave(left):
                self._judge_departure(node, left)
            case Failed(ref, failure) if failure.kind is FailureKind.LOST:
                self._judge_loss(ref)
            case Ready(refs):
                self._note_given_up(refs)
            case Sealed(version, Origin(spec, contributors)):
                self._note_decision(version, spec, contributors)
            case CombineInline(version=version):
                self.directory_combines(version)

    def directory_combines(self, version: Version) -> None:
        """Small objects are combined, by the directory or the node that it sends them to."""
        record = self._cluster.directory.machine.records.get(version.ref)
        if record is not None and record.reduction is not None:  # else it was deleted at the very moment
            chosen = tuple(record.reduction.chosen.values())
            self._note_decision(version, record.reduction.spec, chosen)

    def _judge_eviction(self, node: NodeId, version: Version) -> None:
        """No copy is given up with which the object is lost, nor the last one of a small object, which would be lost
        with the directory."""
        ref, directory = version.ref, self._cluster.directory.machine
        tree = directory.table.tree_of(version)
        _require(tree is None or bool(tree.copies), f"{label(node)} evicted the last copy of {version}", ref)
        now, incidents = self._cluster.clock.now, directory.incidents()
        lost = any(incident.ref == ref and incident.at == now for incident in incidents)
        _require(not lost, f"{short(ref)} was lost when {label(node)} evicted it", ref)

    def _judge_departure(self, node: NodeId, left: int) -> None:
        """A node that may leave takes no last copy with it, but for those that were said to have no taker."""
        machine = self._cluster.directory.machine
        last = [
            record.ref
            for record in machine.records.values()
            if record.broadcast is not None
            and record.reduction is None
            and not record.deleted
            and record.stripe_of is None
            and record.broadcast.complete()
            and record.broadcast.inline is None
            and node in record.broadcast.copies
            and all(other == node or machine.members[other].retiring for other in record.broadcast.copies)
        ]
        _require(len(last) <= left, f"{label(node)} may leave with the last copies of {len(last)}", *last[:1])
        if self._fair_weather and not self._cluster.shape.tight:
            others = [member for member in machine.members if not member.retiring]
            _require(not left or not others, f"{left} objects of {label(node)} had no taker", *last[:1])

    def _note_given_up(self, refs: tuple[bytes, ...]) -> None:
        """Of a reduction that failed a wait says ready: a get would answer at once."""
        records = self._cluster.directory.machine.records
        for ref in refs:
            reduction = records[ref].reduction if ref in records else None
            if reduction is not None and reduction.failure is not None:
                self._given_up.add(ref)

    def _note_decision(self, version: Version, spec: Reduce, chosen: tuple[Version, ...]) -> None:
        """A reduction is decided: its bytes must be what its chosen sources are, each once."""
        if version in self._made_of:
            return
        refs = tuple(source.ref for source in chosen)
        _require(len(set(refs)) == spec.count, f"{version} has {len(refs)} of {spec.count} sources", version.ref)
        _require(set(refs) <= set(spec.sources), f"{version} has a source that nobody named", version.ref)
        self._made_of[version] = self._cluster.provenance.combined(self._token_of(v) for v in chosen)
        self._contributors[version.ref] = set(refs)

    def _token_of(self, version: Version) -> int:
        return self._puts[version].token if version in self._puts else self._made_of[version]

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        if self._fair_weather and isinstance(message, StreamFailed):
            sender = self._cluster.nodes[identity_of(message.sender)]
            given_up = message.fault in (StreamFault.BROKEN, StreamFault.STALLED) and not sender.left
            _require(not given_up, f"{label(node.machine.node)} gave up a sound stream: {message}", message.version.ref)

    def _judge_loss(self, ref: bytes) -> None:
        members = self._cluster.directory.machine.members
        record = self._cluster.directory.machine.records.get(ref)
        if self._cluster.directory.machine.table.is_deleted(ref):
            return  # its sources were deleted a moment before it was
        if record is not None and record.reduction is not None:
            self._judge_shortage(record.reduction)
            return
        _require(not self._fair_weather, f"{short(ref)} was declared lost in fair weather", ref)
        for node in self._cluster.slots:
            if not node.alive or members.get(node.machine.node) is None:
                continue
            holding = node.machine.memory.complete_copy(ref)
            if holding is None or holding.version is None:
                continue
            evicted = (node.machine.node, holding.version) in self._evicted
            newest = max(version for version in (*self._puts, *self._made_of) if version.ref == ref)
            _require(
                evicted or holding.version != newest,
                f"{short(ref)} was declared lost while {label(node.machine.node)} had {holding.version} complete",
                ref,
            )

    def _judge_shortage(self, reduction: Reduction) -> None:
        """A reduction may give up only if too few of its sources exist or can still come."""
        if reduction.failure in self._judged:
            return
        self._judged.append(reduction.failure)
        records = self._cluster.directory.machine.records
        put = {version.ref for version in self._puts}
        alive = 0
        for ref in reduction.spec.sources:
            record = records.get(ref)
            made = record is not None and record.reduction is not None and record.reduction.failure is None
            held = any(node.machine.memory.complete_copy(ref) for node in self._living() if self._is_member(node))
            never_put = ref not in put and ref not in self._deleted and (record is None or record.spec is None)
            alive += made or held or never_put
        _require(
            alive < reduction.spec.count or bool(self._evicted) or bool(self._deleted),
            f"{short(reduction.target)} was given up with {alive} of {reduction.spec.count} sources alive",
            reduction.target,
        )

    def _is_member(self, node: VirtualNode) -> bool:
        """A member since its start: what a node that was fenced still has does not count."""
        first_life = generation_of(node.machine.node) == 0
        return first_life and self._cluster.directory.machine.members.get(node.machine.node) is not None

    def answered(self, call: Call) -> None:
        self._judge_poll(call)
        match call.answer:
            case Got(version=version):
                self._judge_value(call, version)
            case CallFailed(failure=failure):
                self._judge_failure(call, failure.kind)
            case PutDone() if isinstance(call.event, PutCall):
                _require(call.filled, f"put {call.event.call} was answered before its last byte", call.event.ref)
            case ContributorsAre(refs=refs) if isinstance(call.event, ContributorsCall):
                right = set(refs) == self._contributors.get(call.event.ref) and len(refs) == len(set(refs))
                _require(right, f"contributors of {short(call.event.ref)} are not {refs}", call.event.ref)
            case Waited(ready=ready):
                for ref in ready:
                    known = ref in self._deleted or any(v.ref == ref and c.filled for v, c in self._puts.items())
                    known = known or ref in self._given_up or any(v.ref == ref for v in self._made_of)
                    _require(known, f"wait says that {short(ref)} is ready, and nobody has put it", ref)

    def _judge_value(self, call: Call, version: Version) -> None:
        put = self._puts.get(version)
        known = put is not None or version in self._made_of
        _require(known, f"a get returned {version}, which nobody put and which is not decided", version.ref)
        _require(put is None or put.filled, f"a get returned {version} before its put was complete", version.ref)
        wrong = self._cluster.wrong_bytes(call, self._token_of(version))
        _require(wrong is None, f"a get of {version} at {call.node.host} returned {wrong}", version.ref)

    def _judge_failure(self, call: Call, kind: FailureKind) -> None:
        refs = refs_of(call)
        ref = refs[0]
        made_from_deleted = isinstance(call.event, ReduceCall) and any(source in self._deleted for source in refs)
        justified = {
            FailureKind.LOST: True,  # judged when the directory said it
            FailureKind.DELETED: ref in self._deleted,
            FailureKind.ABORTED: ref in self._aborted,
            FailureKind.STORE_FULL: self._cluster.shape.tight,
            FailureKind.INVALID: made_from_deleted or isinstance(call.event, ContributorsCall),
            FailureKind.TIMEOUT: self._may_be_late(call),
            FailureKind.INTERNAL: self._met_a_trap(call),
        }
        _require(
            justified.get(kind, False),
            f"call {call.event} at {call.node.host} failed without reason: {call.answer}",
            ref,
        )

    def _met_a_trap(self, call: Call) -> bool:
        """Its node raised, or the directory did, over this very call or over what it waits for."""
        asked = {(call.node.machine.node, what) for what in (call.event.call, *refs_of(call))}
        return call.node.raised or bool(asked & self._unhandled)

    def _may_be_late(self, call: Call) -> bool:
        """A call that asks once may find nothing. A wait returns what is ready, unless the directory is silent."""
        if isinstance(call.event, GetCall):
            return call.event.once
        return isinstance(call.event, WaitCall) and call.event.deadline is not None and not self._fair_weather

    # --- at the end --------------------------------------------------------------------------------------------

    def judge_liveness(self) -> None:
        """Every call has ended. Where memory is scarce the last puts may have failed, and then their gets wait on."""
        for call in self._cluster.calls.values():
            if not call.open:
                continue
            refs = refs_of(call)
            needed = call.event.count if isinstance(call.event, WaitCall) else 1
            present = sum(map(self._can_be_had, refs))
            unheard = isinstance(call.event, GetCall | WaitCall | ContributorsCall) and self._never_reduced(refs)
            if present >= needed or not (self._cluster.shape.tight or unheard):
                raise BrokenPromiseError(f"{call.event} at {call.node.host} never ended", refs[0])

    def _can_be_had(self, ref: bytes) -> bool:
        """Whether some node has it or makes it, and if it is made of sources, whether enough of those can be had."""
        record = self._cluster.directory.machine.records.get(ref)
        if record is None or record.broadcast is None or not record.broadcast.has_root():
            return False
        events = [call.event for call in self._cluster.calls.values()]
        reduced = next((each for each in events if isinstance(each, ReduceCall) and each.target == ref), None)
        if reduced is None or record.broadcast.complete():
            return True
        return sum(map(self._can_be_had, reduced.sources)) >= reduced.count

    def _never_reduced(self, refs: tuple[bytes, ...]) -> bool:
        """Whether one is, or is made from, a target that the directory would not take, as a source was deleted."""
        refused: set[bytes] = set()
        made_from: dict[bytes, tuple[bytes, ...]] = {}
        for call in self._cluster.calls.values():
            if isinstance(call.event, ReduceCall):
                made_from[call.event.target] = call.event.sources
                if call.failure is not None:
                    refused.add(call.event.target)
        needed = list(refs)
        for ref in needed:
            needed.extend(made_from.get(ref, ()))
        return bool(refused & set(needed))

    def judge_leaving(self, nodes: list[VirtualNode]) -> None:
        """Once faults have stopped, every node that was to leave has left."""
        for node in nodes:
            raise BrokenPromiseError(f"{label(node.machine.node)} was to leave, and was not let go")

    def judge_agreement(self) -> None:
        """The directory knows of exactly the copies that there are."""
        held: set[tuple[NodeId, Version]] = set()
        for node in self._living():
            held |= {
                (node.machine.node, version)
                for version, holding in node.machine.memory.holdings.items()
                if holding.phase is Phase.COMPLETE
            }
        known: set[tuple[NodeId, Version]] = set()
        for record in self._cluster.directory.machine.records.values():
            if record.broadcast is not None:
                known |= {(node, record.broadcast.version) for node in record.broadcast.copies}
        for node_id, version in sorted(held ^ known, key=str):
            where = "the directory does not know" if (node_id, version) in held else "only the directory knows"
            raise BrokenPromiseError(f"{where} the copy of {version} at {label(node_id)}", version.ref)

    def agrees(self) -> bool:
        return _holds(self.judge_agreement)

    def at_rest(self) -> bool:
        return _holds(self.judge_rest)

    def judge_rest(self) -> None:
        """Everything was deleted and released: nothing may be left."""
        directory = self._cluster.directory.machine
        for record in directory.records.values():
            raise BrokenPromiseError(f"the directory still has {record}", record.ref)
        _require(set(directory.timers()) <= _RESTING_TIMERS, f"the directory has timers: {set(directory.timers())}")
        for node in self._living():
            self._judge_node_at_rest(node)
        for identity, node in self._cluster.nodes.items():
            _require(not (node.alive and (node.receiving or node.serving)), f"n{identity:x} has streams")

    def _judge_node_at_rest(self, node: VirtualNode) -> None:
        machine = node.machine
        name = label(machine.node)
        left = {
            "fetches": machine.fetching.fetches,
            "incoming streams": machine.receiving.streams,
            "outgoing streams": machine.serving.streams,
            "puts": machine.calls.puts,
            "waits": machine.calls.waits,
            "deletes": machine.calls.deletes,
            "reduces": machine.calls.reduces,
            "asks": machine.calls.asks,
            "questions": machine.calls.questions,
            "polls": machine._context.polls,
            "slots": machine.reducing.slots,
            "targets in stripes": machine.fetching.assembling.assemblies,
            "slots of the shell": node.combining,
            "pins": machine.memory.pinned,
            "segments": machine.memory.segments,
            "memory of the shell": node.segments,
        }
        for what, things in left.items():
            _require(not things, f"{name} still has {what}: {things}")
        _require(machine.memory.used == 0, f"{name} counts {machine.memory.used} bytes in use")
        _require(set(machine.timers()) <= _RESTING_TIMERS, f"{name} has timers: {set(machine.timers())}")

    def _living(self) -> list[VirtualNode]:
        return [node for node in self._cluster.slots if node.alive]


def refs_of(call: Call) -> tuple[bytes, ...]:
    match call.event:
        case GetCall(ref=ref) | PutCall(ref=ref):
            return (ref,)
        case WaitCall(refs=refs) | DeleteCall(refs=refs) | DescribeCall(refs=refs):
            return refs
        case ReduceCall(target=target, sources=sources):
            return (target, *sources)
        case ContributorsCall(ref=ref):
            return (ref,)


def _holds(judge: Callable[[], None]) -> bool:
    try:
        judge()
    except BrokenPromiseError:
        return False
    return True


def _require(true: bool, what: str, ref: bytes | None = None) -> None:
    if not true:
        raise BrokenPromiseError(what, ref)
