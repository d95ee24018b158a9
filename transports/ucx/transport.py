"""The links of one node over UCX: finds or opens the link of a stream, and knows them all.

As over TCP, the receiver of a stream connects to the sender's port; that connection carries the link's records, and UCX
its bytes. Calls only note the stream and leave the rest to the engine's thread, which starts with the first of them.
The tables of links belong to that thread; the tables of streams to `_lock`.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from functools import partial

from hoplite_ucx.transports.errors import ConnectionLostError, TransportError
from hoplite_ucx.transports.interface import (
    Fault,
    LinkLost,
    LinkStatus,
    Priority,
    ReceiveClosed,
    ServeClosed,
    Side,
    Sink,
    Source,
    Stream,
    StreamKey,
    Transport,
)
from hoplite_ucx.transports.link_table import LinkTables
from hoplite_ucx.transports.link_timers import PAUSED, LinkTimers
from hoplite_ucx.transports.staging import CopiedSource, StagedSink, Stager
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.frames import Connection
from hoplite_ucx.transports.ucx.receiving import Incoming, ReceivingLink
from hoplite_ucx.transports.ucx.sending import Outgoing, SendingLink
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Peer

__all__ = ["UcxTransport"]


class UcxTransport(Transport):
    def __init__(
        self,
        me: Identity,
        on_link_lost: LinkLost | None = None,
        settings: UcxSettings | None = None,
        timers: LinkTimers | None = None,
        stager: Stager | None = None,
    ) -> None:
        self._me = me
        self._stager = stager or Stager()
        self._timers = timers or LinkTimers()
        self._settings = settings or UcxSettings()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._closed = False
        self._incoming: dict[StreamKey, Incoming] = {}
        self._outgoing: dict[StreamKey, Outgoing] = {}
        self._links: LinkTables[ReceivingLink, SendingLink] = LinkTables(on_link_lost)

    def start(self) -> Engine:
        """The engine, started if it is not. Raises a `TransportError` if UCX is missing or refuses its settings."""
        with self._lock:
            if self._closed:
                raise ConnectionLostError("the transport is closed", "this process", "make another one")
            if self._engine is None:
                self._engine = Engine(self._settings, f"{self._me.node:x}")
            return self._engine

    def set_patience(self, seconds: float) -> None:
        self._timers.patience = seconds

    def adopt(self, sock: socket.socket, peer: Peer) -> None:
        """Take a proven connection on which the peer will receive; returns at once, even if UCX must be started."""
        if self._engine is not None:
            self._start_and_adopt(sock, peer.node)
        else:
            threading.Thread(target=self._start_and_adopt, args=(sock, peer.node), daemon=True).start()

    def _start_and_adopt(self, sock: socket.socket, peer: int) -> None:
        try:
            engine = self.start()
        except TransportError as error:
            sock.close()
            if not self._closed:
                self._links.lost(peer, Side.SENDING, error)
            return
        engine.call(partial(self._adopt, engine, sock, peer))

    def receive(self, sender: int, address: str, stream: Stream, sink: Sink, on_closed: ReceiveClosed) -> None:
        parse_address(address)
        engine = self._engine_for(sender, Side.RECEIVING) if stream.offset < stream.size else None
        if sink.device is not None and engine is not None and not engine.takes_devices:
            failed = partial(self.cancel_receive, stream.key)
            staged = StagedSink(sink, stream.offset, stream.size, on_closed, failed, self._stager)
            sink, on_closed = staged, staged.closed
        incoming = Incoming(stream, sink, on_closed)
        with self._lock:
            if stream.key in self._incoming:
                raise ValueError(f"stream {stream.key} is already being received")
            taken = engine is not None and not self._closed
            if taken:
                self._incoming[stream.key] = incoming
        if engine is None or not taken:
            incoming.close(Fault.BROKEN)
            return

        def grown() -> None:
            if not incoming.noticed:
                incoming.noticed = True
                engine.call(partial(self._grown, incoming))

        sink.subscribe(grown)
        engine.call(partial(self._receive, engine, sender, address, incoming))

    def prepare(self, sender: int, address: str) -> None:
        """Open the link to a sender before there is a stream. A failure is reported as the loss of a link."""
        parse_address(address)
        if (engine := self._engine_for(sender, Side.RECEIVING)) is not None:
            engine.call(partial(self._prepare, engine, sender, address))

    def cancel_receive(self, key: StreamKey) -> None:
        incoming = self._incoming.get(key)
        if incoming is not None and self._engine is not None:
            self._engine.call(partial(self._cancel_receive, incoming))

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
        engine = self._engine_for(receiver, Side.SENDING) if stream.offset < stream.size else None
        if source.device is not None and engine is not None and not engine.takes_devices:
            source = CopiedSource(source)
        outgoing = Outgoing(receiver, stream, source, on_closed, priority, rank)
        with self._lock:
            if stream.key in self._outgoing:
                raise ValueError(f"stream {stream.key} is already being served")
            taken = engine is not None and not self._closed
            if taken:
                self._outgoing[stream.key] = outgoing
        if engine is None or not taken:
            outgoing.close()
            return

        def risen() -> None:
            if not outgoing.noticed:
                outgoing.noticed = True
                engine.call(partial(self._risen, outgoing))

        outgoing.risen = risen
        source.subscribe(risen)
        engine.call(partial(self._serve, engine, outgoing))

    def cancel_serve(self, key: StreamKey) -> None:
        outgoing = self._outgoing.get(key)
        if outgoing is not None and self._engine is not None:
            self._engine.call(partial(self._cancel_serve, outgoing))

    def receive_positions(self) -> dict[StreamKey, int]:
        return {incoming.key: incoming.sink.watermark() for incoming in list(self._incoming.values())}

    def serve_positions(self) -> dict[StreamKey, int]:
        return {outgoing.key: outgoing.position for outgoing in list(self._outgoing.values())}

    def links(self) -> list[LinkStatus]:
        engine = self._engine
        takes_devices = engine is not None and engine.takes_devices
        return [replace(status, takes_devices=takes_devices) for status in self._links.statuses()]

    def carried(self) -> dict[tuple[str, Side], int]:
        return {("ucx", side): carried for side, carried in self._links.carried().items()}

    def lanes(self) -> dict[tuple[int, Side], list[str]]:
        """What UCX really gave each link."""
        return {(link.peer, link.side): link.lanes for link in self._links.all()}

    def drop(self, peer: int) -> None:
        if self._engine is not None:
            self._engine.call(partial(self._drop, peer))

    def close(self, timeout: float = 5.0) -> bool:
        with self._lock:
            self._closed = True
            engine = self._engine
        if engine is None:
            return True
        deadline = time.monotonic() + timeout
        diallers = [link.dialler for link in list(self._links.receiving.values())]
        engine.call(self._shut)
        engine.stop()
        if not engine.join(timeout):
            engine.abandon()
            return False
        for thread in diallers:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in diallers)

    def _engine_for(self, peer: int, side: Side) -> Engine | None:
        """None if there is no UCX, which is reported as if the link had been lost at once."""
        try:
            return self.start()
        except TransportError as error:
            if not self._closed:
                self._links.lost(peer, side, error)
            return None

    # --- on the engine's thread --------------------------------------------------------------------------------

    def _adopt(self, engine: Engine, sock: socket.socket, peer: int) -> None:
        if self._closed:
            sock.close()
            return
        if (old := self._links.sending.get(peer)) is not None:
            self._links.sending_ended(old)
            old.break_off(None)
        try:
            link = SendingLink(
                engine,
                peer,
                Connection(sock, f"{peer:x}"),
                self._links.when_lost(peer, Side.SENDING),
                self._find,
                self._outgoing_closed,
                self._links.sending_ended,
                self._timers,
            )
        except (engine.library.error, TransportError) as error:
            sock.close()
            self._links.lost(peer, Side.SENDING, _no_worker(error, f"{peer:x}"))
            return
        with self._links.lock:
            self._links.add_sending(link)

    def _find(self, receiver: int, key: StreamKey) -> Outgoing | None:
        outgoing = self._outgoing.get(key)
        return outgoing if outgoing is not None and outgoing.receiver == receiver else None

    def _receive(self, engine: Engine, sender: int, address: str, incoming: Incoming) -> None:
        if incoming.closed:
            return
        if self._closed:
            self._incoming_closed(incoming)
            incoming.close(Fault.BROKEN)
            return
        link = self._link_from(engine, sender, address)
        if link is None:
            self._incoming_closed(incoming)
            incoming.close(Fault.BROKEN)
            return
        incoming.link = link
        link.receive(incoming)

    def _prepare(self, engine: Engine, sender: int, address: str) -> None:
        if not self._closed:
            self._link_from(engine, sender, address)

    def _link_from(self, engine: Engine, sender: int, address: str) -> ReceivingLink | None:
        """The existing link, or a new one. None if UCX has no worker for it, which is reported as its loss."""
        link = self._links.receiving.get(sender)
        if link is not None and not link.broken:
            return link
        lost = self._links.when_lost(sender, Side.RECEIVING)
        try:
            link = ReceivingLink(
                engine,
                sender,
                address,
                self._me,
                lost,
                self._incoming_closed,
                self._links.receiving_ended,
                self._timers,
            )
        except (engine.library.error, TransportError) as error:
            lost(_no_worker(error, address))
            return None
        with self._links.lock:
            self._links.add_receiving(link)
        return link

    def _grown(self, incoming: Incoming) -> None:
        incoming.noticed = False
        if incoming.link is not None:
            incoming.link.grown(incoming)

    def _cancel_receive(self, incoming: Incoming) -> None:
        if incoming.link is not None:
            incoming.link.cancel(incoming)

    def _serve(self, engine: Engine, outgoing: Outgoing) -> None:
        if self._closed:
            self._outgoing_closed(outgoing)
            outgoing.close()
            return
        link = self._links.sending.get(outgoing.receiver)
        if link is not None and not link.broken:
            link.serve(outgoing)
        if outgoing.link is None:
            self._give_grace(engine, outgoing)

    def _give_grace(self, engine: Engine, outgoing: Outgoing) -> None:
        due = time.monotonic() + (grace := self._timers.grace)
        engine.later(grace, partial(self._out_of_grace, engine, outgoing, due))

    def _out_of_grace(self, engine: Engine, outgoing: Outgoing, due: float) -> None:
        """Its receiver did not come: a stream may wait only while its receiver has a link here."""
        if outgoing.closed or outgoing.link is not None:
            return
        link = self._links.sending.get(outgoing.receiver)
        if (link is not None and not link.broken) or time.monotonic() - due > PAUSED:
            self._give_grace(engine, outgoing)
        else:
            self._outgoing_closed(outgoing)
            outgoing.close()

    def _risen(self, outgoing: Outgoing) -> None:
        outgoing.noticed = False
        if outgoing.link is not None:
            outgoing.link.risen(outgoing)

    def _cancel_serve(self, outgoing: Outgoing) -> None:
        if outgoing.link is not None:
            outgoing.link.cancel(outgoing)
        elif not outgoing.closed:
            self._outgoing_closed(outgoing)
            outgoing.close()

    def _incoming_closed(self, incoming: Incoming) -> None:
        with self._lock:
            self._incoming.pop(incoming.key, None)

    def _outgoing_closed(self, outgoing: Outgoing) -> None:
        with self._lock:
            self._outgoing.pop(outgoing.key, None)

    def _drop(self, peer: int) -> None:
        for link in self._links.all():
            if link.peer == peer:
                link.break_off(None)

    def _shut(self) -> None:
        for link in self._links.all():
            link.break_off(None)
        for outgoing in list(self._outgoing.values()):
            if outgoing.link is None:
                self._outgoing_closed(outgoing)
                outgoing.close()


def _no_worker(error: Exception, peer: str) -> TransportError:
    if isinstance(error, TransportError):
        return error
    return ConnectionLostError(f"UCX could not create a worker for another link: {error}", peer, "run `hoplite doctor`")
