"""The latest streams that a node received: from which node, since when, when their first byte came, how they ended.

It is for people and measurements that want to know how fast a fault was noticed and when bytes flowed again, and costs
nothing while bytes flow: a stream's sink is watched for its first byte only.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hoplite_ucx.protocol.ids import StreamId
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.transports.interface import Fault, Sink

_KEPT = 512


@dataclass(slots=True)
class ReceivedStream:
    """Moments are of the monotonic clock. A stream that was closed below its size ended early, for whatever reason."""

    ref: str
    into: str
    """The ref that the slot makes which it feeds; empty if it is for the store."""
    sender: str
    offset: int
    size: int
    number: int
    """Of the placement that it carries out."""
    opened: float
    first_byte: float | None = None
    closed: float | None = None
    watermark: int | None = None
    fault: str | None = None


class WatchedSink:
    """A sink that notes when the first byte comes, and is the sink itself from then on."""

    def __init__(self, sink: Sink, record: ReceivedStream) -> None:
        self.device = sink.device
        self.window = sink.window
        self.watermark = sink.watermark
        self.limit = sink.limit
        self.subscribe = sink.subscribe
        self.end = sink.end
        self.arrived: Callable[[int], None] = self._first

        self._sink = sink
        self._record = record

    def _first(self, end: int) -> None:
        self._record.first_byte = now()
        self.arrived = self._sink.arrived
        self._sink.arrived(end)


class StreamHistory:
    def __init__(self) -> None:
        self._records: deque[ReceivedStream] = deque(maxlen=_KEPT)
        self._open: dict[StreamId, ReceivedStream] = {}
        self._lock = threading.Lock()  # streams are closed on any thread

    def opened(self, stream: StreamId, sink: Sink, record: ReceivedStream) -> Sink:
        """Returns the sink to use in its place."""
        with self._lock:
            self._records.append(record)
            self._open[stream] = record
        return WatchedSink(sink, record)

    def closed(self, stream: StreamId, watermark: int, fault: Fault | None) -> None:
        with self._lock:
            record = self._open.get(stream)
        if record is not None and record.closed is None:
            record.watermark = watermark
            record.fault = fault.value if fault is not None else None
            record.closed = now()

    def first_byte(self, stream: StreamId) -> float | None:
        """When it came, of a stream that is not over."""
        record = self._open.get(stream)
        return record.first_byte if record is not None else None

    def over(self, stream: StreamId) -> None:
        """Its end was told to the machine."""
        with self._lock:
            self._open.pop(stream, None)

    def tell(self, since: float = -math.inf) -> list[dict[str, Any]]:
        """Those that were open after this moment."""
        with self._lock:
            return [asdict(record) for record in self._records if record.closed is None or record.closed >= since]
