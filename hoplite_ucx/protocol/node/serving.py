"""The sending side of streams: which receivers may pull what from this node, and in which order.

Streams of one version are served first come, first served; another starts only where the running ones leave
capacity, so that the first receiver can forward early instead of all being slow together. Those of a stripe that was
cut for a crowd run side by side: its receivers get the other stripes elsewhere. A request may overtake
the placement that brings the version here (they travel on different connections): it is *parked* for a moment.
A sender with nothing to send says so with every heartbeat, because only silence counts as a stall.
"""

import enum
from dataclasses import dataclass

from hoplite_ucx.protocol.events import CancelServe, Serve
from hoplite_ucx.protocol.ids import CallId, NodeId, StreamId, Version, identity_of, label
from hoplite_ucx.protocol.messages import StreamFault, StreamRefused, StreamRequest, StreamStatus
from hoplite_ucx.protocol.node.context import Context
from hoplite_ucx.protocol.node.memory import Holding, Memory

# Another stream of the same version is started while the running streams of the node use less than this part of
# its NIC.
_FULL = 0.8
# What a stream may yet gain over its measured rate before another one is started beside it.
_HEADROOM = 1.25


class Turn(enum.Enum):
    PARKED = "parked"
    QUEUED = "queued"
    RUNNING = "running"
    CLOSING = "closing"


@dataclass(slots=True, eq=False)
class Outgoing:
    request: StreamRequest
    peer: NodeId
    holding: Holding | None
    turn: Turn
    rate: float
    position: int
    moved_at: float

    def runs_beside_others(self) -> bool:
        """A stripe of an object that was cut goes to several receivers at once, each of which forwards another one."""
        return self.holding is not None and self.holding.piece and not self.request.rank


