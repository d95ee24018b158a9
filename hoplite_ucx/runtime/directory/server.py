"""The directory's server: sessions with nodes around one `Directory`, a clock, and probes of ports.

Only the session with a node's latest `Join` counts. The sender of a message is the identity that its session has
proven; a node that joins under another identity is refused. A directory that was restarted has a higher incarnation
than any before it, because it counts milliseconds.

Any process that has the token may ask for a status, in a session that never joins. *Viewers* ask what happens, in a
kind of session of their own (see `viewers`). *Readers* are workers that ask
for small objects themselves: they have a kind of session of their own (see `lookup_sessions`). Under TLS there are
none, since workers have no certificate.
"""

import asyncio
import logging
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from hoplite_ucx.metrics.families import Family
from hoplite_ucx.protocol import Directory, lookups
from hoplite_ucx.protocol.driver import Driver
from hoplite_ucx.protocol.errors import Failure, HopliteError, internal
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
    refs_in,
)
from hoplite_ucx.protocol.ids import NodeId, identity_of, label
from hoplite_ucx.protocol.messages import Join, Put, Rejected, decode_to_directory, encode, malformed
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.directory import directory_metrics
from hoplite_ucx.runtime.directory.lookup_sessions import Readers
from hoplite_ucx.runtime.directory.viewers import Viewers
from hoplite_ucx.runtime.objects.kernels import combine_bytes
from hoplite_ucx.runtime.objects.trees import difference
from hoplite_ucx.runtime.settings import MetricsSettings
from hoplite_ucx.runtime.shell.directory_status import STATUS
from hoplite_ucx.runtime.shell.early_links import introduction
from hoplite_ucx.runtime.shell.logs import about
from hoplite_ucx.runtime.shell.observers import Observer, Observers
from hoplite_ucx.runtime.shell.raised_machines import tell_raised
from hoplite_ucx.runtime.shell.refused_connections import tell_malformed, tell_refused
from hoplite_ucx.runtime.shell.tracers import Tracers
from hoplite_ucx.runtime.shell.wakeups import Waker, now
from hoplite_ucx.tracing.directory_recorder import DirectoryRecorder
from hoplite_ucx.transports.descriptors import raise_descriptor_limit
from hoplite_ucx.transports.errors import TransportError, ViolationError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Listener, Session, probe
from hoplite_ucx.transports.wire.tls import Tls

if TYPE_CHECKING:
    from hoplite_ucx.metrics.endpoint import Endpoint

_log = logging.getLogger("hoplite.directory")

_AT_A_TIME = 1000
"""Objects that are looked at in one turn of the loop."""

DIRECTORY_NODE = 0
"""The number under which a directory proves itself; nodes draw theirs above it."""


