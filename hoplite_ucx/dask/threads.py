"""Threads for what would block Dask's event loops. The end of a program waits for none of them.

The loops' own pool is closed before Dask's plugins are, when a program ends without closing its cluster.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool

P = ParamSpec("P")
R = TypeVar("R")

_pool = DaemonPool(32, "hoplite-dask")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await asyncio.wrap_future(_pool.submit(partial(function, *args, **kwargs)))
