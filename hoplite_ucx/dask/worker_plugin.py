"""In a worker: it holds a lease of its host's agent, and carries out what the scheduler's plugin asks."""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin, get_worker

import hoplite_ucx as hoplite
from hoplite_ucx.dask import access, leases, scheduler_plugin
from hoplite_ucx.dask.decoded_values import values
from hoplite_ucx.dask.handles import SharedResult
from hoplite_ucx.dask.leases import Lease, closed
from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.dask.threads import in_thread
from hoplite_ucx.errors import HopliteError

_FETCH_SECONDS = 300.0
_DELETE_SECONDS = 10.0


class HopliteWorker(WorkerPlugin):
    name = access.PLUGIN
    idempotent = True

    lease: Lease | None = None
    """None if it could not be had: Dask keeps a plugin whose setup failed."""

    async def setup(self, worker: Any) -> None:
        terms = Terms(**await getattr(worker.scheduler, scheduler_plugin.TERMS)())
        self.lease = await in_thread(leases.hold, terms, worker)
        worker.handlers[scheduler_plugin.FETCH] = self.fetch
        worker.handlers[scheduler_plugin.DELETE] = self.delete
        worker.stream_handlers[scheduler_plugin.FORGET] = self.forget

    async def teardown(self, worker: Any) -> None:
        if self.lease is not None:
            await in_thread(self.lease.release, worker)

    async def fetch(self, ref: bytes) -> str:
        """Into the host's store. Nothing is decoded."""
        await in_thread(_fetch, self._held(), ref)
        return "OK"

    async def delete(self, refs: list[bytes]) -> str:
        cluster = self._held().joined()
        if cluster is None:
            return "this worker's agent is being replaced"
        try:
            await cluster.aio.delete([hoplite.ObjectRef(ref) for ref in refs], timeout=_DELETE_SECONDS)
        except HopliteError as error:  # another worker is asked
            return str(error)
        return "OK"

    def _held(self) -> Lease:
        assert self.lease is not None  # else there are no handlers
        return self.lease

    def forget(self, refs: list[bytes], **_: Any) -> None:
        values.forget(refs)


def _fetch(lease: Lease, ref: bytes) -> None:
    lease.cluster._of.client.get_one(ref, _FETCH_SECONDS)


def share(value: Any) -> SharedResult:
    """Inside a task: store a value for other tasks, and return what stands for it, to be returned by the task.

    The object lives for as long as Dask keeps the task's key, and is made again by running the task if it is lost. The
    next task receives the value if its argument is `value_of(future)`.

    Raises the errors of `hoplite_ucx.put`, such as `StoreFullError`, and `ClosedError` outside a task.
    """
    try:
        worker = get_worker()
    except ValueError:
        raise closed("share was called outside a Dask task", "use broadcast(client, value) in a client") from None
    lease = access.lease_of_worker(worker)
    # Under a name made before, it is known everywhere when put returns: if the directory does not know it later, it is
    # lost.
    ref = hoplite.new_ref()
    key = worker.get_current_task()
    # Before it is put: if this worker dies in between, the scheduler knows what to delete.
    worker.loop.add_callback(worker.batched_stream.send, {"op": scheduler_plugin.MADE, "key": key, "ref": ref.binary})
    access.on_agent(lease, lambda cluster: cluster.put(value, ref=ref))
    return SharedResult(lease.terms.cluster_id, ref.binary, key)
