"""Streams between two virtual nodes: chunks of up to a granule, credits, hand-over delays, and how they break.

A sender pushes whatever its segment's watermark allows, a granule at most, while it has credit; the chunk takes its
time on the network, then the link's latency, is written, and after the hand-over delay it is final: the receiver's
watermark rises, its own streams may forward it, and the credit returns. A cancelled stream may still write until it is
closed; a chunk that arrives later is nothing. Streams of one link share it alike; but of those with a rank the lowest
goes first, and a stream that has waited for long pushes a chunk all the same, as on live links.
"""

from __future__ import annotations

from typing import Protocol

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.events import NodeEvent, ReceiveClosed, Serve, ServeClosed
from hoplite_ucx.protocol.events import Receive as ReceiveEffect
from hoplite_ucx.protocol.ids import StreamId
from hoplite_ucx.protocol.messages import StreamFault
from hoplite_ucx.simulate.clock import Clock
from hoplite_ucx.simulate.combining import Combining
from hoplite_ucx.simulate.content import Span
from hoplite_ucx.simulate.network import Flow
from hoplite_ucx.simulate.segments import Segment

# Chunks that may be on their way or unprocessed at the receiver; covers the round trip of any link simulated here.
_CREDITS = 16
# Chunks handed to the network at once, so that it never idles between two of them.
_AHEAD = 2
# How long a stream lets those of lower rank go first, before it pushes a chunk: this part of the time until it would
# count as stalled.
_PATIENCE = 1 / 3


class Surroundings(Protocol):
    settings: Settings
    handover: float

    def close_delay(self) -> float: ...


class Node(Protocol):
    """What a stream needs of the node at one of its ends."""

    clock: Clock
    host: str
    stopped: bool
    receiving: dict[StreamId, Receiving]
    serving: dict[StreamId, Serving]

    @property
    def cluster(self) -> Surroundings: ...
    def dispatch(self, event: NodeEvent) -> None: ...


class Receiving:
    """The receiving end."""

    def __init__(self, node: Node, effect: ReceiveEffect, segment: Segment, combining: Combining | None = None) -> None:
        self._node = node
        self._clock = node.clock
        self._handover = node.cluster.handover
        self.segment = segment
        self.stream: StreamId = effect.stream
        self.sender = effect.sender
        self.size = effect.size
        self.watermark = effect.offset
        self.cancelled = False
        self.closed = False
        self.serving: Serving | None = None
        self.host = node.host
        self._unprocessed: list[tuple[int, int, list[Span]]] = []
        self._combining = combining
        self._part = effect.part or 0
        self._uncombined: list[int] = []  # ends of chunks that still hold their credit
        if combining is not None:
            combining.begin_stream(self._part, self, effect.offset)

    def arrive(self, start: int, end: int, spans: list[Span]) -> None:
        if self.closed:
            return
        if self._combining is None:
            for low, high, token in spans:
                self.segment.content.write(low, high, token)
        if self._node.stopped:
            self._unprocessed.append((start, end, spans))  # in the kernel's buffers until the process goes on
        else:
            self._clock.post(self._handover, self._hand_over, start, end, spans)

    def resume(self) -> None:
        unprocessed, self._unprocessed = self._unprocessed, []
        for start, end, spans in sorted(unprocessed):  # the stop caught one in the middle of being handed over
            self._clock.post(self._handover, self._hand_over, start, end, spans)

    def _hand_over(self, start: int, end: int, spans: list[Span]) -> None:
        if self.closed:
            return
        if self._node.stopped:
            self._unprocessed.append((start, end, spans))
            return
        if self._combining is not None:
            self._uncombined.append(end)
            self._combining.receive(self._part, start, end, spans)
            return
        self.watermark = end
        self.segment.raise_watermark(end)
        if self.serving is not None:
            self.serving.credit()
        if end == self.size:
            self._close(None)

    def combined(self, watermark: int) -> None:
        """The slot has combined what came up to here."""
        if self.closed:
            return
        self.watermark = watermark
        while self._uncombined and self._uncombined[0] <= watermark:
            self._uncombined.pop(0)
            if self.serving is not None:
                self.serving.credit()
        if watermark == self.size:
            self._close(None)

    def _late_write(self, serving: Serving) -> None:
        """The worst that a cancelled transfer may do: write the next chunk just before it is closed."""
        for low, high, token in serving.next_spans():
            self.segment.content.write(low, high, token)

    def cancel(self) -> None:
        """Close soon: until then, what is under way may still be written."""
        if not self.cancelled and not self.closed:
            self.cancelled = True
            self._node.clock.after(self._node.cluster.close_delay(), self._close, None)

    def break_off(self) -> None:
        """The connection under the stream is gone."""
        self._close(StreamFault.BROKEN)

    def _close(self, fault: StreamFault | None) -> None:
        if not self.closed:
            if self.cancelled and self.serving is not None and self._combining is None:
                self._late_write(self.serving)
            self.closed = True
            if self._combining is not None:
                self._combining.end_stream(self._part)
            self._node.receiving.pop(self.stream, None)
            self._node.dispatch(ReceiveClosed(self.stream, self.watermark, fault))


