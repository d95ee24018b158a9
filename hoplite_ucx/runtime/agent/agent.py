"""The agent: one process per host that holds its objects, moves them, and combines them. The shell around `NodeState`.

The loop's thread runs the machine, the sessions and the workers' calls. Bytes move on other threads: the transport's,
and the combiner's. They notify the loop only when something is over; positions are read when the machine's tick is due.
"""

import asyncio
import logging
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from hoplite_ucx.protocol import NodeState
from hoplite_ucx.protocol.driver import Driver
from hoplite_ucx.protocol.errors import Failure, HopliteError, internal
from hoplite_ucx.protocol.events import (
    Allocate,
    CancelReceive,
    CancelServe,
    Combine,
    CombineBytes,
    Combined,
    CombinedBytes,
    CombineFailed,
    ConnectDirectory,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    Duplicate,
    Fill,
    Free,
    FromDirectory,
    FromPeer,
    NodeEffect,
    NodeEvent,
    Receive,
    ReceiveClosed,
    Retired,
    RetireWanted,
    SendDirectory,
    SendPeer,
    Serve,
    ServeClosed,
    Supply,
    Tick,
    Window,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId, identity_of, label, node_id
from hoplite_ucx.protocol.messages import Leave, StreamFault, StreamRefused, Welcome, decode_to_node, encode
from hoplite_ucx.protocol.node.machine import NodeProfile
from hoplite_ucx.protocol.node.succession import RemainingSegment, Remains
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.agent.device_kernels import DeviceKernel
from hoplite_ucx.runtime.agent.failed_effects import calls_behind, events_instead, failure_of
from hoplite_ucx.runtime.agent.local_streams import LocalStreams
from hoplite_ucx.runtime.agent.peer_sessions import PeerSessions
from hoplite_ucx.runtime.agent.slots import Combiner, Slot
from hoplite_ucx.runtime.agent.store import Piece, Segment, SegmentSink, Store
from hoplite_ucx.runtime.agent.stream_history import ReceivedStream, StreamHistory
from hoplite_ucx.runtime.agent.worker_sessions import Workers
from hoplite_ucx.runtime.host.addresses import host_towards
from hoplite_ucx.runtime.local.socket_names import socket_name
from hoplite_ucx.runtime.local.wire import DirectoryAt, Greeting, token_mark
from hoplite_ucx.runtime.objects.kernels import Kernel, combine_bytes
from hoplite_ucx.runtime.settings import HostSettings, cluster_settings
from hoplite_ucx.runtime.shell.directory_status import ask_status
from hoplite_ucx.runtime.shell.early_links import introduced
from hoplite_ucx.runtime.shell.raised_machines import tell_raised
from hoplite_ucx.runtime.shell.refused_connections import tell_refused
from hoplite_ucx.runtime.shell.wakeups import Waker, now
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.transports.descriptors import raise_descriptor_limit
from hoplite_ucx.transports.errors import TransportError, WrongClusterError
from hoplite_ucx.transports.interface import MAX_GRANULE, Fault, Priority, Side, Sink, Stream, Transport
from hoplite_ucx.transports.mixed_transport import open_transport
from hoplite_ucx.transports.wire.addresses import check_token
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Listener, Session, connect
from hoplite_ucx.transports.wire.tls import open_tls

_log = logging.getLogger("hoplite.agent")

_STATUS_SECONDS = 5.0
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
        self._connect_seconds = profile.settings.links.connect
        self._settings = profile.settings.cluster
        """The cluster's, once it has welcomed this node; until then, as far as this host knows them."""
        self._identity_number = int.from_bytes(os.urandom(8)) % ((1 << _IDENTITY_BITS) - 1) + 1
        self.agent_id = f"{self._identity_number:x}"
        self.cluster = ""
        self.address = ""
        self._closed = False
        self._retired: asyncio.Future[int] | None = None
        """Since it was told to retire: how many objects will be lost with it."""
        self._directory: Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._alone_since: float | None = now()
        self._slots: dict[int, Slot] = {}
        self._receiving: dict[StreamId, int] = {}  # streams that are not closed, and the segment of each
        self._serving: dict[StreamId, int] = {}
        self._history = StreamHistory()
        self._started = now()

    async def start(self) -> None:
        """Find the directory, listen, and begin to join. Raises a `TransportError` if the directory does not answer."""
        self._loop = asyncio.get_running_loop()
        raise_descriptor_limit()
        # Users find overflow of their arrays in the result; an agent's warnings are not read.
        warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)
        profile = self._profile
        self._tls = open_tls(profile.settings.links.certificates)
        host = await self._look_at_directory()
        check_token(profile.token, host)
        self._me = Identity(self._identity_number, profile.token, self.cluster.encode(), tls=self._tls)
        self._combiner = Combiner()
        self._local = LocalStreams(self._combiner.executor)
        self._peers = PeerSessions(self._me, self.dispatch, self._connect_seconds)
        self._workers = Workers(self.dispatch, self._greeting, self.status, self._directory_at)
        self._store = self._workers.store = Store(profile.memory, self._workers.forget, profile.settings.store)
        await self._loop.run_in_executor(None, self._store.devices.find)
        self._transport: Transport = await self._loop.run_in_executor(
            None, open_transport, self._me, profile.settings.links
        )
        self._listener = Listener(
            self._me, {Kind.PEER: self._peers.accept}, self._transport.adopt, on_refused=tell_refused
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
            ConnectDirectory: self._connect_directory,
            DisconnectDirectory: self._disconnect_directory,
            SendDirectory: self._send_directory,
            SendPeer: self._send_peer,
            Allocate: lambda effect: self._store.allocate(effect.segment, effect.size),
            Window: lambda effect: self._store.window(effect.segment, effect.of, effect.offset, effect.size),
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
        self._driver.begin(self.machine.start(now()))

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
        self._waker.cancel()
        if self._directory is not None:
            self._directory.send(encode(Leave()))
            self._directory.close()
        if self._connecting is not None:
            self._connecting.cancel()
        self._workers.close()
        self._peers.close()
        await self._listener.close()
        await self._loop.run_in_executor(None, self._transport.close)
        self._combiner.close()
        self._store.close()

    async def _look_at_directory(self) -> str:
        """Learn the cluster's id, and which address of this host reaches the directory."""
        self.cluster = await self._ask_for_cluster()
        await self._compare_settings()
        if self._profile.host is not None:
            return self._profile.host
        return await self._loop.run_in_executor(None, host_towards, self._profile.directory)

    async def _compare_settings(self) -> None:
        """Refuse to start with settings of the cluster that are not the directory's."""
        settings, address = self._profile.settings, self._profile.directory
        if settings.values.section("cluster"):
            me = Identity(self._identity_number, self._profile.token, tls=self._tls)
            settings.check_against(cluster_settings(await ask_status(address, me, _STATUS_SECONDS), address), address)

    async def _ask_for_cluster(self) -> str:
        """The id of the cluster whose directory is there, proven by the token."""
        found: list[Session] = []
        me = Identity(self._identity_number, self._profile.token, tls=self._tls)
        session = await connect(self._profile.directory, me, Kind.CONTROL, found.append, seconds=self._connect_seconds)
        session.close()
        return session.peer.cluster.decode()

    # --- the machine -------------------------------------------------------------------------------------------

    def dispatch(self, event: NodeEvent) -> None:
        self._driver.feed(event)

    def _dispatch_soon(self, event: NodeEvent) -> None:
        """From any thread."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self.dispatch, event)

    def _stream_over(self, event: ReceiveClosed | ServeClosed) -> None:
        streams = self._receiving if isinstance(event, ReceiveClosed) else self._serving
        streams.pop(event.stream, None)
        self.dispatch(event)

    def _stream_over_soon(self, event: ReceiveClosed | ServeClosed) -> None:
        """From any thread."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._stream_over, event)

    def _succeed(self, event: NodeEvent, error: Exception) -> None:
        """The machine raised: its waiting calls fail or are repeated, and another machine continues with what is
        certain."""
        doing = type(event).__name__
        tell_raised(_log, event, error, self.machine)
        try:
            remains = self._close_all()
            self.machine, effects = self.machine.successor(remains, now())
            again = self._workers.machine_raised(event, internal("agent", doing, error))
            self._driver.begin(effects, self.machine)
            for call in again:
                self.dispatch(call)
            if self._retired is not None:
                self._driver.feed(RetireWanted())  # it may have been lost with the machine
        except Exception:
            _log.critical("this agent cannot continue with the state it has, and ends", exc_info=True)
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown
            raise

    def _close_all(self) -> Remains:
        """End what the machine began, as far as possible at once, and return what is left."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._disconnect_directory(DisconnectDirectory())
        self._alone_since = now()
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
        _log.error("%s could not be performed", type(effect).__name__, exc_info=error)
        self._unperformed(effect, failure_of(error, type(effect).__name__))

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
        patience = self._profile.patience
        if patience is not None and self._alone_since is not None and now() - self._alone_since > patience:
            self._alone_since = None
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown
        positions = self._workers.positions()
        for there in (
            self._transport.serve_positions(),
            self._transport.receive_positions(),
            self._local.positions(),
        ):
            positions |= {StreamId(*key): position for key, position in there.items()}
        self.dispatch(Tick(positions, {number: slot.segment.watermark() for number, slot in self._slots.items()}))

    # --- sessions ----------------------------------------------------------------------------------------------

    def _connect_directory(self, _: ConnectDirectory) -> None:
        self._connecting = self._loop.create_task(self._open_directory())

    async def _open_directory(self) -> None:
        def made(session: Session) -> None:
            self._directory = session
            self._alone_since = None
            session.on_frame = lambda frame: self._from_directory(session, frame)
            session.on_closed = lambda _: self._directory_closed(session)
            self.dispatch(DirectoryConnected())

        try:
            await connect(self._profile.directory, self._me, Kind.CONTROL, made, seconds=self._connect_seconds)
        except TransportError as error:
            if isinstance(error, WrongClusterError):
                await self._end_with_cluster()
            self.dispatch(DirectoryLost())

    async def _end_with_cluster(self) -> None:
        """Another cluster's directory is where ours was: no process will ask for our objects again. A refusal alone
        proves nothing, so the directory is asked which cluster it serves."""
        try:
            cluster = await self._ask_for_cluster()
        except TransportError:
            return
        if cluster != self.cluster:
            _log.error(
                "the directory at %s now serves a new cluster, %s: cluster %s has ended, and so does this agent",
                self._profile.directory,
                cluster,
                self.cluster,
            )
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown

    def _from_directory(self, session: Session, frame: bytes) -> None:
        others = introduced(frame)
        if others is not None:
            self._meet(others)
            return
        try:
            message = decode_to_node(frame)
        except HopliteError as error:
            _log.warning("closed the session with the directory after an invalid message: %s", error)
            session.abort()
            return
        if self._directory is session:
            if isinstance(message, Welcome):
                self._welcomed(message.settings)
            self.dispatch(FromDirectory(message))

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

    def _directory_closed(self, session: Session) -> None:
        if self._directory is session:
            self._directory = None
            self._alone_since = now()
            self.dispatch(DirectoryLost())

    def _disconnect_directory(self, _: DisconnectDirectory) -> None:
        session, self._directory = self._directory, None
        if session is not None:
            session.close()

    def _send_directory(self, effect: SendDirectory) -> None:
        if self._directory is not None:
            self._directory.send(encode(effect.message))

    def _is_me(self, node: int) -> bool:
        return identity_of(node) == self._identity_number

    def _send_peer(self, effect: SendPeer) -> None:
        if self._is_me(effect.peer):
            self.dispatch(FromPeer(self.machine.node, effect.message))
        else:
            self._peers.send(effect.peer, effect.message)

    # --- segments and streams ----------------------------------------------------------------------------------

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
        into = self.machine.slot_fed_by(effect.stream).hex()
        sender = label(effect.sender)
        return ReceivedStream(effect.version.ref.hex(), into, sender, effect.offset, effect.size, now())

    def _received(self, stream: StreamId, watermark: int, fault: Fault | None) -> None:
        self._history.closed(stream, watermark, fault)
        self._stream_over_soon(ReceiveClosed(stream, watermark, StreamFault.BROKEN if fault is not None else None))

    def _cancel_receive(self, effect: CancelReceive) -> None:
        key = (effect.stream.receiver, effect.stream.number)
        self._local.cancel(key)
        self._transport.cancel_receive(key)

    def _serve(self, effect: Serve) -> None:
        stream, key = effect.stream, (effect.stream.receiver, effect.stream.number)
        segment = self._store[effect.segment]
        self._serving[stream] = effect.segment
        on_closed = partial(self._stream_over_soon, ServeClosed(stream))
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
                return kernel
        return Kernel(effect.layout, effect.op, effect.offset)

    def _duplicate(self, effect: Duplicate) -> None:
        on_combined = partial(self._dispatch_soon, Combined(effect.segment))
        segment, source = self._store[effect.segment], self._store[effect.of]
        on_failed = partial(self._slot_failed, effect)
        self._slots[effect.segment] = Slot(self._combiner, segment, None, [source], on_combined, on_failed)

    def _slot_failed(self, effect: Combine | Duplicate, error: Exception) -> None:
        """On whatever thread it was combining."""
        failure = failure_of(error, type(effect).__name__)
        self._loop.call_soon_threadsafe(self._unperformed, effect, failure)

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
            self._directory is not None,
            token_mark(self._profile.token, self.cluster),
            private=self._profile.patience is not None,
            suspicion=self._settings.suspicion,
        )

    def _directory_at(self, call: int) -> DirectoryAt:
        """Workers have no certificate, and none goes to a directory that this node has not joined."""
        if self._tls is not None or self._directory is None:
            return DirectoryAt(call, None)
        return DirectoryAt(call, self._profile.directory, self._profile.token, self.machine.incarnation)

    def status(self, history: bool = False) -> dict[str, Any]:
        store = self.machine.store(largest=10)
        return {
            **({"history": self._history.tell()} if history else {}),
            "agent": self.agent_id,
            "node": label(self.machine.node),
            "cluster": self.cluster,
            "directory": self._profile.directory,
            "connected": self._directory is not None,
            "address": self.address,
            "uptime": now() - self._started,
            "settings": msgspec.structs.asdict(self._settings),
            "workers": len(self._workers),
            "calls": self._workers.open_calls,
            "memory": {"limit": store.limit, "used": store.used, "pooled": self._store.pooled},
            "gpu": {**self._store.devices.status(), "combines_on_host_because": self._combiner.devices.reason},
            "objects": store.objects,
            "largest": [
                {
                    "ref": holding.ref.hex(),
                    "size": holding.size,
                    "phase": holding.phase.value,
                    "idle": now() - holding.used_at,
                    "pins": len(holding.pins),
                }
                for holding in store.largest
            ],
            "streams": self._open_streams(),
            "links": self._links(),
        }

    def _links(self) -> list[dict[str, Any]]:
        """The receiving end knows why a link uses its transport: the receiver chooses."""
        reasons, lanes = self._transport.reasons(), self._transport.lanes()
        return [
            {
                "peer": f"n{link.peer:x}",
                "side": link.side.value,
                "transport": link.transport,
                "bytes": link.bytes,
                "lanes": lanes.get((link.peer, link.side), []) if link.transport == "ucx" else [],
                "reason": reasons[link.peer]
                if link.side is Side.RECEIVING and link.peer in reasons
                else "as the receiver chose",
            }
            for link in self._transport.links()
        ]

    def _open_streams(self) -> list[dict[str, Any]]:
        """What is being received: for the store, or into the slot that makes another ref. The position is that of what
        is final, or combined."""
        positions = self._transport.receive_positions() | self._local.positions()
        return [
            {
                "ref": incoming.ref.hex(),
                "into": incoming.into.hex(),
                "sender": label(incoming.sender),
                "position": positions.get((incoming.stream.receiver, incoming.stream.number), incoming.position),
                "size": incoming.size,
            }
            for incoming in self.machine.incoming()
        ]


def _combined_bytes(effect: CombineBytes) -> CombinedBytes | CombineFailed:
    try:
        data = combine_bytes(effect.layout, effect.op, effect.parts, effect.divisor)
        return CombinedBytes(effect.version, data)
    except Exception as error:  # on another thread, where nobody would hear of it
        return CombineFailed(effect.version, failure_of(error, "combining"))
