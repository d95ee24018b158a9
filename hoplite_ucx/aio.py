"""The async twin of `hoplite_ucx`: the same functions for asyncio, on the same cluster. See `AsyncCluster`."""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from hoplite_ucx.runtime.worker import default_cluster
from hoplite_ucx.runtime.worker.api import Cluster
from hoplite_ucx.runtime.worker.async_api import AsyncCluster
from hoplite_ucx.runtime.worker.default_cluster import is_initialized
from hoplite_ucx.runtime.worker.loop_calls import in_thread
from hoplite_ucx.runtime.worker.refs import new_ref, ref_for

__all__ = [
    "AsyncCluster",
    "allreduce",
    "as_completed",
    "cluster",
    "connect",
    "contributors",
    "create",
    "delete",
    "gather",
    "get",
    "info",
    "init",
    "is_initialized",
    "new_ref",
    "own",
    "put",
    "put_many",
    "reduce",
    "ref_for",
    "rejoin",
    "scope",
    "seal",
    "shutdown",
    "trace",
    "wait",
]

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(begin: Callable[P, Cluster]) -> Callable[P, Coroutine[Any, Any, AsyncCluster]]:
    @wraps(begin)
    async def begin_on_a_thread(*args: P.args, **kwargs: P.kwargs) -> AsyncCluster:
        return (await in_thread(partial(begin, *args, **kwargs))).aio

    return begin_on_a_thread


init = _awaited(default_cluster.init)
connect = _awaited(default_cluster.connect)
shutdown = default_cluster.default.aio.close
rejoin = default_cluster.default.aio.rejoin

put = default_cluster.default.aio.put
put_many = default_cluster.default.aio.put_many
get = default_cluster.default.aio.get
gather = default_cluster.default.aio.gather
wait = default_cluster.default.aio.wait
info = default_cluster.default.aio.info
as_completed = default_cluster.default.aio.as_completed
delete = default_cluster.default.aio.delete
own = default_cluster.default.aio.own
reduce = default_cluster.default.aio.reduce
allreduce = default_cluster.default.aio.allreduce
contributors = default_cluster.default.aio.contributors
create = default_cluster.default.aio.create
seal = default_cluster.default.aio.seal
scope = default_cluster.default.aio.scope
trace = default_cluster.default.aio.trace


def cluster() -> AsyncCluster:
    """See `hoplite_ucx.cluster`."""
    return default_cluster.cluster().aio
