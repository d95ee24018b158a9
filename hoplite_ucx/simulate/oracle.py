"""The judge of a simulated run: what was promised to users, held against what the simulator knows to be true.

While a run goes on: every get returns exactly the bytes of the put that made its version, all of them written; an
object is declared lost only if no node that still counts has a complete copy; every failure has its reason. At the end,
once faults have stopped: every wait that could be satisfied has ended, the directory knows exactly what the nodes hold,
and after everything was deleted nothing is left: no stream, no timer, no pin, no byte.
"""

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import CallFailed, DeleteCall, GetCall, Got, PutCall, PutDone, WaitCall, Waited
from hoplite_ucx.protocol.ids import NodeId, Version, label, short
from hoplite_ucx.protocol.messages import (
    EvictAnswer,
    Eviction,
    Failed,
    PutAccepted,
    StreamFailed,
    StreamFault,
    ToDirectory,
    ToNode,
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
        self._deleted: set[bytes] = set()
        self._aborted: set[bytes] = set()
        self._evicted: set[tuple[NodeId, Version]] = set()
        cluster.observers.append(self)

    # --- what users will do, told beforehand -------------------------------------------------------------------

    def expect_delete(self, ref: bytes) -> None:
        self._deleted.add(ref)

    def expect_abort(self, ref: bytes) -> None:
        self._aborted.add(ref)

    # --- while the run goes on ---------------------------------------------------------------------------------

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        match message:
            case PutAccepted(call, version, existing):
                if not existing:
                    known = self._puts.setdefault(version, self._cluster.calls[call])
                    _require(known is self._cluster.calls[call], f"{version} was given to two puts", version.ref)
            case EvictAnswer(version, Eviction.GRANTED):
                self._evicted.add((node, version))
            case Failed(ref, failure) if failure.kind is FailureKind.LOST:
                self._judge_loss(ref)

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        if self._fair_weather and isinstance(message, StreamFailed):
            given_up = message.fault in (StreamFault.BROKEN, StreamFault.STALLED)
            _require(not given_up, f"{label(node.machine.node)} gave up a sound stream: {message}", message.version.ref)

    def _judge_loss(self, ref: bytes) -> None:
        _require(not self._fair_weather, f"{short(ref)} was declared lost in fair weather", ref)
        members = self._cluster.directory.machine.members
        for node in self._cluster.slots:
            if not node.alive or members.get(node.machine.node) is None:
                continue
            holding = node.machine.memory.complete_copy(ref)
            if holding is None or holding.version is None:
                continue
            evicted = (node.machine.node, holding.version) in self._evicted
            newest = max(version for version in self._puts if version.ref == ref)
            _require(
                evicted or holding.version != newest,
                f"{short(ref)} was declared lost while {label(node.machine.node)} had {holding.version} complete",
                ref,
            )

    def answered(self, call: Call) -> None:
        match call.answer:
            case Got(version=version):
                self._judge_value(call, version)
            case CallFailed(failure=failure):
                self._judge_failure(call, failure.kind)
            case PutDone() if isinstance(call.event, PutCall):
                _require(call.filled, f"put {call.event.call} was answered before its last byte", call.event.ref)
            case Waited(ready=ready):
                for ref in ready:
                    known = ref in self._deleted or any(v.ref == ref and c.filled for v, c in self._puts.items())
                    _require(known, f"wait says that {short(ref)} is ready, and nobody has put it", ref)

    def _judge_value(self, call: Call, version: Version) -> None:
        put = self._puts.get(version)
        _require(put is not None, f"a get returned {version}, which nobody put", version.ref)
        assert put is not None
        _require(put.filled, f"a get returned {version} before its put was complete", version.ref)
        wrong = self._cluster.wrong_bytes(call, put.token)
        _require(wrong is None, f"a get of {version} at {call.node.host} returned {wrong}", version.ref)

    def _judge_failure(self, call: Call, kind: FailureKind) -> None:
        ref = getattr(call.event, "ref", None)
        justified = {
            FailureKind.LOST: True,  # judged when the directory said it
            FailureKind.DELETED: ref in self._deleted,
            FailureKind.ABORTED: ref in self._aborted,
            FailureKind.STORE_FULL: self._cluster.shape.tight,
        }
        _require(
            justified.get(kind, False),
            f"call {call.event} at {call.node.host} failed without reason: {call.answer}",
            ref,
        )

    # --- at the end --------------------------------------------------------------------------------------------

    def judge_liveness(self) -> None:
        """Every call has ended. Where memory is scarce the last puts may have failed, and then their gets wait on."""
        records = self._cluster.directory.machine.records
        for call in self._cluster.calls.values():
            if not call.open:
                continue
            refs = refs_of(call)
            needed = call.event.count if isinstance(call.event, WaitCall) else 1
            present = sum(ref in records and records[ref].broadcast is not None for ref in refs)
            if present >= needed or not self._cluster.shape.tight:
                raise BrokenPromiseError(f"{call.event} at {call.node.host} never ended", refs[0])

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

    def at_rest(self) -> bool:
        try:
            self.judge_rest()
        except BrokenPromiseError:
            return False
        return True

    def judge_rest(self) -> None:
        """Everything was deleted and let go of: nothing may be left."""
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
            "incoming streams": machine.fetching.streams,
            "outgoing streams": machine.serving.streams,
            "puts": machine.calls.puts,
            "waits": machine.calls.waits,
            "deletes": machine.calls.deletes,
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
        case WaitCall(refs=refs) | DeleteCall(refs=refs):
            return refs


def _require(true: bool, what: str, ref: bytes | None = None) -> None:
    if not true:
        raise BrokenPromiseError(what, ref)
