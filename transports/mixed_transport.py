"""All links of a node, each over its own transport: TCP, or UCX with any of the configured settings.

The receiver of a stream chooses; the sender follows. A sender cannot know on which connection its receiver will ask for
a stream, so it *offers* the stream to every transport over which that receiver has connected. The transport that reads
from the source first takes the stream, and the other offers end.

If the two sides cannot agree on a UCX link (no UCX there, other settings), TCP replaces it at once, unless UCX is
required: no byte has moved, so the layer above does not notice. A link that breaks later closes its streams as broken,
like any other; the layer above asks again at the watermark, and for a while the choice is then TCP.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hoplite_ucx.transports.configuration import Configuration, ConfigurationError, Kind
from hoplite_ucx.transports.detection import hardware_of_agent, rdma_devices
from hoplite_ucx.transports.errors import HandshakeError, TransportError
from hoplite_ucx.transports.interface import (
    Bytes,
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
from hoplite_ucx.transports.link_measures import Timed
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.selection import Choice, Selection
from hoplite_ucx.transports.staging import Stager
from hoplite_ucx.transports.tcp import TcpTransport
from hoplite_ucx.transports.ucx.library import UcxMissingError
from hoplite_ucx.transports.ucx.settings import MARK, Greeting
from hoplite_ucx.transports.ucx.transport import UcxTransport
from hoplite_ucx.transports.wire.handshake import Identity, Peer

__all__ = ["MixedTransport", "open_transport"]

_log = logging.getLogger("hoplite.links")


def open_transport(me: Identity, configuration: Configuration, on_link_lost: LinkLost | None = None) -> MixedTransport:
    """The transport of a node, according to its configuration and its machine. Takes a moment if UCX must be loaded.

    UCX is loaded only if a rule needs it, or if there is RDMA. Raises a `ConfigurationError` if the configuration
    does not work on this host, and a `TransportError` if UCX does not start with its settings.
    """
    if me.tls is not None and configuration.wants_ucx:
        problem, remedy = "UCX links do not support TLS", "leave [tls] out, or use tcp for all links"
        raise ConfigurationError(configuration.place, "links", problem, remedy)
    has_rdma = any(device.ucx_names() for device in rdma_devices())
    rdma = me.tls is None and configuration.transport is Kind.AUTO and has_rdma
    unused = "no rule selects UCX, and this host has no RDMA"
    machine = hardware_of_agent(with_ucx=configuration.wants_ucx or rdma, without=unused)
    selection = Selection(configuration, machine, time.monotonic)
    transport = MixedTransport(me, selection, on_link_lost, configuration.timers(), Stager(configuration.pinned))
    transport.start()
    return transport


class MixedTransport(Transport):
    def __init__(
        self,
        me: Identity,
        selection: Selection,
        on_link_lost: LinkLost | None = None,
        timers: LinkTimers | None = None,
        stager: Stager | None = None,
    ) -> None:
        self._on_link_lost = on_link_lost
        self._timers = timers or LinkTimers()
        stager = stager or Stager()
        self._selection = selection
        self._tcp = TcpTransport(me, on_link_lost, self._timers, stager)
        self._ucx = {
            settings: UcxTransport(me, self._ucx_lost, settings, self._timers, stager)
            for settings in (selection.ucx_settings() if selection.has_ucx else [])
        }
        self._lock = threading.Lock()
        self._choices: dict[tuple[int, bool], Choice] = {}  # by sender, and whether into memory of a device
        self._refused: set[int] = set()
        self._connected: dict[int, list[Transport]] = {}  # the transports over which a receiver has connected
        self._offers: dict[StreamKey, _Offer] = {}
        self._attempts: dict[StreamKey, _Attempt] = {}

    def start(self) -> None:
        """Start UCX now rather than with the first link; it takes a moment. Raises a `TransportError` if UCX does not
        start as somebody asked for; what nobody named is done without, and `hoplite links` says why."""
        for settings in self._selection.chosen_settings() if self._ucx else []:
            try:
                self._ucx[settings].start()
            except TransportError as error:
                if not self._selection.does_not_start(settings, error):
                    raise
                _log.warning("links use TCP: %s", error)
                del self._ucx[settings]

    def set_patience(self, seconds: float) -> None:
        self._timers.patience = seconds  # which all of them share

    def adopt(self, sock: socket.socket, peer: Peer) -> None:
        """Take a proven connection on which the peer will receive, over the transport that it asks for."""
        transport: Transport
        if not peer.info.startswith(MARK):
            transport = self._tcp
            self._tcp.adopt(sock, peer)
        elif (ucx := self._ucx_for(peer)) is not None:
            transport = ucx
            ucx.adopt(sock, peer)
        else:
            _refuse(sock)
            return
        with self._lock:
            known = self._connected.setdefault(peer.node, [])
            if transport not in known:
                known.append(transport)
            waiting = [offer for offer in self._offers.values() if offer.receiver == peer.node]
        for offer in waiting:
            offer.make(transport)

    def receive(self, sender: int, address: str, stream: Stream, sink: Sink, on_closed: ReceiveClosed) -> None:
        to_device = sink.device is not None
        choice = self._selection.choose(sender, address, stream.size - stream.offset, to_device=to_device)
        self._choices[sender, to_device] = choice
        filled, over = sink, on_closed
        if self._selection.compares and sink.limit() >= stream.size:
            filled, over = self._timed(sender, choice, sink, stream.offset, on_closed)
        if choice.ucx is None:
            self._tcp.receive(sender, address, stream, filled, over)
            return

        def closed(_: int, fault: Fault | None) -> None:
            with self._lock:
                attempt = self._attempts.pop(stream.key)
                again = fault is not None and sender in self._refused and not choice.fixed and not attempt.cancelled
            if fault is None and not attempt.cancelled:
                self._selection.worked(sender)
            if not again:
                over(sink.end(), fault)
                return
            self._choices[sender, to_device] = self._selection.choose(sender, address, to_device=to_device)
            self._tcp.receive(sender, address, stream, sink, on_closed)

        ucx = self._ucx[choice.ucx]
        with self._lock:
            self._refused.discard(sender)
            self._attempts[stream.key] = _Attempt()
        ucx.receive(sender, address, stream, _Kept(filled), closed)

    def prepare(self, sender: int, address: str) -> None:
        """Open the link to a sender before there is a stream, over the transport that a stream would get."""
        with suppress(ValueError):  # the sender's address is not valid
            choice = self._choices[sender, False] = self._selection.choose(sender, address)
            transport = self._tcp if choice.ucx is None else self._ucx[choice.ucx]
            transport.prepare(sender, address)

    def _timed(
        self, sender: int, choice: Choice, sink: Sink, offset: int, on_closed: ReceiveClosed
    ) -> tuple[Sink, ReceiveClosed]:
        """The same stream, which reports its speed to the selection when it is over."""
        timed = Timed(sink, offset)

        def closed(watermark: int, fault: Fault | None) -> None:
            if fault is None:
                self._selection.measured(sender, choice.ucx, timed.sample(), to_device=sink.device is not None)
            on_closed(watermark, fault)

        return timed, closed

    def cancel_receive(self, key: StreamKey) -> None:
        with self._lock:
            if (attempt := self._attempts.get(key)) is not None:
                attempt.cancelled = True
        for transport in self._transports():
            transport.cancel_receive(key)

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
        if not self._ucx or stream.offset >= stream.size:
            self._tcp.serve(receiver, stream, source, on_closed, priority=priority, rank=rank)
            return

        def over() -> None:
            with self._lock:
                self._offers.pop(stream.key, None)
            on_closed()

        offer = _Offer(receiver, stream, source, over, priority, rank)
        with self._lock:
            if stream.key in self._offers:
                raise ValueError(f"stream {stream.key} is already being served")
            self._offers[stream.key] = offer
            # TCP waits for a receiver that has not connected yet, and gives up when none comes.
            transports = list(self._connected.get(receiver, [])) or [self._tcp]
        offer.make(*transports)

    def cancel_serve(self, key: StreamKey) -> None:
        with self._lock:
            offer = self._offers.get(key)
        if offer is not None:
            offer.cancel()
        else:
            self._tcp.cancel_serve(key)

    def receive_positions(self) -> dict[StreamKey, int]:
        return {key: at for transport in self._transports() for key, at in transport.receive_positions().items()}

    def serve_positions(self) -> dict[StreamKey, int]:
        """Of a stream that is offered several times, the position of the offer that progresses."""
        positions: dict[StreamKey, int] = {}
        for transport in self._transports():
            for key, at in transport.serve_positions().items():
                positions[key] = max(at, positions.get(key, 0))
        return positions

    def links(self) -> list[LinkStatus]:
        return [link for transport in self._transports() for link in transport.links()]

    def carried(self) -> dict[tuple[str, Side], int]:
        together: dict[tuple[str, Side], int] = {}
        for transport in self._transports():
            for which, carried in transport.carried().items():
                together[which] = together.get(which, 0) + carried
        return together

    def reasons(self) -> dict[int, str]:
        """Of streams into memory of the host, and beside it of those into memory of devices, if there were any."""
        told: dict[int, list[str]] = {}
        for (sender, to_device), choice in sorted(self._choices.items()):
            told.setdefault(sender, []).append(f"into GPUs: {choice.reason}" if to_device else choice.reason)
        return {sender: " | ".join(reasons) for sender, reasons in told.items()}

    def lanes(self) -> dict[tuple[int, Side], list[str]]:
        return {where: lanes for ucx in self._ucx.values() for where, lanes in ucx.lanes().items()}

    def drop(self, peer: int) -> None:
        for transport in self._transports():
            transport.drop(peer)

    def close(self, timeout: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout
        ended = [transport.close(max(deadline - time.monotonic(), 0.1)) for transport in self._transports()]
        return all(ended)

    def _transports(self) -> list[Transport]:
        return [self._tcp, *self._ucx.values()]

    def _ucx_for(self, peer: Peer) -> UcxTransport | None:
        """The transport with the settings that the peer asks for; otherwise any, which then says what differs."""
        wanted = peer.info[len(MARK) :]
        for settings, ucx in self._ucx.items():
            if settings.digest() == wanted:
                return ucx
        return next(iter(self._ucx.values()), None)

    def _ucx_lost(self, peer: int, side: Side, error: Exception) -> None:
        if side is Side.RECEIVING:
            self._selection.failed(peer, error)
            if isinstance(error, HandshakeError | UcxMissingError):
                with self._lock:
                    self._refused.add(peer)
        if self._on_link_lost is not None:
            self._on_link_lost(peer, side, error)


@dataclass(slots=True)
class _Attempt:
    """A stream that is received over UCX."""

    cancelled: bool = False


class _Kept:
    """A sink that may outlive its first transport: its owner ends it, not the transport."""

    def __init__(self, sink: Sink) -> None:
        self.device = sink.device
        self.window = sink.window
        self.arrived = sink.arrived
        self.watermark = sink.watermark
        self.limit = sink.limit
        self.subscribe = sink.subscribe
        self.end = sink.watermark


@dataclass(eq=False)
class _Offer:
    """A stream that is served over whichever transport its receiver asks on."""

    receiver: int
    stream: Stream
    source: Source
    over: Callable[[], None]
    priority: Priority
    rank: int
    holders: set[Transport] = field(default_factory=set)
    taken: Transport | None = None
    cancelled: bool = False
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def make(self, *transports: Transport) -> None:
        with self.lock:
            closing = self.taken or self.cancelled or self.ended
            new = [] if closing else [one for one in transports if one not in self.holders]
            self.holders.update(new)
        for transport in new:
            seen, closed = _Watched(self, transport), partial(self._closed, transport)
            transport.serve(self.receiver, self.stream, seen, closed, priority=self.priority, rank=self.rank)
            if self.cancelled or self.taken not in (None, transport):
                transport.cancel_serve(self.stream.key)  # that thread may not have found it there yet

    def take(self, transport: Transport) -> None:
        """The transport reads from the source: it is the one that the receiver asks on."""
        if self.taken is transport:
            return
        with self.lock:
            others = set() if self.taken is not None else self.holders - {transport}
            self.taken = self.taken or transport
        for other in others:
            other.cancel_serve(self.stream.key)

    def cancel(self) -> None:
        with self.lock:
            self.cancelled = True
            holders = list(self.holders)
        for transport in holders:
            transport.cancel_serve(self.stream.key)

    def _closed(self, transport: Transport) -> None:
        with self.lock:
            self.holders.discard(transport)
            over = not self.holders and not self.ended
            self.ended = self.ended or over
        if over:
            self.over()


class _Watched:
    """The source as one transport sees it."""

    def __init__(self, offer: _Offer, transport: Transport) -> None:
        self._offer = offer
        self._transport = transport
        self.device = offer.source.device
        self._window = offer.source.window
        self.watermark = offer.source.watermark
        self.subscribe = offer.source.subscribe
        self.unsubscribe = offer.source.unsubscribe

    def window(self, offset: int, length: int) -> Bytes:
        self._offer.take(self._transport)
        return self._window(offset, length)


def _refuse(sock: socket.socket) -> None:
    """Reply that there is no UCX here. The peer continues over TCP, unless it requires UCX."""
    with suppress(OSError):
        sock.settimeout(1.0)
        sock.sendall(Greeting((), {}, b"", refusal="UCX is not used there").encode())
        sock.shutdown(socket.SHUT_WR)
    sock.close()
