"""The virtual directory: the shell around one `Directory` machine, one session per node, and probes of their ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hoplite_ucx.protocol import Directory
from hoplite_ucx.protocol.events import (
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
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.messages import Heartbeat, Join, ToDirectory
from hoplite_ucx.simulate.network import Endpoint

if TYPE_CHECKING:
    from hoplite_ucx.simulate.clock import Handle
    from hoplite_ucx.simulate.cluster import VirtualCluster

HOST = "directory"


class VirtualDirectory:
    def __init__(self, cluster: VirtualCluster, machine: Directory) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self.machine = machine
        self.alive = True
        self.sessions: dict[NodeId, Endpoint] = {}
        self._endpoints: dict[Endpoint, None] = {}  # of sessions, and of those that have yet to join
        self._wake: Handle | None = None
        self._wake_at: float | None = None
        self._perform: dict[type, Callable[[Any], None]] = {
            SendNode: self._send,
            Probe: self._probe,
            Disconnect: self._disconnect,
        }

    def crash(self) -> None:
        """The process is gone, with all that it knew and all that is on its way to it."""
        self.alive = False
        if self._wake is not None:
            self._wake.cancel()
        for endpoint in list(self._endpoints):
            endpoint.close()
        self._endpoints.clear()
        self.sessions.clear()

    def restart(self, machine: Directory) -> None:
        """A successor begins with nothing and hears the nodes."""
        self.alive = True
        self.machine = machine
        self._wake = self._wake_at = None
        machine.recover(self._clock.now)
        self._apply([])

    def accept(self, endpoint: Endpoint) -> None:
        if not self.alive:
            endpoint.close()
            return
        self._endpoints[endpoint] = None
        joined: list[NodeId] = []

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

        endpoint.attach(on_message, on_closed)

    def dispatch(self, event: DirectoryEvent) -> None:
        if not self.alive:
            return
        self._apply(self.machine.handle(event, self._clock.now))
        if not (isinstance(event, FromNode) and isinstance(event.message, Heartbeat)):
            self._cluster.after_event(self.machine)

    def _apply(self, effects: list[DirectoryEffect]) -> None:
        for effect in effects:
            self._perform[type(effect)](effect)
        wakeup = self.machine.wakeup()
        if wakeup != self._wake_at:
            if self._wake is not None:
                self._wake.cancel()
            self._wake_at = wakeup
            self._wake = self._clock.at(wakeup, self._tick) if wakeup is not None else None

    def _tick(self) -> None:
        self._wake = self._wake_at = None
        self.dispatch(Tick())

    def _send(self, effect: SendNode) -> None:
        self._cluster.directory_says(effect.node, effect.message)
        endpoint = self.sessions.get(effect.node)
        if endpoint is not None:
            endpoint.send(effect.message)

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
        asker = self.machine

        def answer(accepted: bool | None) -> None:
            if self.machine is asker:
                self.dispatch(Probed(effect.node, accepted))

        if reachable and not (node.alive and node.stopped):
            self._clock.after(there_and_back, lambda: answer(node.alive))
        else:
            self._clock.after(self._cluster.settings.probe, answer, None)
