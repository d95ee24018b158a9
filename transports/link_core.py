"""What both ends of a link decide, over any transport: which stream sends next, and what a peer may ask for. No IO:
links call it, under their lock or on their one thread, and move the bytes.

The receiver *opens* a stream on a channel and says what it takes (`Demand`); the sender *serves* it (`Outgoing`). The
two come in any order, and are joined here by the stream's key.

Streams that may have something to send are in a queue. Those of the first priority take turns. Streams with a rank give
their turns to the lowest rank among them, which does not affect the others. A stream that has been in the queue for
long goes first, because a stream that does not move counts as stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, TypeVar

from hoplite_ucx.transports.errors import ViolationError
from hoplite_ucx.transports.interface import Fault, Priority, ReceiveClosed, ServeClosed, Stream, StreamKey
from hoplite_ucx.transports.link_timers import LinkTimers

__all__ = ["MAX_UNSERVED", "Demand", "Incoming", "Outgoing", "ReceivingCore", "SendingCore", "violation"]

MAX_UNSERVED = 4096
"""Streams that a receiver may have opened and that are not served yet."""

_since = attrgetter("since")
_priority = attrgetter("priority")
_rank = attrgetter("rank")


def violation(what: str, peer: str) -> ViolationError:
    return ViolationError(
        f"the peer violated the link protocol: {what}", peer, "install the same release on both hosts"
    )


def _ignore() -> None:
    """The default callback."""


# --- the sending end ---------------------------------------------------------------------------------------------


class Demand:
    """A stream that its receiver has opened. Each transport adds what the receiver takes of it."""

    def __init__(self, key: StreamKey, channel: int) -> None:
        self.key = key
        self.channel = channel


_Demand = TypeVar("_Demand", bound=Demand)


class Outgoing(Generic[_Demand]):
    """One stream, as its sender sees it."""

    def __init__(self, stream: Stream, source: Any, on_closed: ServeClosed, priority: Priority, rank: int = 0) -> None:
        self.key = stream.key
        self.source = source
        self.position = stream.offset
        self.size = stream.size
        self.granule = stream.granule
        self.priority = priority
        self.rank = rank
        self.on_closed = on_closed
        self.demand: _Demand | None = None
        self.queued = False
        self.since = 0.0  # when it entered the queue
        self.over = False
        self.risen: Callable[[], None] = _ignore

    def close(self) -> None:
        """Nothing here refers to the source after it: its memory may be large, and goes with the last reference."""
        self.source.unsubscribe(self.risen)
        self.risen = _ignore  # the old callback refers to the stream itself
        self.on_closed()


_Outgoing = TypeVar("_Outgoing", bound=Outgoing[Any])


class SendingCore(Generic[_Demand, _Outgoing]):
    """The streams that one receiver has opened, and whose turn it is."""

    def __init__(self, peer: str, timers: LinkTimers) -> None:
        self._peer = peer
        self._timers = timers
        self.streams: dict[int, _Outgoing] = {}
        """Those that are served, by channel."""
        self._unserved: dict[int, _Demand] = {}
        self._unserved_keys: dict[StreamKey, int] = {}
        self._queue: list[_Outgoing] = []

    # --- what the receiver wants, and what is served ---------------------------------------------------------------

    def open(self, demand: _Demand, stream: _Outgoing | None) -> None:
        """The receiver wants a stream, which may be served already. Raises a `ViolationError`."""
        channel, key = demand.channel, demand.key
        again = key in self._unserved_keys or (stream is not None and stream.demand is not None)
        if not channel or channel in self.streams or channel in self._unserved or again:
            raise violation(f"channel {channel} or its stream opened twice", self._peer)
        if stream is not None:
            self._join(demand, stream)
        elif len(self._unserved) >= MAX_UNSERVED:
            raise violation(f"it opened more than {MAX_UNSERVED} streams that are not being served", self._peer)
        else:
            self._unserved[channel] = demand
            self._unserved_keys[key] = channel

    def serve(self, stream: _Outgoing) -> bool:
        """True if the receiver has opened it."""
        channel = self._unserved_keys.pop(stream.key, None)
        if channel is not None:
            self._join(self._unserved.pop(channel), stream)
        return channel is not None

    def _join(self, demand: _Demand, stream: _Outgoing) -> None:
        stream.demand = demand
        self.streams[demand.channel] = stream

    def demand(self, channel: int) -> _Demand | None:
        """What the receiver wants on a channel; None if its stream is over, which the receiver may not know yet."""
        if (stream := self.streams.get(channel)) is None:
            return self._unserved.get(channel)
        return None if stream.over else stream.demand

    def withdraw(self, channel: int) -> bool:
        """The receiver does not want a stream any more that is not served; False if there is none."""
        if (demand := self._unserved.pop(channel, None)) is not None:
            del self._unserved_keys[demand.key]
        return demand is not None

    def remove(self, stream: _Outgoing) -> None:
        stream.over = True
        if stream.demand is not None:
            self.streams.pop(stream.demand.channel, None)

    def end(self) -> list[_Outgoing]:
        """The connection has ended, and with it the streams that it returns."""
        streams = list(self.streams.values())
        for each in (self.streams, self._unserved, self._unserved_keys, self._queue):
            each.clear()
        return streams

    # --- turns -----------------------------------------------------------------------------------------------------

    def enqueue(self, stream: _Outgoing, now: float) -> bool:
        """It may have something to send. False if it waits already, or cannot send."""
        if stream.queued or stream.over or stream.demand is None:
            return False
        stream.queued = True
        stream.since = now
        self._queue.append(stream)
        return True

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    def next(self, now: float) -> _Outgoing | None:
        """Whose turn it is; it leaves the queue. Of equals, the one that came first."""
        while self._queue:
            stream = self._queue.pop() if len(self._queue) == 1 else self._dequeue(now)
            stream.queued = False
            if not stream.over:
                return stream
        return None

    def _dequeue(self, now: float) -> _Outgoing:
        line = self._queue
        oldest = min(line, key=_since)
        if now - oldest.since >= self._timers.patience:
            line.remove(oldest)
            return oldest
        first = lowest = min(line, key=_priority)
        if first.rank:
            lowest = min((o for o in line if o.rank and o.priority == first.priority), key=_rank)
        place = line.index(first)
        line[line.index(lowest)] = first  # a stream that gives its turn away gets the turn of the one that took it
        del line[place]
        return lowest


# --- the receiving end -------------------------------------------------------------------------------------------


class Incoming:
    """One stream, as its receiver sees it: `received` has come, `asked` is how far the sender may send."""

    def __init__(self, stream: Stream, sink: Any, on_closed: ReceiveClosed) -> None:
        self.key = stream.key
        self.sink = sink
        self.received = self.asked = stream.offset
        self.size = stream.size
        self.granule = stream.granule
        self.on_closed = on_closed
        self.channel = 0
        self.over = False

    @property
    def complete(self) -> bool:
        return bool(self.sink.watermark() >= self.size)

    def close(self, fault: Fault | None) -> None:
        watermark = self.sink.end()
        self.on_closed(watermark, None if watermark >= self.size else fault)


_Incoming = TypeVar("_Incoming", bound=Incoming)


class ReceivingCore(Generic[_Incoming]):
    """The streams of one connection. Channels are numbered from 1 up, and never used twice."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.streams: dict[int, _Incoming] = {}
        self._last_channel = 0

    def add(self, stream: _Incoming) -> None:
        self._last_channel = stream.channel = self._last_channel + 1
        self.streams[stream.channel] = stream

    def remove(self, stream: _Incoming) -> None:
        del self.streams[stream.channel]

    def find(self, channel: int) -> _Incoming | None:
        """None if it was closed while something for it was on its way. Raises a `ViolationError` if it never was."""
        if not 0 < channel <= self._last_channel:
            raise violation(f"channel {channel} was never opened", self._peer)
        return self.streams.get(channel)
