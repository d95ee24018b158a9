"""What both ends of a UCX link share: the connection that carries its records, and how it ends. Engine's thread only.

A link lives as long as its TCP connection: when that ends, or UCX reports an error, the link is *broken*. If the link
has its own worker and transfers in progress, the worker is destroyed. Otherwise the endpoint is closed, which completes
its transfers, and each stream is closed as soon as its own requests are completed.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from hoplite_ucx.transports.errors import ConnectionLostError, TransportError, ViolationError, connection_broke
from hoplite_ucx.transports.interface import Bytes
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.frames import Connection

__all__ = ["CANCEL_SECONDS", "Link"]

CANCEL_SECONDS = 0.25
"""A cancelled stream waits this long for the next of its transfers in UCX to end. If none does, the peer is stopped or
lost, and the link is broken, since only that makes UCX release the memory."""

DESTROY_SECONDS = 0.1
"""Closing an endpoint completes its requests at once, on a worker that links share. If it does not, the worker is
destroyed after this time, with all its links."""


class _Cancelled(Protocol):
    closed: bool


class Link(ABC):
    def __init__(self, engine: Engine, peer: int, on_lost: Callable[[Exception], None]) -> None:
        self.peer = peer
        self.engine = engine
        self.worker = engine.take_worker()
        self.worker.links.add(self)
        self.connection: Connection | None = None
        self.endpoint: library.Endpoint | None = None
        self.broken = False
        self.bytes = 0
        self.frames = 0
        self._on_lost = on_lost
        self._waiting_to_write = False

    @property
    def connected(self) -> bool:
        return self.endpoint is not None and not self.broken

    def lanes(self) -> list[library.Lane]:
        return self.engine.library.lanes(self.endpoint) if self.endpoint is not None and not self.broken else []

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
        return ViolationError(
            f"the peer violated the link protocol: {what}", self.name, "install the same release on both hosts"
        )

    @property
    @abstractmethod
    def name(self) -> str:
        """The peer, for people."""

    def give_up_later(self, stream: _Cancelled, under_way: Callable[[], int]) -> None:
        """Break the link if a cancelled stream stands still. Its transfers only become fewer, and on a slow link all of
        them may take longer than the wait for one."""
        before = under_way()

        def look() -> None:
            if stream.closed or self.broken:
                return
            if under_way() < before:
                self.give_up_later(stream, under_way)
                return
            what = f"a cancelled stream was still transferring, and stood still for {CANCEL_SECONDS:g} s"
            self.break_off(ConnectionLostError(what, self.name, "check whether the process there is stopped"))

        self.engine.later(CANCEL_SECONDS, look)

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

    @abstractmethod
    def busy(self) -> bool:
        """Whether it has requests in UCX."""

    @abstractmethod
    def hang_up(self) -> None:
        """The link is broken: end everything that waits for the peer."""

    @abstractmethod
    def ended(self) -> None:
        """Nothing is left of it."""

    @abstractmethod
    def release(self) -> None:
        """Close those streams of the broken link that have no requests; `advance` closes the others."""

    @abstractmethod
    def forget_requests(self) -> list[Bytes]:
        """The worker is about to end, and everything with it. Returns their memory, to be kept until then."""
