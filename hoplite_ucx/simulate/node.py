"""A virtual node: the shell around one `NodeState`, and the processes of its users.

It performs the machine's effects on the virtual network and feeds back what happens. It can be killed (the kernel
resets its connections), stopped and resumed (what arrives meanwhile waits in order), and lose sessions and streams
separately. Freed segments are recycled, contents and all, so that a write that comes too late lands in someone else's
object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Protocol

from hoplite_ucx.protocol import Directory, NodeState, Settings
from hoplite_ucx.protocol.driver import Driver, Table
from hoplite_ucx.protocol.errors import Failure, internal
from hoplite_ucx.protocol.events import (
    Allocate,
    Answer,
    CallFailed,
    CancelReceive,
    CancelServe,
    Combine,
    CombineBytes,
    CombinedBytes,
    ConnectDirectory,
    ContributorsAre,
    DeleteDone,
    DescriptionsAre,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    Duplicate,
    Fill,
    Free,
    FromDirectory,
    FromPeer,
    Got,
    NodeEffect,
    NodeEvent,
    PeerLost,
    PutDone,
    PutFinished,
    PutReady,
    Receive,
    ReduceDone,
    Retired,
    RetireWanted,
    SendDirectory,
    SendPeer,
    Serve,
    ServeClosed,
    Supply,
    Tick,
    UserCall,
    Waited,
    Window,
)
from hoplite_ucx.protocol.ids import CallId, NodeId, StreamId, identity_of
from hoplite_ucx.protocol.messages import Alive, Heartbeat, Leave, ToDirectory, ToPeer
from hoplite_ucx.protocol.node.succession import RemainingSegment, Remains
from hoplite_ucx.simulate.clock import Clock, Waker
from hoplite_ucx.simulate.combining import Combining
from hoplite_ucx.simulate.content import Content, Piece
from hoplite_ucx.simulate.network import Endpoint, Network
from hoplite_ucx.simulate.provenance import Provenance
from hoplite_ucx.simulate.sabotage import SabotageError
from hoplite_ucx.simulate.segments import Segment
from hoplite_ucx.simulate.streams import Receiving, Serving
from hoplite_ucx.tracing.node_recorder import NodeRecorder


class Cluster(Protocol):
    """What a node needs of the cluster that it is in."""

    clock: Clock
    network: Network
    settings: Settings
    provenance: Provenance
    handover: float
    put_rate: float
    put_pieces: int
    nodes: dict[int, VirtualNode]

    def after_event(self, machine: Directory | NodeState) -> None: ...
    def node_raised(self, node: VirtualNode, event: NodeEvent, failure: Failure) -> list[UserCall]: ...
    def given_out(self, node: VirtualNode) -> frozenset[CallId]: ...
    def connect_to_directory(self, node: VirtualNode) -> Endpoint: ...
    def notify(self, source: str, target: str, callback: Callable[[], object]) -> None: ...
    def receiving_end(self, stream: StreamId) -> Receiving | None: ...
    def close_delay(self) -> float: ...
    def node_says(self, node: VirtualNode, message: ToDirectory) -> None: ...
    def is_cancelled(self, call: CallId) -> bool: ...
    def token_of_call(self, node: VirtualNode, call: CallId) -> int: ...
    def put_was_filled(self, node: VirtualNode, call: CallId) -> None: ...
    def answered(self, node: VirtualNode, answer: Answer) -> None: ...


class VirtualNode:
    def __init__(self, cluster: Cluster, machine: NodeState, host: str) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        self.machine = machine
        self.host = host
        self.identity = identity_of(machine.node)
        self.alive = True
        self.stopped = False
        self.retiring = False
        """It is to leave on purpose."""
        self.left = False
        """It has left on purpose."""
        self.raised = False
        """Its machine has just raised: its calls fail."""
        self.segments: dict[int, Segment] = {}
        self.receiving: dict[StreamId, Receiving] = {}
        self.serving: dict[StreamId, Serving] = {}
        self.producing: dict[CallId, Segment] = {}
        self.combining: dict[int, Combining] = {}
        self.peers: dict[int, Endpoint] = {}
        self.directory: Endpoint | None = None
        self.recorder: NodeRecorder | None = None
        self._recycled: list[Content] = []
        self._waker = Waker(self.clock, self._tick)
        perform: Table = {
            SendDirectory: self._send_directory,
            SendPeer: self._send_peer,
            Receive: self._receive,
            CancelReceive: self._cancel_receive,
            Serve: self._serve,
            CancelServe: self._cancel_serve,
            Allocate: self._allocate,
            Window: self._window,
            Duplicate: self._duplicate,
            Fill: self._fill,
            Free: self._free,
            Combine: self._combine,
            CombineBytes: self._combine_bytes,
            Supply: self._supply,
            ConnectDirectory: self._connect_directory,
            DisconnectDirectory: self._disconnect_directory,
            PutReady: self._produce,
            PutDone: self._answer,
            Got: self._answer,
            Waited: self._answer,
            DeleteDone: self._answer,
            ReduceDone: self._answer,
            ContributorsAre: self._answer,
            DescriptionsAre: self._answer,
            CallFailed: self._answer,
            Retired: self._leave,
        }
        self._driver: Driver[NodeEvent, NodeEffect] = Driver(
            machine,
            NodeEffect,
            perform,
            now=lambda: self.clock.now,
            wake=self._waker.set,
            succeed=self._succeed,
            handled=self._handled,
        )

    # --- the machine -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._driver.begin(self.machine.start(self.clock.now))

    def dispatch(self, event: NodeEvent) -> None:
        self._driver.feed(event)

    def _handled(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        if self.recorder is not None:
            self.recorder.handled(event, effects, self.clock.now, 0.0)
        if not _is_routine(event, effects):
            self.cluster.after_event(self.machine)

    def _succeed(self, event: NodeEvent, error: Exception) -> None:
        """A trap went off: go on with what is certain."""
        if not isinstance(error, SabotageError):
            raise error
        remains = self._close_all()
        self.machine, effects = self.machine.successor(remains, self.clock.now)
        self.raised = True
        again = self.cluster.node_raised(self, event, internal("agent", type(event).__name__, error))
        self.raised = False
        self._driver.begin(effects, self.machine)
        for call in again:
            self.dispatch(call)
        if self.retiring:
            self._driver.feed(RetireWanted())  # it may have been lost with the machine
        self.cluster.after_event(self.machine)

    def _close_all(self) -> Remains:
        """End what the machine began, as far as that can be done at once, and say what is left."""
        self._disconnect_directory(DisconnectDirectory())
        for endpoint in self.peers.values():
            endpoint.close()
        self.peers.clear()
        self.producing.clear()
        for combining in self.combining.values():
            combining.close()
        self.combining.clear()
        numbers = {id(segment): number for number, segment in self.segments.items()}
        remains = Remains(
            {
                number: RemainingSegment(
                    segment.size,
                    segment.watermark == segment.size,
                    numbers[id(segment.whole)] if segment.whole is not None else None,
                )
                for number, segment in self.segments.items()
            },
            {stream: numbers[id(receiving.segment)] for stream, receiving in self.receiving.items()},
            {stream: numbers[id(serving.segment)] for stream, serving in self.serving.items()},
            self.cluster.given_out(self),
        )
        for receiving in self.receiving.values():
            receiving.cancel()
        for serving in self.serving.values():
            serving.cancel()
        return remains

    def _tick(self) -> None:
        if self.stopped:
            return
        positions: dict[StreamId | CallId, int] = {s.stream: s.watermark for s in self.receiving.values()}
        positions |= {s.stream: s.position for s in self.serving.values()}
        positions |= {call: segment.watermark for call, segment in self.producing.items()}
        self.dispatch(Tick(positions, {number: self.segments[number].watermark for number in self.combining}))

    # --- processes come and go ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone at once; the kernel resets what it had open, and peers hear of it unless they cannot."""
        self.alive = False
        if self.recorder is not None:
            self.recorder.end(self.clock.now)
        self._driver.stop()
        self._waker.cancel()
        for endpoint in self._endpoints():
            endpoint.close()
        for serving in list(self.serving.values()):
            serving.close()
            self.cluster.notify(self.host, serving.receiver_host, serving.receiving.break_off)
        for receiving in list(self.receiving.values()):
            receiving.closed = True
            if receiving.serving is not None:
                self.cluster.notify(self.host, receiving.serving.host, receiving.serving.close)

    def retire(self) -> None:
        self.retiring = True
        self.dispatch(RetireWanted())

    def _leave(self, _: Retired) -> None:
        """The process ends as a live one does that may: it says so, and its connections are closed after that."""
        if self.directory is not None:
            self.directory.send((self.machine.node, Leave()))
            self.directory.close(reset=False)
        self.left = True
        self.kill()

    def break_stream(self, stream: StreamId) -> None:
        """The data connection under a stream that this node sends breaks; sessions do not notice."""
        serving = self.serving[stream]
        serving.close()
        serving.receiving.break_off()

    def stop(self) -> None:
        self.stopped = True
        self._driver.pause()
        for endpoint in self._endpoints():
            endpoint.pause()

    def resume(self) -> None:
        self.stopped = False
        self._driver.resume()
        for receiving in list(self.receiving.values()):
            receiving.resume()
        for serving in list(self.serving.values()):
            serving.pump()
        for endpoint in self._endpoints():
            endpoint.resume()
        self._tick()

    def _endpoints(self) -> list[Endpoint]:
        return [*self.peers.values()] + ([self.directory] if self.directory is not None else [])

    # --- sessions ----------------------------------------------------------------------------------------------

    def _connect_directory(self, _: ConnectDirectory) -> None:
        self.directory = endpoint = self.cluster.connect_to_directory(self)
        if self.stopped:
            endpoint.pause()
        endpoint.attach(
            lambda message: self.dispatch(FromDirectory(message)), lambda _: self._directory_closed(endpoint)
        )
        self.clock.after(2 * self.cluster.network.latency(self.host, endpoint.peer.host), self._connected, endpoint)

    def _connected(self, endpoint: Endpoint) -> None:
        if self.directory is endpoint:
            self.dispatch(DirectoryConnected())

    def _directory_closed(self, endpoint: Endpoint) -> None:
        if self.directory is endpoint:
            self.directory = None
            self.dispatch(DirectoryLost())

    def _disconnect_directory(self, _: DisconnectDirectory) -> None:
        if self.directory is not None:
            self.directory.close()
            self.directory = None

    def _send_directory(self, effect: SendDirectory) -> None:
        self.cluster.node_says(self, effect.message)
        if self.directory is not None:
            self.directory.send((self.machine.node, effect.message))

    def _send_peer(self, effect: SendPeer) -> None:
        if identity_of(effect.peer) == self.identity:  # a slot may be fed from its own node's store
            delay = self.cluster.network.latency(self.host, self.host)
            self.clock.after(delay, self.dispatch, FromPeer(self.machine.node, effect.message))
            return
        endpoint = self.peers.get(identity_of(effect.peer))
        if endpoint is not None:
            endpoint.send((self.machine.node, effect.message))

    def connect_peer(self, peer: NodeId) -> None:
        """Make a session with a peer unless there is one; a dead process refuses after a round trip."""
        identity = identity_of(peer)
        if identity in self.peers or identity == self.identity:
            return
        other = self.cluster.nodes.get(identity)
        if other is None or not other.alive:
            if other is not None:
                refuse = partial(self.cluster.notify, other.host, self.host, partial(self.dispatch, PeerLost(peer)))
                self.cluster.notify(self.host, other.host, refuse)
            return
        mine, theirs = self.cluster.network.connect(self.host, other.host)
        self._adopt_session(identity, mine)
        other._adopt_session(self.identity, theirs)

    def _adopt_session(self, identity: int, endpoint: Endpoint) -> None:
        old = self.peers.get(identity)
        if old is not None:
            old.close()
            self.dispatch(PeerLost(self.cluster.nodes[identity].machine.node))
        self.peers[identity] = endpoint
        if self.stopped:
            endpoint.pause()
        endpoint.attach(self._from_peer, lambda _: self._peer_closed(identity, endpoint))

    def _from_peer(self, envelope: tuple[NodeId, ToPeer]) -> None:
        self.dispatch(FromPeer(*envelope))

    def _peer_closed(self, identity: int, endpoint: Endpoint) -> None:
        if self.peers.get(identity) is endpoint:
            del self.peers[identity]
            self.dispatch(PeerLost(self.cluster.nodes[identity].machine.node))

    def lose_peer(self, identity: int) -> None:
        """The session with a peer breaks, for both; streams do not notice."""
        endpoint = self.peers.pop(identity, None)
        if endpoint is not None:
            endpoint.close()
            self.dispatch(PeerLost(self.cluster.nodes[identity].machine.node))

    def lose_directory(self) -> None:
        endpoint, self.directory = self.directory, None
        if endpoint is not None:
            endpoint.close()
            self.dispatch(DirectoryLost())

    # --- segments and streams ----------------------------------------------------------------------------------

    def _allocate(self, effect: Allocate) -> None:
        content = self._recycled.pop() if self._recycled else Content()
        self.segments[effect.segment] = Segment(effect.size, content)

    def _window(self, effect: Window) -> None:
        whole = self.segments[effect.of]
        window = Segment(effect.size, Piece(whole.content, effect.offset), whole)
        window.watermark = min(effect.size, max(0, whole.watermark - effect.offset))
        whole.unfilled += effect.size - window.watermark
        self.segments[effect.segment] = window

    def _free(self, effect: Free) -> None:
        content = self.segments.pop(effect.segment).content
        if isinstance(content, Content):
            self._recycled.append(content)
        if (combining := self.combining.pop(effect.segment, None)) is not None:
            combining.close()

    def _combine(self, effect: Combine) -> None:
        parts = [None if part is None else self.segments[part] for part in effect.parts]
        combining = Combining(self, effect.segment, self.segments[effect.segment], parts, effect.start)
        self.combining[effect.segment] = combining
        self.clock.after(self.cluster.handover, combining.pump)

    def _duplicate(self, effect: Duplicate) -> None:
        combining = Combining(self, effect.segment, self.segments[effect.segment], [self.segments[effect.of]], 0)
        self.combining[effect.segment] = combining
        self.clock.after(self.cluster.handover, combining.pump)

    def _supply(self, effect: Supply) -> None:
        size = len(effect.data)
        spans = [(0, size, self.cluster.provenance.of_bytes(effect.data))]
        self.combining[effect.segment].receive(effect.part, 0, size, spans)

    def _combine_bytes(self, effect: CombineBytes) -> None:
        provenance = self.cluster.provenance
        token = provenance.combined(provenance.of_bytes(part) for part in effect.parts)
        data = provenance.to_bytes(token, len(effect.parts[0]))
        self.clock.after(self.cluster.handover, self.dispatch, CombinedBytes(effect.version, data))

    def _fill(self, effect: Fill) -> None:
        segment = self.segments[effect.segment]
        segment.content.write(0, segment.size, self.cluster.provenance.of_bytes(effect.data))
        segment.raise_watermark(segment.size)

    def _receive(self, effect: Receive) -> None:
        self.connect_peer(effect.sender)
        combining = self.combining[effect.segment] if effect.part is not None else None
        self.receiving[effect.stream] = Receiving(self, effect, self.segments[effect.segment], combining)

    def _cancel_receive(self, effect: CancelReceive) -> None:
        if (receiving := self.receiving.get(effect.stream)) is not None:
            receiving.cancel()

    def _serve(self, effect: Serve) -> None:
        receiving = self.cluster.receiving_end(effect.stream)
        if receiving is None or receiving.closed:
            self.clock.after(0.0, self.dispatch, ServeClosed(effect.stream))
            return
        segment = self.segments[effect.segment]
        request = self.machine.request_of(effect.stream)
        # One of the streams that share a card: it has its part, and what others leave is not counted on.
        paced = request is not None and segment.whole is not None and not effect.rank
        cap = request.rate if request is not None and paced else inf
        flow = self.cluster.network.open_flow(self.host, receiving.host, cap)
        serving = Serving(self, effect, segment, receiving, flow)
        self.serving[effect.stream] = serving
        serving.pump()

    def _cancel_serve(self, effect: CancelServe) -> None:
        if (serving := self.serving.get(effect.stream)) is not None:
            serving.cancel()

    # --- users -------------------------------------------------------------------------------------------------

    def _produce(self, effect: PutReady) -> None:
        """A user's process fills the segment piece by piece, unless it died while the node was stopped."""
        if self.cluster.is_cancelled(effect.call):
            return
        segment = self.segments[effect.segment]
        self.producing[effect.call] = segment
        pieces = self.cluster.put_pieces
        pause = segment.size / self.cluster.put_rate / pieces
        for piece in range(1, pieces + 1):
            self.clock.after(piece * pause, self._write_piece, effect.call, segment, piece * segment.size // pieces)

    def _write_piece(self, call: CallId, segment: Segment, end: int) -> None:
        if not self.alive or call not in self.producing:
            return
        segment.content.write(segment.watermark, end, self.cluster.token_of_call(self, call))
        segment.raise_watermark(end)
        if end == segment.size:
            del self.producing[call]
            self.cluster.put_was_filled(self, call)
            self.dispatch(PutFinished(call))

    def abandon_put(self, call: CallId) -> None:
        """The user's process dies in the middle of a put."""
        self.producing.pop(call, None)

    def _answer(self, effect: Answer) -> None:
        self.cluster.answered(self, effect)


def _is_routine(event: NodeEvent, effects: list[NodeEffect]) -> bool:
    """A heartbeat and its answer, which are most of all events, leave nothing new to check."""
    if isinstance(event, Tick):
        return all(isinstance(effect, SendDirectory) and isinstance(effect.message, Heartbeat) for effect in effects)
    return isinstance(event, FromDirectory) and isinstance(event.message, Alive)
