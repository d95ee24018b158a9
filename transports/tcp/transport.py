"""The links of one node over TCP: finds or opens the link of a stream, and knows them all.

The receiver of a stream connects to the sender's port, where the node's listener proves who it is and gives the socket
to `adopt`. Between two nodes there are at most two links, one each way, with one connection and one thread per end.
"""

import socket
import time
from contextlib import suppress
from functools import partial
from typing import cast

from hoplite_ucx.transports.interface import (
    Fault,
    HostSink,
    HostSource,
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
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.staging import StagedSink, StagedSource, Stager
from hoplite_ucx.transports.tcp.receiving import Incoming, ReceivingLink
from hoplite_ucx.transports.tcp.sending import Outgoing, SendingLink
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Peer

__all__ = ["TcpTransport"]

# No descriptor or no thread is left for a link: its streams close as if it had broken at once.
_EXHAUSTED = (OSError, RuntimeError)


class TcpTransport(Transport):
    def __init__(
        self,
        me: Identity,
        on_link_lost: LinkLost | None = None,
        timers: LinkTimers | None = None,
        stager: Stager | None = None,
    ) -> None:
        self._me = me
        self._stager = stager or Stager()
        self._timers = timers or LinkTimers()
        self._links: LinkTables[ReceivingLink, SendingLink] = LinkTables(on_link_lost)
        self._closed = False

    def adopt(self, sock: socket.socket, peer: Peer) -> None:
        """Take a proven connection on which the peer will receive."""
        with self._links.lock:
            if self._closed:
                sock.close()
                return
            link = self._links.sending.get(peer.node)
            if link is None or not link.adopt(sock):
                try:
                    self._new_sending_link(peer.node).adopt(sock)
                except _EXHAUSTED:
                    sock.close()

    def receive(self, sender: int, address: str, stream: Stream, sink: Sink, on_closed: ReceiveClosed) -> None:
        parse_address(address)
        incoming = self._incoming(stream, sink, on_closed)
        incoming.sink.subscribe(incoming.grown)
        while stream.offset < stream.size:
            with self._links.lock:
                if self._closed:
                    break
                try:
                    link = self._links.receiving.get(sender) or self._new_receiving_link(sender, address)
                except _EXHAUSTED:
                    break
            if link.receive(incoming):
                return
            self._links.receiving_ended(link)
        incoming.close(Fault.BROKEN)

    def set_patience(self, seconds: float) -> None:
        self._timers.patience = seconds

    def prepare(self, sender: int, address: str) -> None:
        """Open the link to a sender before there is a stream, if possible; otherwise nothing happens."""
        with suppress(ValueError, *_EXHAUSTED), self._links.lock:
            parse_address(address)
            if not self._closed and sender not in self._links.receiving:
                self._new_receiving_link(sender, address)

    def cancel_receive(self, key: StreamKey) -> None:
        for link in list(self._links.receiving.values()):
            link.cancel(key)

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
        outgoing = self._outgoing(stream, source, on_closed, priority, rank)
        while stream.offset < stream.size:
            with self._links.lock:
                if self._closed:
                    break
                try:
                    link = self._links.sending.get(receiver) or self._new_sending_link(receiver)
                except _EXHAUSTED:
                    break
            if link.serve(outgoing):
                return
            self._links.sending_ended(link)
        outgoing.on_closed()

    def _incoming(self, stream: Stream, sink: Sink, on_closed: ReceiveClosed) -> Incoming:
        """The stream, with memory of a device staged: sockets know only the host's."""
        if sink.device is None:
            return Incoming(stream, cast(HostSink, sink), on_closed)
        failed = partial(self.cancel_receive, stream.key)
        staged = StagedSink(sink, stream.offset, stream.size, on_closed, failed, self._stager)
        return Incoming(stream, staged, staged.closed)

    def _outgoing(
        self, stream: Stream, source: Source, on_closed: ServeClosed, priority: Priority, rank: int
    ) -> Outgoing:
        if source.device is None:
            return Outgoing(stream, cast(HostSource, source), on_closed, priority, rank)
        failed = partial(self.cancel_serve, stream.key)
        staged = StagedSource(source, stream.offset, on_closed, failed, self._stager)
        return Outgoing(stream, staged, staged.close, priority, rank, staged.begin)

    def cancel_serve(self, key: StreamKey) -> None:
        for link in list(self._links.sending.values()):
            link.cancel(key)

    def receive_positions(self) -> dict[StreamKey, int]:
        positions: dict[StreamKey, int] = {}
        for link in list(self._links.receiving.values()):
            positions.update(link.positions())
        return positions

    def serve_positions(self) -> dict[StreamKey, int]:
        positions: dict[StreamKey, int] = {}
        for link in list(self._links.sending.values()):
            positions.update(link.positions())
        return positions

    def links(self) -> list[LinkStatus]:
        return self._links.statuses()

    def carried(self) -> dict[tuple[str, Side], int]:
        return {("tcp", side): carried for side, carried in self._links.carried().items()}

    def drop(self, peer: int) -> None:
        for link in self._links.all():
            if link.peer == peer:
                link.break_off()

    def close(self, timeout: float = 5.0) -> bool:
        with self._links.lock:
            self._closed = True
        links = self._links.all()
        for link in links:
            link.break_off()
        deadline = time.monotonic() + timeout
        for link in links:
            link.join(max(deadline - time.monotonic(), 0.0))
        return not any(link.alive for link in links)

    def _new_receiving_link(self, sender: int, address: str) -> ReceivingLink:
        lost = self._links.when_lost(sender, Side.RECEIVING)
        link = ReceivingLink(sender, address, self._me, lost, self._links.receiving_ended, self._timers)
        self._links.add_receiving(link)
        return link

    def _new_sending_link(self, receiver: int) -> SendingLink:
        lost = self._links.when_lost(receiver, Side.SENDING)
        link = SendingLink(receiver, lost, self._links.sending_ended, self._timers)
        self._links.add_sending(link)
        return link
