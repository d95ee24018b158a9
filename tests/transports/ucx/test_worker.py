"""A UCX worker against a made-up UCX: what verbs do that UCX's tcp does not."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.ucx import worker as worker_module
from hoplite_ucx.transports.ucx.library import Library
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.worker import Worker


class MadeUpWorker:
    """What comes waits in `queue` until it is progressed. Arming never looks whether something does, as with verbs."""

    address = memoryview(b"here")

    def __init__(self) -> None:
        self.epoll_file_descriptor = os.eventfd(0)
        self.queue: list[Callable[[], None]] = []
        self.while_arming: list[Callable[[], None]] = []
        self.posted: dict[int, SimpleNamespace] = {}
        self.looks = 0

    def progress(self) -> None:
        while self.progress_once():
            pass

    def progress_once(self) -> bool:
        self.looks += 1
        if self.queue:
            self.queue.pop(0)()
            return True
        return False

    def arm(self) -> bool:
        self.queue += self.while_arming
        self.while_arming = []
        return True

    def tag_recv(self, _array: object, tag: int, _mask: object) -> SimpleNamespace:
        request = SimpleNamespace(completed=False, check_error=lambda: None)
        self.posted[tag] = request
        return request


class MadeUpLibrary:
    """`up` says whether its port is: without it UCX makes no endpoint. `lost` says that what it sends goes nowhere."""

    error = OSError
    version = (1, 23, 0)
    whole_tag = None

    def __init__(self) -> None:
        self.worker_ = MadeUpWorker()
        self.up = True
        self.lost = False

    def array(self, window: memoryview) -> memoryview:
        return window

    def tag(self, tag: int) -> int:
        return tag

    def worker(self, _context: object) -> MadeUpWorker:
        return self.worker_

    def endpoint(self, worker: MadeUpWorker, _address: bytes, *, to_peer: bool = True) -> Any:
        assert not to_peer
        if not self.up:
            raise OSError("Address not valid")

        def tag_send(_array: object, tag: int) -> SimpleNamespace:
            request = SimpleNamespace(completed=True)
            if not self.lost:
                worker.queue.append(lambda: setattr(worker.posted[tag], "completed", True))
            return request

        return SimpleNamespace(tag_send=tag_send, close_blocking=lambda **_how: None)


def made(library: MadeUpLibrary, *tls: str) -> Worker:
    return Worker(cast(Library, library), None, UcxSettings(tls=tls))


def test_what_comes_between_the_last_look_and_arming_is_seen() -> None:
    library = MadeUpLibrary()
    worker = made(library, "rc")
    came: list[int] = []
    library.worker_.while_arming.append(lambda: came.append(1))
    assert not worker.arm(), "the thread would sleep on what has come"
    assert worker.awake
    assert came == [1]
    assert worker.arm()
    assert not worker.awake


def test_over_tcp_arming_costs_no_second_look() -> None:
    library = MadeUpLibrary()
    worker = made(library, "tcp")
    assert worker.arm()
    assert library.worker_.looks == 0


def test_over_rdma_receives_can_be_completed_after_the_port_went_down() -> None:
    library = MadeUpLibrary()
    worker = made(library, "rc")
    library.up = False  # from now on UCX makes no endpoint, not even to itself
    pull = worker.receive(memoryview(bytearray(8)), 7)
    worker.settle(7)
    worker.progress()
    assert pull.completed


def test_a_worker_that_does_not_reach_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_GREET_SECONDS", 0.0)
    library = MadeUpLibrary()
    library.lost = True
    with pytest.raises(TransportError, match="did not arrive"):
        made(library, "rc")
