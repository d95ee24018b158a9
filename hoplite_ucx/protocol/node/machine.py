"""The `NodeState` machine: one entry point, the session with the directory, and the beat that drives the rest.

The parts: `calls` has the users' calls, `fetching` receives, `serving` sends, `memory` keeps the accounts. This module
passes events to them and keeps the node a member: it joins with an announcement of everything it has, sends heartbeats,
comes back after a lost session, and takes a new name when the directory has declared it dead.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Self

from hoplite_ucx.protocol import messages
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CancelCall,
    Combined,
    CombinedBytes,
    CombineFailed,
    ConnectDirectory,
    ContributorsCall,
    DeleteCall,
    DescribeCall,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    FromDirectory,
    FromPeer,
    GetCall,
    NodeEffect,
    NodeEvent,
    PeerLost,
    PutCall,
    PutFinished,
    ReceiveClosed,
    ReduceCall,
    Retired,
    RetireWanted,
    ServeClosed,
    Tick,
    Unpin,
    WaitCall,
)
from hoplite_ucx.protocol.ids import CallId, NodeId, StreamId, Version, label, next_life
from hoplite_ucx.protocol.node.calls import Calls
from hoplite_ucx.protocol.node.context import Context
from hoplite_ucx.protocol.node.fetching import Fetching
from hoplite_ucx.protocol.node.incoming import Incoming
from hoplite_ucx.protocol.node.memory import Holding, Memory, Phase
from hoplite_ucx.protocol.node.receiving import Receiving
from hoplite_ucx.protocol.node.reducing import Reducing
from hoplite_ucx.protocol.node.serving import Serving
from hoplite_ucx.protocol.node.succession import Inheritance, Remains
from hoplite_ucx.protocol.probation import Probation
from hoplite_ucx.protocol.settings import GIB, Settings

# The round trips of so many heartbeats, of which the quickest is reported. Fewer prove nothing: a directory that is
# busy for a moment, as when all nodes join or put at once, answers all of them late.
_ROUND_TRIPS_KEPT = 8


@dataclass(frozen=True, slots=True)
class IncomingStatus:
    """A stream that this node receives: for its store, or into the slot that makes another ref."""

    stream: StreamId
    ref: bytes
    into: bytes
    sender: NodeId
    position: int
    size: int
    number: int
    """Of the placement that it carries out."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    limit: int
    used: int
    objects: int
    largest: tuple[Holding, ...]
    evicted_objects: int
    """Copies that were dropped so far, to make room."""
    evicted_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """What a node is, as it tells the directory: where to find it, what its NIC and its store can take."""

    host: str
    address: str
    up: float
    down: float
    cluster: str
    directory: str = ""
    """The address of the directory, for errors."""
    memory: int = 4 * GIB
    streams_in: int = 256
    streams_out: int = 256


