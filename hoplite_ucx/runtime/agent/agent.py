"""The agent: one process per host that holds its objects, moves them, and combines them. The shell around `NodeState`.

The loop's thread runs the machine, the sessions and the workers' calls. Bytes move on other threads: the transport's,
and the combiner's. They notify the loop only when something is over; positions are read when the machine's tick is due.
"""

import asyncio
import logging
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from hoplite_ucx.metrics.families import Family
from hoplite_ucx.protocol import NodeState
from hoplite_ucx.protocol.driver import Driver
from hoplite_ucx.protocol.errors import Failure, internal
from hoplite_ucx.protocol.events import (
    Allocate,
    CancelReceive,
    CancelServe,
    Combine,
    CombineBytes,
    Combined,
    CombinedBytes,
    CombineFailed,
    Duplicate,
    Fill,
    Free,
    FromPeer,
    NodeEffect,
    NodeEvent,
    Receive,
    ReceiveClosed,
    Retired,
    RetireWanted,
    SendPeer,
    Serve,
    ServeClosed,
    Supply,
    Tick,
    Window,
    refs_in,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId, Version, identity_of, label, node_id
from hoplite_ucx.protocol.messages import StreamFault, StreamRefused
from hoplite_ucx.protocol.node.machine import NodeProfile
from hoplite_ucx.protocol.node.memory import Holding
from hoplite_ucx.protocol.node.succession import RemainingSegment, Remains
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.agent import agent_metrics, agent_report
from hoplite_ucx.runtime.agent.device_kernels import DeviceKernel
from hoplite_ucx.runtime.agent.directory_link import DirectoryLink
from hoplite_ucx.runtime.agent.failed_effects import calls_behind, events_instead, failure_of
from hoplite_ucx.runtime.agent.local_streams import LocalStreams
from hoplite_ucx.runtime.agent.peer_sessions import PeerSessions
from hoplite_ucx.runtime.agent.slots import Combiner, Slot
from hoplite_ucx.runtime.agent.store import Piece, Segment, SegmentSink, Store
from hoplite_ucx.runtime.agent.stream_history import ReceivedStream, StreamHistory
from hoplite_ucx.runtime.agent.viewers import Viewers
from hoplite_ucx.runtime.agent.worker_sessions import Workers
from hoplite_ucx.runtime.host.addresses import host_towards
from hoplite_ucx.runtime.local.socket_names import socket_name
from hoplite_ucx.runtime.local.worker_messages import MAX_IDLE, DirectoryAt, Greeting, token_mark
from hoplite_ucx.runtime.objects.kernels import Kernel, combine_bytes
from hoplite_ucx.runtime.settings import HostSettings
from hoplite_ucx.runtime.shell.logs import about
from hoplite_ucx.runtime.shell.looks import AgentLook
from hoplite_ucx.runtime.shell.observers import Observer, Observers
from hoplite_ucx.runtime.shell.raised_machines import tell_raised
from hoplite_ucx.runtime.shell.refused_connections import tell_refused
from hoplite_ucx.runtime.shell.tracers import Tracers
from hoplite_ucx.runtime.shell.wakeups import Waker, now
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.tracing.node_recorder import NodeRecorder
from hoplite_ucx.transports.descriptors import raise_descriptor_limit
from hoplite_ucx.transports.interface import MAX_GRANULE, Fault, Priority, Sink, Stream, Transport
from hoplite_ucx.transports.mixed_transport import open_transport
from hoplite_ucx.transports.wire.addresses import check_token
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Listener, Together
from hoplite_ucx.transports.wire.tls import open_tls

if TYPE_CHECKING:
    from hoplite_ucx.metrics.endpoint import Endpoint

_log = logging.getLogger("hoplite.agent")

_TURNS = 1 / 3
"""Of the time after which a receiver suspects its sender: by then every stream of a link has had a turn."""
_IDENTITY_BITS = 45
"""Identities are drawn at random; with its generation a node's number stays below 2**62."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProfile:
    """What an agent must know to start. The host is where it listens and is reached; the rate is its NIC's."""

    directory: str
    token: bytes = field(repr=False)
    host: str | None = None
    port: int = 0
    memory: int
    rate: float
    patience: float | None = None
    """How long to look for a directory that is gone before ending; None is for ever."""
    settings: HostSettings = field(default_factory=HostSettings)


class Agent:
    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile
        self._settings = profile.settings.cluster
        """The cluster's, once it has welcomed this node; until then, as far as this host knows them."""
        self._identity_number = int.from_bytes(os.urandom(8)) % ((1 << _IDENTITY_BITS) - 1) + 1
        self.agent_id = f"{self._identity_number:x}"
        self.cluster = ""
        self.address = ""
        self._closed = False
        self._retired: asyncio.Future[int] | None = None
        """Since it was told to retire: how many objects will be lost with it."""
        self._slots: dict[int, Slot] = {}
        self._receiving: dict[StreamId, int] = {}  # streams that are not closed, and the segment of each
        self._serving: dict[StreamId, int] = {}
        self._history = StreamHistory()
        self._reported: deque[NodeEvent] = deque()
        """By other threads, for the loop."""
        self._called = False
        self._observers: Observers[NodeEvent, NodeEffect] = Observers()
        self._endpoint: Endpoint | None = None
        self._viewers = Viewers(self.report)
        self._started = now()

    async def start(self) -> None:
        """Find the directory, listen, and begin to join. Raises a `TransportError` if the directory does not answer."""
        self._loop = asyncio.get_running_loop()
        raise_descriptor_limit()
        # Users find overflow of their arrays in the result; an agent's warnings are not read.
        warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)
        profile = self._profile
        self._tls = open_tls(profile.settings.links.certificates)
        connect_seconds = profile.settings.links.connect
        self._directory = DirectoryLink(
            profile.directory,
            Identity(self._identity_number, profile.token, tls=self._tls),
            connect_seconds,
            profile.patience,
            dispatch=self.dispatch,
            welcomed=self._welcomed,
            dropped=self._dropped,
            meet=self._meet,
        )
        host = await self._look_at_directory()
        check_token(profile.token, host)
        self._me = Identity(self._identity_number, profile.token, self.cluster.encode(), tls=self._tls)
        self._directory.be(self._me)
        self._combiner = Combiner()
        self._local = LocalStreams(self._combiner.executor)
        self._tracers = Tracers(self._observers, self._recorder)
        self._peers = PeerSessions(self._me, self.dispatch, connect_seconds)
        self._workers = Workers(
            self.dispatch, self._greeting, self.status, self._directory_at, self._unused_for, self._copy_of
        )
        self._store = self._workers.store = Store(profile.memory, self._workers.forget, profile.settings.store)
        await self._loop.run_in_executor(None, self._store.devices.find)
        self._transport: Transport = await self._loop.run_in_executor(
            None, open_transport, self._me, profile.settings.links
        )
        self._listener = Listener(
            self._me,
            {
                Kind.PEER: self._peers.accept,
                Kind.TRACER: self._tracers.accept,
                Kind.VIEWER: self._viewers.accept,
            },
            self._transport.adopt,
            on_refused=tell_refused,
        )
        self.address = await self._listener.start(host, profile.port)
        node_profile = NodeProfile(
            host=host,
            address=self.address,
            up=profile.rate,
            down=profile.rate,
            cluster=self.cluster,
            directory=profile.directory,
            memory=profile.memory,
        )
        self.machine = NodeState(node_id(self._identity_number), node_profile)
        self._workers.inline_limit = self._settings.inline_limit
        self._perform: dict[type, Callable[[Any], None]] = {
            Retired: self._may_leave,
            SendPeer: self._send_peer,
            Allocate: lambda effect: self._store.allocate(effect.segment, effect.size),
            Window: self._window,
            Duplicate: self._duplicate,
            Fill: self._fill,
            Free: self._free,
            Receive: self._receive,
            CancelReceive: self._cancel_receive,
            Serve: self._serve,
            CancelServe: self._cancel_serve,
            Combine: self._combine,
            CombineBytes: self._combine_bytes,
            Supply: lambda effect: self._slots[effect.segment].supply(effect.part, effect.data),
            **self._directory.perform,
            **self._workers.perform,
        }
        self._waker = Waker(self._loop, self._tick)
        self._workers.listen(socket_name(self.cluster, self.agent_id))
        self._driver: Driver[NodeEvent, NodeEffect] = Driver(
            self.machine,
            NodeEffect,
            self._perform,
            now=now,
            wake=self._waker.set,
            succeed=self._succeed,
            unperformed=self._not_performed,
        )
        self._observers.attach(self._driver)
        self._serve_metrics()
        self._driver.begin(self.machine.start(now()))

    def observe(self, observer: Observer[NodeEvent, NodeEffect]) -> None:
        self._observers.add(observer)

    async def retire(self) -> None:
        """Have other nodes take over the objects that only this one has. Returns when nothing is lost if it leaves, or
        no node can take what is left; the caller decides how long to wait."""
        if self._retired is None:
            self._retired = self._loop.create_future()
            self.dispatch(RetireWanted())
        left = await asyncio.shield(self._retired)
        if left:
            _log.warning("%d objects are lost with this agent: no other has room for them", left)

    def _may_leave(self, effect: Retired) -> None:
        if self._retired is not None and not self._retired.done():
            self._retired.set_result(effect.left)

    async def close(self) -> None:
        """Leave the cluster on purpose, at once."""
        self._closed = True
        self._driver.stop()
        if self._endpoint is not None:
            await self._loop.run_in_executor(None, self._endpoint.close)
        self._waker.cancel()
        self._directory.leave()
        self._workers.close()
        self._peers.close()
        self._viewers.close()
        self._tracers.close()
        await self._listener.close()
        await self._loop.run_in_executor(None, self._transport.close)
        self._combiner.close()
        self._store.close()

    async def _look_at_directory(self) -> str:
        """Learn the cluster's id, and which address of this host reaches the directory."""
        self.cluster = await self._directory.ask_cluster()
        settings = self._profile.settings
        if settings.values.section("cluster"):  # it does not start with others than the directory's
            settings.check_against(await self._directory.ask_settings(), self._profile.directory)
        if self._profile.host is not None:
            return self._profile.host
        return await self._loop.run_in_executor(None, host_towards, self._profile.directory)

    # --- the machine -------------------------------------------------------------------------------------------

    def dispatch(self, event: NodeEvent) -> None:
        self._driver.feed(event)

    def _dispatch_soon(self, event: NodeEvent) -> None:
        """From any thread. A thread often reports several ends in a row: the loop is called once for them."""
        if self._closed:
            return
        self._reported.append(event)
        self._call_for_reports()

    def _call_for_reports(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._take_reports)

    def _take_reports(self) -> None:
        """Those that are there: the loop hears sessions before it takes the next ones."""
        self._called = False  # first: a report that comes from now on calls again
        try:
            with Together() as turn:
                for _ in range(len(self._reported)):
                    event = self._reported.popleft()
                    if isinstance(event, ReceiveClosed | ServeClosed):
                        self._stream_over(event)
                    else:
                        self.dispatch(event)
                    turn.handled()
        finally:
            if self._reported:  # they came meanwhile, or one before them failed
                self._call_for_reports()

    def _stream_over(self, event: ReceiveClosed | ServeClosed) -> None:
        streams = self._receiving if isinstance(event, ReceiveClosed) else self._serving
        streams.pop(event.stream, None)
        self.dispatch(event)
        self._history.over(event.stream)

    def _succeed(self, event: NodeEvent, error: Exception) -> None:
        """The machine raised: its waiting calls fail or are repeated, and another machine continues with what is
        certain."""
        doing = type(event).__name__
        tell_raised(_log, event, error, self.machine)
        try:
            remains = self._close_all()
            self.machine, effects = self.machine.successor(remains, now())
            again = self._workers.machine_raised(event, internal("agent", doing, error))
            self._driver.begin(effects, self._observers.around(self.machine))
            for call in again:
                self.dispatch(call)
            if self._retired is not None:
                self._driver.feed(RetireWanted())  # it may have been lost with the machine
        except Exception:
            refs = refs_in(event)
            _log.critical(
                "this agent cannot continue with the state it has, and ends", exc_info=True, extra=about(*refs)
            )
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown
            raise

    def _close_all(self) -> Remains:
        """End what the machine began, as far as possible at once, and return what is left."""
        self._directory.drop()
        self._peers.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        remains = Remains(
            {
                number: RemainingSegment(
                    segment.size,
                    segment.watermark() == segment.size,
                    segment.whole.number if isinstance(segment, Piece) else None,
                )
                for number, segment in self._store.segments.items()
            },
            dict(self._receiving),
            dict(self._serving),
            self._workers.pins(),
        )
        for stream in remains.receiving:
            self._cancel_receive(CancelReceive(stream))
        for stream in remains.serving:
            self._cancel_serve(CancelServe(stream))
        return remains

    def _not_performed(self, effect: NodeEffect, error: Exception) -> None:
        refs = self._refs_of(effect)
        _log.error("%s could not be performed", type(effect).__name__, exc_info=error, extra=about(*refs))
        self._unperformed(effect, failure_of(error, type(effect).__name__))

    def _refs_of(self, effect: NodeEffect) -> list[bytes]:
        """The objects that an effect is about, also if it only names a segment."""
        version = self.machine.version_in(getattr(effect, "segment", None) or 0)
        return refs_in(effect) or ([version.ref] if version is not None else [])

    def _unperformed(self, effect: Any, failure: Failure) -> None:
        """Fail the calls that wait for it now."""
        if isinstance(effect, Serve):
            refusal = StreamRefused(effect.stream, StreamFault.ABSENT)
            self._send_peer(SendPeer(effect.stream.receiver, refusal))
        for call in calls_behind(effect, self.machine):
            self._workers.fail(call, failure)
        for event in events_instead(effect, failure):
            if isinstance(event, ReceiveClosed | ServeClosed):
                self._stream_over(event)
            else:
                self.dispatch(event)

    def _tick(self) -> None:
        self._directory.tick(2 * self._settings.heartbeat)
        positions = self._workers.positions()
        for there in (
            self._transport.serve_positions(),
            self._transport.receive_positions(),
            self._local.positions(),
        ):
            positions |= {StreamId(*key): position for key, position in there.items()}
        self.dispatch(Tick(positions, {number: slot.segment.watermark() for number, slot in self._slots.items()}))

    # --- sessions ----------------------------------------------------------------------------------------------

    def _welcomed(self, settings: Settings) -> None:
        """By a directory that may have been restarted with other settings than before: they are the cluster's."""
        self._settings = settings
        self._workers.inline_limit = settings.inline_limit
        self._transport.set_patience(settings.suspicion * _TURNS)
        try:
            self._profile.settings.check_against(settings, self._profile.directory)
        except ConfigurationError as error:
            _log.warning("the cluster's settings override this host's: %s", error)

    def _meet(self, others: list[tuple[NodeId, str]]) -> None:
        """Open the sessions and links on which bytes of these nodes may come."""
        for node, address in others:
            if not self._is_me(node):
                self._peers.ensure(node, address)
                self._transport.prepare(identity_of(node), address)

    def _is_me(self, node: int) -> bool:
        return identity_of(node) == self._identity_number

    def _send_peer(self, effect: SendPeer) -> None:
        if self._is_me(effect.peer):
            self.dispatch(FromPeer(self.machine.node, effect.message))
        else:
            self._peers.send(effect.peer, effect.message)

    # --- segments and streams ----------------------------------------------------------------------------------

    def _window(self, effect: Window) -> None:
        whole = self._store[effect.of]
        if not whole.memory and (device := self._device_for(effect.of)) is not None:
            self._store.back_on(whole, device)
        self._store.window(effect.segment, effect.of, effect.offset, effect.size)

    def _device_for(self, target: int) -> int | None:
        """Where a target that comes in stripes is to lie: where somebody waits for it; if nobody does, where stripes of
        it are made."""
        ref, stripes = self.machine.assembled_in(target)
        wanted = self._workers.wanted_on(ref)
        if wanted is not None or self.machine.calls_awaiting(ref):
            return wanted
        return next((device for stripe in stripes if (device := self._store[stripe].device) is not None), None)

    def _fill(self, effect: Fill) -> None:
        self._store[effect.segment].adopt(effect.data)

    def _free(self, effect: Free) -> None:
        slot = self._slots.pop(effect.segment, None)
        if slot is not None:
            slot.close()
        self._store.free(effect.segment)

    def _receive(self, effect: Receive) -> None:
        stream, key = effect.stream, (effect.stream.receiver, effect.stream.number)
        self._receiving[stream] = effect.segment
        sink, stands = self._sink(effect)
        if stands != effect.offset:
            self._received(stream, stands, Fault.BROKEN)  # the machine begins again where the bytes are
            return
        sink = self._history.opened(stream, sink, self._record_of(effect))
        if self._is_me(effect.sender):
            on_closed = partial(self._received, stream, fault=None)
            self._local.receive(key, sink, effect.offset, effect.size, on_closed)
            return
        self._peers.ensure(effect.sender, effect.address)
        try:
            self._transport.receive(
                identity_of(effect.sender),
                effect.address,
                Stream(key, effect.offset, effect.size, min(effect.granule, MAX_GRANULE)),
                sink,
                partial(self._received, stream),
            )
        except ValueError:  # the sender's address is not valid
            self._received(stream, sink.end(), Fault.BROKEN)

    def _sink(self, effect: Receive) -> tuple[Sink, int]:
        """Where the stream goes, and how far that is."""
        segment = self._store[effect.segment]
        if effect.part is not None:
            slot = self._slots[effect.segment]
            return slot.sink(effect.part), slot.stands_at(effect.part)
        device = self._workers.wanted_on(effect.version.ref) if segment.backing is None else None
        if device is not None:
            self._store.back_on(segment, device)
        self._store.back(segment)
        return SegmentSink(segment), segment.watermark()

    def _record_of(self, effect: Receive) -> ReceivedStream:
        incoming = self.machine.incoming_stream(effect.stream)
        into, number = (incoming.into, incoming.number) if incoming is not None else (b"", 0)
        sender = label(effect.sender)
        return ReceivedStream(effect.version.ref.hex(), into.hex(), sender, effect.offset, effect.size, number, now())

    def _received(self, stream: StreamId, watermark: int, fault: Fault | None) -> None:
        self._history.closed(stream, watermark, fault)
        self._dispatch_soon(ReceiveClosed(stream, watermark, StreamFault.BROKEN if fault is not None else None))

    def _cancel_receive(self, effect: CancelReceive) -> None:
        key = (effect.stream.receiver, effect.stream.number)
        self._local.cancel(key)
        self._transport.cancel_receive(key)

    def _serve(self, effect: Serve) -> None:
        stream, key = effect.stream, (effect.stream.receiver, effect.stream.number)
        segment = self._store[effect.segment]
        self._serving[stream] = effect.segment
        on_closed = partial(self._dispatch_soon, ServeClosed(stream))
        if self._is_me(stream.receiver):
            self._local.serve(key, segment, on_closed)
            return
        first = effect.rank > 0 or segment.watermark() < segment.size
        self._transport.serve(
            identity_of(stream.receiver),
            Stream(key, effect.offset, effect.size, min(effect.granule, MAX_GRANULE)),
            segment,
            on_closed,
            priority=Priority.RELAYED if first else Priority.OWN,
            rank=effect.rank,
        )

    def _cancel_serve(self, effect: CancelServe) -> None:
        key = (effect.stream.receiver, effect.stream.number)
        if self._is_me(effect.stream.receiver):
            self._local.cancel(key)
        else:
            self._transport.cancel_serve(key)

    # --- slots -------------------------------------------------------------------------------------------------

    def _combine(self, effect: Combine) -> None:
        segment = self._store[effect.segment]
        parts = [None if part is None else self._store[part] for part in effect.parts]
        kernel = self._kernel(effect, segment, parts)
        self._store.back(segment)
        self._slots[effect.segment] = Slot(
            self._combiner,
            segment,
            kernel,
            parts,
            partial(self._dispatch_soon, Combined(effect.segment)),
            partial(self._slot_failed, effect),
            start=effect.start,
            divisor=effect.divisor,
        )
        if kernel.failure is not None:
            self.dispatch(CombineFailed(effect.segment, kernel.failure))

    def _kernel(self, effect: Combine, segment: Segment, parts: list[Segment | None]) -> Kernel:
        """What combines there. The output is put on the first device that has a part, if that device can combine."""
        device = segment.device
        if device is None and not segment.memory:
            device = next((part.device for part in parts if part is not None and part.device is not None), None)
        if device is not None:
            kernel = DeviceKernel(effect.layout, effect.op, effect.offset, device)
            there = segment.device is not None
            if there or (self._combiner.devices.ask() and kernel.supported() and self._store.back_on(segment, device)):
                self._combiner.devices.slots += 1
                return kernel
        return Kernel(effect.layout, effect.op, effect.offset)

    def _duplicate(self, effect: Duplicate) -> None:
        on_combined = partial(self._dispatch_soon, Combined(effect.segment))
        segment, source = self._store[effect.segment], self._store[effect.of]
        on_failed = partial(self._slot_failed, effect)
        self._slots[effect.segment] = Slot(self._combiner, segment, None, [source], on_combined, on_failed)

    def _slot_failed(self, effect: Combine | Duplicate, error: Exception) -> None:
        """On whatever thread it was combining."""
        self._loop.call_soon_threadsafe(self._combining_failed, effect, error)

    def _combining_failed(self, effect: Combine | Duplicate, error: Exception) -> None:
        refs = self._refs_of(effect)
        _log.error("%s failed while it went on", type(effect).__name__, exc_info=error, extra=about(*refs))
        self._unperformed(effect, failure_of(error, type(effect).__name__))

    def _combine_bytes(self, effect: CombineBytes) -> None:
        if len(effect.parts) * len(effect.parts[0]) <= self._store.small:
            self.dispatch(_combined_bytes(effect))
        else:
            self._combiner.executor.submit(lambda: self._dispatch_soon(_combined_bytes(effect)))

    # --- what people and workers ask ---------------------------------------------------------------------------

    def _greeting(self) -> Greeting:
        return Greeting(
            self.cluster,
            self.agent_id,
            self._profile.directory,
            self._workers.inline_limit,
            self._store.small,
            self._profile.memory,
            self._directory.connected,
            token_mark(self._profile.token, self.cluster),
            private=self._profile.patience is not None,
            suspicion=self._settings.suspicion,
            quiet=self._profile.settings.processes.quiet,
        )

    def _directory_at(self, call: int) -> DirectoryAt:
        """Nobody is sent to a directory that this node has not joined."""
        if not self._directory.connected:
            return DirectoryAt(call, None)
        known = self._profile
        return DirectoryAt(call, known.directory, known.token, self.machine.incarnation, self._tls is not None)

    def _dropped(self, version: Version) -> None:
        self._workers.dropped(version)

    def _copy_of(self, ref: bytes) -> Holding | None:
        return self.machine.copy_of(ref)

    def _unused_for(self, seconds: float) -> tuple[bytes, ...]:
        return tuple(self.machine.unused_since(now() - seconds, MAX_IDLE))

    def _serve_metrics(self) -> None:
        settings = self._profile.settings.metrics
        if settings.port is None:
            return
        from hoplite_ucx.metrics.endpoint import open_endpoint
        from hoplite_ucx.metrics.node_counts import NodeCounts

        counts = NodeCounts()

        def collect() -> list[Family]:
            connected = self._directory.connected
            return [
                agent_metrics.info(self.machine, self.agent_id, self.cluster),
                *agent_metrics.traffic(self._transport, self._local),
                *agent_metrics.memory(self.machine, self._store),
                *agent_metrics.use(len(self._workers), self._workers.open_calls, len(self._slots), connected),
                *counts.families(),
            ]

        self._endpoint = open_endpoint(settings.host, settings.port, collect)
        if self._endpoint is not None:
            self._observers.add(counts)

    def _recorder(self) -> NodeRecorder:
        recorder = NodeRecorder(lambda: self.machine, self._history.first_byte)
        recorder.begin(self._workers.open_questions(), now())
        return recorder

    @property
    def metrics_url(self) -> str | None:
        return self._endpoint.url if self._endpoint is not None else None

    def status(self, history: bool = False) -> dict[str, Any]:
        return {
            **({"history": self._history.tell()} if history else {}),
            "agent": self.agent_id,
            "node": label(self.machine.node),
            "cluster": self.cluster,
            "directory": self._profile.directory,
            "metrics": self.metrics_url,
            "connected": self._directory.connected,
            "address": self.address,
            "uptime": now() - self._started,
            "settings": msgspec.structs.asdict(self._settings),
            "workers": len(self._workers),
            "calls": self._workers.open_calls,
            "memory": agent_report.memory(self.machine, self._store),
            "gpu": {**self._store.devices.status(), **self._combiner.devices.status()},
            "objects": self.machine.store().objects,
            "largest": agent_report.largest(self.machine),
            "streams": agent_report.streams(self.machine, self._transport, self._local),
            "links": self._links(),
        }

    def report(self, look: AgentLook) -> dict[str, Any]:
        """For viewers, several times a second: what moves, and only if they ask, what changes slowly."""
        report = {
            "now": now(),
            "node": label(self.machine.node),
            "memory": agent_report.memory(self.machine, self._store),
            "objects": self.machine.store().objects,
            "workers": len(self._workers),
            "calls": self._workers.open_calls,
            "streams": agent_report.streams(self.machine, self._transport, self._local),
            "slots": agent_report.slots(self.machine, self._slots),
            "history": self._history.tell(look.since),
            "names": self._workers.names.after(look.named),
            "named": self._workers.names.count,
        }
        if look.all:
            report["links"] = self._links()
            report["gpu"] = self._store.devices.status()
            report["largest"] = [(each.ref, each.size) for each in self.machine.store(largest=10).largest]
        return report

    def _links(self) -> list[dict[str, Any]]:
        return agent_report.links(self._transport, has_gpus=bool(self._store.devices.found))


def _combined_bytes(effect: CombineBytes) -> CombinedBytes | CombineFailed:
    try:
        data = combine_bytes(effect.layout, effect.op, effect.parts, effect.divisor)
        return CombinedBytes(effect.version, data)
    except Exception as error:  # on another thread, where nobody would hear of it
        return CombineFailed(effect.version, failure_of(error, "combining"))