class Serving:
    """The sending end. It finds its receiving end when it starts: the two share one connection."""

    def __init__(self, node: Node, effect: Serve, segment: Segment, receiving: Receiving, flow: Flow) -> None:
        self._node = node
        self._clock = node.clock
        self._size = effect.size
        self._granule = effect.granule
        self._rank = effect.rank
        self.segment = segment
        self._flow = flow
        self.receiving = receiving
        self.host = node.host
        self.receiver_host = receiving.host
        self.stream: StreamId = effect.stream
        self.position = effect.offset
        self._in_network = 0
        self._pushed_at = node.clock.now
        self._uncredited = 0
        self.stuck = False
        self.closed = False
        receiving.serving = self
        segment.readers[self] = None

    def pump(self) -> None:
        """Push every chunk that is there and for which there is a credit."""
        segment = self.segment
        while self.position < segment.watermark and self._may_push():
            start, end = self.position, min(self.position + self._granule, segment.watermark)
            self._in_network += 1
            self._pushed_at = self._clock.now
            self._uncredited += 1
            self.position = end
            self._flow.push(end - start, self._sent, start, end, segment.content.read(start, end))

    def _may_push(self) -> bool:
        return (
            self._in_network < _AHEAD
            and self._uncredited < _CREDITS
            and not (self.stuck or self.closed or self._node.stopped)
            and not (self._rank and self._lets_others_go())
        )

    def _lets_others_go(self) -> bool:
        waited = self._clock.now - self._pushed_at
        patient = waited < _PATIENCE * self._node.cluster.settings.suspicion
        return patient and any(other._in_network and other._rank < self._rank for other in self._beside())

    def _beside(self) -> list[Serving]:
        """Those with a rank on the same link; this one has one."""
        servings = self._node.serving.values()
        beside = [other for other in servings if other._rank and other.receiver_host == self.receiver_host]
        return sorted(beside, key=lambda other: other._rank)

    def next_spans(self) -> list[Span]:
        end = min(self.position + self._granule, self.segment.watermark)
        return self.segment.content.read(self.position, end)

    def _sent(self, start: int, end: int, spans: list[Span]) -> None:
        self._in_network -= 1
        self._clock.post(self._flow.latency, self.receiving.arrive, start, end, spans)
        if end == self._size:
            self.close()
        else:
            self.pump()
            self._pump_others()

    def _pump_others(self) -> None:
        if self._rank:
            for other in self._beside():
                if other is not self:
                    other.pump()

    def credit(self) -> None:
        self._uncredited -= 1
        if not self.closed:
            self.pump()

    def cancel(self) -> None:
        self._node.clock.after(self._node.cluster.close_delay(), self.close)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._flow.close()
            self.segment.readers.pop(self, None)
            self._node.serving.pop(self.stream, None)
            self._pump_others()
            self._node.dispatch(ServeClosed(self.stream))
