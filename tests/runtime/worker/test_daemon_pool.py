"""Threads for calls that nobody waits for at the end."""

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool
from hoplite_ucx.runtime.worker.loop_calls import in_thread
from tests.tools.waiting import HANG


class Thing:
    """What can be watched as it goes."""


def watched(gone: threading.Event) -> Thing:
    thing = Thing()
    weakref.finalize(thing, gone.set)
    return thing


def work(result: Thing) -> Thing:
    return result


def failing(_: Thing) -> Thing:
    raise ZeroDivisionError


def test_a_forked_child_has_threads_of_its_own() -> None:
    pool = DaemonPool(2, "test")
    assert pool.submit(os.getpid).result(10) == os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(pool.submit(os.getpid).result(5) != os.getpid())
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("function", [work, failing])
def test_an_idle_thread_keeps_nothing_alive(function: Callable[[Thing], Thing]) -> None:
    """Neither what it was given, nor what it made of it; also without the garbage collector."""
    pool = DaemonPool(1, "test")
    gone = threading.Event()
    gc.disable()
    try:
        future = pool.submit(partial(function, watched(gone)))
        future.exception(10)
        del future
        assert gone.wait(HANG)
    finally:
        gc.enable()


def test_cancelled_work_is_not_kept_either() -> None:
    pool = DaemonPool(1, "test")
    go, gone = threading.Event(), threading.Event()
    first = pool.submit(lambda: go.wait(HANG))
    second = pool.submit(partial(work, watched(gone)))
    assert second.cancel()
    del second
    go.set()
    assert first.result(10)
    assert gone.wait(HANG)


def test_what_a_thread_made_is_its_callers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is held where it has told its caller, and not done anything else."""
    told, go_on = threading.Event(), threading.Event()
    tell = Future.set_result

    def tell_and_wait(future: "Future[object]", result: object) -> None:
        tell(future, result)
        told.set()
        assert go_on.wait(HANG)

    monkeypatch.setattr(Future, "set_result", tell_and_wait)
    gone = threading.Event()

    async def main() -> None:
        given = watched(gone)
        made = await in_thread(partial(work, given))
        assert told.wait(HANG)
        del given, made
        assert gone.is_set()

    try:
        asyncio.run(main())
    finally:
        go_on.set()
