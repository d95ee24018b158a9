"""A process's hold on its host's agent: one for each Dask cluster, however many workers and clients the process has.

It connects to the host's keeper, which is started if there is none, and joins the agent that the keeper names. When the
connection ends, the agent has ended: another keeper and agent are started, empty, and the process joins them. Whoever
needs the cluster meanwhile waits for that.
"""

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from typing import Any

import hoplite_ucx as hoplite
from hoplite_ucx.dask.keeper import socket_of
from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.dask.threads import in_thread
from hoplite_ucx.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.transports import shm

JOIN_SECONDS = 30.0
"""For a keeper and an agent to start, on a busy machine too."""
_PAUSE = 0.02
_LAST = 0.5
"""Seconds for a last question, if this process was paused until all time was over."""
_RETRY = 1.0


class Lease:
    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._owners: set[int] = set()
        self._changed = threading.Condition()
        self._joining = threading.Lock()
        """Held by whoever joins, so that nobody joins twice."""
        self._cluster: hoplite.Cluster | None = None
        self._held: socket.socket | None = None
        self._error: HopliteError | None = None
        """Why there is no agent, when that was tried last."""

    @property
    def cluster(self) -> hoplite.Cluster:
        """Of the agent as it is now. Waits while the agent is replaced."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._cluster is not None or not self._owners, JOIN_SECONDS):
                raise self._error or closed("this host's agent does not start", "see the worker's log")
            if self._cluster is None:
                raise closed("this process has left the Dask cluster", "use a client that is open")
            return self._cluster

    async def cluster_soon(self) -> hoplite.Cluster:
        """The same, without blocking the event loop."""
        joined = self._cluster
        return joined if joined is not None else await in_thread(lambda: self.cluster)

    def joined(self) -> hoplite.Cluster | None:
        """The same without waiting; None while there is none."""
        return self._cluster

    def hold(self, owner: object) -> None:
        """Returns when the agent is there. If it cannot be had, raises why, and the owner does not hold anything."""
        with self._changed:
            self._owners.add(id(owner))
        try:
            self._join()
        except BaseException:  # whatever it is: an owner that was not told that it holds a lease will not release it
            self.release(owner)
            raise

    def release(self, owner: object) -> None:
        """Harmless if the owner does not hold it. The last one leaves the cluster."""
        with self._changed:
            self._owners.discard(id(owner))
            if self._owners:
                return
            cluster, self._cluster = self._cluster, None
            held, self._held = self._held, None
            self._changed.notify_all()
        if cluster is not None:
            cluster.close()
        if held is not None:
            _end(held)

    def _join(self) -> None:
        """Unless it has joined, or another thread does just now: then it waits for that one, and tries if that
        failed."""
        with self._joining:
            if self._cluster is None:
                self._reach_agent()

    def _reach_agent(self) -> None:
        held, agent = _reach_keeper(self.terms)
        try:
            cluster = hoplite.connect(self.terms.address, agent=agent)
        except HopliteError:
            _end(held)
            raise
        with self._changed:
            if self._owners:
                self._cluster, self._held, self._error = cluster, held, None
                self._changed.notify_all()
                threading.Thread(target=self._watch, args=(held,), name="hoplite-lease", daemon=True).start()
                return
        cluster.close()  # everybody left meanwhile
        _end(held)

    def _watch(self, held: socket.socket) -> None:
        """The connection has ended: so has the agent, unless we closed it."""
        with contextlib.suppress(OSError):
            held.recv(1)
        with self._changed:
            if self._held is not held:
                return
            old, self._cluster, self._held = self._cluster, None, None
        _end(held)
        if old is not None:
            old.close()
        while True:
            try:
                self._join()
                return
            except HopliteError as error:
                with self._changed:
                    self._error = error
                    if self._changed.wait_for(lambda: not self._owners, _RETRY):
                        return


_leases: dict[str, Lease] = {}
_lock = threading.Lock()


def hold(terms: Terms, owner: object) -> Lease:
    """Join the cluster for this owner, until `release`. Blocks until the agent is there, or raises a typed error."""
    with _lock:
        lease = _leases.setdefault(terms.cluster_id, Lease(terms))
    lease.hold(owner)
    return lease


def lease_of(cluster_id: str) -> Lease:
    """Of a cluster that this process joined."""
    lease = _leases.get(cluster_id)
    if lease is None:
        detail = "this handle belongs to another Dask cluster, or hoplite is not installed in this process"
        raise closed(detail, "use the handle in the cluster it was made for, after hoplite_ucx.dask.install(client)")
    return lease


def closed(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.CLOSED, detail, remedy).exception()


def _end(held: socket.socket) -> None:
    with contextlib.suppress(OSError):
        held.shutdown(socket.SHUT_RDWR)  # wakes the thread that watches it
    held.close()


def _reach_keeper(terms: Terms) -> tuple[socket.socket, str]:
    """A connection to this host's keeper, and the name of its agent. Starts a keeper if there is none."""
    try:
        return _ask_or_start_keeper(terms)
    except OSError as error:  # no process, or no descriptor
        detail = f"this host's keeper of the hoplite agent could not be started or reached: {error}"
        raise closed(detail, "raise this user's limits on processes and open files") from error


def _ask_or_start_keeper(terms: Terms) -> tuple[socket.socket, str]:
    deadline = time.monotonic() + JOIN_SECONDS
    keeper: subprocess.Popen[bytes] | None = None
    while True:
        left = deadline - time.monotonic()
        if (found := _ask_keeper(terms, max(left, _LAST))) is not None:
            held, report = found
            if "error" in report:
                _end(held)
                raise closed(f"no hoplite agent could be started on this host: {report['error']}", report["remedy"])
            return held, str(report["agent"])
        if left <= 0:
            detail = f"this host's keeper of the hoplite agent did not answer within {JOIN_SECONDS:g} s"
            raise closed(detail, "see the messages in this process's log, and this machine's load")
        if keeper is None or keeper.poll() is not None:
            keeper = _start_keeper(terms)
        time.sleep(_PAUSE)


def _ask_keeper(terms: Terms, seconds: float) -> tuple[socket.socket, dict[str, Any]] | None:
    """None if there is no keeper, or it ends just now."""
    held = socket.socket(socket.AF_UNIX)
    held.settimeout(seconds)
    with contextlib.suppress(OSError):
        held.connect(socket_of(terms.cluster_id))
        if shm.peer_uid(held) == os.getuid() and (line := _read_line(held)):
            held.settimeout(None)
            return held, json.loads(line)
    held.close()
    return None


def _read_line(held: socket.socket) -> bytes:
    """The keeper says one line, and nothing after it. Empty if it ended before."""
    line = b""
    while not line.endswith(b"\n"):
        piece = held.recv(65536)
        if not piece:
            return b""
        line += piece
    return line


def _start_keeper(terms: Terms) -> "subprocess.Popen[bytes]":
    keeper = subprocess.Popen(
        processes.module("hoplite_ucx.dask.keeper"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # it outlives this process
        cwd="/",
    )
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError), keeper.stdin:
        keeper.stdin.write(json.dumps(terms.to_dict()).encode() + b"\n")
    _keepers.append(keeper)
    _keepers[:] = [started for started in _keepers if started.poll() is None]
    return keeper


_keepers: "list[subprocess.Popen[bytes]]" = []
"""Those that this process started: looked at now and then, so that no dead one stays a zombie."""
