"""Getting at an object: in a task, where a loss makes Dask compute it again, and in a client.

Dask knows that the object was put: its anchor has run. So an object that the directory does not know is lost, and
nobody waits for it. While it is known, it comes: every get is bounded, and is made again for as long as the directory
knows the object.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from distributed import Future, Reschedule, get_worker

import hoplite_ucx as hoplite
from hoplite_ucx.adapters.known_objects import SLICE, Lost, get_known, is_known
from hoplite_ucx.dask.decoded_values import values
from hoplite_ucx.dask.leases import Lease, closed, lease_of
from hoplite_ucx.dask.threads import in_thread
from hoplite_ucx.errors import ClosedError, Failure, FailureKind, GetTimeoutError, HopliteError, ObjectLostError
from hoplite_ucx.runtime.worker.object_info import ObjectInfo

R = TypeVar("R")

PLUGIN = "hoplite"
"""The name of ours, in the scheduler and in workers."""
LOST = "hoplite_lost"
"""The message that tells the scheduler's plugin of a loss."""
RESULT_SECONDS = 300.0
_ATTEMPTS = 3
"""So often an agent may be replaced while one call is made."""
_POLL = 0.05


class Handle(Protocol):
    """What is asked of a `Shared` here."""

    args: tuple[Any, ...]
    _sources: Sequence[Any]

    @property
    def ref(self) -> hoplite.ObjectRef: ...

    @property
    def future(self) -> Future: ...


def open_in_task(cluster_id: str, ref: bytes, key: Any, _anchor: Any = None) -> Any:
    """The value, in the task that takes it. If it is lost, that task is run again after the one that makes the
    value."""
    lease = lease_here(cluster_id)
    name = hoplite.ObjectRef(ref)
    try:
        return values.get(ref, lambda keep: on_agent(lease, lambda cluster: _fetch(cluster, name, keep)))
    except Lost:
        report_lost(key)
        raise Reschedule from None


def lease_here(cluster_id: str) -> Lease:
    """In a task, that of its worker; else that of this process."""
    try:
        worker = get_worker()
    except ValueError:
        return lease_of(cluster_id)
    lease = lease_of_worker(worker)
    if lease.terms.cluster_id != cluster_id:
        raise closed("this handle belongs to another Dask cluster", "use it in the cluster that it was made for")
    return lease


def lease_of_worker(worker: Any) -> Lease:
    lease: Lease | None = getattr(worker.plugins.get(PLUGIN), "lease", None)
    if lease is None:
        detail = f"hoplite is not installed in the Dask worker {worker.address}"
        raise closed(detail, "call hoplite_ucx.dask.install(client), and see the worker's log")
    return lease


def report_lost(key: Any) -> None:
    """In a task: the scheduler has the key's object made again, or cancels what depends on it."""
    try:
        worker = get_worker()
    except ValueError:
        raise _lost_for_good(key) from None
    worker.loop.add_callback(worker.batched_stream.send, {"op": LOST, "key": key})


def on_agent(lease: Lease, call: Callable[[hoplite.Cluster], R]) -> R:
    """Make a call that may be made again. If the agent dies, it is made with the next one."""
    for _ in range(_ATTEMPTS - 1):
        cluster = lease.cluster
        try:
            return call(cluster)
        except ClosedError:
            _await_another(lease, cluster)
    return call(lease.cluster)


def _fetch(cluster: hoplite.Cluster, ref: hoplite.ObjectRef, keep: Callable[[], None]) -> Any:
    def look(found: ObjectInfo) -> None:
        _check_remembered(found)
        if _is_pickled(found):
            keep()

    return get_known(cluster, ref, look)


def _await_another(lease: Lease, old: hoplite.Cluster) -> None:
    """The lease's thread notices the agent's end a moment after the calls do."""
    ends = time.monotonic() + 5.0
    while lease.joined() is old and time.monotonic() < ends:
        time.sleep(_POLL)


def _check_remembered(found: ObjectInfo) -> ObjectInfo:
    if found.state is hoplite.ObjectState.DELETED:
        detail = "Dask has forgotten the future behind this handle, and the object was deleted"
        remedy = "keep the handle, or a future that depends on it, until the last task that takes it was submitted"
        raise Failure(FailureKind.DELETED, detail, remedy, found.ref.binary).exception()
    return found


def _is_pickled(found: ObjectInfo) -> bool:
    return found.layout is not None and found.layout.startswith("a pickled")


def _lost_for_good(key: Any) -> HopliteError:
    detail = f"every copy of the object of {key!r} is lost, and only a task can have it made again"
    return Failure(FailureKind.LOST, detail, "pass the handle to a task, or make the object again").exception()


# --- in a client ------------------------------------------------------------------------------------------------


async def result(shared: Handle, timeout: float | None) -> Any:
    """What `Shared.result` returns. A lost object is made again by a task that takes it and returns nothing."""
    ends = None if timeout is None else time.monotonic() + timeout
    client = shared.future.client
    while True:
        await _anchor_of(shared, _left(ends))
        lease = lease_of(shared.args[0])
        cluster = await lease.cluster_soon()
        try:
            while is_known(_check_remembered(await cluster.aio.info(shared.ref, timeout=_left(ends)))):
                try:
                    left = _left(ends)
                    return await cluster.aio.get(shared.ref, timeout=SLICE if left is None else min(left, SLICE))
                except GetTimeoutError:
                    if ends is not None and time.monotonic() >= ends:
                        raise
        except ObjectLostError:
            pass
        except ClosedError:
            await in_thread(_await_another, lease, cluster)
            if ends is not None and time.monotonic() >= ends:
                raise
            continue
        await _done(client.submit(_touch, shared, pure=False), _left(ends))


def _touch(_value: Any) -> None:
    """Takes the value: Dask has it made if it is lost."""


async def contributors(shared: Handle, timeout: float | None) -> list[int]:
    if not shared._sources:
        raise closed("this handle is not the result of a reduction", "call contributors on what reduce returned")
    ends = None if timeout is None else time.monotonic() + timeout
    await _anchor_of(shared, timeout)
    lease = lease_of(shared.args[0])
    cluster = await lease.cluster_soon()
    places = {source.ref: place for place, source in enumerate(shared._sources)}
    return [places[ref] for ref in await cluster.aio.contributors(shared.ref, timeout=_left(ends))]


async def _anchor_of(shared: Handle, seconds: float | None) -> None:
    """Wait for the anchor; raises what made it fail."""
    try:
        await _done(shared.future, seconds)
    except HopliteError:  # for want of sources, perhaps: then what they raised says more
        for source in shared._sources:
            if source.future.status == "error":
                await source.future._result()
        raise


async def _done(future: Future, seconds: float | None) -> None:
    """Wait for a task, and raise what it raised, be that a `TimeoutError` of the user's."""
    if future.status == "finished":
        return
    result = asyncio.ensure_future(future._result())
    try:
        done, _ = await asyncio.wait([result], timeout=seconds)
    finally:
        result.cancel()  # harmless if it is done
    if not done:
        detail = f"the tasks that make this object have not finished after {seconds:g} s"
        failure = Failure(FailureKind.TIMEOUT, detail, "check them in Dask's dashboard, or give a longer timeout")
        raise failure.exception()
    result.result()


def _left(ends: float | None) -> float | None:
    return None if ends is None else max(0.0, ends - time.monotonic())
