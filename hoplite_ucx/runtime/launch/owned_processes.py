"""A directory and an agent that a program starts for itself: what systems that embed hoplite are built of.

Each process has a thread here that starts it, watches it and ends it. The kernel ties the process to that thread, which
lives as long as this program does: whatever ends the program, a kill -9 too, ends the process. A directory that crashed
is started again on its port; an agent that crashed took its objects with it, so its owner decides what to do.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from hoplite_ucx.runtime.host.addresses import measured_rate
from hoplite_ucx.runtime.host.memory_limits import store_limit
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task
from hoplite_ucx.runtime.launch.lasting_directory import LastingDirectory
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.launch.service import reachable_host
from hoplite_ucx.runtime.settings import HostSettings, ProcessSettings
from hoplite_ucx.runtime.worker.checks import (
    check_memory,
    check_seconds,
    check_settings,
    check_text,
    check_timeout,
    check_token,
    invalid,
    is_whole,
)

_log = logging.getLogger("hoplite.launch")

_LOOK_SECONDS = 5.0
"""An end is noticed at once, by the process's output; this is for outputs that a stray child holds open."""
_JOIN_SECONDS = 20.0
_MAX_PORT = 65535

Self = TypeVar("Self", bound="OwnedProcess")


class OwnedProcess(ABC):
    """A process that ends with this program. Any thread may use it; a forked child does not own it."""

    def __init__(self, name: str, settings: ProcessSettings) -> None:
        self._name = name
        self._settings = settings
        self._owner = os.getpid()
        self._begun: Future[None] = Future()
        self._ended = threading.Event()
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"hoplite-{name}", daemon=True)

    def _start(self) -> None:
        _open.add(self)
        self._thread.start()
        try:
            self._begun.result()
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        """Whether it has not ended. A directory that is just being started again is running too."""
        return self._owner == os.getpid() and not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, by itself or by `close`, or for `timeout` seconds: True if it has. Raises
        `InvalidRequestError` if the timeout is not a number."""
        seconds = check_timeout(timeout)
        return self._owner != os.getpid() or self._ended.wait(seconds)

    def close(self) -> None:
        """End it, and return when it is gone. Harmless if it has ended, and in a forked child."""
        self._close(0.0)

    def _close(self, hand_over: float) -> None:
        if self._owner != os.getpid():
            return
        with self._lock:
            if not self._closing:
                self._closing = True
                os.eventfd_write(self._wake, 1)
        self._thread.join(hand_over + 2 * self._settings.stop + _JOIN_SECONDS)  # also if another thread was first
        with self._lock:
            if self in _open and not self._thread.is_alive():
                _open.discard(self)
                os.close(self._wake)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise invalid(f"the {self._name} belongs to the process that started it", "send its address instead")

    # --- on its thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._begin()
        except BaseException as error:
            self._ended.set()
            self._begun.set_exception(error)
            return
        self._begun.set_result(None)
        try:
            self._watch()
        finally:
            try:
                self._end()
            finally:
                self._ended.set()

    @abstractmethod
    def _begin(self) -> None:
        """Returns when it is ready."""

    @abstractmethod
    def _watch(self) -> None:
        """Returns when it has ended, or is to end."""

    @abstractmethod
    def _end(self) -> None:
        """Returns when it is gone."""

    def _await(self, child: Child | None, seconds: float) -> bool:
        """Wait until it is to end, which is False, or the child has ended, or the time is over."""
        watched = [self._wake]
        if child is not None and child.process.stdout is not None:
            watched.append(child.process.stdout.fileno())
        select.select(watched, [], [], seconds)
        return not self._closing


class DirectoryProcess(OwnedProcess):
    """A directory as a process of this program: made by `start_directory`. It is started again if it crashes."""

    def __init__(
        self,
        token: bytes,
        host: str,
        port: int,
        variables: Mapping[str, str] | None = None,
        settings: HostSettings | None = None,
    ) -> None:
        super().__init__("directory", (settings or HostSettings()).processes)
        self._token = token
        self._directory = LastingDirectory(token, host, port, _log.warning, variables, settings)
        self._start()

    @property
    def address(self) -> str:
        """Where it is reached; a restart does not change it."""
        return self._directory.address

    @property
    def cluster_id(self) -> str:
        """What tells its cluster from others, also after the directory was started again."""
        return self._directory.cluster

    @property
    def token(self) -> str:
        """The cluster's secret: an agent needs it to join. Send it on connections that others cannot read."""
        return os.fsdecode(self._token)

    @property
    def pid(self) -> int | None:
        """None while it is started again, and after its end."""
        child = self._directory.child
        return child.process.pid if child is not None else None

    def __repr__(self) -> str:
        return f"<DirectoryProcess at {self.address}{'' if self.running else ', ended'}>"

    def _begin(self) -> None:
        self._directory.start()

    def _watch(self) -> None:
        while self._await(self._directory.child, _LOOK_SECONDS):
            if not self._directory.running():
                self._directory.restart(lambda seconds: self._await(None, seconds))

    def _end(self) -> None:
        self._directory.stop()


