"""The receiving end of a UCX link. Everything here runs on the engine's thread, except opening the connection.

The receiver drives: it posts receives straight into the memory of the sink, ahead of what the sender has, and pulls
them. A piece has arrived when its receive is completed and all before it have arrived. (UCX does not tell how long the
message was; a longer one is an error, a shorter one would be the sender's lie.) Pieces end at multiples of a chunk,
wherever the stream began: what a relay gets in pieces it can then forward in the same.

A stream that is cancelled while receives are posted asks its sender to stop; the sender says up to which pull it has
answered. Those complete by themselves; the others are settled. Meanwhile the link is watched (see `standstill`).
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.errors import ConnectionLostError
from hoplite_ucx.transports.interface import MAX_GRANULE, Bytes, Fault, ReceiveClosed, Side, Sink, Stream
from hoplite_ucx.transports.link_core import ReceivingCore
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.frames import Connection, Record, pull_tag
from hoplite_ucx.transports.ucx.link import Link
from hoplite_ucx.transports.ucx.settings import GREETING_LENGTH, MARK, MAX_GREETING, DisagreementError, Greeting
from hoplite_ucx.transports.wire.addresses import connect_failure, parse_address, tune
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking

__all__ = ["Incoming", "ReceivingLink"]

GREETING_SECONDS = 5.0
"""The peer may have to load UCX first."""
GRANULES = 2
"""Granules per chunk. A UCX message costs so much more than a frame over TCP that a doubled wait at each hop costs
less: with one, a chain of eight hosts took 1.14 times as long as over TCP, with two 1.05."""
BULK = 32 << 10
"""A stream with a smaller granule needs short round trips: its chunk is one granule, so that each rise is a message."""
# How much of a stream is pulled ahead: this many bytes, within these numbers of pieces. It is more than the sender
# has in progress at a time, so that it never waits for a pull, which may come late on a busy machine.
AHEAD_BYTES = 16 << 20
LEAST_AHEAD = 8
MOST_AHEAD = 256
# A piece that is not a whole chunk waits while more than this many are in progress, to avoid many small ones.
_SMALL_AHEAD = 1


@dataclass(slots=True, eq=False)
class Pull:
    """A posted receive. UCX does not keep the memory: this does."""

    request: library.Request
    window: Bytes
    end: int
    number: int
    void: bool = False


class Incoming(link_core.Incoming):
    """One stream, as its receiver sees it: up to `asked`, receives are posted. It is `over` when it is cancelled."""

    def __init__(self, stream: Stream, sink: Sink, on_closed: ReceiveClosed) -> None:
        super().__init__(stream, sink, on_closed)
        self.chunk = min(GRANULES * stream.granule, MAX_GRANULE) if stream.granule >= BULK else stream.granule
        self.ahead = min(max(LEAST_AHEAD, AHEAD_BYTES // self.chunk), MOST_AHEAD)
        self.link: ReceivingLink | None = None
        self.transfers: deque[Pull] = deque()
        self.ended = False  # the sender will not answer any more
        self.closed = False
        self.noticed = False  # that the sink has grown

    def close(self, fault: Fault | None) -> None:
        if not self.closed:
            self.closed = True
            super().close(fault)


class ReceivingLink(Link[Incoming]):
    side = Side.RECEIVING

    def __init__(
        self,
        engine: Engine,
        peer: int,
        address: str,
        me: Identity,
        on_lost: Callable[[Exception], None],
        on_closed: Callable[[Incoming], None],
        on_ended: Callable[[ReceivingLink], None],
        timers: LinkTimers,
    ) -> None:
        self._core: ReceivingCore[Incoming] = ReceivingCore(address)
        super().__init__(engine, peer, on_lost, on_closed, on_ended)
        self._timers = timers
        self.address = address
        self._me = replace(me, info=MARK + engine.settings.digest())
        self._tag = self.worker.new_tag()
        self._number = 0
        self._used = False
        self._dialling: socket.socket | None = None
        self._greeting = self.worker.greeting(self._tag)
        self.dialler = threading.Thread(target=self._dial, name=f"hoplite-ucx-dial-{peer:x}", daemon=True)
        self.dialler.start()

    @property
    def name(self) -> str:
        return self.address

    # --- connecting, on a separate thread ----------------------------------------------------------------------

    def _dial(self) -> None:
        error: Exception
        try:
            sock, greeting = self._connect()
        except OSError as failure:
            error = connect_failure(failure, self.address, self._timers.connect)
        except Exception as failure:
            error = failure
        else:
            self.engine.call(lambda: self._greeted(sock, greeting))
            if self.engine.ended.is_set():
                sock.close()
            return
        if self._dialling is not None:
            self._dialling.close()
        self.engine.call(lambda: self.break_off(error))

    def _connect(self) -> tuple[socket.socket, Greeting]:
        host, port = parse_address(self.address)
        family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = self._dialling = socket.socket(family, socket.SOCK_STREAM)  # `break_off` ends whatever it waits for
        if self.broken:
            raise ConnectionLostError("this side closed the link", self.address, "open it again")
        tune(sock)
        sock.settimeout(self._timers.connect)
        sock.connect(name)
        run_blocking(client(self._me, Kind.BULK, self.address, self.peer), sock, self.address, self._timers.handshake)
        sock.settimeout(GREETING_SECONDS)
        try:
            sock.sendall(self._greeting.encode())
            (length,) = GREETING_LENGTH.unpack(self._read(sock, GREETING_LENGTH.size))
            if length > MAX_GREETING:
                raise DisagreementError(
                    "the peer's greeting is too long", self.address, "install the same release on both hosts"
                )
            greeting = Greeting.decode(self._read(sock, length), self.address)
        except OSError as error:
            raise ConnectionLostError(
                f"the peer sent no UCX greeting: {error}", self.address, "see the peer's log; it may have no UCX"
            ) from error
        greeting.check(self._greeting, self.address)
        return sock, greeting

    def _read(self, sock: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = sock.recv(count - len(data))
            if not piece:
                raise ConnectionLostError("the peer closed the link", self.address, "it may have no UCX; see its log")
            data += piece
        return data

    def _greeted(self, sock: socket.socket, greeting: Greeting) -> None:
        if self.broken:
            sock.close()
            return
        try:
            self.connect(greeting.address)
        except ConnectionLostError as error:
            sock.close()
            self.break_off(error)
            return
        self.attach(Connection(sock, self.address))
        for incoming in list(self.streams.values()):
            self._open(incoming)
        self.ask()
        self.engine.later(self._timers.idle, self._retire)

    # --- streams -----------------------------------------------------------------------------------------------

    def receive(self, incoming: Incoming) -> None:
        self._core.add(incoming)
        if self.connection is not None:
            self._open(incoming)

    def grown(self, incoming: Incoming) -> None:
        """The sink takes more, or has made more of it final."""
        if not incoming.closed and not self.broken:
            self._go_on(incoming)

    def cancel(self, incoming: Incoming) -> None:
        if incoming.closed or incoming.over:
            return
        incoming.over = True
        if self.connection is not None and not incoming.ended:
            self.connection.put(Record.CANCEL, incoming.channel)
            self.flush_soon()
        if not incoming.transfers:
            self.close(incoming)
        else:
            self.wait_for(incoming)

    def _open(self, incoming: Incoming) -> None:
        assert self.connection is not None
        self.connection.put(Record.OPEN, incoming.channel, *incoming.key)
        self.flush_soon()
        self._go_on(incoming)

    def _go_on(self, incoming: Incoming) -> None:
        """Close a stream that is complete; else pull what can be pulled."""
        if incoming.complete and not incoming.transfers:
            self.close(incoming)
            return
        if self.connection is None or incoming.ended or incoming.over or len(incoming.transfers) > incoming.ahead // 2:
            return  # many pulls at a time, since each time wakes the sender
        limit = min(incoming.sink.limit(), incoming.size)
        while incoming.asked < limit and len(incoming.transfers) < incoming.ahead:
            begin = incoming.asked
            end = begin - begin % incoming.chunk + incoming.chunk
            if limit < min(end, incoming.size) and len(incoming.transfers) > _SMALL_AHEAD:
                break
            self._pull(incoming, incoming.sink.window(begin, min(end, limit) - begin))

    def _pull(self, incoming: Incoming, window: Bytes) -> None:
        assert self.connection is not None
        begin = incoming.asked
        incoming.asked += window.nbytes
        pull = self._post(window, incoming.asked)  # first: credit is granted by the record
        incoming.transfers.append(pull)
        self.connection.put(Record.PULL, incoming.channel, pull.number, begin, window.nbytes)
        self.flush_soon()

    def _post(self, window: Bytes, end: int) -> Pull:
        number = self._number
        self._number += 1
        self.engine.active.add(self)
        return Pull(self.worker.receive(window, pull_tag(self._tag, number)), window, end, number)

    def heard(self, connection: Connection) -> None:
        for what, channel, first, second, _ in connection.take_records():
            if self.asked_or_answered(what, first, second):
                continue
            if what not in (Record.PART, Record.END):
                raise self.violation(f"a record of kind {what} for channel {channel}")
            if (incoming := self._core.find(channel)) is None:
                continue
            if what == Record.END:
                self._ended(incoming, first)
            elif not incoming.over:  # else the end comes soon, and settles it
                self._split(incoming, first, second)

    def _split(self, incoming: Incoming, number: int, length: int) -> None:
        """The sender has only the beginning of a piece: receive it and the rest apart."""
        assert self.connection is not None
        places = (at for at, pull in enumerate(incoming.transfers) if pull.number == number and not pull.void)
        if (at := next(places, None)) is None or not 0 < length < incoming.transfers[at].window.nbytes:
            raise self.violation(f"{length} bytes of pull {number} on channel {incoming.channel}")
        whole = incoming.transfers[at]
        self._settle(whole)
        part = self._post(whole.window[:length], whole.end - whole.window.nbytes + length)
        incoming.transfers.insert(at + 1, part)
        incoming.transfers.insert(at + 2, self._post(whole.window[length:], whole.end))
        self.connection.put(Record.SPLIT, incoming.channel, part.number)
        self.flush_soon()

    def _ended(self, incoming: Incoming, answered: int) -> None:
        """The sender stopped, and will not answer the remaining pulls."""
        if answered > incoming.asked:
            raise self.violation(f"pulls answered up to {answered} on channel {incoming.channel}")
        incoming.ended = True
        for pull in incoming.transfers:
            if pull.end > answered:
                self._settle(pull)

    def _settle(self, pull: Pull) -> None:
        if not pull.void:
            pull.void = True
            if not pull.request.completed:
                self.worker.settle(pull_tag(self._tag, pull.number))

    # --- requests ----------------------------------------------------------------------------------------------

    def advance_stream(self, incoming: Incoming) -> bool:
        """Move it past the pieces that are there."""
        pulls, received = incoming.transfers, incoming.received
        moved = False
        while pulls and pulls[0].request.completed:
            pull = pulls.popleft()
            moved = True
            if pull.void or self.broken:
                continue
            pull.request.check_error()
            self.bytes += pull.end - incoming.received
            self.frames += 1
            incoming.received = pull.end
        if incoming.received > received:
            incoming.sink.arrived(incoming.received)
        if not moved:
            return False
        if self.cancelled:
            self.standstill.moved(time.monotonic())
        if self.broken or (incoming.over and not pulls):
            if not pulls:
                self.close(incoming)
        else:
            self._go_on(incoming)
        return True

    # --- the end -----------------------------------------------------------------------------------------------

    def end_stream(self, incoming: Incoming) -> None:
        self._used = True
        incoming.close(Fault.BROKEN if self.broken and not incoming.over else None)

    def _retire(self) -> None:
        """An unused link is closed after a while."""
        if self.broken:
            return
        if self._used or self.streams:
            self._used = False
            self.engine.later(self._timers.idle, self._retire)
        else:
            self.break_off(None)

    def hang_up(self) -> None:
        if self._dialling is not None and self.endpoint is None:
            with suppress(OSError):
                self._dialling.shutdown(socket.SHUT_RDWR)

    def settle(self) -> None:
        """What had begun is completed by the closed endpoint in the next round; that distinguishes the rest."""
        self.engine.call(lambda: self.engine.call(self._settle_all))

    def _settle_all(self) -> None:
        for incoming in self.streams.values():
            for pull in incoming.transfers:
                self._settle(pull)
