"""The async twin of the API: the same calls for asyncio.

Any number of tasks may wait for objects at the same time: the event loop itself watches for the agent's replies.
Cancelling a task ends its call. Only work that would block the loop runs on threads: pickling, copying out of the
store, and puts of large objects, of which a bounded number runs at a time. A put that is cancelled there continues in
the background until it is done or its `timeout` is over. A program does not wait for these threads when it ends.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.objects.device_values import current_stream
from hoplite_ucx.runtime.objects.filling import Progress
from hoplite_ucx.runtime.objects.values import encode
from hoplite_ucx.runtime.worker import calls, device_gets, loop_calls, scopes
from hoplite_ucx.runtime.worker.calls import AS_IT_WAS, Library, Wish, value_of, wish_of
from hoplite_ucx.runtime.worker.checks import (
    DEFAULT_TIMEOUT,
    REJOIN_SECONDS,
    check_path,
    check_seconds,
    check_stream,
    check_timeout,
    list_of_outs,
    list_of_refs,
    list_of_values,
    optional_ref,
    ref_for_object,
    refs_for_values,
)
from hoplite_ucx.runtime.worker.connection import late
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool
from hoplite_ucx.runtime.worker.in_place_puts import Draft, one_draft, open_draft
from hoplite_ucx.runtime.worker.loop_calls import Got, LoopCalls, in_thread
from hoplite_ucx.runtime.worker.membership import Membership
from hoplite_ucx.runtime.worker.object_info import ObjectInfo
from hoplite_ucx.runtime.worker.refs import ObjectRef
from hoplite_ucx.runtime.worker.scopes import note_made

R = TypeVar("R")

_large_puts = DaemonPool(32, "hoplite-put")


class AsyncCluster:
    """The calls of a `Cluster` for asyncio: its `aio`, or the result of `aio.connect`. Every loop may use it.

    Arguments, timeouts and errors are those of the calls of the same name. Cancelling a task ends its call; a put of a
    large object that is cancelled continues in the background until it is done or its `timeout` is over.
    """

    def __init__(self, of: Membership) -> None:
        self._of = of

    @property
    def address(self) -> str:
        """See `Cluster.address`."""
        return self._of.client.greeting.directory

    @property
    def cluster_id(self) -> str:
        """See `Cluster.cluster_id`."""
        return self._of.client.greeting.cluster

    @property
    def agent(self) -> str:
        """See `Cluster.agent`."""
        return self._of.client.greeting.agent

    @property
    def is_open(self) -> bool:
        """See `Cluster.is_open`."""
        return self._of.attachment is not None

    async def rejoin(self, *, timeout: float = REJOIN_SECONDS, agent: str | None = None) -> None:
        """See `Cluster.rejoin`."""
        await in_thread(partial(self._of.renew, check_seconds(timeout), agent))

    async def close(self) -> None:
        """See `Cluster.close`."""
        await in_thread(self._of.end)

    async def __aenter__(self) -> "AsyncCluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> tuple[type["AsyncCluster"], tuple[Membership]]:
        """See `Cluster.__reduce__`."""
        return AsyncCluster, (self._of,)

    def _here(self) -> LoopCalls:
        return loop_calls.of_this_loop(self._of.client)

    # --- put and get -------------------------------------------------------------------------------------------

    async def put(
        self,
        value: object,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        stream: object = None,
    ) -> ObjectRef:
        """See `Cluster.put`. Without `stream`, the current one is that of the thread of the event loop."""
        here = self._here()
        seconds = check_timeout(timeout)
        optional_ref(ref)
        behind = current_stream() if stream is None else check_stream(stream)
        encoded = await in_thread(partial(encode, value))
        encoded.stream = behind
        name = ref_for_object(ref, encoded.size, here.client.greeting.inline_limit)
        if encoded.size <= here.client.greeting.small_limit:
            here.client.reader.is_near(name.binary)
            await here.carry_out(calls.put_small(name.binary, encoded, seconds, fresh=ref is None))
        else:
            await _at_length(self._of, partial(here.client.put, name.binary, encoded, fresh=ref is None), seconds)
        return note_made(self._of, name)

    async def put_many(
        self,
        values: Iterable[object],
        *,
        refs: Sequence[ObjectRef] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> list[ObjectRef]:
        """See `Cluster.put_many`."""
        here = self._here()
        seconds = check_timeout(timeout)
        given = list_of_values(values)
        names = refs_for_values(refs, len(given))
        ends = None if seconds is None else time.monotonic() + seconds
        small_limit = here.client.greeting.small_limit
        runs = calls.runs(names, given, small_limit)
        try:
            while run := await in_thread(partial(next, runs, None)):
                left = None if ends is None else max(0.0, ends - time.monotonic())
                if run[0][1].size > small_limit:
                    await _at_length(self._of, partial(here.client.put, *run[0], fresh=refs is None), left)
                else:
                    await here.put_small(run, left, fresh=refs is None)
        except BaseException as error:
            if refs is None:
                with scopes.failing_too(error):
                    await self._delete_all(names, scopes.UNDO_SECONDS)
            if isinstance(error, HopliteError):
                raise calls.of_many(error, names) from error
            raise
        return [note_made(self._of, name) for name in names]

    @overload
    async def get(
        self,
        ref: ObjectRef,
        *,
        timeout: float | None = ...,
        out: Any = ...,
        copy: bool = ...,
        device: int | None = ...,
        like: Library | None = ...,
        progress: Progress | None = ...,
    ) -> Any: ...
    @overload
    async def get(
        self,
        ref: Sequence[ObjectRef],
        *,
        timeout: float | None = ...,
        out: Sequence[Any] | None = ...,
        copy: bool = ...,
        device: int | None = ...,
        like: Library | None = ...,
        progress: Progress | None = ...,
    ) -> list[Any]: ...
    async def get(
        self,
        ref: ObjectRef | Sequence[ObjectRef],
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        out: Any = None,
        copy: bool = False,
        device: int | None = None,
        like: Library | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """See `Cluster.get`. `progress` may be called on another thread."""
        here = self._here()
        seconds = check_timeout(timeout)
        if device is not None:
            work = partial(device_gets.get_on(device, ref, copy, like, out, progress), here.client)
            return await _at_length(self._of, work, seconds)
        if isinstance(ref, ObjectRef):
            wish = wish_of(copy, like, out, progress)
            return await _value(here, ref, await here.get_one(ref.binary, seconds), wish)
        refs = list_of_refs(ref)
        wishes = [wish_of(copy, like, each, progress) for each in list_of_outs(out, len(refs))]
        return await _get(here, refs, seconds, wishes)

    async def gather(self, refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> list[Any]:
        """See `Cluster.gather`."""
        here = self._here()
        seconds = check_timeout(timeout)
        given = list_of_refs(refs)
        return await _get(here, given, seconds, [AS_IT_WAS] * len(given))

    async def wait(
        self, refs: Sequence[ObjectRef], count: int = 1, *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """See `Cluster.wait`."""
        return await self._here().carry_out(calls.wait(refs, count, timeout))

    @overload
    async def info(self, refs: ObjectRef, *, timeout: float | None = ...) -> ObjectInfo: ...
    @overload
    async def info(self, refs: Sequence[ObjectRef], *, timeout: float | None = ...) -> list[ObjectInfo]: ...
    async def info(
        self, refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> ObjectInfo | list[ObjectInfo]:
        """See `Cluster.info`."""
        known = await self._here().carry_out(calls.info(refs, timeout))
        return known[0] if isinstance(refs, ObjectRef) else known

    def as_completed(
        self, refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> AsyncIterator[ObjectRef]:
        """See `Cluster.as_completed`; to be used with `async for`."""
        completed = calls.Completed(refs, timeout)
        here = self._here()

        async def each() -> AsyncIterator[ObjectRef]:
            while completed.rest:
                for ref in await here.carry_out(completed.more()):
                    yield ref

        return each()

    async def delete(self, refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """See `Cluster.delete`."""
        await self._here().carry_out(calls.delete(refs, timeout))

    async def own(self, refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """See `Cluster.own`."""
        await self._here().carry_out(calls.own(refs, timeout))

    # --- reduce ------------------------------------------------------------------------------------------------

    async def reduce(
        self,
        refs: Sequence[ObjectRef],
        op: str = "sum",
        count: int | None = None,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> ObjectRef:
        """See `Cluster.reduce`."""
        return await self._reduce(refs, op, count, ref, timeout, everywhere=False)

    async def allreduce(
        self,
        refs: Sequence[ObjectRef],
        op: str = "sum",
        count: int | None = None,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> ObjectRef:
        """See `Cluster.allreduce`."""
        return await self._reduce(refs, op, count, ref, timeout, everywhere=True)

    async def _reduce(
        self,
        refs: Sequence[ObjectRef],
        op: str,
        count: int | None,
        ref: ObjectRef | None,
        timeout: float | None,
        *,
        everywhere: bool,
    ) -> ObjectRef:
        here = self._here()
        is_near = here.client.reader.is_near
        asking = calls.reduce(refs, op, count, ref, timeout, everywhere=everywhere, is_near=is_near)
        return note_made(self._of, await here.carry_out(asking))

    async def contributors(self, ref: ObjectRef, *, timeout: float | None = DEFAULT_TIMEOUT) -> list[ObjectRef]:
        """See `Cluster.contributors`."""
        return await self._here().carry_out(calls.contributors(ref, timeout))

    # --- objects made in place, and scopes ---------------------------------------------------------------------

    async def create(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = np.float64,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        device: int | None = None,
    ) -> Draft:
        """See `Cluster.create`. Seal the draft with `await seal(draft)`; its own `seal` blocks."""

        def opened(left: float | None) -> Draft:
            return open_draft(self._of, shape, dtype, ref, left, device)

        return await _at_length(self._of, opened, check_timeout(timeout))

    async def seal(self, draft: Draft) -> ObjectRef:
        """See `Cluster.seal`."""
        seal, context = one_draft(draft).seal, copy_context()  # in the scope of this task
        return await _at_length(self._of, lambda _: context.run(seal), draft.timeout)

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """See `Cluster.scope`."""
        made: list[ObjectRef] = []
        try:
            with scopes.collect(self._of, made):
                yield
        except BaseException as error:
            with scopes.failing_too(error):
                await self._delete_all(made)
            raise
        await self._delete_all(made)

    @contextlib.asynccontextmanager
    async def trace(self, path: str | os.PathLike[str]) -> AsyncIterator[None]:
        """See `Cluster.trace`."""
        from hoplite_ucx.runtime.launch.tracing import trace_of

        ours, where = self._of.attached, check_path("path", path)
        recording = await _at_length(self._of, lambda _: trace_of(ours, where), None)
        try:
            await _at_length(self._of, lambda _: recording.start(), None)
        except BaseException:  # a cancelled task: its thread goes on
            recording.abandon()
            raise
        try:
            yield
        except BaseException as error:
            recording.end()  # also if this task is cancelled once more, and nobody waits for the file
            with scopes.failing_too(error, "the trace was not written"):
                await _at_length(self._of, lambda _: recording.finish(), None)
            raise
        recording.end()
        await _at_length(self._of, lambda _: recording.finish(), None)

    async def _delete_all(self, made: list[ObjectRef], timeout: float = scopes.DELETE_SECONDS) -> None:
        if made and self.is_open:
            await self._here().carry_out(calls.delete(made, timeout))


async def _at_length(of: Membership, work_within: Callable[[float | None], R], seconds: float | None) -> R:
    """On a thread, once there is one: the caller's time runs meanwhile."""
    ends = None if seconds is None else time.monotonic() + seconds
    grace = of.attachment.client.grace if of.attachment is not None else 0.0  # without a cluster the work fails at once

    def work_in_time() -> R:
        return work_within(None if ends is None else max(0.0, ends - time.monotonic()))

    working = asyncio.wrap_future(_large_puts.submit(work_in_time))
    try:
        await asyncio.wait([working], timeout=None if seconds is None else seconds + 2 * grace)
    finally:
        working.cancel()  # harmless if it is done
    if working.cancelled():
        raise late()
    return working.result()


async def _get(here: LoopCalls, refs: list[ObjectRef], timeout: float | None, wishes: Sequence[Wish]) -> list[Any]:
    found = await here.get([ref.binary for ref in refs], timeout)
    return [await _value(here, ref, got, wish) for ref, got, wish in zip(refs, found, wishes, strict=True)]


async def _value(here: LoopCalls, ref: ObjectRef, got: Got, wish: Wish) -> Any:
    memory, layout = got
    if len(memory) <= here.client.greeting.small_limit:
        return value_of(ref, memory, layout, wish)
    return await in_thread(partial(value_of, ref, memory, layout, wish))
