"""The sending end of a TCP link: one thread that sends the frames of all streams that one receiver pulls.

In its turn (see `link_core`) a stream sends one frame. A stream that waits for bytes or credit is not in the queue: a
rise of its source's watermark, or a credit, puts it back. The thread sleeps only if the queue is empty.

The receiver opens the connection. A stream may be served before that, and outlives connections on which it was not
opened. If no connection comes for a while, the stream is closed, and the link ends.

Threads: the thread that has the turn (`_turn`) uses the socket and reads sources. The link's own thread always has it,
except while it sleeps. Then a thread that has just received bytes for a stream sends them itself, as far as that does
not block: a relayed chunk costs no thread switch. What the kernel does not take is left to the link's thread
(`_unfinished`). While nothing is served, records of the receiver wait in the kernel, and the thread that serves the
next stream reads them: the link's thread is woken only for bytes that can be sent. `_lock` guards the tables; nothing
that can block, and no foreign code, runs under it. The thread that removes a stream from `_serving` closes it, after it
has released the lock; while its source is read (`_sending`), only the thread that has the turn may.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.errors import ConnectionLostError, connection_broke
from hoplite_ucx.transports.interface import HostSource, LinkStatus, Priority, ServeClosed, Side, Stream, StreamKey
from hoplite_ucx.transports.link_core import SendingCore, violation
from hoplite_ucx.transports.link_timers import PAUSED, LinkTimers
from hoplite_ucx.transports.tcp.frames import DATA, RECORD, Record, set_timeouts

__all__ = ["Outgoing", "SendingLink", "may_send"]

# How often a busy thread reads records of the receiver; an idle one reads them at once.
RECORDS_SECONDS = 1e-3
# The first frame of a stream is no longer than this, so that the receiver soon has something to forward.
FIRST_FRAME = 64 << 10
# A receiver forwards a long frame piece by piece, so a frame may have several granules while no other stream waits for
# its turn. With large granules frames are few anyway.
SMALL_GRANULE = 64 << 10
GRANULES = 4
_RECORDS_READ = 16 << 10
# While nothing is served, this many bytes of records may wait unread.
UNHEARD = 32 << 10

_this_thread = threading.local()


def _ignore() -> None:
    """The default callback."""


def may_send() -> None:
    """Declare that this thread moves bytes: it may forward what it has received."""
    _this_thread.may_send = True


class Demand(link_core.Demand):
    """`limit` is the receiver's credit: how far it takes bytes."""

    def __init__(self, key: StreamKey, channel: int, limit: int) -> None:
        super().__init__(key, channel)
        self.limit = limit


class Outgoing(link_core.Outgoing[Demand]):
    """One stream, as its sender sees it."""

    source: HostSource

    def __init__(
        self,
        stream: Stream,
        source: HostSource,
        on_closed: ServeClosed,
        priority: Priority,
        rank: int,
        begin: Callable[[], None] = _ignore,
    ) -> None:
        """`begin` is called when the receiver has asked for the stream."""
        super().__init__(stream, source, on_closed, priority, rank)
        self.longest = min(stream.granule, FIRST_FRAME)  # of its next frame
        self.begin = begin


