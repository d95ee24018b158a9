"""A virtual cluster: hosts, nodes and a directory on one clock, with users' calls and faults as methods.

Everything follows from the arguments and the seed. Users' calls are kept as `Call` records, with what they asked, when,
and how they ended; observers (the oracle, a measurement) see every answer and every message of the directory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hoplite_ucx.protocol import Directory, NodeState, Settings
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import (
    Answer,
    CallFailed,
    CancelCall,
    ContributorsCall,
    DeleteCall,
    GetCall,
    Got,
    NodeEvent,
    PutCall,
    ReduceCall,
    Unpin,
    UserCall,
    WaitCall,
)
from hoplite_ucx.protocol.ids import CallId, NodeId, StreamId, Version, identity_of, node_id
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import Operation, ToDirectory, ToNode
from hoplite_ucx.protocol.node import NodeProfile
from hoplite_ucx.protocol.node.succession import asked_again
from hoplite_ucx.protocol.settings import GIB
from hoplite_ucx.simulate.clock import Clock
from hoplite_ucx.simulate.directory import HOST as DIRECTORY_HOST
from hoplite_ucx.simulate.directory import VirtualDirectory
from hoplite_ucx.simulate.directory_costs import FREE, DirectoryCosts
from hoplite_ucx.simulate.network import Endpoint, Network
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.provenance import Provenance
from hoplite_ucx.simulate.streams import Receiving

CLUSTER = "virtual"
_FAST = 1e12
_CHECK_DIRECTORY_EVERY = 4


@dataclass(slots=True)
class Call:
    """One call of a user, from its start to its answer."""

    node: VirtualNode
    event: UserCall
    began: float
    token: int = 0
    """Of a put: what its bytes are known by."""
    filled: bool = False
    """Of a put: whether its last byte was written."""
    ended: float | None = None
    answer: Answer | None = None
    cancelled: bool = False
    asked_again: bool = False
    """Of another machine, since the first one raised."""

    @property
    def failure(self) -> Failure | None:
        return self.answer.failure if isinstance(self.answer, CallFailed) else None

    @property
    def open(self) -> bool:
        return self.answer is None and not self.cancelled and self.node.alive


class Observer(Protocol):
    def answered(self, call: Call) -> None: ...
    def directory_says(self, node: NodeId, message: ToNode) -> None: ...
    def directory_combines(self, version: Version) -> None: ...
    def node_says(self, node: VirtualNode, message: ToDirectory) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a virtual cluster is made of."""

    nodes: int
    bandwidth: float = 125e6
    latency: float = 100e-6
    handover: float = 150e-6
    sender_cost: float = 0.0
    directory_costs: DirectoryCosts = FREE
    """What the directory's process takes for what it does; it does one after the other."""
    rates: dict[int, float] = field(default_factory=dict)
    """Hosts whose NIC differs from `bandwidth`."""
    memory: int = 64 * GIB
    streams: int = 256
    put_rate: float = 4e9
    put_pieces: int = 8
    jitter: float = 0.0
    """Control messages take up to so much longer than the latency, at random."""
    close_delay: float = 200e-6
    """A cancelled stream is closed, and may write, for up to so long."""
    tight: bool = False
    """Memory is scarce on purpose: calls may fail for lack of it."""
    combines: bool = True
    """Whether the directory can combine small objects: it need not have the libraries for every type."""


