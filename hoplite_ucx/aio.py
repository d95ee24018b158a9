"""The async twin of the API: the same functions, to be awaited.

Any number of tasks may wait for objects at the same time: the event loop itself watches for what the agent answers. A
task that is cancelled ends its call. Only what would hold the loop up runs on threads: pickling, copying out of the
store, and puts of large objects, of which a bounded number is under way at a time; a put that is cancelled there goes
on in the background until it is done or its `timeout` is over. A program that ends waits for none of them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from hoplite_ucx.runtime import api, calls, current, looped, scopes, values
from hoplite_ucx.runtime.api import DEFAULT_TIMEOUT, new_ref
from hoplite_ucx.runtime.background import DaemonPool
from hoplite_ucx.runtime.checks import check_out, check_outs, check_timeout, list_of_refs, optional_ref
from hoplite_ucx.runtime.client import GRACE
from hoplite_ucx.runtime.connection import late
from hoplite_ucx.runtime.layout import Array
from hoplite_ucx.runtime.looped import Got, LoopCalls, in_thread
from hoplite_ucx.runtime.refs import ObjectRef
from hoplite_ucx.runtime.scopes import note_made

__all__ = [
    "allreduce",
    "contributors",
    "delete",
    "gather",
    "get",
    "init",
    "new_ref",
    "put",
    "reduce",
    "scope",
    "shutdown",
    "wait",
]

_large_puts = DaemonPool(32, "hoplite-put")


def _here() -> LoopCalls:
    return looped.of_this_loop(current.client())


async def init(address: str | None = None, *, memory: int | None = None, agent: str | None = None) -> None:
    """See `hoplite_ucx.init`."""
    await in_thread(partial(current.init, address, memory=memory, agent=agent))


async def shutdown() -> None:
    """See `hoplite_ucx.shutdown`."""
    await in_thread(current.shutdown)


async def put(value: object, *, ref: ObjectRef | None = None, timeout: float | None = DEFAULT_TIMEOUT) -> ObjectRef:
    """See `hoplite_ucx.put`."""
    here = _here()
    seconds = check_timeout(timeout)
    name = optional_ref(ref)
    encoded = await in_thread(partial(values.encode, value))
    if encoded.size <= here.client.greeting.small_limit:
        here.client.reader.is_near(name.binary)
        await here.carry_out(calls.put_small(name.binary, encoded, seconds, fresh=ref is None))
    else:
        await _put_large(partial(here.client.put, name.binary, encoded, fresh=ref is None), seconds)
    return note_made(name)


async def _put_large(put_within: Callable[[float | None], object], seconds: float | None) -> None:
    """On a thread, once there is one: the caller's time runs meanwhile."""
    ends = None if seconds is None else time.monotonic() + seconds

    def put_in_time() -> None:
        put_within(None if ends is None else max(0.0, ends - time.monotonic()))

    putting = asyncio.wrap_future(_large_puts.submit(put_in_time))
    try:
        await asyncio.wait([putting], timeout=None if seconds is None else seconds + 2 * GRACE)
    finally:
        putting.cancel()  # harmless if it is done
    if putting.cancelled():
        raise late()
    putting.result()


async def get(
    ref: ObjectRef | Sequence[ObjectRef],
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    out: Array | Sequence[Array] | None = None,
) -> Any:
    """See `hoplite_ucx.get`."""
    here = _here()
    seconds = check_timeout(timeout)
    if isinstance(ref, ObjectRef):
        into = None if out is None else check_out(out)
        return await _value(here, ref, await here.get_one(ref.binary, seconds), into)
    refs = list_of_refs(ref)
    return await _get(here, refs, seconds, [None] * len(refs) if out is None else check_outs(out, len(refs)))


async def _get(
    here: LoopCalls, refs: list[ObjectRef], timeout: float | None, outs: Sequence[Array | None]
) -> list[Any]:
    found = await here.get([ref.binary for ref in refs], timeout)
    return [await _value(here, ref, got, out) for ref, got, out in zip(refs, found, outs, strict=True)]


async def _value(here: LoopCalls, ref: ObjectRef, got: Got, out: Array | None) -> Any:
    memory, layout = got
    if len(memory) <= here.client.greeting.small_limit:
        return api.value_of(ref, memory, layout, out)
    return await in_thread(partial(api.value_of, ref, memory, layout, out))


async def gather(refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> list[Any]:
    """See `hoplite_ucx.gather`."""
    here = _here()
    seconds = check_timeout(timeout)
    given = list_of_refs(refs)
    return await _get(here, given, seconds, [None] * len(given))


async def wait(
    refs: Sequence[ObjectRef], count: int = 1, *, timeout: float | None = DEFAULT_TIMEOUT
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """See `hoplite_ucx.wait`."""
    return await _here().carry_out(calls.wait(refs, count, timeout))


async def delete(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
    """See `hoplite_ucx.delete`."""
    await _here().carry_out(calls.delete(refs, timeout))


async def reduce(
    refs: Sequence[ObjectRef],
    op: str = "sum",
    count: int | None = None,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ObjectRef:
    """See `hoplite_ucx.reduce`."""
    return await _reduce(refs, op, count, ref, timeout, everywhere=False)


async def allreduce(
    refs: Sequence[ObjectRef],
    op: str = "sum",
    count: int | None = None,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ObjectRef:
    """See `hoplite_ucx.allreduce`."""
    return await _reduce(refs, op, count, ref, timeout, everywhere=True)


async def _reduce(
    refs: Sequence[ObjectRef],
    op: str,
    count: int | None,
    ref: ObjectRef | None,
    timeout: float | None,
    *,
    everywhere: bool,
) -> ObjectRef:
    here = _here()
    is_near = here.client.reader.is_near
    asking = calls.reduce(refs, op, count, ref, timeout, everywhere=everywhere, is_near=is_near)
    return note_made(await here.carry_out(asking))


async def contributors(ref: ObjectRef, *, timeout: float | None = DEFAULT_TIMEOUT) -> list[ObjectRef]:
    """See `hoplite_ucx.contributors`."""
    return await _here().carry_out(calls.contributors(ref, timeout))


@contextlib.asynccontextmanager
async def scope() -> AsyncIterator[None]:
    """See `hoplite_ucx.scope`."""
    made: list[ObjectRef] = []
    try:
        with scopes.collect(made):
            yield
    except BaseException as error:
        with scopes.failing_too(error):
            await _delete_all(made)
        raise
    await _delete_all(made)


async def _delete_all(made: list[ObjectRef]) -> None:
    if made and current.is_initialized():
        await _here().carry_out(calls.delete(made, scopes.DELETE_SECONDS))
