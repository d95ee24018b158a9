"""The virtual directory: the shell around one `Directory` machine, one session per node, and probes of their ports.

Its process may take time for what it does (`directory_costs`): then it does one after the other, in the order in which
they come. What follows from an event is sent at once, and what it costs to send that is paid before the next event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from hoplite_ucx.protocol import Directory, NodeState, Settings
from hoplite_ucx.protocol.driver import Driver
from hoplite_ucx.protocol.errors import Failure, FailureKind, internal
from hoplite_ucx.protocol.events import (
    CombineBytes,
    CombinedBytes,
    CombineFailed,
    DirectoryEffect,
    DirectoryEvent,
    Disconnect,
    FromNode,
    Probe,
    Probed,
    SendNode,
    SessionLost,
    Tick,
)
from hoplite_ucx.protocol.ids import NodeId, Version
from hoplite_ucx.protocol.messages import Heartbeat, Join, ToDirectory, ToNode
from hoplite_ucx.simulate.clock import Clock, Handle, Waker
from hoplite_ucx.simulate.directory_costs import DirectoryCosts
from hoplite_ucx.simulate.network import Endpoint, Network
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.provenance import Provenance
from hoplite_ucx.simulate.sabotage import SabotageError
from hoplite_ucx.tracing.directory_recorder import DirectoryRecorder

HOST = "directory"

_Work: TypeAlias = Callable[[], None]


class Cluster(Protocol):
    """What a directory needs of the cluster that it is of."""

    clock: Clock
    network: Network
    settings: Settings
    directory_costs: DirectoryCosts
    handover: float
    directory_combining: bool
    provenance: Provenance

    def after_event(self, machine: Directory | NodeState) -> None: ...
    def directory_says(self, node: NodeId, message: ToNode) -> None: ...
    def directory_combines(self, version: Version) -> None: ...
    def next_incarnation(self) -> int: ...
    def node_at(self, address: str) -> VirtualNode: ...
    def reachable(self, source: str, target: str) -> bool: ...


class VirtualDirectory:
    def __init__(self, cluster: Cluster, machine: Directory) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self.machine = machine
        self.alive = True
        self.recorder: DirectoryRecorder | None = None
        self.sessions: dict[NodeId, Endpoint] = {}
        self._endpoints: dict[Endpoint, None] = {}  # of sessions, and of those that have yet to join
        self._queue: deque[tuple[float, _Work]] = deque()
        self._timer: Handle | None = None  # the end of the first of them
        self._free_at = 0.0  # when all is sent that followed from the last one that was done
        self._woken = False  # a `Tick` waits
        self._waker = Waker(self._clock, self._wake)
        self._driver = self._drive(machine)

    def _drive(self, machine: Directory) -> Driver[DirectoryEvent, DirectoryEffect]:
        return Driver(
            machine,
            DirectoryEffect,
            {
                SendNode: self._send,
                Probe: self._probe,
                Disconnect: self._disconnect,
                CombineBytes: self._combine_bytes,
            },
            now=lambda: self._clock.now,
            wake=self._waker.set,
            succeed=self._succeed,
            handled=self._handled,
        )

    def crash(self) -> None:
        """The process is gone, with all that it knew and all that is on its way to it."""
        self.alive = False
        if self.recorder is not None:
            self.recorder.end(self._clock.now)
        self._driver.stop()
        self._waker.cancel()
        self._close_sessions()

    @property
    def backlog(self) -> float:
        """How long it takes at least for what waits now."""
        return max(0.0, self._free_at - self._clock.now) + sum(cost for cost, _ in self._queue)

    def _take(self, cost: float, work: _Work) -> None:
        """Do it as soon as all that came before is done."""
        costs = self._cluster.directory_costs
        if not costs:
            work()
            return
        sleeps = not self._queue and self._free_at <= self._clock.now
        self._queue.append((cost + costs.wake_up if sleeps else cost, work))
        self._go_on()

    def _go_on(self) -> None:
        if self._queue and self._timer is None:
            begins = max(self._clock.now, self._free_at)
            self._timer = self._clock.at(begins + self._queue[0][0], self._work)

    def _work(self) -> None:
        _, work = self._queue.popleft()
        self._timer = None
        self._free_at = self._clock.now
        work()
        self._go_on()

    def _wake(self) -> None:
        """Once: while it waits, every event says again that it is due."""
        if not self._woken:
            self._woken = True
            self._take(self._cluster.directory_costs.of_others, self._tick)

    def _tick(self) -> None:
        self._woken = False
        self.dispatch(Tick())

    def _close_sessions(self, *, reset: bool = True) -> None:
        """What came through them and was not looked at is lost with them."""
        self._queue.clear()
        self._woken = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for endpoint in list(self._endpoints):
            endpoint.close(reset=reset)
        self._endpoints.clear()
        self.sessions.clear()

    def restart(self, machine: Directory) -> None:
        """A successor begins empty and listens to the nodes."""
        self.alive = True
        self.machine = machine
        self._driver = self._drive(machine)
        machine.recover(self._clock.now)
        self._driver.begin([])

    def accept(self, endpoint: Endpoint) -> None:
        if not self.alive:
            endpoint.close()
            return
        self._endpoints[endpoint] = None
        joined: list[NodeId] = []
        costs = self._cluster.directory_costs

        def on_message(envelope: tuple[NodeId, ToDirectory]) -> None:
            node, message = envelope
            if isinstance(message, Join) and not joined:
                joined.append(node)
                old = self.sessions.get(node)
                self.sessions[node] = endpoint
                if old is not None and old is not endpoint:
                    old.close()
            if joined and self.sessions.get(joined[0]) is endpoint:
                self.dispatch(FromNode(node, message))

        def on_closed(_: str) -> None:
            self._endpoints.pop(endpoint, None)
            if joined and self.sessions.get(joined[0]) is endpoint:
                del self.sessions[joined[0]]
                self.dispatch(SessionLost(joined[0]))

        endpoint.attach(
            lambda envelope: self._take(costs.of_received(envelope[1]), lambda: on_message(envelope)),
            lambda reason: self._take(costs.of_others, lambda: on_closed(reason)),
        )

    def dispatch(self, event: DirectoryEvent) -> None:
        self._driver.feed(event)

    def _handled(self, event: DirectoryEvent, effects: list[DirectoryEffect]) -> None:
        if self.recorder is not None:
            self.recorder.handled(event, effects, self._clock.now, 0.0)
        if not (isinstance(event, FromNode) and isinstance(event.message, Heartbeat)):
            self._cluster.after_event(self.machine)

    def _succeed(self, event: DirectoryEvent, error: Exception) -> None:
        """A trap went off: who asked hears so, and a new incarnation takes over."""
        if not isinstance(error, SabotageError):
            raise error
        farewell = self.machine.farewell(event, internal("directory", type(event).__name__, error))
        self._driver.begin(farewell)
        self._close_sessions(reset=False)
        incarnation = self._cluster.next_incarnation()
        self.machine = self.machine.successor(incarnation, event, self._clock.now)
        self._driver.begin([], self.machine)

    def _send(self, effect: SendNode) -> None:
        self._cluster.directory_says(effect.node, effect.message)
        endpoint = self.sessions.get(effect.node)
        if endpoint is not None:
            self._free_at += self._cluster.directory_costs.of_sent(effect.message)
            endpoint.send(effect.message)

    def _combine_bytes(self, effect: CombineBytes) -> None:
        """Other events may come first, as with many objects at once."""
        asker, result = self.machine, self._combined(effect)

        def answer() -> None:
            if self.alive and self.machine is asker:
                self.dispatch(result)

        self._cluster.directory_combines(effect.version)
        self._clock.after(self._cluster.handover, self._take, self._cluster.directory_costs.of_others, answer)

    def _combined(self, effect: CombineBytes) -> CombinedBytes | CombineFailed:
        if not self._cluster.directory_combining:
            return CombineFailed(effect.version, Failure(FailureKind.INVALID, "a type is unknown here", "install it"))
        provenance = self._cluster.provenance
        token = provenance.combined(provenance.of_bytes(part) for part in effect.parts)
        return CombinedBytes(effect.version, provenance.to_bytes(token, len(effect.parts[0])))

    def _disconnect(self, effect: Disconnect) -> None:
        endpoint = self.sessions.pop(effect.node, None)
        if endpoint is not None:
            self._endpoints.pop(endpoint, None)
            endpoint.close(reset=False)

    def _probe(self, effect: Probe) -> None:
        """Knock at a port: a process answers, a dead one's kernel refuses, a stopped one or a dead host is silent."""
        node = self._cluster.node_at(effect.address)
        there_and_back = 2 * self._cluster.network.latency(HOST, node.host)
        reachable = self._cluster.reachable(HOST, node.host) and self._cluster.reachable(node.host, HOST)
        asker, cost = self.machine, self._cluster.directory_costs.of_others

        def answer(accepted: bool | None) -> None:
            if self.machine is asker:
                self.dispatch(Probed(effect.node, accepted))

        if reachable and not (node.alive and node.stopped):
            self._clock.after(there_and_back, lambda: self._take(cost, lambda: answer(node.alive)))
        else:
            self._clock.after(self._cluster.settings.probe, self._take, cost, lambda: answer(None))
