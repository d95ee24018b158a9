"""What a transport is: streams pulled from sources into sinks over links, one link per ordered pair of nodes.

A *source* is memory with a watermark that may still rise; a *sink* is memory that may refuse bytes for a while. The
receiver of a stream calls `receive`, the sender calls `serve` with the same key, independently and in any order; the
transport connects the two, opens the link if there is none, and closes each end exactly once.

Rules of every transport:

- Calls return at once, from any thread. Callbacks (`on_closed`, and the methods of sources and sinks) come on any
  thread, perhaps before the call that they belong to has returned; they must neither block nor raise.
- After `on_closed` of a receiving stream nothing is written to its sink; of a sending one, nothing is read.
- A cancelled stream closes within `CLOSE_SECONDS`, whatever the peer does. If transfers that cannot be interrupted take
  longer, on a link that gets on, it closes with the last of them.
- A stream that waits (for its source, its sink, or its turn) holds up no other stream of its link.
- A receiver whose sender has not begun to serve, or has stopped, waits until it is cancelled: the layer above watches
  the positions, and knows whom to ask instead.
- A sender forwards whatever is below the watermark; it never waits for a full granule. A receiver makes bytes final
  from a granule on, so a relay need not wait for all of a longer frame.
"""

import enum
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.transports.wire.handshake import Peer

__all__ = [
    "CLOSE_SECONDS",
    "MAX_GRANULE",
    "Bytes",
    "Fault",
    "HostSink",
    "HostSource",
    "LinkStatus",
    "Priority",
    "Side",
    "Sink",
    "Source",
    "Stream",
    "StreamKey",
    "Transport",
]

StreamKey: TypeAlias = tuple[int, int]
"""A stream's name, chosen by its receiver and used once: two numbers below 2**64."""

MAX_GRANULE = 16 << 20
"""No frame is longer than this, whatever a stream asks for."""

CLOSE_SECONDS = 0.5
"""A cancelled stream is closed within this time, if this process runs at all."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The bytes [offset, size) under one key. A relay waits for a granule before it forwards. An invalid one raises
    `ValueError`."""

    key: StreamKey
    offset: int
    size: int
    granule: int

    def __post_init__(self) -> None:
        if not all(0 <= part < 1 << 64 for part in self.key):
            raise ValueError(f"a stream's key must be two numbers in [0, 2**64), not {self.key}")
        if not 0 <= self.offset <= self.size < 1 << 63:
            raise ValueError(f"offset {self.offset} is not within the size of {self.size}")
        if not 0 < self.granule <= MAX_GRANULE:
            raise ValueError(f"a granule must have 1 to {MAX_GRANULE} bytes, not {self.granule}")


class Fault(enum.StrEnum):
    """Why a receiving stream ended before its last byte."""

    BROKEN = "broken"  # the connection to the sender ended, or could not be made


class Side(enum.StrEnum):
    RECEIVING = "receiving"
    SENDING = "sending"


class Priority(enum.IntEnum):
    """Which streams go first on a link: relayed bytes, because further receivers wait for them."""

    RELAYED = 0
    OWN = 1


Bytes: TypeAlias = memoryview | Window
"""A piece of memory: the host's, or a device's."""


class Source(Protocol):
    """Memory that a stream reads: everything below the watermark is final."""

    @property
    def device(self) -> int | None:
        """The CUDA device whose memory it is, or None for the host's. It never changes. Windows are of that memory."""
        ...

    def watermark(self) -> int:
        """How many leading bytes are final. It never falls."""
        ...

    def window(self, offset: int, length: int) -> Bytes:
        """The bytes from `offset` on: at least one and at most `length` of them, all below the watermark."""
        ...

    def subscribe(self, risen: Callable[[], None]) -> None:
        """Call `risen` after each rise of the watermark, on any thread, until `unsubscribe`. It does not block."""
        ...

    def unsubscribe(self, risen: Callable[[], None]) -> None:
        """Stop calling it; a call that is in progress on another thread may still come."""
        ...


