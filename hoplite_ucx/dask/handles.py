"""What users hold: `Shared`, which clients pass to tasks, and `SharedResult`, which a task returns.

A `Shared` is a piece of a task graph. Dask evaluates it in the thread of the task that takes it, so that the task's
function receives the value itself. It depends on its *anchor*, a small task that Dask can run again: as long as
somebody needs the anchor, the object stays; when Dask forgets the anchor, the object is deleted.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from dask._task_spec import Task, TaskRef
from distributed import Future

from hoplite_ucx.dask import access
from hoplite_ucx.dask.leases import closed
from hoplite_ucx.runtime.worker.refs import ObjectRef


class _Inline(Task):
    """A piece of a graph that keeps a future in the process that made it. What travels is what Dask evaluates."""

    _future: Future

    def copy(self) -> _Inline:
        """Collections copy what they are given: the copy must keep the future, too."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.func, *self.args)


class Shared(_Inline):
    """An object in hoplite's stores, as an argument of tasks: each task receives the value.

    Keep it for as long as you will pass it to new tasks. Tasks that were submitted hold the object themselves.
    """

    _sources: Sequence[Any]

    @classmethod
    def anchored(cls, cluster_id: str, ref: ObjectRef, future: Future, sources: Sequence[Any] = ()) -> Shared:
        """The future is the anchor's; the sources are kept alive, since the object can be made again from them."""
        shared = cls(None, access.open_in_task, cluster_id, ref.binary, future.key, TaskRef(future.key))
        shared._future = future
        shared._sources = sources
        return shared

    @property
    def ref(self) -> ObjectRef:
        """Its name in the stores, for `hoplite_ucx.info` and other calls of a cluster."""
        return ObjectRef(self.args[1])

    @property
    def future(self) -> Future:
        """The anchor's: its `status` says whether the object is there, and it can be waited for. Its result is None."""
        try:
            return self._future
        except AttributeError:
            remedy = "use it in the process that called broadcast or reduce; tasks receive the value itself"
            raise closed("this handle is a copy that travelled with a task graph", remedy) from None

    def result(self, timeout: float | None = access.RESULT_SECONDS) -> Any:
        """The value, in this process. On an async client, to be awaited. Raises the source's own exception if that
        failed, `FutureCancelledError` if it cannot be made again, and `GetTimeoutError` after the `timeout`, which
        covers waiting for the sources, reducing and the transfer."""
        return self.future.client.sync(access.result, self, timeout)

    def contributors(self, timeout: float | None = access.RESULT_SECONDS) -> Any:
        """Of a reduction: which sources went in, by their place in the list that was given. On an async client, to be
        awaited. Waits up to `timeout` seconds for the decision. Raises `GetTimeoutError` without one, and what `result`
        raises."""
        return self.future.client.sync(access.contributors, self, timeout)

    def __await__(self) -> Generator[Any, Any, Any]:
        return access.result(self, access.RESULT_SECONDS).__await__()

    def __repr__(self) -> str:
        status = self._future.status if hasattr(self, "_future") else "in a graph"
        return f"<Shared {self.ref.hex()[:8]}, {status}>"


class SharedResult:
    """What `share` returns inside a task, for the task to return: small, whatever it stands for.

    Pass the task's future through `value_of` for the next task to receive the value; or receive this, and `get()` it.
    """

    __slots__ = ("cluster_id", "key", "ref")

    def __init__(self, cluster_id: str, ref: bytes, key: Any) -> None:
        self.cluster_id = cluster_id
        self.ref = ref
        self.key = key
        """Of the task that made it: when Dask forgets that, the object is deleted."""

    def get(self) -> Any:
        """The value. In a task, an object that was lost is made again: Dask runs its task and then this one. Raises the
        errors of `hoplite_ucx.get`."""
        return access.open_in_task(self.cluster_id, self.ref, self.key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        array = np.asarray(self.get(), dtype=dtype)
        return array.copy() if copy else array

    def __dask_tokenize__(self) -> tuple[str, bytes]:
        return self.cluster_id, self.ref

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedResult, (self.cluster_id, self.ref, self.key)

    def __repr__(self) -> str:
        return f"<SharedResult {self.ref.hex()[:8]} of {self.key!r}>"


class OpenedResult(_Inline):
    """What `value_of` returns: the value behind a `SharedResult`, in the task that takes it."""

    @classmethod
    def behind(cls, future: Future) -> OpenedResult:
        opened = cls(None, _open_result, TaskRef(future.key))
        opened._future = future
        return opened


def _open_result(result: Any) -> Any:
    if not isinstance(result, SharedResult):
        detail = f"value_of was given the future of a task that returned a {type(result).__name__}"
        raise TypeError(f"{detail}, not what share() returns: return share(value) from that task, or pass the future")
    return result.get()