class SendingLink:
    def __init__(
        self,
        peer: int,
        on_lost: Callable[[Exception], None],
        on_ended: Callable[[SendingLink], None],
        timers: LinkTimers,
    ) -> None:
        self.peer = peer
        self._timers = timers
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._serving: dict[StreamKey, Outgoing] = {}
        self._core: SendingCore[Demand, Outgoing] = SendingCore(f"{peer:x}", timers)
        self._sending: Outgoing | None = None
        self._unfinished: tuple[bytes, memoryview, int] | None = None  # header, bytes, how much is sent: of `_sending`
        self._turn = threading.Lock()
        self._sock: socket.socket | None = None
        self._next_sock: socket.socket | None = None
        self._grace = time.monotonic() + self._timers.grace
        self._asleep = False
        self._closed = False
        self._ended = False
        self._bytes = 0
        self._frames = 0
        self._records = b""
        self._failure: Exception | None = None  # the error of another thread that read records
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN | select.EPOLLET)  # edge-triggered: it need not be read
        self._thread = threading.Thread(target=self._run, name=f"hoplite-send-{peer:x}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread is left
            self._epoll.close()
            os.close(self._wake)
            raise

    # --- for other threads -------------------------------------------------------------------------------------

    def adopt(self, sock: socket.socket) -> bool:
        """Use this connection from now on; False if the link has ended."""
        with self._lock:
            if self._ended or self._closed:
                return False
            if self._next_sock is not None:
                self._next_sock.close()
            self._next_sock = sock
            self._shut_socket()
            self._wake_up()
        return True

    def serve(self, outgoing: Outgoing) -> bool:
        """Send a stream; False if the link has ended, and the stream was not taken."""
        outgoing.risen = partial(self._risen, outgoing)
        # Subscribed first, so that a stream in the table can be closed at any moment.
        outgoing.source.subscribe(outgoing.risen)
        with self._lock:
            taken = not (self._ended or self._closed)
            known = outgoing.key in self._serving
            if taken and not known:
                self._serving[outgoing.key] = outgoing
                self._grace = time.monotonic() + self._timers.grace
                self._core.serve(outgoing)
        if known or not taken:
            outgoing.source.unsubscribe(outgoing.risen)
        if known:
            raise ValueError(f"stream {outgoing.key} is already being served")
        if taken:
            self._begin(outgoing)
        return taken

    def _begin(self, outgoing: Outgoing) -> None:
        """Start the stream if it was opened."""
        if outgoing.demand is None and self._turn.acquire(blocking=False):
            try:
                self._read_records_here()
            finally:
                self._turn.release()
        with self._lock:
            self._heed_records()
        self._enqueue_if_sendable(outgoing)

    def _read_records_here(self) -> None:
        """Read records in place of the link's thread, which sleeps; that thread handles errors."""
        with self._lock:
            sock = None if self._closed or self._next_sock is not None else self._sock
        if sock is not None:
            try:
                self._read_records(sock)
            except Exception as error:
                self._failure = error
                with self._lock:
                    self._wake_up()

    def _enqueue_if_sendable(self, outgoing: Outgoing) -> None:
        """Put it in the queue if there is something to send; otherwise a rise of its source or a credit does."""
        if outgoing.demand is not None:
            outgoing.begin()
        try:
            ready = self._sendable(outgoing) > 0
        except Exception:  # the link's thread gets it too, and handles it
            ready = True
        if ready:
            with self._lock:
                self._enqueue(outgoing)

    def cancel(self, key: StreamKey) -> None:
        with self._lock:
            outgoing = self._serving.get(key)
            if outgoing is None:
                return
            outgoing.over = True
            if outgoing is self._sending:
                return  # the thread closes it when its system call ends
            self._remove(outgoing)
        outgoing.close()

    def positions(self) -> dict[StreamKey, int]:
        return {outgoing.key: outgoing.position for outgoing in list(self._serving.values())}

    def status(self) -> LinkStatus:
        connected = self._sock is not None
        return LinkStatus(self.peer, Side.SENDING, "tcp", connected, len(self._serving), self._bytes, self._frames)

    def break_off(self) -> None:
        """Break the connection, and end the link without waiting for another connection."""
        with self._lock:
            self._closed = True
            self._shut_socket()
            self._wake_up()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _risen(self, outgoing: Outgoing) -> None:
        """There is more of the source. The thread takes a stream from the queue before it looks at the watermark."""
        if outgoing.queued:
            return
        if getattr(_this_thread, "may_send", False) and self._turn.acquire(blocking=False):
            try:
                sent = self._send_here(outgoing)
            finally:
                self._turn.release()
            if sent:
                return
        with self._lock:
            self._enqueue(outgoing)

    def _send_here(self, outgoing: Outgoing) -> bool:
        """Send a frame from another thread than the link's, which sleeps; False if that is not possible now."""
        with self._lock:
            sock = self._sock
            gone = sock is None or self._closed or self._next_sock is not None
            demand = outgoing.demand
            if gone or self._core.waiting or self._sending is not None or outgoing.over or demand is None:
                return False
            self._sending = outgoing
        assert sock is not None
        try:
            length = self._sendable(outgoing)
            window = outgoing.source.window(outgoing.position, length) if length > 0 else None
        except Exception:  # the link's thread gets it too, and handles it
            self._end_turn(outgoing, again=True)  # which closes a stream that was cancelled meanwhile
            return True
        if window is not None:
            header = DATA.pack(demand.channel, window.nbytes, outgoing.position)
            try:
                sent = sock.sendmsg((header, window), (), socket.MSG_DONTWAIT)
            except OSError:
                sent = 0  # no room, or the thread meets the same error
            if sent < DATA.size + window.nbytes:
                self._unfinished = header, window, sent
                with self._lock:
                    self._wake_up()
                return True
            self._count(outgoing, window.nbytes)
        self._end_turn(outgoing, again=self._sendable(outgoing) > 0)
        return True

    # --- under the lock ----------------------------------------------------------------------------------------

    def _enqueue(self, outgoing: Outgoing) -> None:
        if self._core.enqueue(outgoing, time.monotonic()):
            self._wake_up()

    def _wake_up(self) -> None:
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._wake, 1)

    def _remove(self, outgoing: Outgoing) -> None:
        del self._serving[outgoing.key]
        self._core.remove(outgoing)
        if not self._serving:
            self._heed_records()

    def _heed_records(self) -> None:
        """Let every record wake the thread, or only many of them if none is urgent."""
        if self._sock is not None:
            with suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if self._serving else UNHEARD)

    def _shut_socket(self) -> None:
        """Make the thread's calls on the socket end."""
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._turn.acquire()
        try:
            while (sock := self._await_connection()) is not None:
                try:
                    self._drive(sock)
                except OSError as error:
                    self._broken(connection_broke(error, f"{self.peer:x}"))
                except Exception as error:
                    self._broken(error)
                finally:
                    with self._lock:
                        self._sock = None
                    self._epoll.unregister(sock)
                    sock.close()
        finally:
            self._end()

    def _await_connection(self) -> socket.socket | None:
        """The next connection, or None if none is needed or none comes."""
        while True:
            with self._lock:
                if self._next_sock is not None and not self._closed:
                    self._sock, self._next_sock = self._next_sock, None
                    set_timeouts(self._sock)
                    self._heed_records()
                    self._epoll.register(self._sock, select.EPOLLIN)
                    return self._sock
                now = time.monotonic()
                if now - self._grace > PAUSED:
                    self._grace = now + self._timers.grace
                wait = self._grace - now
                if self._closed or wait <= 0:
                    self._ended = True
                    return None
                self._asleep = True
            self._epoll.poll(wait)
            self._asleep = False

    def _drive(self, sock: socket.socket) -> None:
        records_at = 0.0
        while True:
            if self._closed or self._next_sock is not None:
                raise ConnectionLostError("this side closed the link", f"{self.peer:x}", "open it again")
            if self._failure is not None:
                raise self._failure
            now = time.monotonic()
            if now >= records_at:
                self._read_records(sock)
                records_at = now + RECORDS_SECONDS
            if self._unfinished is not None:
                self._finish(sock, *self._unfinished)
            if (outgoing := self._take_turn(now)) is None:
                self._sleep()
                records_at = 0.0
                continue
            length = self._sendable(outgoing)
            if length > 0:
                self._send_frame(sock, outgoing, outgoing.source.window(outgoing.position, length))
            self._end_turn(outgoing, again=length > 0)

    def _sendable(self, outgoing: Outgoing) -> int:
        """How long the stream's next frame can be."""
        limit = outgoing.position if outgoing.demand is None else outgoing.demand.limit
        longest = min(outgoing.longest, outgoing.granule) if self._core.waiting else outgoing.longest
        end = min(outgoing.position + longest, outgoing.source.watermark(), limit, outgoing.size)
        return end - outgoing.position

    def _finish(self, sock: socket.socket, header: bytes, window: memoryview, sent: int) -> None:
        """Send what another thread began, and the kernel did not take at once."""
        self._unfinished = None
        outgoing = self._sending
        assert outgoing is not None
        self._send_rest(sock, outgoing, header, window, sent)
        self._count(outgoing, window.nbytes)
        self._end_turn(outgoing, again=True)

    def _take_turn(self, now: float) -> Outgoing | None:
        with self._lock:
            self._sending = self._core.next(now)
            return self._sending

    def _end_turn(self, outgoing: Outgoing, *, again: bool) -> None:
        """A stream that sent nothing waits: for its source, which then calls `_risen`, or for credit."""
        with self._lock:
            if self._sending is None:
                return  # it was cancelled in the middle of its frame, and is closed
            self._sending = None
            over = outgoing.over or outgoing.position >= outgoing.size
            if over:
                self._remove(outgoing)
            elif again:
                self._enqueue(outgoing)
        if over:
            outgoing.close()

    def _sleep(self) -> None:
        with self._lock:
            if self._core.waiting or self._closed or self._next_sock is not None:
                return
            self._asleep = True
        self._turn.release()
        try:
            self._epoll.poll()
        finally:
            self._turn.acquire()
            self._asleep = False

    def _send_frame(self, sock: socket.socket, outgoing: Outgoing, window: memoryview) -> None:
        assert outgoing.demand is not None
        length = window.nbytes
        header = DATA.pack(outgoing.demand.channel, length, outgoing.position)
        try:
            sent = sock.sendmsg((header, window))
        except BlockingIOError:
            sent = 0
        if sent < DATA.size + length:
            self._send_rest(sock, outgoing, header, window, sent)
        self._count(outgoing, length)

    def _count(self, outgoing: Outgoing, length: int) -> None:
        outgoing.position += length
        outgoing.longest = outgoing.granule * (GRANULES if outgoing.granule <= SMALL_GRANULE else 1)
        self._bytes += length
        self._frames += 1

    def _send_rest(self, sock: socket.socket, outgoing: Outgoing, header: bytes, window: memoryview, sent: int) -> None:
        """Finish a frame that was begun: frames of other streams follow it.

        If its stream is cancelled meanwhile, the rest is copied, so that the source is free.
        """
        while sent < DATA.size + window.nbytes:
            if outgoing.over and outgoing is self._sending:
                window = memoryview(bytes(window))
                with self._lock:
                    self._sending = None
                    self._remove(outgoing)
                outgoing.close()
            pieces = (header[sent:], window) if sent < DATA.size else (window[sent - DATA.size :],)
            try:
                sent += sock.sendmsg(pieces)
            except BlockingIOError:
                # A receiver that closed with its window shut never answers the kernel; its end shows only here.
                self._read_records(sock)

    def _read_records(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(_RECORDS_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionLostError(
                "the receiver closed the link", f"{self.peer:x}", "nothing: the receiver reopens the link when needed"
            )
        data = self._records + data
        whole = len(data) - len(data) % RECORD.size
        for at in range(0, whole, RECORD.size):
            self._record(*RECORD.unpack_from(data, at))
        self._records = data[whole:]

    def _record(self, what: int, channel: int, limit: int, receiver: int, number: int) -> None:
        if what == Record.OPEN:
            self._opened(Demand((receiver, number), channel, limit))
        elif what == Record.CREDIT:
            self._credited(channel, limit)
        elif what == Record.CANCEL:
            self._cancelled(channel)
        else:
            raise violation(f"a record of kind {what}", f"{self.peer:x}")

    def _opened(self, demand: Demand) -> None:
        with self._lock:
            outgoing = self._serving.get(demand.key)
            self._core.open(demand, outgoing)
        if outgoing is not None:
            self._enqueue_if_sendable(outgoing)

    def _credited(self, channel: int, limit: int) -> None:
        with self._lock:
            if (demand := self._core.demand(channel)) is not None:
                demand.limit = max(demand.limit, limit)
                if (outgoing := self._core.streams.get(channel)) is not None:
                    self._enqueue(outgoing)

    def _cancelled(self, channel: int) -> None:
        with self._lock:
            outgoing = self._core.streams.get(channel)
            if outgoing is None:
                self._core.withdraw(channel)
                return
            outgoing.over = True
            if outgoing is self._sending:
                return  # its frame is under way: `_send_rest` closes it
            self._remove(outgoing)
        outgoing.close()

    # --- the end of a connection, and of the link --------------------------------------------------------------

    def _broken(self, error: Exception) -> None:
        """Close the streams that the connection carried; others may be opened on the next one."""
        with self._lock:
            self._sending = self._unfinished = self._failure = None
            carried = self._core.end()
            for outgoing in carried:
                self._remove(outgoing)
            self._records = b""
            self._grace = time.monotonic() + (self._timers.grace if self._serving else 0.0)
            expected = self._closed or self._next_sock is not None or not carried
        with self._closing(carried):
            if not expected:
                self._on_lost(error)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            left = list(self._serving.values())
            for outgoing in left:
                self._remove(outgoing)
            if self._next_sock is not None:
                self._next_sock.close()
            self._asleep = False
            self._epoll.close()
            os.close(self._wake)
        with self._closing(left):
            self._on_ended(self)

    def _closing(self, streams: list[Outgoing]) -> ExitStack:
        """Close all of them at the end of the block, even if a callback fails."""
        stack = ExitStack()
        for outgoing in reversed(streams):
            stack.callback(outgoing.close)
        return stack