class Sink(Protocol):
    """Memory that one stream fills, in order and without gaps. One per stream.

    What has arrived need not be final: a sink may combine it first. The stream's position is the sink's watermark.
    """

    @property
    def device(self) -> int | None:
        """The CUDA device whose memory it is, or None for the host's. It never changes. Windows are of that memory."""
        ...

    def window(self, offset: int, length: int) -> Bytes:
        """Writable memory for the bytes from `offset` on: at least one and at most `length` bytes, below `limit()`.

        Several windows may be given out, one behind the other. Bytes may be written to each, in any order, until
        `arrived` has passed it or `end` is called.
        """
        ...

    def arrived(self, end: int) -> None:
        """All bytes below `end` are in the memory given out. `end` may be anywhere, in the middle of an element too."""
        ...

    def watermark(self) -> int:
        """How far the bytes of this stream are final. It never falls; the stream is complete when it is the size."""
        ...

    def limit(self) -> int:
        """How far the sink takes bytes now. It never falls."""
        ...

    def subscribe(self, grown: Callable[[], None]) -> None:
        """Call `grown`, on any thread, after `limit` or `watermark` has risen by itself, outside of `arrived`.

        Never under a lock that other methods of the sink take: the stream may be complete, and then `grown` ends it.
        """
        ...

    def end(self) -> int:
        """The stream is over: drop what is not final, make no more callbacks, and return the final watermark.

        Called once. Except for `watermark` and `limit`, no other method runs at the same time or is called later.
        """
        ...


class HostSource(Source, Protocol):
    """A source in memory of the host, for links that know no other."""

    def window(self, offset: int, length: int) -> memoryview: ...


class HostSink(Sink, Protocol):
    """A sink in memory of the host, for links that know no other."""

    def window(self, offset: int, length: int) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One end of a link, for people and for the cost model."""

    peer: int
    side: Side
    transport: str
    connected: bool
    streams: int
    bytes: int
    frames: int
    takes_devices: bool = False
    """Whether memory of devices is passed on as it is; if not, it is staged through the host."""


ReceiveClosed: TypeAlias = Callable[[int, Fault | None], None]
"""on_closed(watermark, fault): fault is None if the stream is complete or was cancelled."""

ServeClosed: TypeAlias = Callable[[], None]

LinkLost: TypeAlias = Callable[[int, Side, Exception], None]
"""on_link_lost(peer, side, why), before the streams of the link are closed. Never for a link that was closed here."""


class Transport(ABC):
    """All links of one node over one kind of transport. Peers are named by a number below 2**64 that they prove."""

    @abstractmethod
    def adopt(self, sock: socket.socket, peer: Peer) -> None:
        """Take a proven connection on which the peer will receive."""

    @abstractmethod
    def set_patience(self, seconds: float) -> None:
        """A stream that waited this long for its turn on a link is served next, if the links take turns by frames."""

    @abstractmethod
    def prepare(self, sender: int, address: str) -> None:
        """Open the link to a sender before there is a stream. If that fails, no stream is affected."""

    @abstractmethod
    def receive(self, sender: int, address: str, stream: Stream, sink: Sink, on_closed: ReceiveClosed) -> None:
        """Receive the stream into the sink; the link to `address` is opened if there is none."""

    @abstractmethod
    def cancel_receive(self, key: StreamKey) -> None:
        """Close the stream soon. Nothing happens if it is already closed."""

    @abstractmethod
    def serve(
        self,
        receiver: int,
        stream: Stream,
        source: Source,
        on_closed: ServeClosed,
        *,
        priority: Priority,
        rank: int = 0,
    ) -> None:
        """Send the stream from the source; it closes soon if the receiver has no link here and opens none. Among
        streams of one priority a link may let the lowest rank go first, but lets a waiting one send now and then."""

    @abstractmethod
    def cancel_serve(self, key: StreamKey) -> None:
        """Close the stream soon. Nothing happens if it is already closed."""

    @abstractmethod
    def receive_positions(self) -> dict[StreamKey, int]:
        """The watermark of every receiving stream."""

    @abstractmethod
    def serve_positions(self) -> dict[StreamKey, int]:
        """How many bytes of every sending stream were handed to the network."""

    @abstractmethod
    def links(self) -> list[LinkStatus]:
        """Every end of a link that this node has."""

    @abstractmethod
    def carried(self) -> dict[tuple[str, Side], int]:
        """The bytes of all links so far, of those that have ended too, by transport and side. None of them falls."""

    def reasons(self) -> dict[int, str]:
        """Why each sender is received from as it is, for a transport that has a choice."""
        return {}

    def lanes(self) -> dict[tuple[int, Side], list[str]]:
        """What each link really runs over, as transport/device, where the transport can tell."""
        return {}

    @abstractmethod
    def drop(self, peer: int) -> None:
        """Break the links with a peer, both ways: their streams close, the receiving ones with `BROKEN`."""

    @abstractmethod
    def close(self, timeout: float = 5.0) -> bool:
        """Close all streams (as broken) and links; False if a thread was still busy after `timeout`.

        Calls after it close their stream at once.
        """