class DirectoryServer:
    directory_machine = Directory
    """Measurements may lay trees in another way."""

    def __init__(self, cluster: str, token: bytes, settings: Settings | None = None, tls: Tls | None = None) -> None:
        incarnation = _incarnation_after(0)
        self._settings = settings or Settings()
        self.machine = self.directory_machine(incarnation, cluster, self._settings, difference)
        info = lookups.encode_incarnation(incarnation)
        self._identity = Identity(DIRECTORY_NODE, token, cluster.encode(), info, tls=tls)
        self._sessions: dict[NodeId, Session] = {}
        self._readers = Readers(self._look)
        self._tasks: set[asyncio.Task[None]] = set()
        self._observers: Observers[DirectoryEvent, DirectoryEffect] = Observers()
        self._endpoint: Endpoint | None = None
        self._started = now()

    async def start(self, host: str, port: int, *, successor: bool = False) -> str:
        """Listen, and return the address. A successor first listens to the nodes of an earlier directory."""
        raise_descriptor_limit()
        self._waker = Waker(asyncio.get_running_loop(), lambda: self.dispatch(Tick()))
        self._driver: Driver[DirectoryEvent, DirectoryEffect] = Driver(
            self.machine,
            DirectoryEffect,
            {
                SendNode: self._send,
                Probe: self._probe,
                Disconnect: self._disconnect,
                CombineBytes: self._combine_bytes,
            },
            now=now,
            wake=self._waker.set,
            succeed=self._succeed,
            unperformed=self._not_performed,
        )
        self._observers.attach(self._driver)
        if successor:
            self.machine.recover(now())
        self._driver.begin([])
        self._tracers = Tracers(self._observers, self._recorder)
        self._viewers = Viewers(self._observers, lambda: self.machine, lambda: now() - self._started)
        readers = {Kind.READER: self._readers.accept} if self._identity.tls is None else {}
        self._listener = Listener(
            self._identity,
            {
                Kind.CONTROL: self._accept,
                Kind.TRACER: self._tracers.accept,
                Kind.VIEWER: self._viewers.accept,
            },
            sockets=readers,
            on_refused=tell_refused,
        )
        return await self._listener.start(host, port)

    def observe(self, observer: Observer[DirectoryEvent, DirectoryEffect]) -> None:
        self._observers.add(observer)

    def serve_metrics(self, settings: MetricsSettings) -> str | None:
        """The URL at which they are, if they are wanted and can be served."""
        if settings.port is None:
            return None
        from hoplite_ucx.metrics.directory_counts import DirectoryCounts
        from hoplite_ucx.metrics.endpoint import open_endpoint

        counts = DirectoryCounts()

        def collect() -> list[Family]:
            return [*directory_metrics.families(self.machine, self._readers), *counts.families()]

        self._endpoint = open_endpoint(settings.host, settings.port, collect)
        if self._endpoint is None:
            return None
        self._observers.add(counts)
        return self._endpoint.url

    async def close(self) -> None:
        self._driver.stop()
        if self._endpoint is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._endpoint.close)
        self._waker.cancel()
        await self._listener.close()
        for task in self._tasks:
            task.cancel()
        self._readers.close()
        self._viewers.close()
        self._tracers.close()
        for session in self._sessions.values():
            session.close()

    def _recorder(self) -> DirectoryRecorder:
        recorder = DirectoryRecorder()
        self._begin_recording(recorder, self.machine.refs())
        return recorder

    def _begin_recording(self, recorder: DirectoryRecorder, refs: list[bytes]) -> None:
        """With what goes on already: a few objects at a time, so that no event waits for it."""
        recorder.begin(self.machine.placements(refs[-_AT_A_TIME:]), now())
        del refs[-_AT_A_TIME:]
        if refs:
            asyncio.get_running_loop().call_soon(self._begin_recording, recorder, refs)

    def _look(self, ref: bytes) -> lookups.Answer:
        """Asks the current machine."""
        return self.machine.look(ref)

    # --- the machine -------------------------------------------------------------------------------------------

    def dispatch(self, event: DirectoryEvent) -> None:
        self._driver.feed(event)

    def _succeed(self, event: DirectoryEvent, error: Exception) -> None:
        """The machine raised: its callers get errors, and a new incarnation listens to the nodes, as after a crash."""
        tell_raised(_log, event, error, self.machine)
        try:
            self._driver.begin(self.machine.farewell(event, internal("directory", type(event).__name__, error)))
            sessions, self._sessions = self._sessions, {}
            for session in sessions.values():
                session.close()
            self._readers.close()
            self.machine = self.machine.successor(_incarnation_after(self.machine.incarnation), event, now())
            info = lookups.encode_incarnation(self.machine.incarnation)
            self._identity = self._listener.identity = replace(self._identity, info=info)
            self._driver.begin([], self._observers.around(self.machine))
        except Exception:
            refs = refs_in(event)
            _log.critical("this directory cannot continue, and ends", exc_info=True, extra=about(*refs))
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown
            raise

    def _send(self, effect: SendNode) -> None:
        session = self._sessions.get(effect.node)
        if session is not None:
            (session.send_later if effect.patient else session.send)(encode(effect.message))

    def _disconnect(self, effect: Disconnect) -> None:
        session = self._sessions.pop(effect.node, None)
        if session is not None:
            session.close()

    def _probe(self, effect: Probe) -> None:
        task = asyncio.get_running_loop().create_task(self._knock(effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _knock(self, effect: Probe) -> None:
        asker = self.machine
        try:
            accepted = await probe(effect.address, self._settings.probe)
        except ValueError:  # the node's address is not valid
            accepted = None
        if self.machine is asker:
            self.dispatch(Probed(effect.node, accepted))

    def _combine_bytes(self, effect: CombineBytes) -> None:
        """On the loop: the machine asks for it only if that takes no longer than a few messages."""
        try:
            data = combine_bytes(effect.layout, effect.op, effect.parts, effect.divisor)
        except HopliteError as error:
            self.dispatch(CombineFailed(effect.version, error.failure))
        else:
            self.dispatch(CombinedBytes(effect.version, data))

    def _not_performed(self, effect: DirectoryEffect, error: Exception) -> None:
        refs = refs_in(effect)
        if isinstance(effect, CombineBytes):
            _log.error("small objects could not be combined", exc_info=error, extra=about(*refs))
            self.dispatch(CombineFailed(effect.version, internal("directory", "combining", error)))
            return
        what = type(effect.message if isinstance(effect, SendNode) else effect).__name__
        _log.error("%s for %s could not be performed", what, label(effect.node), exc_info=error, extra=about(*refs))

    # --- sessions ----------------------------------------------------------------------------------------------

    def _accept(self, session: Session) -> None:
        joined: NodeId | None = None

        def reject(failure: Failure) -> None:
            tell_malformed(failure, session.peer.address)
            session.send(encode(Rejected(failure)))
            session.close()

        def on_frame(frame: bytes) -> None:
            nonlocal joined
            if frame == STATUS:
                session.send(msgspec.msgpack.encode(self.status()))
                return
            try:
                message = decode_to_directory(frame)
            except HopliteError as error:
                reject(error.failure)
                return
            if joined is None:
                if not isinstance(message, Join) or identity_of(message.node) != session.peer.node:
                    reject(malformed("a session must begin with a Join under the identity of its handshake"))
                    return
                joined = message.node
                old = self._sessions.get(joined)
                self._sessions[joined] = session
                if old is not None:
                    old.close()
            if self._sessions.get(joined) is session:
                if type(message) is not Put:
                    session.flush()  # it may be about what the node is yet to hear of
                self.dispatch(FromNode(joined, message))
            if isinstance(message, Join):
                self._introduce(message)

        def on_closed(error: TransportError | None) -> None:
            if isinstance(error, ViolationError):
                tell_refused(error)
            if joined is not None and self._sessions.get(joined) is session:
                del self._sessions[joined]
                self.dispatch(SessionLost(joined))

        session.on_frame = on_frame
        session.on_closed = on_closed

    def _introduce(self, newcomer: Join) -> None:
        """Introduce a newcomer and the members to each other, if they are few."""
        others = [member for member in self.machine.nodes() if member.node != newcomer.node]
        if newcomer.node not in self._sessions or not others or len(others) > self._settings.introductions:
            return
        self._sessions[newcomer.node].send(introduction([(other.node, other.address) for other in others]))
        for other in others:
            if other.node in self._sessions:
                self._sessions[other.node].send(introduction([(newcomer.node, newcomer.address)]))

    def status(self) -> dict[str, Any]:
        """The state of the cluster, for people."""
        machine = self.machine
        return {
            "cluster": machine.cluster,
            "incarnation": machine.incarnation,
            "uptime": now() - self._started,
            "settings": msgspec.structs.asdict(self._settings),
            "objects": machine.known_objects(),
            "readers": len(self._readers),
            "metrics": self._endpoint.url if self._endpoint is not None else None,
            "nodes": [
                {
                    "node": label(member.node),
                    "host": member.host,
                    "address": member.address,
                    "connected": member.connected,
                    "suspect": member.suspect,
                    "receiving": member.receiving,
                    "sending": member.sending,
                }
                for member in machine.nodes()
            ],
        }


def _incarnation_after(earlier: int) -> int:
    return max(time.time_ns() // 1_000_000, earlier + 1)
