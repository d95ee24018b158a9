"""The async twin of `hoplite_ucx`: the same functions, to be awaited, on the same cluster. See `AsyncCluster`."""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from hoplite_ucx.runtime import current
from hoplite_ucx.runtime.api import Cluster
from hoplite_ucx.runtime.async_api import AsyncCluster
from hoplite_ucx.runtime.current import is_initialized
from hoplite_ucx.runtime.looped import in_thread
from hoplite_ucx.runtime.refs import new_ref, ref_for

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
    "put",
    "put_many",
    "reduce",
    "ref_for",
    "scope",
    "seal",
    "shutdown",
    "wait",
]

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(begin: Callable[P, Cluster]) -> Callable[P, Coroutine[Any, Any, AsyncCluster]]:
    @wraps(begin)
    async def begin_on_a_thread(*args: P.args, **kwargs: P.kwargs) -> AsyncCluster:
        return (await in_thread(partial(begin, *args, **kwargs))).aio

    return begin_on_a_thread


init = _awaited(current.init)
connect = _awaited(current.connect)
shutdown = current.default.aio.close

put = current.default.aio.put
put_many = current.default.aio.put_many
get = current.default.aio.get
gather = current.default.aio.gather
wait = current.default.aio.wait
info = current.default.aio.info
as_completed = current.default.aio.as_completed
delete = current.default.aio.delete
reduce = current.default.aio.reduce
allreduce = current.default.aio.allreduce
contributors = current.default.aio.contributors
create = current.default.aio.create
seal = current.default.aio.seal
scope = current.default.aio.scope


def cluster() -> AsyncCluster:
    """See `hoplite_ucx.cluster`."""
    return current.cluster().aio
