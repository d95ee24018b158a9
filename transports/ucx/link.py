"""What both ends of a UCX link share: the connection that carries its records, and how it ends. Engine's thread only.

A link lives as long as its TCP connection: when that ends, or UCX reports an error, the link is *broken*. If the link
has its own worker and transfers in progress, the worker is destroyed. Otherwise the endpoint is closed, which completes
its transfers, and each stream is closed as soon as its own requests are completed.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.errors import ConnectionLostError, TransportError, ViolationError, connection_broke
from hoplite_ucx.transports.interface import Bytes, LinkStatus, Side
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.frames import Connection, Record
from hoplite_ucx.transports.ucx.standstill import LOOK_SECONDS, Standstill, Verdict

__all__ = ["Link"]

DESTROY_SECONDS = 0.2
"""Closing an endpoint completes its requests, on a worker that links share: over software RDMA in up to 0.2 s, while
the machine was busy. If it does not, the worker is destroyed after this time, with all its links, also those to whoever
has another copy; and the next link waits for another worker, which took 0.3 to 1.5 s there."""


class _Stream(Protocol):
    @property
    def transfers(self) -> deque[Any]:
        """Those that are in UCX, in order."""
        ...

    @property
    def closed(self) -> bool: ...


_AnyStream = TypeVar("_AnyStream", bound=_Stream)


class _Core(Protocol[_AnyStream]):
    @property
    def streams(self) -> dict[int, _AnyStream]: ...

    def remove(self, stream: _AnyStream) -> None: ...


class Link(ABC, Generic[_AnyStream]):
    side: Side
    _core: _Core[_AnyStream]

    def __init__(
        self,
        engine: Engine,
        peer: int,
        on_lost: Callable[[Exception], None],
        on_closed: Callable[[_AnyStream], None],
        on_ended: Callable[[Any], None],
    ) -> None:
        self.peer = peer
        self.engine = engine
        self.worker = engine.take_worker()
        self.worker.links.add(self)
        self.connection: Connection | None = None
        self.endpoint: library.Endpoint | None = None
        self.broken = False
        self.lanes: list[str] = []
        """What UCX gave the link, as of its last stream; none before the first transfer."""
        self.bytes = 0
        self.frames = 0
        self.standstill = Standstill()
        self.cancelled: list[_AnyStream] = []
        """Streams that were cancelled while transfers of them were in UCX. Closed ones are removed at the next look."""
        self._on_lost = on_lost
        self._on_closed = on_closed
        self._on_ended = on_ended
        self._waiting_to_write = False

    @property
    def streams(self) -> dict[int, _AnyStream]:
        return self._core.streams

    def status(self) -> LinkStatus:
        streams = len(self.streams)
        return LinkStatus(self.peer, self.side, "ucx", self.connected, streams, self.bytes, self.frames)

    @property
    def connected(self) -> bool:
        return self.endpoint is not None and not self.broken

    def _note_lanes(self) -> None:
        """Asked of UCX on the engine's thread, so that whoever wants to know them never waits for it."""
        if self.connected:
            found = self.engine.library.lanes(self.endpoint)
            self.lanes = [f"{lane.transport}/{lane.device}" for lane in found]

    # --- the connection ----------------------------------------------------------------------------------------

    def attach(self, connection: Connection) -> None:
        self.connection = connection
        self.engine.watch(connection.sock.fileno(), self._ready)

    def flush_soon(self) -> None:
        self.engine.unflushed.add(self._flush)

    def _flush(self) -> None:
        if self.connection is None:
            return
        try:
            blocked = not self.connection.flush()
        except (TransportError, OSError) as error:
            self.break_off(error)
            return
        if blocked != self._waiting_to_write:
            self._waiting_to_write = blocked
            self.engine.watch_writing(self.connection.sock.fileno(), blocked)

    def _ready(self, event: int) -> None:
        if event & select.EPOLLOUT:
            self.flush_soon()
        if self.connection is None or not event & ~select.EPOLLOUT:
            return
        try:
            self.connection.read()
            self.heard(self.connection)
        except (TransportError, OSError) as error:
            self.break_off(error)
        except self.engine.library.error as error:
            self.break_off(self.failed(error))

    @abstractmethod
    def heard(self, connection: Connection) -> None:
        """Something arrived. Raises a `TransportError` if it is invalid."""

    def failed(self, error: Exception) -> ConnectionLostError:
        return ConnectionLostError(
            f"UCX aborted a transfer: {error}", self.name, "check whether the process there still runs"
        )

    def connect(self, address: bytes) -> None:
        """Connect UCX to the peer's worker. Raises a `ConnectionLostError`."""
        self.engine.check_ports(self.name)
        try:
            self.endpoint = self.worker.connect(address)
        except self.engine.library.error as error:
            over = ", ".join(self.engine.settings.tls)
            raise ConnectionLostError(
                f"UCX cannot connect to it over {over}: {error}",
                self.name,
                "check [ucx] tls and net_devices, and run `hoplite doctor` on both hosts",
            ) from error

    def violation(self, what: str) -> ViolationError:
        return link_core.violation(what, self.name)

    @property
    @abstractmethod
    def name(self) -> str:
        """The peer, for people."""

    # --- streams -----------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Look at the requests of every stream."""
        moved = False
        for stream in list(self.streams.values()):
            try:
                moved |= bool(stream.transfers) and self.advance_stream(stream)
            except self.engine.library.error as error:
                self.break_off(self.failed(error))
        if moved and not self.lanes:
            self._note_lanes()
        if moved and not self.broken:
            self.go_on()
        if not self.busy():
            self.engine.active.discard(self)
        return moved

    @abstractmethod
    def advance_stream(self, stream: _AnyStream) -> bool:
        """Look at its requests. True if one was completed."""

    def go_on(self) -> None:
        """A request was completed."""

    def close(self, stream: _AnyStream) -> None:
        """It has no requests any more."""
        self._note_lanes()
        self._core.remove(stream)
        self._on_closed(stream)
        self.end_stream(stream)
        if self.broken and not self.streams:
            self.let_go()

    @abstractmethod
    def end_stream(self, stream: _AnyStream) -> None:
        """Nothing here uses it any more: say so to its owner."""

    # --- cancelled streams -------------------------------------------------------------------------------------

    def wait_for(self, stream: _AnyStream) -> None:
        """It is cancelled, and its transfers are in UCX: it is closed when they end. Breaks the link if they do not."""
        if not self.cancelled:
            self.engine.later(LOOK_SECONDS, self._look)
        if all(other.closed for other in self.cancelled):
            self.standstill.begin(time.monotonic())
        self.cancelled.append(stream)

    def _look(self) -> None:
        self.cancelled = [stream for stream in self.cancelled if not stream.closed]
        if not self.cancelled or self.broken:
            return
        match self.standstill.look(time.monotonic()):
            case Verdict.SILENT:
                what = f"the peer did not answer for {self.standstill.silent_seconds:.2g} s while a stream is cancelled"
                self.break_off(ConnectionLostError(what, self.name, "check whether the process there is stopped"))
            case Verdict.STILL:
                what = f"nothing moved for {self.standstill.still_seconds:.2g} s, though the peer answers"
                self.break_off(ConnectionLostError(what, self.name, "check the network that UCX uses between the two"))
            case Verdict.WAIT:
                if self.standstill.must_ask:
                    self.ask()
                self.engine.later(LOOK_SECONDS, self._look)

    def ask(self) -> None:
        """Whether the peer is there, and what it has seen. The first answer on a link tells how long one takes."""
        if self.connection is not None:
            self.connection.put(Record.ASK, 0)
            self.standstill.asked(time.monotonic())
            self.flush_soon()

    def asked_or_answered(self, what: int, first: int, second: int) -> bool:
        """False if the record was about something else."""
        if what == Record.ANSWER:
            self.standstill.answered(time.monotonic(), first, second / 1e6)
        elif what == Record.ASK and self.connection is not None:
            self.connection.put(Record.ANSWER, 0, self.frames, int(self.standstill.slowest_transfer * 1e6))
            self.flush_soon()
        return what in (Record.ASK, Record.ANSWER)

    # --- the end -----------------------------------------------------------------------------------------------

    def break_off(self, error: Exception | None) -> None:
        """End the link; without an error, this side wanted it."""
        if self.broken:
            return
        self.broken = True
        connection, self.connection = self.connection, None
        if connection is not None:
            self.engine.unwatch(connection.sock.fileno())
            connection.close()
        private = self.engine.settings.private_workers
        if self.endpoint is not None and not (private and self.busy()):
            self.worker.disconnect(self.endpoint)
        if error is not None:
            self._on_lost(connection_broke(error, self.name) if isinstance(error, OSError) else error)
        self.hang_up()
        if private and self.busy():
            self.engine.destroy(self.worker)
            return
        if not private and error is not None and self.engine.end_without_port():
            return
        self.release()
        if self in self.worker.links:
            self.engine.later(DESTROY_SECONDS, self._overdue)

    def let_go(self) -> None:
        """The last request of a broken link is completed."""
        self.endpoint = None
        self.engine.active.discard(self)
        self.worker.links.discard(self)
        self.engine.return_worker(self.worker, self.ended)

    def _overdue(self) -> None:
        if self in self.worker.links:
            self.engine.destroy(self.worker)

    def ended(self) -> None:
        """Nothing is left of it."""
        self._on_ended(self)

    def busy(self) -> bool:
        """Whether it has requests in UCX."""
        return any(stream.transfers for stream in self.streams.values())

    def release(self) -> None:
        """Close those streams of the broken link that have no requests; `advance` closes the others."""
        for stream in list(self.streams.values()):
            if not stream.transfers:
                self.close(stream)
        if not self.streams:
            self.let_go()
        else:
            self.engine.active.add(self)
            self.settle()

    def forget_requests(self) -> list[Bytes]:
        """The worker is about to end, and everything with it. Returns their memory, to be kept until then."""
        memory = [transfer.window for stream in self.streams.values() for transfer in stream.transfers]
        for stream in self.streams.values():
            stream.transfers.clear()
        self.endpoint = None
        return memory

    def hang_up(self) -> None:
        """The link is broken: end everything that waits for the peer."""

    def settle(self) -> None:
        """Complete the requests of the broken link that closing its endpoint does not complete."""
