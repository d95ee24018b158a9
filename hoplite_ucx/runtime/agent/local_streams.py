"""Streams from a node to itself: a slot may be fed from its own node's store.

The two ends meet here as they meet on a link. Everything happens on one thread, the combiner's: opening, copying as far
as the source has come and the sink takes it, closing. So nothing here needs a lock.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from hoplite_ucx.gpu.copies import copy
from hoplite_ucx.transports.interface import Sink, Source, StreamKey

_STEP = 1 << 20
_STEPS_IN_A_ROW = 8


@dataclass(slots=True, eq=False)
class _Receiving:
    sink: Sink
    position: int
    size: int
    on_closed: Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Serving:
    source: Source
    risen: Callable[[], None]
    on_closed: Callable[[], None]


class LocalStreams:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._receiving: dict[StreamKey, _Receiving] = {}
        self._serving: dict[StreamKey, _Serving] = {}
        self.copied = 0
        """Bytes so far."""

    def receive(self, key: StreamKey, sink: Sink, offset: int, size: int, on_closed: Callable[[int], None]) -> None:
        sink.subscribe(lambda: self._soon(self._pump, key))
        self._soon(self._open_receiving, key, _Receiving(sink, offset, size, on_closed))

    def serve(self, key: StreamKey, source: Source, on_closed: Callable[[], None]) -> None:
        """Closed at once if there is no receiving end: that is always opened first."""
        serving = _Serving(source, lambda: self._soon(self._pump, key), on_closed)
        source.subscribe(serving.risen)
        self._soon(self._open_serving, key, serving)

    def cancel(self, key: StreamKey) -> None:
        self._soon(self._close, key)

    def positions(self) -> dict[StreamKey, int]:
        return {key: receiving.sink.watermark() for key, receiving in list(self._receiving.items())}

    # --- on the combiner's thread ------------------------------------------------------------------------------

    def _soon(self, work: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the node is closing
            self._executor.submit(work, *arguments)

    def _open_receiving(self, key: StreamKey, receiving: _Receiving) -> None:
        self._receiving[key] = receiving
        self._pump(key)

    def _open_serving(self, key: StreamKey, serving: _Serving) -> None:
        self._serving[key] = serving
        if key in self._receiving:
            self._pump(key)
        else:
            self._close(key)

    def _pump(self, key: StreamKey) -> None:
        receiving, serving = self._receiving.get(key), self._serving.get(key)
        if receiving is None or serving is None:
            return
        sink, source = receiving.sink, serving.source
        for _ in range(_STEPS_IN_A_ROW):
            there = min(source.watermark(), sink.limit(), receiving.size) - receiving.position
            if there <= 0:
                break
            piece = source.window(receiving.position, min(there, _STEP))
            place = sink.window(receiving.position, len(piece))
            copy(place, piece)
            receiving.position += len(place)
            self.copied += len(place)
            sink.arrived(receiving.position)
        else:
            self._soon(self._pump, key)
        if sink.watermark() == receiving.size:
            self._close(key)

    def _close(self, key: StreamKey) -> None:
        receiving, serving = self._receiving.pop(key, None), self._serving.pop(key, None)
        if receiving is not None:
            receiving.on_closed(receiving.sink.end())
        if serving is not None:
            serving.source.unsubscribe(serving.risen)
            serving.on_closed()
