"""What a Dask user calls in a client. On an async client every call but `value_of` is to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

from distributed import Client, Future

import hoplite_ucx as hoplite
from hoplite_ucx.dask import anchors, leases, scheduler_plugin
from hoplite_ucx.dask.handles import OpenedResult, Shared
from hoplite_ucx.dask.leases import Lease, closed
from hoplite_ucx.dask.scheduler_plugin import HopliteScheduler
from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.dask.threads import in_thread
from hoplite_ucx.dask.worker_plugin import HopliteWorker
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.worker.checks import check_count, check_memory, invalid, operation

_POLL = 0.002
_LONGEST_POLL = 0.05
_DELETE_SECONDS = 5.0
_LEASE = "_hoplite_lease"


def install(client: Client, *, memory: int | str | None = None, rate: float | None = None) -> Any:
    """Start hoplite in this client's Dask cluster: a directory beside the scheduler, and an agent on every host.

    Once per cluster is enough, and more often is harmless: workers that come later join by themselves, other clients
    call it to join too. `memory` limits the store on each host, as bytes or as a text such as "4GiB"; without it, 4 GiB
    or half of the host's memory. `rate` is what each host's network card carries, in bytes a second; without it, the
    system is asked. Of later calls, `memory` and `rate` are ignored.

    Raises `InvalidRequestError` for what cannot be meant, and `ClosedError` if hoplite cannot be started, for example
    because the package is missing where the scheduler or a worker runs.
    """
    limit = check_memory(memory)
    if rate is not None and not rate > 0:
        raise invalid(f"a rate is a number of bytes a second, not {rate!r}", "correct it, or leave it out")
    return client.sync(_install, client, limit, rate)


async def _install(client: Client, memory: int | None, rate: float | None) -> None:
    for plugin in (HopliteScheduler(memory, rate), HopliteWorker()):
        try:
            registered = client.register_plugin(plugin)
            if inspect.isawaitable(registered):
                await registered
        except HopliteError:
            raise
        except Exception as error:
            where = "the Dask scheduler" if isinstance(plugin, HopliteScheduler) else "a Dask worker"
            detail = f"hoplite cannot be installed in {where}: {type(error).__name__}: {error}"
            remedy = "install hoplite-ucx, in this version, in the environment of the scheduler and of every worker"
            raise closed(detail, remedy) from error
    if getattr(client, _LEASE, None) is None:
        terms = Terms(**await getattr(client.scheduler, scheduler_plugin.TERMS)())
        lease = await in_thread(leases.hold, terms, client)
        setattr(client, _LEASE, lease)
        _release_with(client, lease)


def _release_with(client: Client, lease: Lease) -> None:
    """Dask tells nobody that a client closes: its method is wrapped."""
    close_client = client._close

    async def close(*args: Any, **kwargs: Any) -> Any:
        setattr(client, _LEASE, None)
        await in_thread(lease.release, client)
        return await close_client(*args, **kwargs)

    client._close = close


def broadcast(client: Client, value: Any, *, workers: Sequence[str] | None = None, prefetch: bool = False) -> Any:
    """Put a value, or the result of a future, where every worker gets it through a tree. Returns a `Shared`, which is
    passed to tasks like a future: `client.submit(train, broadcast(client, model))`.

    With `prefetch`, every host has it when this returns (those of `workers`, by address or name, if they are given);
    without, a host gets it when the first of its tasks needs it. The value must not be changed before this returns.

    Raises the errors of `hoplite_ucx.put`, such as `StoreFullError`, and the future's own exception; `ClosedError` if
    hoplite is not installed in this client, or with `prefetch`, if a host cannot get the object.
    """
    return client.sync(_broadcast, client, value, None if workers is None else list(workers), prefetch)


async def _broadcast(client: Client, value: Any, workers: list[str] | None, prefetch: bool) -> Shared:
    lease = _lease(client)
    ref = hoplite.new_ref()
    if isinstance(value, Future):
        shared = _share(lease, _own_future(client, value), ref)
        if prefetch:
            await shared.future._result()  # or its exception
            await _prefetch(client, ref, workers)
        return shared
    cluster = await lease.cluster_soon()
    putting = asyncio.ensure_future(cluster.aio.put(value, ref=ref))
    fetching: asyncio.Future[None] | None = None
    anchor: Future | None = None
    try:
        # Tasks may ask for it as soon as the directory knows it: what it does not know counts as lost.
        await _until_known(cluster, ref, putting)
        anchor = client.submit(
            anchors.announce, key=f"{anchors.BROADCAST}{ref.hex()}", priority=anchors.PRIORITY, pure=False
        )
        shared = Shared.anchored(lease.terms.cluster_id, ref, anchor)
        if prefetch:
            fetching = asyncio.ensure_future(_prefetch(client, ref, workers))
        await putting
        if fetching is not None:
            await fetching
    except BaseException:  # also if it is cancelled
        for task in (putting, fetching):
            if task is not None:
                task.cancel()
        if anchor is None:  # else Dask forgets it, and the object is deleted with it
            with contextlib.suppress(HopliteError):
                await cluster.aio.delete(ref, timeout=_DELETE_SECONDS)
        raise
    return shared


async def _until_known(cluster: hoplite.Cluster, ref: hoplite.ObjectRef, putting: asyncio.Future[Any]) -> None:
    pause = _POLL
    while not (await cluster.aio.info(ref)).exists:
        await asyncio.wait([putting], timeout=pause)
        if putting.done():
            await putting  # or its error
            return
        pause = min(2 * pause, _LONGEST_POLL)


async def _prefetch(client: Client, ref: hoplite.ObjectRef, workers: list[str] | None) -> None:
    failed = await getattr(client.scheduler, scheduler_plugin.PREFETCH)(ref=ref.binary, workers=workers)
    if failed:
        worker, why = next(iter(failed.items()))
        detail = f"{len(failed)} hosts could not get the object; {worker} says: {why}"
        raise closed(detail, "see that worker's log, or leave prefetch out: tasks get it when they need it")


def reduce(futures: Sequence[Future | Shared], op: str = "sum", count: int | None = None) -> Any:
    """Combine the results of futures, element by element, through a tree. Returns a `Shared` of the result.

    The results must be arrays or numbers, or dicts, lists and tuples of them, of the same dtypes and shapes. With a
    `count`, the first so many that are ready go in, and stragglers are not waited for: `contributors()` says which went
    in. The operations: sum, prod, min, max, mean, and, or, xor. What `broadcast` and `reduce` return can be a source,
    too.

    Raises `InvalidRequestError` for what cannot be meant. If a future fails, tasks that take the result fail with the
    future's own exception.
    """
    return _begin_reduce(futures, op, count, everywhere=False)


def allreduce(futures: Sequence[Future | Shared], op: str = "sum", count: int | None = None) -> Any:
    """Like `reduce`, for a result that tasks on every host with a source will take. Raises what `reduce` raises."""
    return _begin_reduce(futures, op, count, everywhere=True)


def _begin_reduce(futures: Sequence[Future | Shared], op: str, count: int | None, *, everywhere: bool) -> Any:
    if not isinstance(futures, list | tuple) or not futures:
        raise invalid("reduce needs a list of futures", "give [future, ...], such as client.map returns")
    for future in futures:
        if not isinstance(future, Future | Shared):
            remedy = "give futures, such as client.submit returns"
            raise invalid(f"a source of reduce is a {type(future).__name__}, not a future", remedy)
    how = operation(op).value
    needed = check_count(len(futures) if count is None else count, len(futures), "futures")
    client = _future_of(futures[0]).client
    for future in futures:
        _own_future(client, _future_of(future))
    return client.sync(_reduce, client, list(futures), how, needed, everywhere)


async def _reduce(client: Client, futures: list[Future | Shared], op: str, count: int, everywhere: bool) -> Shared:
    lease = _lease(client)
    sources = [_as_shared(lease, future) for future in futures]
    refs = [source.ref for source in sources]
    if len(set(refs)) != len(refs):
        raise invalid("a source is listed more than once", "give each source once")
    target = hoplite.new_ref()
    if count < len(refs) or any(_future_of(future).status == "pending" for future in futures):
        # Now: what is ready is combined while others are computed. If all are ready, the anchor begins. Dask runs the
        # tasks that take the result where the anchor ran, so the tree ends there; and an allreduce that finds all its
        # sources goes in stripes.
        cluster = await lease.cluster_soon()
        begin = cluster.aio.allreduce if everywhere else cluster.aio.reduce
        await begin(refs, op, count, ref=target)
    shares = [source.future for source in sources]
    anchor = client.submit(
        anchors.reduce,
        lease.terms.cluster_id,
        target.binary,
        [ref.binary for ref in refs],
        [future.key for future in shares],
        op,
        count,
        everywhere,
        *(shares if count == len(refs) else ()),
        key=f"{anchors.REDUCE}{target.hex()}",
        priority=anchors.PRIORITY,
        pure=False,
    )
    if count < len(refs):
        _keep_until_decided(anchor, sources)
    return Shared.anchored(lease.terms.cluster_id, target, anchor, sources)


_undecided: dict[Any, tuple[Future, list[Shared]]] = {}


def _keep_until_decided(anchor: Future, sources: list[Shared]) -> None:
    """The anchor of a reduction that does not wait for all its sources depends on none of them in Dask. If the caller
    drops the result, because a task has it, the sources must not be forgotten before they have gone in."""
    _undecided[anchor.key] = (anchor, sources)
    anchor.add_done_callback(lambda done: _undecided.pop(done.key, None))


def value_of(future: Future) -> OpenedResult:
    """The value behind a future whose task returned `share(...)`, as an argument of tasks:
    `client.submit(use, value_of(future))` calls `use` with the value itself. Raises `InvalidRequestError` unless it is
    given a future. If the future's task returned something else than `share(...)`, the task that takes it fails."""
    if not isinstance(future, Future):
        raise invalid(f"value_of needs a future, not a {type(future).__name__}", "give what client.submit returned")
    return OpenedResult.behind(future)


def _share(lease: Lease, future: Future, ref: hoplite.ObjectRef) -> Shared:
    cluster_id = lease.terms.cluster_id
    anchor = future.client.submit(
        anchors.put,
        future,
        cluster_id,
        ref.binary,
        key=f"{anchors.SHARE}{ref.hex()}",
        priority=anchors.PRIORITY,
        pure=False,
    )
    return Shared.anchored(cluster_id, ref, anchor)


def _as_shared(lease: Lease, source: Future | Shared) -> Shared:
    return source if isinstance(source, Shared) else _share(lease, source, hoplite.new_ref())


def _future_of(source: Future | Shared) -> Future:
    return source.future if isinstance(source, Shared) else source


def _own_future(client: Client, future: Future) -> Future:
    if future.client.id != client.id:
        raise invalid("a future belongs to another Dask client", "use futures of the client that is given")
    return future


def _lease(client: Client) -> Lease:
    lease: Lease | None = getattr(client, _LEASE, None)
    if lease is None:
        raise closed("hoplite is not installed in this Dask client", "call hoplite_ucx.dask.install(client) first")
    return lease
