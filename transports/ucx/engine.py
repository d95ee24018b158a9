"""The thread that owns a UCX worker, and with it everything that its links do.

All calls to UCX, all sockets of UCX links and all their tables are this thread's alone, so nothing here needs a lock:
other threads only leave work in a queue and wake it. It sleeps on one epoll that has the worker's own descriptor, the
links' sockets and an eventfd; UCX demands that it is asked (`arm`) before each sleep.

Requests and memory are kept until UCX has completed them; that is the one rule that nothing may break, since UCX writes
to the memory of a receive until then, cancelled or not. There are two ways to make a receive complete that no message
will ever come for: closing the endpoint ends what has begun, and an empty message from the worker to itself
(`settle`) ends what has not.

UCX does not survive a fork: a forked child may not use an engine of its parent, and is told so.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.settings import Greeting, UcxSettings

__all__ = ["Active", "Engine"]

_log = logging.getLogger("hoplite.ucx")

_START_SECONDS = 10.0
_IDLE_SECONDS = 30.0
# How many rounds in a row UCX may have the thread while it gets on, before sockets are looked at.
_ROUNDS = 4

_abandoned: list[object] = []
"""Workers whose requests never completed: freeing them could let UCX write to memory that is somebody else's."""


class Active(Protocol):
    """Whoever has requests under way."""

    def advance(self) -> bool:
        """Look at them. True if one was completed."""
        ...


class Engine:
    """Started by its making; raises a `TransportError` if UCX is not there or does not take the settings."""

    def __init__(self, settings: UcxSettings, name: str) -> None:
        self.settings = settings
        self.library = library.load()
        self.active: set[Active] = set()
        self.unflushed: set[Callable[[], None]] = set()
        self.ended = threading.Event()
        self._pid = os.getpid()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._tags: set[int] = set()
        self._settling: list[library.Request] = []
        self._context: Any = None
        self._worker: library.Worker = None
        self._myself: library.Endpoint | None = None
        self._asleep = False
        self._wake_lock = threading.Lock()  # the descriptor is not closed while somebody writes to it
        self._stopping = False
        self._failure: Exception | None = None
        self._ready = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name=f"hoplite-ucx-{name}", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise TransportError("UCX did not start", "this process", f"see its log; it had {_START_SECONDS:g} s")
        if self._failure is not None:
            raise TransportError(
                f"UCX does not take its settings: {self._failure}", "this process", "correct the [ucx] section"
            ) from self._failure

    # --- for other threads -------------------------------------------------------------------------------------

    def call(self, work: Callable[[], None]) -> None:
        """Do this on the engine's thread, soon. Nothing happens after the engine has ended."""
        if os.getpid() != self._pid:
            raise TransportError("UCX cannot be used after a fork", "this process", "start processes with `spawn`")
        self._calls.append(work)
        if self._asleep and threading.current_thread() is not self._thread:
            with self._wake_lock:
                if self._asleep:
                    self._asleep = False
                    os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End when everything that is under way is over."""

        def work() -> None:
            self._stopping = True

        self.call(work)

    def join(self, timeout: float) -> bool:
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- for the engine's thread -------------------------------------------------------------------------------

    def greeting(self, tag: int = 0) -> Greeting:
        return Greeting(self.library.version, self.settings.agreed(), self._worker.address.tobytes(), tag)

    def new_tag(self) -> int:
        """Random bits that no other link of this worker has or had."""
        while (tag := secrets.randbits(32)) in self._tags:
            pass
        self._tags.add(tag)
        return tag

    def connect(self, address: bytes) -> library.Endpoint:
        return self.library.endpoint(self._worker, address)

    def disconnect(self, endpoint: library.Endpoint) -> None:
        """Its transfers complete with an error in the next rounds."""
        try:
            endpoint.close_blocking(period=100_000_000, max_attempts=1)
        except self.library.error as error:
            _log.info("an endpoint was closed with %s", error)

    def receive(self, window: memoryview, tag: int) -> library.Request:
        return self._worker.tag_recv(self.library.array(window), self.library.tag(tag), self.library.whole_tag)

    def send(self, endpoint: library.Endpoint, window: memoryview, tag: int) -> library.Request:
        return endpoint.tag_send(self.library.array(window), self.library.tag(tag))

    def settle(self, tag: int) -> None:
        """Complete a receive that nobody sends anything for, with an empty message."""
        if self._myself is None:
            self._myself = self.connect(self._worker.address.tobytes())
        self._settling.append(self.send(self._myself, memoryview(bytearray()), tag))

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), work))

    def watch(self, descriptor: int, ready: Callable[[int], None]) -> None:
        self._watched[descriptor] = ready
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch_writing(self, descriptor: int, wanted: bool) -> None:
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._epoll.unregister(descriptor)

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._context = self.library.context(self.settings.for_ucx())
            self._worker = self.library.worker(self._context)
            self._epoll.register(self._worker.epoll_file_descriptor, select.EPOLLIN)
        except Exception as error:
            self._failure = error
            self._close_descriptors()
            self._ready.set()
            return
        self._ready.set()
        while not (self._stopping and not self.active and not self._settling and not self._calls):
            try:
                self._round()
            except Exception:  # a failing callback must not end the links of others
                _log.exception("a round of the UCX engine failed")
        self._end()

    def _round(self) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        for _ in range(_ROUNDS):
            self._worker.progress()
            moved = False
            for active in tuple(self.active):
                moved |= active.advance()
            if not moved:
                break
        if self._settling:
            self._settling = [request for request in self._settling if not request.completed]
        self._flush()
        self._poll(self._timeout())

    def _flush(self) -> None:
        while self.unflushed:
            self.unflushed.pop()()

    def _timeout(self) -> float:
        """How long it may sleep: not at all if something waits to be done, here or in UCX."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        self._asleep = True
        if self._calls or self._stopping or self.unflushed or not self._worker.arm():
            return 0.0
        return min(self._timers[0][0] - now, _IDLE_SECONDS) if self._timers else _IDLE_SECONDS

    def _poll(self, timeout: float) -> None:
        events = self._epoll.poll(max(timeout, 0.0))
        self._asleep = False
        for descriptor, event in events:
            if descriptor == self._wake:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif (ready := self._watched.get(descriptor)) is not None:
                ready(event)

    def _end(self) -> None:
        if self._myself is not None:
            self.disconnect(self._myself)
            self._worker.progress()
        self._timers.clear()
        self._watched.clear()
        self._settling.clear()
        self._myself = self._worker = self._context = None  # UCX closes what it has with the last reference
        self._close_descriptors()
        self.ended.set()

    def abandon(self) -> None:
        """It did not end in time: keep its UCX for as long as the process lives."""
        _abandoned.append(self)

    def _close_descriptors(self) -> None:
        with self._wake_lock:
            self._asleep = False
            self._epoll.close()
            os.close(self._wake)
