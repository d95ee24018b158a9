"""The sending end of a UCX link: answers the pulls of one receiver. Everything here runs on the engine's thread.

In its turn (see `link_core`) a stream answers one pull, if its source has all of it. Only a few messages are in
progress at a time, so that a later stream does not wait for everything that was pulled before. A source that stops in
the middle of a pull, with nothing in progress, offers a part of it.

UCX gets only memory that this process may write: registering read-only memory with an InfiniBand card fails, and
nothing here would show it. Read-only memory is copied first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.errors import ConnectionLostError, TransportError, ViolationError
from hoplite_ucx.transports.interface import (
    MAX_GRANULE,
    Bytes,
    Priority,
    ServeClosed,
    Side,
    Source,
    Stream,
    StreamKey,
)
from hoplite_ucx.transports.link_core import SendingCore
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.frames import Connection, Record, pull_tag
from hoplite_ucx.transports.ucx.link import Link
from hoplite_ucx.transports.ucx.settings import GREETING_LENGTH, MAX_GREETING, DisagreementError, Greeting

__all__ = ["Outgoing", "SendingLink"]

# Pulls of one stream that may wait here.
MAX_PULLS = 4096
# How much is in progress on a link at a time: this many bytes, and at least this many messages.
FLIGHT_BYTES = 4 << 20
FLIGHT_MESSAGES = 4


@dataclass(slots=True)
class Pull:
    number: int
    offset: int
    end: int
    offered: int = 0
    """Up to where the beginning of it was offered; then it waits for the receiver to split it."""


class Demand(link_core.Demand):
    """The pulls of a stream, each beginning where the last one ends. They may come before it is served."""

    def __init__(self, key: StreamKey, channel: int) -> None:
        super().__init__(key, channel)
        self.pulls: deque[Pull] = deque()
        self.begin: int | None = None  # none was pulled yet
        self.end = 0

    def add(self, pull: Pull) -> bool:
        """False if it must not be there."""
        if self.begin is None:
            self.begin = self.end = pull.offset
        if pull.offset != self.end or not 0 < pull.end - pull.offset <= MAX_GRANULE or len(self.pulls) >= MAX_PULLS:
            return False
        self.end = pull.end
        self.pulls.append(pull)
        return True


@dataclass(slots=True, eq=False)
class Send:
    """A message in progress. UCX does not keep the memory alive: this does."""

    request: library.Request
    window: Bytes
    begun: float

    @property
    def length(self) -> int:
        return self.window.nbytes


class Outgoing(link_core.Outgoing[Demand]):
    """One stream, as its sender sees it. It is `over` when it is cancelled, and closed with its last message."""

    source: Source

    def __init__(
        self, receiver: int, stream: Stream, source: Source, on_closed: ServeClosed, priority: Priority, rank: int
    ) -> None:
        super().__init__(stream, source, on_closed, priority, rank)
        self.receiver = receiver
        self.begin = stream.offset
        self.link: SendingLink | None = None
        self.transfers: deque[Send] = deque()
        self.closed = False
        self.noticed = False  # that the source has risen

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            super().close()


class SendingLink(Link[Outgoing]):
    side = Side.SENDING

    def __init__(
        self,
        engine: Engine,
        peer: int,
        connection: Connection,
        on_lost: Callable[[Exception], None],
        find: Callable[[int, StreamKey], Outgoing | None],
        on_closed: Callable[[Outgoing], None],
        on_ended: Callable[[SendingLink], None],
        timers: LinkTimers,
    ) -> None:
        self._core: SendingCore[Demand, Outgoing] = SendingCore(f"{peer:x}", timers)
        super().__init__(engine, peer, on_lost, on_closed, on_ended)
        self._find = find
        self._flight_bytes = 0
        self._flight_messages = 0
        self._greeting: Greeting | None = None
        self._greeting_length: int | None = None
        self.attach(connection)

    @property
    def name(self) -> str:
        return f"{self.peer:x}"

    # --- what the receiver says --------------------------------------------------------------------------------

    def heard(self, connection: Connection) -> None:
        if self._greeting is None and not self._greeted(connection):
            return
        for what, channel, first, second, third in connection.take_records():
            if what == Record.OPEN:
                self._open(Demand((first, second), channel))
            elif what == Record.PULL:
                self._pulled(channel, Pull(first, second, second + third))
            elif what == Record.SPLIT:
                self._split(channel, first)
            elif what == Record.CANCEL:
                self._cancelled_by_receiver(channel)
            elif not self.asked_or_answered(what, first, second):
                raise self.violation(f"a record of kind {what}")
        self._send_more()

    def _greeted(self, connection: Connection) -> bool:
        """The greeting comes first. It is answered before UCX is connected, which the receiver does first."""
        if self._greeting_length is None:
            if (head := connection.take(GREETING_LENGTH.size)) is None:
                return False
            (self._greeting_length,) = GREETING_LENGTH.unpack(head)
            if not 0 < self._greeting_length <= MAX_GREETING:
                raise self.violation("the greeting is too long")
        if (body := connection.take(self._greeting_length)) is None:
            return False
        mine = self.worker.greeting()
        try:
            self.engine.check_ports(self.name)
            greeting = Greeting.decode(body, self.name)
            greeting.check(mine, self.name)
        except (ConnectionLostError, DisagreementError) as error:
            connection.put_bytes(Greeting((), {}, b"", refusal=error.detail).encode())
            connection.flush()
            connection.hang_up()
            raise
        connection.put_bytes(mine.encode())
        self._greeting = greeting
        self.ask()
        return True

    def _open(self, demand: Demand) -> None:
        if self.endpoint is None:
            assert self._greeting is not None
            self.connect(self._greeting.address)
        outgoing = self._find(self.peer, demand.key)
        self._core.open(demand, outgoing)
        if outgoing is not None:
            outgoing.link = self

    def _pulled(self, channel: int, pull: Pull) -> None:
        if (demand := self._core.demand(channel)) is None:
            return  # its stream ended while the pull was on its way
        if not demand.add(pull):
            raise self.violation(f"a pull of {pull.offset} to {pull.end} on channel {channel}")
        if (outgoing := self.streams.get(channel)) is not None:
            self._pursue(outgoing, demand)

    def _pursue(self, outgoing: Outgoing, demand: Demand) -> None:
        """There are pulls of it. Raises a `ViolationError` if they are not within the stream."""
        if demand.begin not in (None, outgoing.begin) or demand.end > outgoing.size:
            raise self.violation(f"pulls from {demand.begin} to {demand.end} on channel {demand.channel}")
        self._core.enqueue(outgoing, time.monotonic())

    def _split(self, channel: int, number: int) -> None:
        if (demand := self._core.demand(channel)) is None:
            return
        pulls = demand.pulls
        if not pulls or not pulls[0].offered:
            raise self.violation(f"a split on channel {channel} that was not asked for")
        whole = pulls.popleft()
        pulls.appendleft(Pull(number + 1, whole.offered, whole.end))
        pulls.appendleft(Pull(number, whole.offset, whole.offered))
        self._core.enqueue(self.streams[channel], time.monotonic())

    def _cancelled_by_receiver(self, channel: int) -> None:
        if (outgoing := self.streams.get(channel)) is not None:
            self.cancel(outgoing)
        elif self._core.withdraw(channel):
            self._say_end(channel, 0)

    # --- streams -----------------------------------------------------------------------------------------------

    def serve(self, outgoing: Outgoing) -> None:
        """Start if the receiver has already opened it."""
        if self._core.serve(outgoing):
            assert outgoing.demand is not None
            outgoing.link = self
            try:
                self._pursue(outgoing, outgoing.demand)
            except ViolationError as error:
                self.break_off(error)
            else:
                self.go_on()

    def risen(self, outgoing: Outgoing) -> None:
        """The source can be read further."""
        if not self.broken and self._core.enqueue(outgoing, time.monotonic()):
            self.go_on()

    def cancel(self, outgoing: Outgoing) -> None:
        if outgoing.closed or outgoing.over:
            return
        assert outgoing.demand is not None
        outgoing.over = True
        self._say_end(outgoing.demand.channel, outgoing.position)
        if not outgoing.transfers:
            self.close(outgoing)
        else:
            self.wait_for(outgoing)

    def _say_end(self, channel: int, answered: int) -> None:
        if self.connection is not None:
            self.connection.put(Record.END, channel, answered)
            self.flush_soon()

    # --- sending -----------------------------------------------------------------------------------------------

    def _send_more(self) -> None:
        while self._flight_messages < FLIGHT_MESSAGES or self._flight_bytes < FLIGHT_BYTES:
            if (outgoing := self._core.next(time.monotonic())) is None:
                return
            assert outgoing.demand is not None
            self._take_turn(outgoing, outgoing.demand)

    def go_on(self) -> None:
        try:
            self._send_more()
        except self.engine.library.error as error:
            self.break_off(self.failed(error))

    def _take_turn(self, outgoing: Outgoing, demand: Demand) -> None:
        """Answer its first pull, if the source has all of it. The beginning of a pull is better than nothing."""
        if not demand.pulls or demand.pulls[0].offered:
            return
        pull, watermark = demand.pulls[0], outgoing.source.watermark()
        if pull.end <= watermark:
            self._answer(outgoing, demand.pulls.popleft())
            self._core.enqueue(outgoing, time.monotonic())
        elif pull.offset < watermark and not outgoing.transfers and self.connection is not None:
            pull.offered = watermark
            self.connection.put(Record.PART, demand.channel, pull.number, watermark - pull.offset)
            self.flush_soon()

    def _answer(self, outgoing: Outgoing, pull: Pull) -> None:
        assert self._greeting is not None
        window = _writable(outgoing.source, pull.offset, pull.end - pull.offset)
        now = time.monotonic()
        request = self.worker.send(self.endpoint, window, pull_tag(self._greeting.tag, pull.number))
        outgoing.transfers.append(Send(request, window, now))
        outgoing.position = pull.end
        self._flight_messages += 1
        self._flight_bytes += window.nbytes
        self.engine.active.add(self)

    def advance_stream(self, outgoing: Outgoing) -> bool:
        """Let go of the memory of what is sent."""
        sends = outgoing.transfers
        if not sends[0].request.completed:
            return False
        now = time.monotonic()
        self.standstill.moved(now)
        while sends and sends[0].request.completed:
            send = sends.popleft()
            self.standstill.transfer_took(now - send.begun)
            self._flight_messages -= 1
            self._flight_bytes -= send.length
            if self.broken:
                continue
            send.request.check_error()
            self.bytes += send.length
            self.frames += 1
        if not sends and (self.broken or outgoing.over or outgoing.position >= outgoing.size):
            self.close(outgoing)
        elif not sends:
            self._core.enqueue(outgoing, now)
        return True

    # --- the end -----------------------------------------------------------------------------------------------

    def break_off(self, error: Exception | None) -> None:
        """Ending a link that carries nothing costs nothing, unless the two sides could not agree."""
        told = self.streams or (isinstance(error, TransportError) and not isinstance(error, ConnectionLostError))
        super().break_off(error if told else None)

    def end_stream(self, outgoing: Outgoing) -> None:
        outgoing.close()


def _writable(source: Source, offset: int, length: int) -> Bytes:
    """The bytes in one piece of memory that may be written."""
    window = source.window(offset, length)
    if window.nbytes == length and not window.readonly:
        return window
    copied = bytearray()
    while len(copied) < length:
        window = source.window(offset + len(copied), length - len(copied))
        assert isinstance(window, memoryview), "memory of a device is writable, and lies in one piece"
        copied += window
    return memoryview(copied)