class Serving:
    def __init__(self, context: Context, memory: Memory, rate: float, limit: int) -> None:
        self._context = context
        self._memory = memory
        self._rate = rate
        self._limit = limit
        self.streams: dict[StreamId, Outgoing] = {}
        self._by_version: dict[Version, list[Outgoing]] = {}  # in order of arrival

    def requested(self, peer: NodeId, request: StreamRequest) -> None:
        if identity_of(request.stream.receiver) != identity_of(peer):
            return  # a node pulls only for itself: otherwise it would use the number of another
        if request.stream in self.streams:
            return
        taken = sum(not outgoing.request.for_slot for outgoing in self.streams.values())
        if taken >= self._limit and not request.for_slot:
            self._context.tell_peer(peer, StreamRefused(request.stream, StreamFault.BUSY))
            return
        holding = self.holding_for(request.version)
        if holding is None and self._memory.has_newer(request.version):
            self._context.tell_peer(peer, StreamRefused(request.stream, StreamFault.ABSENT))
            return
        turn = Turn.PARKED if holding is None else Turn.QUEUED
        outgoing = Outgoing(request, peer, holding, turn, request.rate, request.offset, self._context.now)
        self.streams[request.stream] = outgoing
        self._by_version.setdefault(request.version, []).append(outgoing)
        if holding is None:
            self._context.timers.set(("park", request.stream), self._context.now + self._context.settings.park)
        else:
            self._begin(outgoing, holding)
            self._start(request.version)

    def holding_for(self, version: Version) -> Holding | None:
        """What may be sent for a request: exactly the version it names."""
        return self._memory.get(version)

    def arrived(self, holding: Holding) -> None:
        """The version has a place here now: what was parked for it takes its turn."""
        assert holding.version is not None
        for outgoing in list(self._by_version.get(holding.version, ())):
            if outgoing.turn is Turn.PARKED:
                self._context.timers.cancel(("park", outgoing.request.stream))
                self._begin(outgoing, holding)
        self._start(holding.version)

    def gone(self, holding: Holding) -> None:
        """The version will not be served any more."""
        if holding.version is None:
            return
        for outgoing in list(self._by_version.get(holding.version, ())):
            self._refuse(outgoing, StreamFault.ABSENT)

    def park_expired(self, stream: StreamId) -> None:
        if (outgoing := self.streams.get(stream)) is not None:
            self._refuse(outgoing, StreamFault.ABSENT)

    def cancelled(self, peer: NodeId, stream: StreamId) -> None:
        """The receiver wants no more; only the receiver itself can say so."""
        outgoing = self.streams.get(stream)
        if outgoing is not None and identity_of(outgoing.peer) == identity_of(peer):
            self._stop(outgoing)

    def peer_lost(self, peer: NodeId) -> None:
        for outgoing in list(self.streams.values()):
            if identity_of(outgoing.peer) == identity_of(peer):
                self._stop(outgoing)

    def closed(self, stream: StreamId) -> None:
        outgoing = self.streams.get(stream)
        if outgoing is not None and outgoing.turn in (Turn.RUNNING, Turn.CLOSING):
            if outgoing.turn is Turn.RUNNING:
                self._moved(outgoing)
            self._remove(outgoing)

    def beat(self, positions: dict[StreamId | CallId, int]) -> None:
        for outgoing in list(self.streams.values()):
            stream = outgoing.request.stream
            if outgoing.turn in (Turn.PARKED, Turn.QUEUED):
                self.tell_idle(outgoing, outgoing.position, queued=True)
            elif outgoing.turn is Turn.RUNNING and outgoing.holding is not None:
                position = positions.get(stream, outgoing.position)
                starved = position >= outgoing.holding.watermark
                self._measure(outgoing, position, starved)
                if starved:
                    self.tell_idle(outgoing, position, queued=False)
        for version in list(self._by_version):
            self._start(version)

    def tell_idle(self, outgoing: Outgoing, at: int, *, queued: bool) -> None:
        self._context.tell_peer(outgoing.peer, StreamStatus(outgoing.request.stream, at, queued))

    def _measure(self, outgoing: Outgoing, position: int, starved: bool) -> None:
        """What a stream moved since the last beat is what it uses of the NIC; a starved or stuck one uses nothing."""
        now = self._context.now
        if position > outgoing.position:
            measured = (position - outgoing.position) / max(now - outgoing.moved_at, 1e-9)
            outgoing.rate = min(outgoing.request.rate, measured * _HEADROOM)
            outgoing.position = position
            outgoing.moved_at = now
            self._moved(outgoing)
        elif starved or now - outgoing.moved_at >= self._context.settings.suspicion:
            outgoing.rate = 0.0

    def _moved(self, outgoing: Outgoing) -> None:
        assert outgoing.holding is not None
        self._memory.moved(outgoing.holding)

    def _begin(self, outgoing: Outgoing, holding: Holding) -> None:
        outgoing.holding = holding
        outgoing.turn = Turn.QUEUED
        holding.serves += 1
        if not holding.start <= outgoing.request.offset <= holding.size:
            self._refuse(outgoing, StreamFault.ABSENT)

    def _start(self, version: Version) -> None:
        """Let the next in line run while the NIC has capacity for it."""
        streams = self._by_version.get(version, ())
        load = sum(o.rate for o in self.streams.values() if o.turn in (Turn.RUNNING, Turn.CLOSING))
        busy = any(o.turn in (Turn.RUNNING, Turn.CLOSING) for o in streams)
        for outgoing in streams:
            if outgoing.turn is not Turn.QUEUED:
                continue
            assert outgoing.holding is not None
            if busy and load > self._rate * _FULL and not outgoing.runs_beside_others():
                return
            outgoing.turn = Turn.RUNNING
            outgoing.moved_at = self._context.now
            load += outgoing.rate
            busy = True
            holding, request = outgoing.holding, outgoing.request
            holding.used_at = self._context.now
            self._context.tell(
                holding.ref, "serves {} to {} from {}", holding.version, label(outgoing.peer), request.offset
            )
            form = (request.offset, holding.size, request.granule, request.rank)
            self._context.emit(Serve(request.stream, holding.segment, *form))

    def _refuse(self, outgoing: Outgoing, fault: StreamFault) -> None:
        if outgoing.turn is not Turn.CLOSING:
            self._context.tell_peer(outgoing.peer, StreamRefused(outgoing.request.stream, fault))
        self._stop(outgoing)

    def _stop(self, outgoing: Outgoing) -> None:
        if outgoing.turn is Turn.RUNNING:
            outgoing.turn = Turn.CLOSING
            self._context.emit(CancelServe(outgoing.request.stream))
        elif outgoing.turn is not Turn.CLOSING:
            self._remove(outgoing)

    def _remove(self, outgoing: Outgoing) -> None:
        request = outgoing.request
        del self.streams[request.stream]
        queue = self._by_version[request.version]
        queue.remove(outgoing)
        if not queue:
            del self._by_version[request.version]
        self._context.timers.cancel(("park", request.stream))
        if outgoing.holding is not None:
            outgoing.holding.serves -= 1
            self._memory.release(outgoing.holding)
        self._start(request.version)