class NodeState:
    def __init__(self, node: NodeId, profile: NodeProfile, settings: Settings | None = None) -> None:
        self._profile = profile
        self._context = Context(node, settings or Settings(), profile.directory)
        self.memory = Memory(self._context, profile.memory)
        self.serving = Serving(self._context, self.memory, profile.up, profile.streams_out)
        self.receiving = Receiving(self._context, self.memory)
        self.fetching = Fetching(self._context, self.memory, self.serving, self.receiving)
        self.reducing = Reducing(self._context, self.memory, self.serving, self.fetching)
        self.calls = Calls(self._context, self.memory, self.serving, self.fetching)
        self.inheritance = Inheritance()
        self._probation = Probation()
        self._members = 0  # of the cluster, as the directory said last
        self._retiring = False
        self._failures_to_connect = 0
        self._beats_sent: deque[float] = deque()  # that were not answered yet
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS_KEPT)

    @property
    def node(self) -> NodeId:
        return self._context.node

    @property
    def incarnation(self) -> int:
        """Of the directory that was joined last."""
        return self._context.incarnation

    def start(self, now: float) -> list[NodeEffect]:
        self._context.now = now
        self._context.hear()
        self._context.emit(ConnectDirectory())
        self._set_beat()
        return self._context.take_effects()

    def successor(self, remains: Remains, now: float) -> tuple[Self, list[NodeEffect]]:
        """The machine that continues when this one has raised, and its first effects. It keeps this node's name, its
        complete objects and the puts that users know as done (see `succession`); it joins again, and the directory
        takes everything else for lost. It has no calls: the shell repeats some of the open ones (see `asked_again`) and
        fails the others."""
        successor = type(self)(self.node, self._profile, self._context.settings)
        return successor, successor._succeed(self, remains, now)

    def _succeed(self, earlier: Self, remains: Remains, now: float) -> list[NodeEffect]:
        self._context.succeed(earlier._context)
        self._context.now = now
        self._context.hear()
        self._members = earlier._members
        self._retiring = earlier._retiring
        self._failures_to_connect = earlier._failures_to_connect
        self._probation = earlier._probation
        self._probation.note(None, now, self._context.settings.lease)
        self.inheritance.take(self.memory, earlier.memory, remains)
        self.calls.succeed(earlier.calls)
        self._session_lost()
        self._set_beat(self._probation.left(None, now))  # it may be the heartbeat that raises
        return self._context.take_effects()

    def handle(self, event: NodeEvent, now: float) -> list[NodeEffect]:
        self._context.now = now
        _ON_EVENT[type(event)](self, event)
        self.fetching.review_hungry()
        return self._context.take_effects()

    def wakeup(self) -> float | None:
        """When the shell must send a `Tick` at the latest."""
        return self._context.timers.next()

    def timers(self) -> list[Hashable]:
        """What this machine waits for, by key."""
        return list(self._context.timers)

    @property
    def refusal(self) -> Failure | None:
        """Why this node could not join, by the directory's last answer."""
        return self._context.refusal

    # --- what a shell asks: it looks at nothing inside ------------------------------------------------------------

    def calls_awaiting(self, ref: bytes) -> list[CallId]:
        """The gets of an object, or of the target assembled from it."""
        return self.fetching.awaiting(ref)

    def calls_awaiting_copy(self, segment: int) -> list[CallId]:
        """The gets of the target into which a stripe of this node is being copied."""
        targets = self.fetching.assembling.copied_into(segment)
        return [call for target in targets for call in self.fetching.awaiting(target)]

    def assembled_in(self, segment: int) -> tuple[bytes, list[int]]:
        """The ref of a segment that is cut into windows. If it is a target that is put together there: the segments of
        its stripes that this node makes."""
        return self.fetching.assembling.made_for(segment)

    def incoming(self) -> list[IncomingStatus]:
        """What is being received, as far as this machine knows."""
        return [_status_of(incoming) for incoming in self.receiving.streams.values() if not incoming.closing]

    def incoming_stream(self, stream: StreamId) -> IncomingStatus | None:
        incoming = self.receiving.streams.get(stream)
        return _status_of(incoming) if incoming is not None else None

    def served_streams(self) -> list[StreamId]:
        """Those that send, or wait for their turn."""
        return list(self.serving.streams)

    def request_of(self, stream: StreamId) -> messages.StreamRequest | None:
        """What the receiver of a stream that is served here asked for."""
        outgoing = self.serving.streams.get(stream)
        return outgoing.request if outgoing is not None else None

    def version_in(self, segment: int) -> Version | None:
        """Whose bytes a segment has."""
        holding = self.memory.segments.get(segment)
        return holding.version if holding is not None else None

    def copy_of(self, ref: bytes) -> Holding | None:
        """The copy of an object here that a get may return."""
        return self.memory.complete_copy(ref)

    def combining(self) -> list[tuple[bytes, int, int]]:
        """What the slots of this node make: its ref, its segment and its size."""
        slots = self.reducing.slots.items()
        return [(ref, slot.holding.segment, slot.bind.size) for ref, slot in slots if slot.holding is not None]

    def store(self, largest: int = 0) -> StoreStatus:
        memory = self.memory
        return StoreStatus(
            memory.limit,
            memory.used,
            len(memory.segments),
            tuple(memory.largest(largest)) if largest else (),
            memory.evicted_objects,
            memory.evicted_bytes,
        )

    def unused_since(self, moment: float, most: int) -> list[bytes]:
        return self.memory.unused_since(moment, most)

    def story(self, ref: bytes) -> list[tuple[float, str]]:
        return self._context.stories.tell(ref)

    # --- the session with the directory ------------------------------------------------------------------------

    def _join(self) -> None:
        profile = self._profile
        self._context.joined = True
        self._context.hear()
        partials, wants = self.fetching.announce()
        pending = self.calls.announce()
        self._context.tell_directory(
            messages.Join(
                messages.PROTOCOL,
                profile.cluster,
                self._context.incarnation,
                self.node,
                profile.host,
                profile.address,
                profile.up,
                profile.down,
                profile.streams_in,
                profile.streams_out,
                self._members,
                copies=tuple(
                    messages.Copy(version, holding.size, holding.layout, holding.sealed, holding.origin, holding.piece)
                    for version, holding in self.memory.holdings.items()
                    if holding.phase is Phase.COMPLETE
                ),
                partials=partials,
                producing=pending.producing,
                slots=self.reducing.announce(),
                puts=pending.puts,
                wants=wants,
                watches=pending.watches,
                deletes=pending.deletes,
                reduces=pending.reduces,
                asks=pending.asks,
                questions=pending.questions,
                submitted=pending.submitted,
                tombstones=pending.tombstones,
            )
        )
        self.calls.poll_again()
        self.memory.review()
        if self._retiring:
            self._context.tell_directory(messages.Retire())

    def _retire(self) -> None:
        """Repeated in every session: a new directory does not know, and the message may have been lost with the last
        one."""
        if not self._retiring:
            self._retiring = True
            if self._context.joined:
                self._context.tell_directory(messages.Retire())

    def _session_lost(self) -> None:
        """Streams run on without the directory; only calls that need it wait for the next session."""
        self._context.joined = self._context.welcomed = False
        self._beats_sent.clear()
        self.memory.session_lost()
        settings = self._context.settings
        delay = min(settings.reconnect * 2**self._failures_to_connect, settings.lease / 4)
        self._failures_to_connect = min(self._failures_to_connect + 1, 16)
        delay = max(delay, self._probation.left(None, self._context.now))
        self._context.timers.set("connect", self._context.now + delay)

    def _on_welcome(self, welcome: messages.Welcome) -> None:
        if welcome.cluster != self._profile.cluster or welcome.incarnation < self._context.incarnation:
            detail = f"a directory of {welcome.cluster!r}, incarnation {welcome.incarnation}, answered"
            self._refused(Failure(FailureKind.STALE, detail, "check the address of the directory"))
            return
        self._context.welcomed = True
        self._context.refusal = None
        self._context.incarnation = welcome.incarnation
        self._members = welcome.members
        self._context.settings = welcome.settings
        self._failures_to_connect = 0

    def _on_fenced(self, fenced: messages.Fenced) -> None:
        """We were declared dead: come back under a new name, with what we have."""
        if fenced.node != self.node:
            return
        self._context.node = next_life(self.node)
        self.reducing.new_life()
        self.fetching.new_life()
        self._leave_session()

    def _refused(self, failure: Failure) -> None:
        """Messages in this session are ignored. The next session may be with another directory."""
        self._context.refusal = failure
        self._leave_session()

    def _leave_session(self) -> None:
        self._context.emit(DisconnectDirectory())
        self._session_lost()

    def _on_tick(self, tick: Tick) -> None:
        for key in self._context.timers.pop_due(self._context.now):
            match key:
                case "beat":
                    self._beat(tick)
                case "connect":
                    self._context.emit(ConnectDirectory())
                case ("call", int() as call):
                    self.calls.expired(call)
                case ("park", StreamId() as stream):
                    self.serving.park_expired(stream)

    def _beat(self, tick: Tick) -> None:
        settings = self._context.settings
        late = max(0.0, self._context.now - self._context.beat_due)
        self._context.slept += late
        self._set_beat()
        self.calls.beat(tick.positions)
        self.reducing.beat(tick.combined)
        self.receiving.beat(tick.positions, late)
        self.serving.beat(tick.positions)
        self.memory.beat()
        if self._context.joined:
            if self._context.silence() >= settings.lease:
                self._leave_session()
            else:
                self._beats_sent.append(self._context.now)
                enough = len(self._round_trips) == _ROUND_TRIPS_KEPT
                quickest = min(self._round_trips) if enough else 0.0
                self._context.tell_directory(messages.Heartbeat(self.receiving.progress(), quickest))

    def _set_beat(self, at_least: float = 0.0) -> None:
        self._context.beat_due = self._context.now + max(self._context.settings.heartbeat, at_least)
        self._context.timers.set("beat", self._context.beat_due)

    # --- messages ----------------------------------------------------------------------------------------------

    def _on_directory_message(self, event: FromDirectory) -> None:
        self._context.hear()
        message = event.message
        _ON_MESSAGE[type(message)](self, message)

    def _on_alive(self, alive: messages.Alive) -> None:
        self._members = alive.members
        if self._beats_sent:
            self._round_trips.append(self._context.now - self._beats_sent.popleft())

    def _on_result(self, result: messages.Result) -> None:
        self.calls.over(result.version.ref)
        self.reducing.result(result)

    def _on_failed(self, failed: messages.Failed) -> None:
        self.fetching.failed(failed.ref, failed.failure)
        if failed.failure.kind is FailureKind.DELETED:
            self.calls.ready((failed.ref,))  # a get would answer at once

    def _on_may_leave(self, may: messages.MayLeave) -> None:
        if self._retiring:
            self._context.emit(Retired(may.left))

    def _on_rejected(self, rejected: messages.Rejected) -> None:
        if not self._context.welcomed:
            self._refused(rejected.failure)
        elif rejected.failure.kind is FailureKind.STALE:
            self._leave_session()  # it does not know us: join again

    def _on_drop(self, drop: messages.Drop) -> None:
        version = drop.version
        self.calls.dropped(version)
        self.reducing.dropped(version)
        self.fetching.dropped(version)
        holding = self.memory.get(version)
        if holding is not None:
            self._context.tell(version.ref, "{} is dropped", version)
            self.serving.gone(holding)
            self.memory.doom(holding)
            self._context.stories.end(version.ref)

    def _on_peer_message(self, event: FromPeer) -> None:
        peer, message = event.peer, event.message
        match message:
            case messages.StreamRequest():
                self.serving.requested(peer, message)
            case messages.StreamCancel(stream):
                self.serving.cancelled(peer, stream)
            case messages.StreamRefused(stream, fault):
                self.receiving.refused(peer, stream, fault)
            case messages.StreamStatus():
                self.receiving.status(peer, message)

    def _on_receive_closed(self, event: ReceiveClosed) -> None:
        if not self.inheritance.receive_closed(self.memory, event.stream):
            self.fetching.closed(event)

    def _on_serve_closed(self, event: ServeClosed) -> None:
        if not self.inheritance.serve_closed(self.memory, event.stream):
            self.serving.closed(event.stream)

    def _on_combined(self, event: Combined) -> None:
        self.reducing.combined(event.segment)
        self.fetching.assembling.copied(event.segment)

    def _on_peer_lost(self, event: PeerLost) -> None:
        self.receiving.peer_lost(event.peer)
        self.serving.peer_lost(event.peer)

    def __repr__(self) -> str:
        return f"NodeState({label(self.node)})"


