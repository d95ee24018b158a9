"""One UCX worker: what can be posted on it, and how to complete a receive that gets no message. Engine's thread only.

Requests and memory are kept until UCX has completed them. Nothing may break this rule, since UCX writes to the memory
of a receive until then, cancelled or not. There are two ways to complete a receive for which no message will come:
closing the endpoint ends transfers that have begun (`disconnect`), and an empty message of the worker to itself ends
those that have not (`settle`).
"""

import logging
import os
import time
from typing import Any, Protocol

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.interface import Bytes
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.settings import RECORDS, Greeting, UcxSettings

__all__ = ["Worker"]

_log = logging.getLogger("hoplite.ucx")

_CLOSE_NANOSECONDS = 100_000_000
_GREET_SECONDS = 5.0
_TURN_SECONDS = 0.1
"""A turn that takes longer does not count as more: this process was paused, and nothing was late."""


class User(Protocol):
    """A link, as its worker knows it."""

    def break_off(self, error: Exception | None) -> None: ...

    def forget_requests(self) -> list[Bytes]:
        """The worker is about to end, and everything with it. Returns their memory, to be kept until then."""
        ...

    def release(self) -> None: ...


class Worker:
    """`links` are those that have, or may have, requests on it.

    `awake` means that UCX may have something to do on it: something was posted, or its descriptor was ready. Most
    workers of a node with many links are asleep most of the time, and polling one takes microseconds and system calls.
    """

    def __init__(self, loaded: library.Library, context: Any, settings: UcxSettings) -> None:
        self._library = loaded
        self._settings = settings
        self._worker: library.Worker = loaded.worker(context)
        self._address: bytes = self._worker.address.tobytes()
        self._myself: library.Endpoint | None = None
        self._settling: list[library.Request] = []
        self._tags: set[int] = set()
        self.links: set[User] = set()
        self.awake = True
        self.descriptor: int = self._worker.epoll_file_descriptor
        if not settings.private_workers:
            self._greet_myself()

    def greeting(self, tag: int = 0) -> Greeting:
        return Greeting(self._library.version, self._settings.agreed(), self._address, tag, records=RECORDS)

    def new_tag(self) -> int:
        """Random bits that no other link of this worker has or had."""
        while (tag := int.from_bytes(os.urandom(4))) in self._tags:
            pass
        self._tags.add(tag)
        return tag

    def progress(self) -> None:
        self._worker.progress()
        if self._settling:
            self._settling = [request for request in self._settling if not request.completed]

    def arm(self) -> bool:
        """True if the thread may sleep until the descriptor wakes it; False if there is something to do.

        UCX's verbs do not look once more after they asked the card for a notification: what came just before that
        is never notified. So this looks, unless all goes over UCX's tcp, which does it by itself.
        """
        self.awake = not self._worker.arm() or (not self._settings.only_tcp and self._worker.progress_once())
        return not self.awake

    @property
    def settled(self) -> bool:
        return not self._settling

    def connect(self, address: bytes) -> library.Endpoint:
        self.awake = True
        return self._library.endpoint(self._worker, address)

    def disconnect(self, endpoint: library.Endpoint) -> None:
        """Its transfers complete with an error in the next rounds."""
        self.awake = True
        try:
            endpoint.close_blocking(period=_CLOSE_NANOSECONDS, max_attempts=1)
        except self._library.error as error:
            _log.info("an endpoint was closed with %s", error)

    def receive(self, window: Bytes, tag: int) -> library.Request:
        self.awake = True
        _enter(window)
        return self._worker.tag_recv(self._library.array(window), self._library.tag(tag), self._library.whole_tag)

    def send(self, endpoint: library.Endpoint, window: Bytes, tag: int) -> library.Request:
        self.awake = True
        _enter(window)
        return endpoint.tag_send(self._library.array(window), self._library.tag(tag))

    def settle(self, tag: int) -> None:
        """Complete a receive for which no message comes."""
        self._settling.append(self.send(self._reach_myself(), memoryview(bytearray()), tag))

    def _greet_myself(self) -> None:
        """Connect to itself while the port is up: once it is down, when receives have to be completed, UCX cannot.

        That what it sends to itself arrives is seen too, before a link relies on it. Raises a `TransportError`.
        """
        tag, now, waited = self.new_tag() << 32, time.monotonic(), 0.0
        arrival = self.receive(memoryview(bytearray()), tag)
        self.settle(tag)
        while not (arrival.completed and self.settled):
            before, now = now, time.monotonic()
            waited += min(now - before, _TURN_SECONDS)
            if waited > _GREET_SECONDS:
                what = f"a message of UCX to itself did not arrive within {_GREET_SECONDS:g} s"
                raise TransportError(what, "this process", "check the RDMA ports: `rdma link`, `ibv_devinfo`")
            self.progress()
        arrival.check_error()

    def _reach_myself(self) -> library.Endpoint:
        if self._myself is None:
            self._myself = self._library.endpoint(self._worker, self._address, to_peer=False)
        return self._myself

    def close(self) -> None:
        """UCX frees what it has with the last reference."""
        if self._myself is not None:
            self.disconnect(self._myself)
            self._worker.progress()
        self._settling.clear()
        self._myself = self._worker = None


def _enter(window: Bytes) -> None:
    """UCX copies memory of a device in the context of whoever gives it out."""
    if isinstance(window, Window):
        cuda.load().enter(window.device)
