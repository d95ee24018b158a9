"""The thread that owns the UCX workers of a node, and everything that their links do.

All calls to UCX, all sockets of UCX links and all their tables belong to this thread, so nothing here needs a lock:
other threads only leave work in a queue and wake it. It sleeps on one epoll that has the workers' descriptors, the
links' sockets and an eventfd; UCX requires a call (`arm`) before each sleep. Only workers that are awake are polled.

Over RDMA all links share one worker, since each would cost a card's queues and tens of megabytes. Otherwise each link
has its own worker, and a link that breaks with transfers in progress destroys it (`destroy`). This is the only reliable
way that was found with UCX 1.22: on a shared worker, over shared memory, a stopped peer sometimes held up the streams
of others, and a killed one left receives that never completed; over TCP, closing endpoints with sends in progress was
followed by errors on garbage descriptors and by crashes. The causes are assumed, not proven (see
docs/history/transports.md). For RDMA, `ci/rdma` looks.

UCX does not survive a fork: a forked child cannot use its parent's engine, and gets an error.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.transports.errors import ConnectionLostError, TransportError
from hoplite_ucx.transports.ucx import library, locked_memory
from hoplite_ucx.transports.ucx.ports import Ports
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.worker import Worker

__all__ = ["Active", "Engine"]

_log = logging.getLogger("hoplite.ucx")

_START_SECONDS = 10.0
_IDLE_SECONDS = 30.0
# How many times in a row UCX may use the thread while it makes progress, before sockets are polled.
_ROUNDS = 4
# A worker whose peer was stopped in mid-transfer always has something to do, and makes no progress: after this
# many rounds without progress, the thread sleeps for a moment in each.
_PATIENT_ROUNDS = 2000
_PAUSE_SECONDS = 1e-3
_LINGER_SECONDS = 0.01
# How often the ports of RDMA links are looked at: UCX itself notices a port that went down seconds later, or never.
_PORT_SECONDS = 0.2
# Workers that are created ahead: a relay of a new tree has two new links.
_SPARES = 2
_SPARE_SECONDS = 0.02

_abandoned: list[object] = []
"""Workers whose requests never completed: freeing them could let UCX write to memory that has a new owner."""


class Active(Protocol):
    """An object that has requests in progress."""

    def advance(self) -> bool:
        """Look at them. True if one was completed."""
        ...


class Engine:
    """Starts when it is created; raises a `TransportError` if UCX is missing or rejects the settings."""

    def __init__(self, settings: UcxSettings, name: str) -> None:
        self.settings = settings
        self.library = library.load()
        self.takes_devices = False
        """Whether UCX moves memory of devices by itself here; known when the engine has started."""
        self.active: set[Active] = set()
        self.unflushed: set[Callable[[], None]] = set()
        self.ended = threading.Event()
        self._pid = os.getpid()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._context: Any = None
        self._ports = Ports(())
        self._shared: Worker | None = None
        self._workers: dict[int, Worker] = {}  # by descriptor
        self._spares: list[Worker] = []
        self._preparing = False
        self._returned: deque[tuple[Worker, Callable[[], None]]] = deque()
        self._idle_rounds = 0
        self._asleep = False
        self._wake_lock = threading.Lock()  # the descriptor is not closed while a thread writes to it
        self._stopping = False
        self._failure: Exception | None = None
        self._ready = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name=f"hoplite-ucx-{name}", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise TransportError(
                "UCX did not start", "this process", f"see UCX's log; it did not start within {_START_SECONDS:g} s"
            )
        if self._failure is not None:
            raise TransportError(
                f"UCX rejected its settings: {self._failure}", "this process", "correct the [ucx] section"
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
        """End when all transfers in progress are over."""

        def work() -> None:
            self._stopping = True

        self.call(work)

    def join(self, timeout: float) -> bool:
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- for the engine's thread -------------------------------------------------------------------------------

    def take_worker(self) -> Worker:
        """A worker for a link: its own, or the one that all share. Raises what UCX does, or a `TransportError`."""
        if self.settings.private_workers:
            self._prepare_soon()
            return self._employ(self._spares.pop() if self._spares else self._new_worker())
        if self._shared is None:
            self.check_ports("this process")
            self._shared = self._employ(self._spares.pop() if self._spares else self._new_worker())
            self._watch_ports_later(self._shared)
        return self._shared

    def check_ports(self, peer: str) -> None:
        """Raises a `ConnectionLostError` if a port of this host is down: UCX must not connect then (see `ports`)."""
        if self._ports.down():
            raise self._port_down(peer)

    def _port_down(self, peer: str) -> ConnectionLostError:
        names = ", ".join(self._ports.down())
        return ConnectionLostError(f"RDMA port {names} is down", peer, "bring it up; links use TCP meanwhile")

    def _watch_ports_later(self, worker: Worker) -> None:
        """Again and again, for as long as it is the one that all share. UCX is looked at, too: whatever wake-up it or a
        card loses, no transfer waits longer than this."""

        def look() -> None:
            worker.awake = True
            if self._shared is worker and not self.end_without_port():
                self._watch_ports_later(worker)

        self.later(_PORT_SECONDS, look)

    def end_without_port(self) -> bool:
        """True if a port went down. It takes the shared worker along: nothing that is under way there would be over
        by itself, and UCX must not send anything any more."""
        worker = self._shared
        if worker is None or not self._ports.down():
            return False
        self._shared = None
        for link in list(worker.links):
            link.break_off(self._port_down("this process"))
        self.destroy(worker)
        return True

    def _prepare_soon(self) -> None:
        if not self._preparing and len(self._spares) < _SPARES:
            self._preparing = True
            self.later(_SPARE_SECONDS, self._prepare)

    def _prepare(self) -> None:
        """Keep workers ready for the next links: creating one takes milliseconds, and is better done while nothing
        moves."""
        self._preparing = False
        if not self.active:
            self._spares.append(self._new_worker())
        self._prepare_soon()

    def return_worker(self, worker: Worker, closed: Callable[[], None]) -> None:
        """A link has ended, and all its requests are completed. A worker of its own is closed soon."""
        if worker is self._shared or not self._employs(worker):
            closed()
        else:
            self._returned.append((worker, closed))
            self.later(_LINGER_SECONDS, self._close_returned)

    def _close_returned(self) -> None:
        """UCX closes endpoints in several steps, on the worker: it is given a moment for them."""
        worker, closed = self._returned.popleft()
        if not worker.settled:
            self.return_worker(worker, closed)
            return
        if self._employs(worker):
            self._close_worker(worker)
        closed()

    def destroy(self, worker: Worker) -> None:
        """End a worker with all its transfers. After that, UCX neither reads nor writes memory for its requests."""
        links = list(worker.links)
        for link in links:
            link.break_off(None)
        memory = [link.forget_requests() for link in links]
        if worker is self._shared:
            self._shared = None
        if self._employs(worker):
            self._close_worker(worker)
        memory.clear()  # not before
        for link in links:
            link.release()

    def _new_worker(self) -> Worker:
        return Worker(self.library, self._context, self.settings)

    def _employs(self, worker: Worker) -> bool:
        return self._workers.get(worker.descriptor) is worker

    def _employ(self, worker: Worker) -> Worker:
        self._workers[worker.descriptor] = worker
        self._epoll.register(worker.descriptor, select.EPOLLIN)
        return worker

    def _close_worker(self, worker: Worker) -> None:
        self._epoll.unregister(worker.descriptor)
        del self._workers[worker.descriptor]
        worker.close()

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
            has_devices = cuda.unavailable() is None
            options = self.settings.for_ucx(devices=has_devices, lockable=locked_memory.lockable())
            self._context = self.library.context(options)
            lanes = self.library.resources(self._context)
            self._ports = Ports(lanes)
            found = {lane.transport for lane in lanes}
            self.takes_devices = has_devices and "cuda_copy" in found
            if all(name == "self" or name.startswith("cuda") for name in found):
                raise LookupError(f"UCX has none of {', '.join(self.settings.tls)} on these devices")
            self._spares.append(self._new_worker())  # whether it works is known before the first link
        except Exception as error:
            self._failure = error
            self._close_descriptors()
            self._ready.set()
            return
        self._ready.set()
        while not (self._stopping and self._at_rest()):
            try:
                self._round()
            except Exception:  # a failing callback must not end the links of others
                _log.exception("an iteration of the UCX engine failed")
        self._end()

    def _at_rest(self) -> bool:
        return (
            not self.active
            and not self._calls
            and not self._returned
            and all(worker.settled for worker in self._workers.values())
        )

    def _round(self) -> None:
        self._idle_rounds += 1
        for _ in range(_ROUNDS):
            moved = bool(self._calls)
            for _ in range(len(self._calls)):
                self._calls.popleft()()
            for worker in self._awake():
                worker.progress()
            for active in tuple(self.active):
                moved |= active.advance()
            if not moved:
                break
            self._idle_rounds = 0
        self._flush()
        self._poll(self._timeout())

    def _awake(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.awake]

    def _flush(self) -> None:
        while self.unflushed:
            self.unflushed.pop()()

    def _timeout(self) -> float:
        """How long it may sleep: not at all if something waits to be done, here or in UCX."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        self._asleep = True
        if self._calls or self._stopping or self.unflushed or not all(worker.arm() for worker in self._awake()):
            return 0.0 if self._idle_rounds < _PATIENT_ROUNDS else _PAUSE_SECONDS
        return min(self._timers[0][0] - now, _IDLE_SECONDS) if self._timers else _IDLE_SECONDS

    def _poll(self, timeout: float) -> None:
        events = self._epoll.poll(max(timeout, 0.0))
        self._asleep = False
        for descriptor, event in events:
            if descriptor == self._wake:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif (worker := self._workers.get(descriptor)) is not None:
                worker.awake = True
            elif (ready := self._watched.get(descriptor)) is not None:
                self._idle_rounds = 0
                ready(event)

    def _end(self) -> None:
        self._timers.clear()
        self._watched.clear()
        for worker in list(self._workers.values()):
            self._close_worker(worker)
        for worker in self._spares:
            worker.close()
        self._spares.clear()
        self._shared = self._context = None
        self._close_descriptors()
        self.ended.set()

    def abandon(self) -> None:
        """It did not end in time: keep its UCX objects for as long as the process lives."""
        _abandoned.append(self)

    def _close_descriptors(self) -> None:
        with self._wake_lock:
            self._asleep = False
            self._epoll.close()
            os.close(self._wake)