def _status_of(incoming: Incoming) -> IncomingStatus:
    placement = incoming.placement
    return IncomingStatus(
        incoming.stream,
        placement.version.ref,
        incoming.fetch.into,
        placement.sender,
        incoming.position,
        placement.size,
        placement.number,
    )


_ON_EVENT: dict[type, Callable[[NodeState, Any], None]] = {
    FromDirectory: NodeState._on_directory_message,
    FromPeer: NodeState._on_peer_message,
    GetCall: lambda node, call: node.calls.get(call),
    PutCall: lambda node, call: node.calls.put(call),
    PutFinished: lambda node, event: node.calls.put_finished(event.call),
    WaitCall: lambda node, call: node.calls.wait(call),
    DeleteCall: lambda node, call: node.calls.delete(call),
    ReduceCall: lambda node, call: node.calls.reduce(call),
    ContributorsCall: lambda node, call: node.calls.ask(call),
    DescribeCall: lambda node, call: node.calls.describe(call),
    CancelCall: lambda node, event: node.calls.cancel(event.call),
    Unpin: lambda node, event: node.memory.unpin(event.call),
    ReceiveClosed: NodeState._on_receive_closed,
    ServeClosed: NodeState._on_serve_closed,
    Combined: NodeState._on_combined,
    CombinedBytes: lambda node, event: node.reducing.combined_inline(event.version, event.data),
    CombineFailed: lambda node, event: node.reducing.failed(event.what, event.failure),
    RetireWanted: lambda node, _: node._retire(),
    PeerLost: NodeState._on_peer_lost,
    DirectoryConnected: lambda node, _: node._join(),
    DirectoryLost: lambda node, _: node._session_lost(),
    Tick: NodeState._on_tick,
}
_ON_MESSAGE: dict[type, Callable[[NodeState, Any], None]] = {
    messages.Alive: NodeState._on_alive,
    messages.Place: lambda node, message: node.fetching.place(message),
    messages.Assemble: lambda node, message: node.fetching.assembling.assemble(message),
    messages.Cut: lambda node, message: node.fetching.assembling.cut(message),
    messages.Inline: lambda node, message: node.fetching.inline(message),
    messages.Halt: lambda node, message: node.fetching.halt(message),
    messages.Failed: NodeState._on_failed,
    messages.Drop: NodeState._on_drop,
    messages.PutAccepted: lambda node, message: node.calls.put_accepted(message),
    messages.PutRefused: lambda node, message: node.calls.put_refused(message.call, message.failure),
    messages.Ready: lambda node, message: node.calls.ready(message.refs),
    messages.Deleted: lambda node, message: node.calls.deleted(message.call),
    messages.EvictAnswer: lambda node, message: node.memory.evict_answered(message.version, message.answer),
    messages.Bind: lambda node, message: node.reducing.bind(message),
    messages.CombineInline: lambda node, message: node.reducing.combine_inline(message),
    messages.Sealed: lambda node, message: node.reducing.sealed(message),
    messages.Over: lambda node, message: node.calls.over(message.target),
    messages.Result: NodeState._on_result,
    messages.Reduced: lambda node, message: node.calls.reduced(message.call, message.failure),
    messages.Contributors: lambda node, message: node.calls.contributors(message),
    messages.Described: lambda node, message: node.calls.described(message),
    messages.Polled: lambda node, message: node.calls.polled(message),
    messages.Unhandled: lambda node, message: node.calls.unhandled(message),
    messages.MayLeave: NodeState._on_may_leave,
    messages.Welcome: NodeState._on_welcome,
    messages.Fenced: NodeState._on_fenced,
    messages.Rejected: NodeState._on_rejected,
}
