"""The one cluster that this process belongs to: `init`, `shutdown`, and the client that every call uses."""

import atexit
import os
import threading

from hoplite_ucx.runtime import cluster as clusters
from hoplite_ucx.runtime.checks import check_text, invalid
from hoplite_ucx.runtime.client import Client, closed, forked


class _Process:
    """What `init` made, and for which process: a forked child finds its parent's here."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may call shutdown() in the middle of it, or of init()
        self.starting = False
        self.cluster: clusters.Cluster | None = None
        self.pid = 0

    def initialized(self) -> bool:
        return self.cluster is not None and self.pid == os.getpid()


_here = _Process()


def init(address: str | None = None, *, memory: int | None = None, agent: str | None = None) -> None:
    """Make this process part of a cluster.

    Without an address (and without `HOPLITE_ADDRESS`) a private cluster is started on loopback, which ends with this
    process; `memory` limits its store, in bytes. With one, the agent that runs on this host for the cluster at that
    address is used; `agent` names it where a host runs several.
    """
    check_text("address", address)
    check_text("agent", agent)
    given: object = memory
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise invalid(f"memory must be a number of bytes, not {given!r}", "give 4 << 30, for example")
    with _here.lock:
        if _here.initialized() or _here.starting:
            raise invalid("hoplite is initialised already", "call shutdown() first")
        _here.starting = True
        try:
            _here.cluster = _make(address, memory, agent)
            _here.pid = os.getpid()
        finally:
            _here.starting = False


def _make(address: str | None, memory: int | None, agent: str | None) -> clusters.Cluster:
    where = address if address is not None else os.environ.get(clusters.ADDRESS) or None
    if where is None:
        return clusters.start_embedded(memory or clusters.default_memory())
    if memory is not None:
        raise invalid("memory is for an embedded cluster", "give the limit to `hoplite start` instead")
    if agent is None and address is None:
        agent = os.environ.get(clusters.AGENT) or None
    return clusters.join(where, agent)


def shutdown() -> None:
    """Leave the cluster; an embedded one ends. Arrays that came from `get` stay valid. Harmless if there is none."""
    with _here.lock:
        cluster, _here.cluster = _here.cluster, None
        if cluster is not None and _here.pid == os.getpid():
            cluster.close()


def is_initialized() -> bool:
    """Whether `init` was called in this process, and `shutdown` was not."""
    return _here.initialized()


def client() -> Client:
    """The client of this process."""
    cluster = _here.cluster
    if cluster is None:
        raise closed("hoplite is not initialised in this process", "call hoplite.init() first")
    if _here.pid != os.getpid():
        raise forked()
    return cluster.client


def _new_lock_in_child() -> None:
    _here.lock = threading.RLock()  # a thread that held it does not exist here
    _here.starting = False


os.register_at_fork(after_in_child=_new_lock_in_child)
atexit.register(shutdown)
