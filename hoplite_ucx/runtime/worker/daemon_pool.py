"""Threads for calls of any length, which the program does not wait for when it ends.

The pools of the standard library join their threads at the end of the process: one `get` without a time limit would
keep it alive for ever.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class DaemonPool:
    """At most `size` threads, created when they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """A child made by fork has none of the threads, and does not wait for their work."""
        self._work: SimpleQueue[tuple[Future[Any], list[Callable[[], Any]]]] = SimpleQueue()
        """Each function alone in a list, out of which it is taken: nobody else keeps it."""
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def submit(self, function: Callable[[], R]) -> "Future[R]":
        future: Future[R] = Future()
        self._work.put((future, [function]))
        with self._lock:
            if self._idle < self._work.qsize() and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            future, function = self._work.get()
            with self._lock:
                self._idle -= 1
            if future.set_running_or_notify_cancel():
                _do(future, function)
            del future, function  # an idle thread keeps nothing alive


def _do(future: "Future[Any]", function: list[Callable[[], Any]]) -> None:
    """When the result is set, its receiver may drop what the function referred to: the thread has dropped it before."""
    try:
        result = function.pop()()
    except BaseException as error:
        future.set_exception(error)
        del future  # it has the error, whose traceback has this frame
    else:
        future.set_result(result)