class AgentProcess(OwnedProcess):
    """This host's agent as a process of this program: made by `start_agent`. It is not started again by itself."""

    def __init__(self, task: Callable[[], dict[str, Any]], settings: ProcessSettings) -> None:
        """The task is made on the process's thread: looking at the network may take a while."""
        super().__init__("agent", settings)
        self._task = task
        self._child: Child | None = None
        self._hand_over = 0.0
        self._start()

    @property
    def address(self) -> str:
        """Where other agents reach it."""
        return str(self._report["address"])

    @property
    def agent(self) -> str:
        """Its name, as `agent=` of `init` and `connect` takes it."""
        return str(self._report["agent"])

    @property
    def cluster_id(self) -> str:
        """What tells its cluster from others, also after the directory was started again."""
        return str(self._report["cluster"])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._started.process.pid

    def __repr__(self) -> str:
        return f"<AgentProcess {self.agent} at {self.address}{'' if self.running else ', ended'}>"

    @property
    def _started(self) -> Child:
        assert self._child is not None
        return self._child

    @property
    def _report(self) -> dict[str, Any]:
        return self._started.report

    def _begin(self) -> None:
        self._child = processes.spawn("agent", self._task(), tied_to_thread=True, settings=self._settings)

    def _watch(self) -> None:
        while self._await(self._started, _LOOK_SECONDS):
            if not self._started.running():
                status, agent = self._started.process.poll(), self._started.report["agent"]
                _log.warning("the agent n%s exited with status %s, and its objects are lost", agent, status)
                return

    def close(self, hand_over: float = 0.0) -> None:
        """End it, and return when it is gone. With `hand_over`, other agents have so many seconds to take over the
        objects that only this one holds; what nobody took is lost. Raises `InvalidRequestError` if that is not a number
        of seconds."""
        self._hand_over = check_seconds(hand_over)
        self._close(self._hand_over)

    def _end(self) -> None:
        self._started.stop(self._hand_over)


def start_directory(host: str = "127.0.0.1", port: int = 0, *, token: str | None = None) -> DirectoryProcess:
    """Start the directory of a new cluster as a process of this program, and return when it is ready.

    It listens at `host` and `port` (0 takes a free one), is started again at the same address if it crashes, and ends
    with `close()`, its `with` block or this program. Without a `token` it makes one: see `DirectoryProcess.token`.

    Raises `InvalidRequestError` for invalid arguments, and `ClosedError` if it cannot be started, or is not ready
    within 15 s.
    """
    check_text("host", host, "give an address of this host, such as 198.18.0.1")
    if not is_whole(port) or not 0 <= port <= _MAX_PORT:
        raise invalid(f"a port is a number from 0 to {_MAX_PORT}, not {port!r}", "correct it, or leave it out")
    secret = check_token(token)
    return DirectoryProcess(secret or os.urandom(16).hex().encode(), host, int(port), settings=check_settings())


def start_agent(
    address: str,
    *,
    token: str,
    memory: int | str | None = None,
    rate: float | None = None,
    host: str | None = None,
    patience: float | None = None,
) -> AgentProcess:
    """Start an agent of this host for the cluster whose directory is at `address`, and return when it is ready.

    `memory` limits its store, as bytes or as a text such as "4GiB". `rate` is what the network card carries, in bytes a
    second; without it the system is asked. `host` is the address at which other hosts reach this one; without it, the
    one that leads to the directory. With `patience`, the agent ends when the directory has been gone for so many
    seconds: for clusters whose end nobody tells this host of. It ends with `close()`, its `with` block or this program.

    Raises `InvalidRequestError` for invalid arguments, and `ClosedError` if it cannot be started or is not ready within
    15 s, for example because no directory answers there, or the token is wrong.
    """
    check_text("address", address, "write host:port, such as head:7777")
    check_text("host", host, "give an address of this host, such as 198.18.0.2")
    settings = check_settings(memory=check_memory(memory))
    limit = store_limit(settings.store.memory)
    secret = check_token(token)
    if secret is None:
        raise invalid("an agent needs the cluster's token", "give DirectoryProcess.token of the cluster's directory")
    if rate is not None and not rate > 0:
        raise invalid(f"a rate is a number of bytes a second, not {rate!r}", "correct it, or leave it out")
    seconds = check_timeout(patience)

    def task() -> dict[str, Any]:
        towards = host if host is not None else reachable_host(address)
        carries = rate or settings.links.rate or measured_rate(towards)
        return {**agent_task(address, secret, limit, carries, host, settings), "patience": seconds}

    return AgentProcess(task, settings.processes)


_open: set[OwnedProcess] = set()


@atexit.register
def _close_all() -> None:
    for process in list(_open):
        with contextlib.suppress(Exception):
            process.close()
