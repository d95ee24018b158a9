"""The receiving end of a TCP link: one thread that connects to one sender and writes arriving bytes to their sinks.

Bytes go from the socket straight into the sink's memory, a frame at a time. A stream that is cancelled in the middle of
a frame is closed at once, and the rest of its frames is read into scratch memory until the sender has processed the
cancellation. Sinks that take everything cost no credits: the record that opens their stream grants the whole.

A link has one connection for life. When it breaks, its streams close with what is final, and the next receive opens
another link.

Threads: only the link's own thread reads the socket and writes to sinks. Any thread may write records to the sender,
without blocking; what the kernel does not take at once waits in `_unsent`, and the link's thread sends it. `_lock`
guards the tables and the records; nothing that can block, and no foreign code, runs under it. The thread that removes a
stream from `_receiving` closes it, after it has released the lock; while the link's thread fills its sink (`_filling`),
only that thread may.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from struct import Struct

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.descriptors import lifted
from hoplite_ucx.transports.errors import ConnectionLostError, OverloadError, connection_broke
from hoplite_ucx.transports.interface import (
    MAX_GRANULE,
    Fault,
    HostSink,
    LinkStatus,
    ReceiveClosed,
    Side,
    Stream,
    StreamKey,
)
from hoplite_ucx.transports.link_core import ReceivingCore, violation
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.tcp.frames import DATA, RECORD, Record, set_timeouts
from hoplite_ucx.transports.tcp.sending import may_send
from hoplite_ucx.transports.wire.addresses import connect_failure, parse_address, tune
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking

__all__ = ["Incoming", "ReceivingLink"]

# Records that may wait for a sender that does not read them.
MAX_UNSENT = 1 << 20
_SCRATCH = 256 << 10
_RESET = Struct("@ii").pack(1, 0)


class Incoming(link_core.Incoming):
    """One stream, as its receiver sees it: `asked` is what the sender was granted."""

    sink: HostSink

    def __init__(self, stream: Stream, sink: HostSink, on_closed: ReceiveClosed) -> None:
        super().__init__(stream, sink, on_closed)
        self.ahead = 0  # how much was granted at first
        self.link: ReceivingLink | None = None

    def grown(self) -> None:
        """The sink takes more, or has made more of it final."""
        if self.link is not None:
            self.link.grant(self)


class ReceivingLink:
    def __init__(
        self,
        peer: int,
        address: str,
        me: Identity,
        on_lost: Callable[[Exception], None],
        on_ended: Callable[[ReceivingLink], None],
        timers: LinkTimers,
    ) -> None:
        self.peer = peer
        self._timers = timers
        self.address = address
        self._me = me
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._receiving: dict[StreamKey, Incoming] = {}
        self._core: ReceivingCore[Incoming] = ReceivingCore(address)
        self._filling: Incoming | None = None
        self._sock: socket.socket | None = None
        self._connected = False
        self._closed = False
        self._ended = False
        self._unsent = bytearray()
        self._bytes = 0
        self._frames = 0
        self._header = bytearray(DATA.size)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"hoplite-recv-{peer:x}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread is left
            os.close(self._wake)
            raise

    # --- for other threads -------------------------------------------------------------------------------------

    def receive(self, incoming: Incoming) -> bool:
        """Receive a stream; False if the link has ended, and the stream was not taken."""
        incoming.asked = min(incoming.sink.limit(), incoming.size)
        incoming.ahead = incoming.asked - incoming.received
        with self._lock:
            if self._ended or self._closed:
                return False
            if incoming.key in self._receiving:
                raise ValueError(f"stream {incoming.key} is already being received")
            self._receiving[incoming.key] = incoming
            self._core.add(incoming)
            incoming.link = self
            if self._connected:
                self._open(incoming)
        incoming.grown()  # the limit may have risen before there was a link to tell
        return True

    def cancel(self, key: StreamKey) -> None:
        with self._lock:
            incoming = self._receiving.get(key)
            if incoming is None:
                return
            incoming.over = True
            if incoming is self._filling:
                return  # the thread closes it when its system call ends
            self._remove(incoming)
        incoming.close(None)

    def positions(self) -> dict[StreamKey, int]:
        return {incoming.key: incoming.sink.watermark() for incoming in list(self._receiving.values())}

    def status(self) -> LinkStatus:
        streams = len(self._receiving)
        return LinkStatus(self.peer, Side.RECEIVING, "tcp", self._connected, streams, self._bytes, self._frames)

    def break_off(self) -> None:
        with self._lock:
            self._closed = True
            if self._sock is not None:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
            if not self._ended:
                os.eventfd_write(self._wake, 1)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def grant(self, incoming: Incoming) -> None:
        """Tell the sender how far the sink takes bytes now, and close the stream if everything is final.

        Credits below a granule wait until the sender has used up what it was given; otherwise every few bytes would
        cost a credit. `_fill` then calls this.
        """
        limit = min(incoming.sink.limit(), incoming.size)
        complete = incoming.complete
        with self._lock:
            if incoming.over:
                return
            due = limit - incoming.asked >= incoming.granule or limit == incoming.size
            if limit > incoming.asked and (due or incoming.received >= incoming.asked):
                incoming.asked = limit
                if self._connected:
                    self._send_record(Record.CREDIT, incoming.channel, limit)
            if not complete:
                return
            incoming.over = True
            if incoming is self._filling:
                return
            self._remove(incoming)
        incoming.close(None)

    # --- under the lock ----------------------------------------------------------------------------------------

    def _remove(self, incoming: Incoming) -> None:
        incoming.over = True
        del self._receiving[incoming.key]
        self._core.remove(incoming)
        if self._connected and incoming.received < incoming.size:
            self._send_record(Record.CANCEL, incoming.channel)

    def _open(self, incoming: Incoming) -> None:
        self._send_record(Record.OPEN, incoming.channel, incoming.asked, *incoming.key)

    def _send_record(self, what: Record, channel: int, limit: int = 0, receiver: int = 0, number: int = 0) -> None:
        self._unsent += RECORD.pack(what, channel, limit, receiver, number)
        self._flush()
        if self._unsent:
            os.eventfd_write(self._wake, 1)

    def _flush(self) -> None:
        """Give the kernel what it takes. The link's thread finds the errors."""
        if self._unsent and self._sock is not None:
            with suppress(OSError):
                del self._unsent[: self._sock.send(self._unsent, socket.MSG_DONTWAIT)]

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        may_send()
        error: Exception | None = None
        try:
            self._drive(self._connect())
        except OSError as failure:
            error = connection_broke(failure, self.address)
        except Exception as failure:
            error = failure
        finally:
            self._end(error)

    def _connect(self) -> socket.socket:
        host, port = parse_address(self.address)
        try:
            family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = lifted(socket.socket(family, socket.SOCK_STREAM))
            with self._lock:
                self._sock = sock  # from here on `break_off` ends whatever it waits for
                if self._closed:
                    raise self._closed_here()
            tune(sock)
            sock.settimeout(self._timers.connect)
            sock.connect(name)
        except OSError as error:
            raise connect_failure(error, self.address, self._timers.connect) from error
        run_blocking(client(self._me, Kind.BULK, self.address, self.peer), sock, self.address, self._timers.handshake)
        if self._me.tls is not None:
            with self._lock:
                self._sock = sock = secured = self._me.tls.wrap(sock, server_side=False)
            secured.greet_server(self.address, self._timers.handshake)
        set_timeouts(sock)
        with self._lock:
            self._connected = True
            for incoming in self._core.streams.values():
                self._open(incoming)
        return sock

    def _drive(self, sock: socket.socket) -> None:
        header = memoryview(self._header)
        while self._read_header(sock, header):
            channel, length, offset = DATA.unpack(header)
            with self._lock:
                incoming = self._core.find(channel)
                self._check_frame(incoming, length, offset)
                self._filling = incoming
            drained = length if incoming is None else self._fill(sock, incoming, offset, offset + length)
            if drained:
                self._drain(sock, drained)
            self._bytes += length
            self._frames += 1
            del incoming  # else its sink's memory would stay mapped until the next frame comes

    def _read_header(self, sock: socket.socket, header: memoryview) -> bool:
        """Read the next header; False if the link is idle and no longer needed."""
        got = 0
        while got < len(header):
            try:
                count = sock.recv_into(header[got:] if got else header, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if not self._wait(sock):
                    return False
                continue
            if not count:
                raise self._lost()
            got += count
        return True

    def _wait(self, sock: socket.socket) -> bool:
        """Sleep until something comes. False if the link has been idle for long and is retired."""
        with self._lock:
            self._flush()
            self._check_unsent()
            writable = select.POLLOUT if self._unsent else 0
        poll = select.poll()
        poll.register(sock, select.POLLIN | writable)
        poll.register(self._wake, select.POLLIN)
        events = poll.poll(self._timers.idle * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        with self._lock:
            self._flush()
            if not events and not self._receiving:
                self._ended = True
                return False
        return True

    def _fill(self, sock: socket.socket, incoming: Incoming, at: int, end: int) -> int:
        """Read a frame into its sink. Returns how much of it is left because the stream is over."""
        sink = incoming.sink
        while at < end and not incoming.over:
            # Of a long frame, a piece that is forwarded by itself: what is there, which is much on a host that is
            # behind, and at least a granule.
            least = min(incoming.granule, end - at)
            try:
                count = sock.recv_into(sink.window(at, end - at), 0, 0 if at + least < end else socket.MSG_WAITALL)
            except BlockingIOError:
                with self._lock:
                    self._flush()
                    self._check_unsent()
                continue
            if not count:
                raise self._lost()
            if count < least and at + least < end:
                with suppress(BlockingIOError):
                    count += sock.recv_into(sink.window(at + count, least - count), 0, socket.MSG_WAITALL)
            at += count
            incoming.received = at
            sink.arrived(at)
        # In time, so that the sender never waits: when half of what it may send ahead is used up.
        left = incoming.asked - at
        if left <= 0 or (incoming.asked < incoming.size and left <= incoming.ahead // 2):
            self.grant(incoming)
        with self._lock:
            self._filling = None
            if not incoming.over:
                return 0
            self._remove(incoming)
        incoming.close(None)
        return end - at

    def _drain(self, sock: socket.socket, count: int) -> None:
        """Read and discard the bytes of a closed stream."""
        scratch = memoryview(bytearray(min(count, _SCRATCH)))
        while count:
            try:
                got = sock.recv_into(scratch[:count], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                continue
            if not got:
                raise self._lost()
            count -= got

    def _check_frame(self, incoming: Incoming | None, length: int, offset: int) -> None:
        expected = incoming is None or (offset == incoming.received and offset + length <= incoming.asked)
        if not expected or not 0 < length <= MAX_GRANULE:
            raise violation(f"{length} bytes at {offset}", self.address)

    def _check_unsent(self) -> None:
        if len(self._unsent) > MAX_UNSENT:
            raise OverloadError(
                "the sender does not read its control messages", self.address, "check whether it is stopped"
            )

    def _lost(self) -> ConnectionLostError:
        if self._closed:
            return self._closed_here()
        return ConnectionLostError("the sender closed the link", self.address, "check whether the process still runs")

    def _closed_here(self) -> ConnectionLostError:
        return ConnectionLostError("this side closed the link", self.address, "open it again")

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            self._ended = True
            self._connected = False
            self._filling = None
            left = list(self._receiving.values())
            cancelled = {incoming for incoming in left if incoming.over}
            for incoming in left:
                self._remove(incoming)
            if self._sock is not None:
                # With a reset, so that a sender that waits for room in our window notices at once. A socket that TLS
                # took and then failed with has no descriptor any more.
                with suppress(OSError):
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._sock.close()
            self._sock = None
            os.close(self._wake)
        with ExitStack() as stack:  # all streams are closed, even if a callback fails
            for incoming in reversed(left):
                stack.callback(incoming.close, None if incoming in cancelled else Fault.BROKEN)
            self._on_ended(self)
            if error is not None and not self._closed:
                self._on_lost(error)
