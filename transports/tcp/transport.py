"""The links of one node over TCP: finds or opens the link of a stream, and knows them all.

The receiver of a stream connects to the sender's port, where the node's listener proves who it is and gives the socket
to `adopt`. Between two nodes there are at most two links, one each way, with one connection and one thread per end.
"""

import socket
import threading
import time
from functools import partial
from typing import TypeVar

from hoplite_ucx.transports.addresses import parse_address
from hoplite_ucx.transports.handshake import Identity, Peer
from hoplite_ucx.transports.interface import (
    MAX_GRANULE,
    Fault,
    LinkLost,
    LinkStatus,
    Priority,
    ReceiveClosed,
    ServeClosed,
    Side,
    Sink,
    Source,
    StreamKey,
    Transport,
)
from hoplite_ucx.transports.tcp.receiving import Incoming, ReceivingLink
from hoplite_ucx.transports.tcp.sending import Outgoing, SendingLink

__all__ = ["TcpTransport"]

# No descriptor or no thread is left for a link: its streams close as if it had broken at once.
_EXHAUSTED = (OSError, RuntimeError)

_Link = TypeVar("_Link", ReceivingLink, SendingLink)


class TcpTransport(Transport):
    def __init__(self, me: Identity, on_link_lost: LinkLost | None = None) -> None:
        self._me = me
        self._on_link_lost = on_link_lost
        self._lock = threading.Lock()  # guards the two tables; a link's own lock may be taken under it, not the reverse
        self._receiving: dict[int, ReceivingLink] = {}
        self._sending: dict[int, SendingLink] = {}
        self._closed = False

    def adopt(self, sock: socket.socket, peer: Peer) -> None:
        """Take a proven connection on which the peer will receive."""
        with self._lock:
            if self._closed:
                sock.close()
                return
            link = self._sending.get(peer.node)
            if link is None or not link.adopt(sock):
                try:
                    self._new_sending_link(peer.node).adopt(sock)
                except _EXHAUSTED:
                    sock.close()

    def receive(
        self,
        sender: int,
        address: str,
        stream: StreamKey,
        sink: Sink,
        *,
        offset: int,
        size: int,
        granule: int,
        on_closed: ReceiveClosed,
    ) -> None:
        _check(stream, offset, size, granule)
        parse_address(address)
        incoming = Incoming(stream, sink, offset, size, granule, on_closed)
        sink.subscribe(incoming.grown)
        while offset < size:
            with self._lock:
                if self._closed:
                    break
                try:
                    link = self._receiving.get(sender) or self._new_receiving_link(sender, address)
                except _EXHAUSTED:
                    break
            if link.receive(incoming):
                return
            self._forget(self._receiving, link)
        incoming.close(Fault.BROKEN)

    def cancel_receive(self, stream: StreamKey) -> None:
        for link in list(self._receiving.values()):
            link.cancel(stream)

    def serve(
        self,
        receiver: int,
        stream: StreamKey,
        source: Source,
        *,
        offset: int,
        size: int,
        granule: int,
        priority: Priority,
        on_closed: ServeClosed,
    ) -> None:
        _check(stream, offset, size, granule)
        outgoing = Outgoing(stream, source, offset, size, granule, priority, on_closed)
        while offset < size:
            with self._lock:
                if self._closed:
                    break
                try:
                    link = self._sending.get(receiver) or self._new_sending_link(receiver)
                except _EXHAUSTED:
                    break
            if link.serve(outgoing):
                return
            self._forget(self._sending, link)
        on_closed()

    def cancel_serve(self, stream: StreamKey) -> None:
        for link in list(self._sending.values()):
            link.cancel(stream)

    def receive_positions(self) -> dict[StreamKey, int]:
        positions: dict[StreamKey, int] = {}
        for link in list(self._receiving.values()):
            positions.update(link.positions())
        return positions

    def serve_positions(self) -> dict[StreamKey, int]:
        positions: dict[StreamKey, int] = {}
        for link in list(self._sending.values()):
            positions.update(link.positions())
        return positions

    def links(self) -> list[LinkStatus]:
        return [link.status() for link in self._links()]

    def drop(self, peer: int) -> None:
        for link in self._links():
            if link.peer == peer:
                link.break_off()

    def close(self, timeout: float = 5.0) -> bool:
        with self._lock:
            self._closed = True
        links = self._links()
        for link in links:
            link.break_off()
        deadline = time.monotonic() + timeout
        for link in links:
            link.join(max(deadline - time.monotonic(), 0.0))
        return not any(link.alive for link in links)

    def _links(self) -> list[ReceivingLink | SendingLink]:
        return [*self._receiving.values(), *self._sending.values()]

    def _new_receiving_link(self, sender: int, address: str) -> ReceivingLink:
        lost = partial(self._lost, sender, Side.RECEIVING)
        link = self._receiving[sender] = ReceivingLink(sender, address, self._me, lost, self._receiving_ended)
        return link

    def _new_sending_link(self, receiver: int) -> SendingLink:
        lost = partial(self._lost, receiver, Side.SENDING)
        link = self._sending[receiver] = SendingLink(receiver, lost, self._sending_ended)
        return link

    def _receiving_ended(self, link: ReceivingLink) -> None:
        self._forget(self._receiving, link)

    def _sending_ended(self, link: SendingLink) -> None:
        self._forget(self._sending, link)

    def _forget(self, links: dict[int, _Link], link: _Link) -> None:
        with self._lock:
            if links.get(link.peer) is link:
                del links[link.peer]

    def _lost(self, peer: int, side: Side, error: Exception) -> None:
        if self._on_link_lost is not None:
            self._on_link_lost(peer, side, error)


def _check(stream: StreamKey, offset: int, size: int, granule: int) -> None:
    if not all(0 <= part < 1 << 64 for part in stream):
        raise ValueError(f"a stream is named by two numbers in [0, 2**64), not {stream}")
    if not 0 <= offset <= size < 1 << 63:
        raise ValueError(f"there are no bytes from {offset} to {size}")
    if not 0 < granule <= MAX_GRANULE:
        raise ValueError(f"a granule has 1 to {MAX_GRANULE} bytes, not {granule}")
