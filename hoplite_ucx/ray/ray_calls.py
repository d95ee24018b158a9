"""Ray as our threads use it: connected, or an error.

The functions of `ray` itself start a new Ray in a process whose Ray was shut down; a thread of ours that is late must
not do that. An answer that is waited for with `ray.get` is a warning in an async actor; `answer` waits without one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import ray
from ray._private import state as _state
from ray._private import worker as _worker

from hoplite_ucx.ray.errors import closed

_log = logging.getLogger("hoplite.ray")

_LEAVE_SECONDS = 5.0

put = _worker.put
get_actor = _worker.get_actor
kill = _worker.kill
wait = _worker.wait


def answer(ref: Any, seconds: float) -> Any:
    """What a call of an actor returned. Raises its error, or `ray.exceptions.GetTimeoutError`."""
    try:
        return ref.future().result(seconds)
    except TimeoutError as error:
        if isinstance(error, ray.exceptions.RayError):
            raise
        raise ray.exceptions.GetTimeoutError(f"no answer within {seconds:g} s") from None


def whereabouts() -> tuple[str, str]:
    """The ids of the Ray cluster and of the job that this process belongs to. The first job of every cluster has the
    same id."""
    cluster, job = _worker.global_worker.current_cluster_and_job
    return cluster.hex(), job.hex()


def connection() -> object:
    """What this process is connected to, as long as it is: another object after `ray.shutdown()` and `ray.init()`. It
    asks nothing of Ray, whose library ends a process that calls it after its end."""
    return _worker.global_worker.node if _worker.global_worker.connected else None


class _Leaving:
    """This process leaves Ray. A thread that calls Ray a moment too late, or drops a ref, would end the process with an
    error; and Ray itself tells nobody that it is shut down."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps: list[Callable[[], None]] = []
        self._users = 0
        self._begun = False
        leave = _worker.shutdown

        @functools.wraps(leave)
        def shutdown(*args: Any, **kwargs: Any) -> None:
            self._prepare()
            try:
                leave(*args, **kwargs)
            finally:
                self._begun = False

        ray.shutdown = _worker.shutdown = shutdown
        atexit.register(self._prepare)  # it runs before Ray's own, which was registered before

    def _prepare(self) -> None:
        if connection() is None:
            return
        for step in self._steps:
            step()
        with self._changed:
            self._begun = True
            self._changed.wait_for(lambda: not self._users, _LEAVE_SECONDS)

    def add(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    @contextlib.contextmanager
    def staying(self) -> Iterator[None]:
        with self._changed:
            if self._begun or connection() is None:
                raise closed("this process leaves Ray, or has left it", "call ray.init() first")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()


_leaving = _Leaving()
before_shutdown = _leaving.add
"""Have a function called before this process leaves Ray, by `ray.shutdown()` or at its own end."""
staying = _leaving.staying
"""A block on a thread of ours: this process does not leave Ray meanwhile, for some seconds."""


def node_id() -> str:
    """Of the Ray node that this process is on."""
    node: str = _worker.global_worker.current_node_id.hex()
    return node


def on_end(token: Any, callback: Any) -> None:
    """Have a function called when the last reference to a Ray ref of this process, anywhere, is gone."""
    _worker.global_worker.core_worker.add_object_out_of_scope_callback(token, callback)


def referred(ids: Collection[bytes]) -> set[bytes] | None:
    """Those of these Ray objects to which some process of the cluster refers, by the books that `ray memory` prints.
    None if they cannot be read: a node does not answer, or the package `grpcio` is missing here."""
    try:
        from ray._private.internal_api import node_stats

        found: set[bytes] = set()
        for node in _state.nodes():
            if node["Alive"]:
                for worker in node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).core_workers_stats:
                    found.update(
                        each.object_id for each in worker.object_refs if each.object_id in ids and _counts(each)
                    )
        return found
    except Exception as error:  # of grpc, of Ray, or of an import
        _log.warning("Ray's books cannot be read, so that unused arrays may stay for some minutes: %s", error)
        return None


def _counts(entry: Any) -> bool:
    """Not so for a process that had it: the entry stays until the owner asks for it, which may be never."""
    return bool(entry.local_ref_count or entry.submitted_task_ref_count or entry.contained_in_owned)


def is_serializing() -> bool:
    """Whether this thread serialises a value for Ray's store: one that holds refs, and travels by Ray's own means.

    Not so while a program uses cloudpickle itself, while a function is sent with what it closes over, and while tensors
    are taken out for one of Ray's tensor transports.
    """
    if not _worker.global_worker.connected:
        return False
    context = _worker.global_worker.get_serialization_context()
    return context.is_in_band_serialization() and not getattr(context._thread_local, "use_external_transport", False)


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Ray deserialises under one lock of the process: while we wait, nobody else here could deserialise anything, the
    threads that we wait for among them."""
    lock = _worker.global_worker.function_actor_manager.lock
    state = lock._release_save() if lock._is_owned() else None
    try:
        yield
    finally:
        if state is not None:
            lock._acquire_restore(state)
