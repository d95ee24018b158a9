"""The streams that come in, from the request to the sender until the shell has closed them.

A stream has a sink: an object of the store, or a part of a slot. It may outlive what it was for, since until it is
closed it may write. This module follows the position of each stream, and notices a stall, a refusal, or the loss of the
sender; it closes such a stream with its fault. `fetching` then decides what happens to the object.
"""

from hoplite_ucx.protocol.events import CancelReceive, Receive, ReceiveClosed
from hoplite_ucx.protocol.ids import CallId, NodeId, StreamId, identity_of
from hoplite_ucx.protocol.messages import Place, Progress, StreamCancel, StreamFault, StreamRequest, StreamStatus
from hoplite_ucx.protocol.node.context import Context
from hoplite_ucx.protocol.node.incoming import Fetch, Incoming
from hoplite_ucx.protocol.node.memory import Holding, Input, Memory


class Receiving:
    def __init__(self, context: Context, memory: Memory) -> None:
        self._context = context
        self._memory = memory
        self.streams: dict[StreamId, Incoming] = {}

    def open(self, fetch: Fetch, placement: Place, sink: Holding | Input) -> Incoming:
        """Ask the sender for the bytes that the sink still needs."""
        stream = self._context.next_stream()
        incoming = Incoming(stream, placement, sink, fetch, sink.watermark, self._context.now)
        self.streams[stream] = incoming
        sink.receive = stream
        self._context.emit(
            Receive(
                stream,
                sink.segment,
                placement.sender,
                placement.address,
                placement.version,
                sink.watermark,
                sink.size,
                placement.granule,
                sink.part if isinstance(sink, Input) else None,
            )
        )
        self._context.tell_peer(
            placement.sender,
            StreamRequest(
                stream,
                placement.version,
                sink.watermark,
                placement.granule,
                placement.rate,
                for_slot=bool(fetch.into or fetch.whole),
                rank=placement.rank,
            ),
        )
        return incoming

    def close(self, incoming: Incoming) -> None:
        if not incoming.closing:
            incoming.closing = True
            self._context.tell_peer(incoming.placement.sender, StreamCancel(incoming.stream))
            self._context.emit(CancelReceive(incoming.stream))

    def closed(self, event: ReceiveClosed) -> Incoming | None:
        """It does not write any more, and its sink keeps its bytes."""
        incoming = self.streams.pop(event.stream, None)
        if incoming is not None:
            sink = incoming.sink
            sink.receive = None
            if event.watermark > sink.watermark:
                self._memory.moved(sink.owner)
            sink.watermark = event.watermark
        return incoming

    def refused(self, peer: NodeId, stream: StreamId, fault: StreamFault) -> None:
        if (incoming := self._from(peer, stream)) is not None:
            self._fail(incoming, fault)

    def peer_lost(self, peer: NodeId) -> None:
        for incoming in list(self.streams.values()):
            if identity_of(incoming.placement.sender) == identity_of(peer):
                self._fail(incoming, StreamFault.BROKEN)

    def status(self, peer: NodeId, status: StreamStatus) -> None:
        incoming = self._from(peer, status.stream)
        if incoming is not None and (status.queued or status.at <= incoming.position):
            incoming.sign_of_life = self._context.now

    def beat(self, positions: dict[StreamId | CallId, int], late: float) -> None:
        """Look for stalls. Our own pause (`late`) does not count as our senders' silence."""
        now = self._context.now
        for incoming in list(self.streams.values()):
            incoming.sign_of_life += late
            position = positions.get(incoming.stream, incoming.position)
            held_back = isinstance(incoming.sink, Input) and incoming.sink.held_back()
            if position > incoming.position:
                incoming.position = incoming.sink.watermark = position
                incoming.sign_of_life = now
                self._memory.moved(incoming.sink.owner)
            elif held_back:
                incoming.sign_of_life = now
            elif now - incoming.sign_of_life >= self._context.settings.suspicion:
                self._fail(incoming, StreamFault.STALLED)

    def progress(self) -> tuple[Progress, ...]:
        return tuple(
            Progress(incoming.placement.version, incoming.position, incoming.fetch.into)
            for incoming in self.streams.values()
            if not incoming.closing
        )

    def _from(self, peer: NodeId, stream: StreamId) -> Incoming | None:
        """A stream as its sender speaks of it; what others say of it does not count."""
        incoming = self.streams.get(stream)
        if incoming is None or identity_of(incoming.placement.sender) != identity_of(peer):
            return None
        return incoming

    def _fail(self, incoming: Incoming, fault: StreamFault) -> None:
        if not incoming.closing:
            incoming.fault = fault
            self.close(incoming)