class VirtualCluster:
    directory_machine: type[Directory] = Directory
    node_machine: type[NodeState] = NodeState

    def __init__(self, shape: Shape, seed: int = 0, settings: Settings | None = None, *, checked: bool = False) -> None:
        self.shape = shape
        self.random = random.Random(seed)
        self.settings = settings or Settings(
            latency=shape.latency,
            handover=shape.handover,
            sender_cost=shape.sender_cost,
            slot_cost=shape.directory_costs.of_slot,
        )
        self.clock = Clock()
        jitter = (lambda: self.random.random() * shape.jitter) if shape.jitter else None
        self.network = Network(self.clock, shape.latency, sender_overhead=shape.sender_cost, jitter=jitter)
        self.network.add_host(DIRECTORY_HOST, _FAST, _FAST)
        self.handover = shape.handover
        self.directory_costs = shape.directory_costs
        self.directory_combining = shape.combines
        self.put_rate = shape.put_rate
        self.put_pieces = shape.put_pieces
        self.observers: list[Observer] = []
        self.calls: dict[CallId, Call] = {}
        self._checked = checked
        self._calls = 0
        self.events = 0
        self.provenance = Provenance()
        self._refs = 0
        self._identities = 0
        self._incarnations = 1
        self.directory = VirtualDirectory(self, self.directory_machine(1, CLUSTER, self.settings))
        self.nodes: dict[int, VirtualNode] = {}
        self.slots: list[VirtualNode] = []
        """The process that runs on each host now."""
        for index in range(shape.nodes):
            rate = shape.rates.get(index, shape.bandwidth)
            self.network.add_host(_host_name(index), rate, rate)
            # Heartbeats that cost something must not all come at one moment, as they would if all began together.
            delay = index / shape.nodes * self.settings.heartbeat if shape.directory_costs else 0.0
            self.slots.append(self._spawn(index, delay))

    # --- making nodes ------------------------------------------------------------------------------------------

    def _spawn(self, index: int, delay: float = 0.0) -> VirtualNode:
        rate = self.shape.rates.get(index, self.shape.bandwidth)
        profile = NodeProfile(
            host=_host_name(index),
            address=_host_name(index),
            up=rate,
            down=rate,
            cluster=CLUSTER,
            memory=self.shape.memory,
            streams_in=self.shape.streams,
            streams_out=self.shape.streams,
        )
        self._identities += 1
        machine = self.node_machine(node_id(self._identities), profile, self.settings)
        node = VirtualNode(self, machine, profile.host)
        self.nodes[node.identity] = node
        if delay:
            self.clock.after(delay, node.start)
        else:
            node.start()
        return node

    def restart(self, index: int) -> None:
        """A new process takes a dead one's place, with nothing in its store."""
        assert not self.slots[index].alive
        self.network.restore(_host_name(index))
        self.slots[index] = self._spawn(index)

    def crash_directory(self) -> None:
        self.directory.crash()

    def restart_directory(self) -> None:
        """A new incarnation takes the place of a directory that crashed."""
        assert not self.directory.alive
        self.directory.restart(self.directory_machine(self.next_incarnation(), CLUSTER, self.settings))

    def next_incarnation(self) -> int:
        self._incarnations += 1
        return self._incarnations

    # --- what users do -----------------------------------------------------------------------------------------

    def new_ref(self) -> bytes:
        self._refs += 1
        return self._refs.to_bytes(4, "big") + bytes(12)

    def put(self, index: int, ref: bytes, size: int, *, inline: bool = False, timeout: float | None = None) -> Call:
        token = self.provenance.new_put()
        data = self.provenance.to_bytes(token, size) if inline else None
        call = self._call(index, lambda number, at: PutCall(number, ref, size, b"", data, at), timeout)
        call.token = token
        call.filled = inline
        return self._begin(call)

    def get(self, index: int, ref: bytes, *, timeout: float | None = None, once: bool = False) -> Call:
        return self._begin(self._call(index, lambda number, at: GetCall(number, ref, at, once), timeout))

    def wait(self, index: int, refs: tuple[bytes, ...], count: int, *, timeout: float | None = None) -> Call:
        return self._begin(self._call(index, lambda number, at: WaitCall(number, refs, count, at), timeout))

    def delete(self, index: int, *refs: bytes, timeout: float | None = None) -> Call:
        return self._begin(self._call(index, lambda number, at: DeleteCall(number, refs, at), timeout))

    def reduce(
        self,
        index: int,
        target: bytes,
        sources: tuple[bytes, ...],
        count: int,
        *,
        everywhere: bool = False,
        timeout: float | None = None,
    ) -> Call:
        def make(number: CallId, at: float | None) -> ReduceCall:
            return ReduceCall(number, target, sources, Operation.SUM, count, at, everywhere)

        return self._begin(self._call(index, make, timeout))

    def contributors(self, index: int, ref: bytes, *, timeout: float | None = None) -> Call:
        return self._begin(self._call(index, lambda number, at: ContributorsCall(number, ref, at), timeout))

    def cancel(self, call: Call) -> None:
        call.cancelled = True
        call.node.abandon_put(call.event.call)
        call.node.dispatch(CancelCall(call.event.call))

    def unpin(self, call: Call) -> None:
        call.node.dispatch(Unpin(call.event.call))

    def _call(
        self,
        index: int,
        make: Callable[[CallId, float | None], UserCall],
        timeout: float | None,
    ) -> Call:
        self._calls += 1
        deadline = None if timeout is None else self.clock.now + timeout
        call = Call(self.slots[index], make(self._calls, deadline), self.clock.now)
        self.calls[self._calls] = call
        return call

    def _begin(self, call: Call) -> Call:
        call.node.dispatch(call.event)
        return call

    def answered(self, node: VirtualNode, answer: Answer) -> None:
        call = self.calls[answer.call]
        assert call.node is node
        assert call.answer is None, f"call {answer.call} was answered twice: {call.answer} and {answer}"
        call.answer = answer
        call.ended = self.clock.now
        for observer in self.observers:
            observer.answered(call)

    def node_raised(self, node: VirtualNode, event: NodeEvent, failure: Failure) -> list[UserCall]:
        """The node's machine raised: some of its open calls are asked again, and the others fail."""
        again: list[UserCall] = []
        for number, call in self.calls.items():
            if call.node is not node or not call.open:
                continue
            if not call.asked_again and asked_again(call.event, event):
                call.asked_again = True
                again.append(call.event)
            else:
                self.answered(node, CallFailed(number, failure))
        return again

    def given_out(self, node: VirtualNode) -> frozenset[CallId]:
        """The gets whose values users of the node have."""
        return frozenset(
            number for number, call in self.calls.items() if call.node is node and isinstance(call.answer, Got)
        )

    # --- what the shells ask -----------------------------------------------------------------------------------

    def after_event(self, machine: Directory | NodeState) -> None:
        """Look at the invariants. The directory's cost more than its events: they are looked at now and then."""
        self.events += 1
        if self._checked and (isinstance(machine, NodeState) or self.events % _CHECK_DIRECTORY_EVERY == 0):
            check(machine)

    def connect_to_directory(self, node: VirtualNode) -> Endpoint:
        mine, theirs = self.network.connect(node.host, DIRECTORY_HOST)
        self.directory.accept(theirs)
        return mine

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        for observer in self.observers:
            observer.directory_says(node, message)

    def directory_combines(self, version: Version) -> None:
        for observer in self.observers:
            observer.directory_combines(version)

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        for observer in self.observers:
            observer.node_says(node, message)

    def node_at(self, address: str) -> VirtualNode:
        return self.slots[_host_index(address)]

    def receiving_end(self, stream: StreamId) -> Receiving | None:
        return self.nodes[identity_of(stream.receiver)].receiving.get(stream)

    def reachable(self, source: str, target: str) -> bool:
        return self.network.is_open(source, target)

    def notify(self, source: str, target: str, callback: Callable[[], object]) -> None:
        """What one host's kernel tells another arrives after the latency, or never if it cannot."""
        if self.reachable(source, target):
            self.clock.after(self.network.latency(source, target), callback)

    def close_delay(self) -> float:
        return self.random.random() * self.shape.close_delay

    def is_cancelled(self, call: CallId) -> bool:
        return self.calls[call].cancelled

    def token_of_call(self, node: VirtualNode, call: CallId) -> int:
        assert self.calls[call].node is node
        return self.calls[call].token

    def put_was_filled(self, node: VirtualNode, call: CallId) -> None:
        assert self.calls[call].node is node
        self.calls[call].filled = True

    # --- running -----------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], limit: float) -> bool:
        """Let time pass until `done`; False if `limit` came first."""
        self.clock.run(unless=lambda: done() or self.clock.now > limit)
        return done()

    def everyone_joined(self) -> bool:
        joined = {member.node for member in self.directory.machine.nodes()}
        return all(node.machine.node in joined for node in self.slots)

    def settle(self, calls: list[Call], limit: float) -> bool:
        pending = list(calls)

        def done() -> bool:
            while pending and not pending[-1].open:
                pending.pop()
            return not pending

        return self.run_until(done, self.clock.now + limit)

    def wrong_bytes(self, call: Call, token: int) -> str | None:
        """What a get returned, held against what was put; None if every byte is right."""
        got = call.answer
        assert isinstance(got, Got)
        if got.data is not None:
            found = self.provenance.of_bytes(got.data)
            return None if found == token or not got.data else f"{found} instead of {token}"
        assert got.segment is not None
        spans = call.node.segments[got.segment].content.read(0, got.size)
        wrong = [span for span in spans if span[2] != token]
        return f"{wrong} instead of {token}" if wrong else None


def _host_name(index: int) -> str:
    return f"h{index}"


def _host_index(name: str) -> int:
    return int(name[1:])
