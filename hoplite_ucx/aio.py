"""The async twin of the API: the same functions, to be awaited.

A call runs on a thread of a small pool, so the event loop never waits for it. A task that is cancelled stops waiting at
once; its call goes on in the background until it is answered or its `timeout` is over. A program that ends does not
wait for such calls.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from hoplite_ucx.runtime import api, current, scopes
from hoplite_ucx.runtime.api import DEFAULT_TIMEOUT, new_ref
from hoplite_ucx.runtime.background import DaemonPool
from hoplite_ucx.runtime.layout import Array
from hoplite_ucx.runtime.refs import ObjectRef

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

P = ParamSpec("P")
R = TypeVar("R")

_pool = DaemonPool(32, "hoplite-aio")


async def _run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """On a thread of the pool, in the caller's context, so that scopes see what is made."""
    context = contextvars.copy_context()
    return await asyncio.wrap_future(_pool.submit(partial(context.run, function, *args, **kwargs)))


async def init(address: str | None = None, *, memory: int | None = None, agent: str | None = None) -> None:
    """See `hoplite_ucx.init`."""
    await _run(current.init, address, memory=memory, agent=agent)


async def shutdown() -> None:
    """See `hoplite_ucx.shutdown`."""
    await _run(current.shutdown)


async def put(value: object, *, ref: ObjectRef | None = None, timeout: float | None = DEFAULT_TIMEOUT) -> ObjectRef:
    """See `hoplite_ucx.put`."""
    return await _run(api.put, value, ref=ref, timeout=timeout)


async def get(
    ref: ObjectRef | Sequence[ObjectRef],
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    out: Array | Sequence[Array] | None = None,
) -> Any:
    """See `hoplite_ucx.get`."""
    return await _run(partial(api.get, ref, timeout=timeout, out=out))


async def gather(refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> list[Any]:
    """See `hoplite_ucx.gather`."""
    return await _run(api.gather, refs, timeout=timeout)


async def wait(
    refs: Sequence[ObjectRef], count: int = 1, *, timeout: float | None = DEFAULT_TIMEOUT
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """See `hoplite_ucx.wait`."""
    return await _run(api.wait, refs, count, timeout=timeout)


async def delete(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
    """See `hoplite_ucx.delete`."""
    await _run(api.delete, refs, timeout=timeout)


async def reduce(
    refs: Sequence[ObjectRef],
    op: str = "sum",
    count: int | None = None,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ObjectRef:
    """See `hoplite_ucx.reduce`."""
    return await _run(api.reduce, refs, op, count, ref=ref, timeout=timeout)


async def allreduce(
    refs: Sequence[ObjectRef],
    op: str = "sum",
    count: int | None = None,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ObjectRef:
    """See `hoplite_ucx.allreduce`."""
    return await _run(api.allreduce, refs, op, count, ref=ref, timeout=timeout)


async def contributors(ref: ObjectRef, *, timeout: float | None = DEFAULT_TIMEOUT) -> list[ObjectRef]:
    """See `hoplite_ucx.contributors`."""
    return await _run(api.contributors, ref, timeout=timeout)


@contextlib.asynccontextmanager
async def scope() -> AsyncIterator[None]:
    """See `hoplite_ucx.scope`."""
    made: list[ObjectRef] = []
    with scopes.collect(made):
        try:
            yield
        finally:
            await _run(scopes.delete_all, made)
