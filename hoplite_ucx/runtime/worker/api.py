"""The public API: every call on a cluster, with its checks. The functions of `hoplite_ucx` are methods of one
`Cluster`.

Bad input is refused here, before anything is allocated or sent, with an error that names the ref and the remedy.
Problems that only show where the objects are, are reported from there.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.objects.filling import Progress
from hoplite_ucx.runtime.objects.values import encode
from hoplite_ucx.runtime.worker import calls, device_gets, scopes
from hoplite_ucx.runtime.worker.async_api import AsyncCluster
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
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.in_place_puts import Draft, one_draft, open_draft
from hoplite_ucx.runtime.worker.membership import Membership
from hoplite_ucx.runtime.worker.object_info import ObjectInfo
from hoplite_ucx.runtime.worker.refs import ObjectRef
from hoplite_ucx.runtime.worker.scopes import note_made


class Cluster:
    """A cluster as this process uses it: made by `connect`, or by `init` for the functions of `hoplite_ucx`.

    It stays open until `close`, the end of its `with` block, or the end of the process. Any number of threads may use
    it. Refs are plain names and belong to no cluster; an object can only be found in the cluster where it was put.

    Every call may raise `InvalidRequestError` if it is invalid as written, `ClosedError` if the cluster was closed, was
    never joined or has lost its agent, and `GetTimeoutError` if the agent does not answer within the `timeout`. All are
    `HopliteError`s with a `remedy` and, where there is one, the `ref`. The text of each call lists what else it raises.
    """

    def __init__(self, of: Membership) -> None:
        self._of = of
        self._aio = AsyncCluster(of)

    @property
    def aio(self) -> AsyncCluster:
        """The same calls for asyncio."""
        return self._aio

    @property
    def address(self) -> str:
        """The address of the cluster's directory, as its agent here was given it."""
        return self._of.client.greeting.directory

    @property
    def cluster_id(self) -> str:
        """What tells this cluster from others: the same for all its processes, also after its directory restarts."""
        return self._of.client.greeting.cluster

    @property
    def agent(self) -> str:
        """The name of this host's agent, as `agent=` takes it."""
        return self._of.client.greeting.agent

    @property
    def is_open(self) -> bool:
        """Whether this process is in the cluster: it joined, and has not left."""
        return self._of.attachment is not None

    def rejoin(self, *, timeout: float = REJOIN_SECONDS, agent: str | None = None) -> None:
        """After this host's agent has ended and another was started: go on with the new one, in the same cluster.

        Does nothing while the agent answers. Waits up to `timeout` seconds for another; `agent` names it where several
        of the cluster run here. What only the old agent held is lost; arrays that came from `get` stay valid. Any
        thread may call it, and several at the same time. A put in the old store that was under way must be made again.

        Raises `ClosedError` if no agent comes in time, or the cluster itself is over, and `InvalidRequestError` for a
        private cluster, which ends with its agent.
        """
        self._of.renew(check_seconds(timeout), agent)

    def close(self) -> None:
        """Leave the cluster; a private one ends. Arrays that came from `get` stay valid. Harmless if it is already
        closed."""
        self._of.end()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        attachment = self._of.attachment
        if attachment is None:
            return "<Cluster, closed>"
        greeting = attachment.client.greeting
        return f"<Cluster {greeting.cluster} at {greeting.directory}, through agent {greeting.agent}>"

    def __reduce__(self) -> tuple[type["Cluster"], tuple[Membership]]:
        """For the functions of `hoplite_ucx`, which are methods; a cluster that was connected to cannot be pickled."""
        return Cluster, (self._of,)

    # --- put and get -------------------------------------------------------------------------------------------

    def put(
        self,
        value: object,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        stream: object = None,
    ) -> ObjectRef:
        """Store a value, and return its ref.

        A numpy array or number, a tensor of torch, an array of CuPy or of another library that has DLPack, a Python
        number, or a dict, list, tuple or named tuple of them (nested too) is stored as it is and can be reduced. Bytes,
        bytearrays, memoryviews and other buffers are stored as they are; any other value is pickled. `get` returns what
        was put, with the keys of dicts in their order. The value may be changed after `put` returns.

        A second put of a ref is ignored: the first object stays, and no error is raised.

        Arrays of CuPy are stored on their device if this host's agent can do that, and else on the host. They are
        copied behind what computes them on the current stream, or on `stream`: one of CuPy or torch, or its pointer.

        Raises `StoreFullError` if there is no room for it in time, and `ObjectDeletedError` if the ref was deleted a
        short while ago. The `timeout` covers the whole call: waiting for room in the store, copying, and the
        directory's answer.

        Processes of this host see the object as soon as `put` returns. Other hosts see it when the directory knows of
        it, about one message later. While the directory does not answer, a put waits for it, and raises
        `GetTimeoutError` after the `timeout`; the directory has at least 0.75 s to answer, also with `timeout=0`.
        """
        ours = self._of.client
        seconds = check_timeout(timeout)
        optional_ref(ref)
        encoded = encode(value)
        name = ref_for_object(ref, encoded.size, ours.greeting.inline_limit)
        if stream is not None:
            encoded.stream = check_stream(stream)
        ours.put(name.binary, encoded, seconds, fresh=ref is None)
        return note_made(self._of, name)

    def put_many(
        self,
        values: Iterable[object],
        *,
        refs: Sequence[ObjectRef] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> list[ObjectRef]:
        """Store all of these values, and return their refs in order; `refs` gives names made before.

        Small objects are put many at a time, in a fraction of the time of one `put` each. If one cannot be put, the
        error says which; objects that were put under fresh refs are deleted again. Raises what `put` raises. The
        `timeout` covers all of them together.
        """
        ours = self._of.client
        seconds = check_timeout(timeout)
        given = list_of_values(values)
        names = refs_for_values(refs, len(given))
        ends = None if seconds is None else time.monotonic() + seconds
        try:
            for run in calls.runs(names, given, ours.greeting.small_limit):
                left = None if ends is None else max(0.0, ends - time.monotonic())
                if run[0][1].size > ours.greeting.small_limit:
                    ours.put(*run[0], left, fresh=refs is None)
                else:
                    ours.put_small(run, left, fresh=refs is None)
        except BaseException as error:
            if refs is None:
                with scopes.failing_too(error):
                    self._delete_all(names, scopes.UNDO_SECONDS)
            if isinstance(error, HopliteError):
                raise calls.of_many(error, names) from error
            raise
        return [note_made(self._of, name) for name in names]

    @overload
    def get(
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
    def get(
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
    def get(
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
        """The value of a ref, or the values of several, which are fetched at the same time.

        Arrays are read-only and lie in memory that this host's processes share; they stay valid for as long as they are
        used. Tensors lie there too, but can be written to: nobody else sees it. With `copy=True` arrays are in memory
        of their own, and can be written to. `like="numpy"`, `"torch"` or `"cupy"` makes all arrays those of one
        library; without it they are what was put.

        With `out`, the value is copied into arrays or tensors of the same dtypes and shapes, such as a module's
        `state_dict()`, and `out` is returned. Nothing is written unless all of it has come and fits. `progress` is
        called after each array, with the number of bytes that are filled and that of all.

        A get waits for an object that does not exist yet; `timeout=None` waits as long as the object can still come.

        With `device`, the number of a CUDA device, arrays are on it: tensors where tensors were put, and else arrays of
        CuPy. Their memory is shared too, and **nobody may write to it**, to tensors neither: a kernel that does loses
        the CUDA context of this process. With `copy=True` or `out`, which is then on that device, they are the
        program's own.

        Raises `GetTimeoutError` if the object has not arrived in time, `ObjectDeletedError` if it was deleted,
        `ObjectLostError` if every copy was lost (`PutAbortedError`, if the process that put it ended early),
        `StoreFullError` if there is no room for it here, and `InvalidRequestError` if it is a reduction that cannot be
        carried out.

        `timeout=0` asks once, and does not wait for a producer: an object that is complete on some node is fetched
        (within 300 s), anything else raises `GetTimeoutError` at once. Any other `timeout` covers the whole call:
        waiting for the object to be put or reduced, and its transfer; of several refs, all together. The error says
        what is known: that no node has the object, how much of it has arrived, or that the directory does not answer,
        and for how long; to learn this, a call may take up to 0.75 s longer than its `timeout`.
        """
        ours = self._of.client
        seconds = check_timeout(timeout)
        if device is not None:
            return device_gets.get_on(device, ref, copy, like, out, progress)(ours, seconds)
        if isinstance(ref, ObjectRef):
            wish = wish_of(copy, like, out, progress)
            return value_of(ref, *ours.get_one(ref.binary, seconds), wish)
        refs = list_of_refs(ref)
        return _get(ours, refs, seconds, [wish_of(copy, like, each, progress) for each in list_of_outs(out, len(refs))])

    def gather(self, refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> list[Any]:
        """The values of all refs, in order; all are fetched at the same time. `timeout` is that of `get`. Raises what
        `get` raises, for the first ref that has failed."""
        ours = self._of.client
        seconds = check_timeout(timeout)
        given = list_of_refs(refs)
        return _get(ours, given, seconds, [AS_IT_WAS] * len(given))

    def wait(
        self, refs: Sequence[ObjectRef], count: int = 1, *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Wait until `count` of the refs are ready, or the time is over; returns those that are ready, and the rest. It
        stops at `count`: more may be ready than it returns.

        A failed object counts as ready, since a get of it returns at once. When the time is over, nothing is raised,
        unless the directory does not answer: then it raises `GetTimeoutError`, since what is ready is unknown.
        `timeout=0` asks once what is complete now.
        """
        return self._of.client.carry_out(calls.wait(refs, count, timeout))

    @overload
    def info(self, refs: ObjectRef, *, timeout: float | None = ...) -> ObjectInfo: ...
    @overload
    def info(self, refs: Sequence[ObjectRef], *, timeout: float | None = ...) -> list[ObjectInfo]: ...
    def info(
        self, refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> ObjectInfo | list[ObjectInfo]:
        """What the cluster knows of an object, or of each of several: see `ObjectInfo`.

        It does not wait for an object that does not exist yet, only for the directory's answer; for a ref that was
        never put, it says so. Raises `GetTimeoutError` if the directory does not answer within the `timeout`.
        """
        known = self._of.client.carry_out(calls.info(refs, timeout))
        return known[0] if isinstance(refs, ObjectRef) else known

    def as_completed(
        self, refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> Iterator[ObjectRef]:
        """The refs one by one, as each is ready, or has failed: a get of it then returns at once.

        A ref that is given twice comes once. Raises `GetTimeoutError` if some are not ready when the `timeout` is over.
        It counts from this call.
        """
        completed = calls.Completed(refs, timeout)
        client = self._of.client

        def each() -> Iterator[ObjectRef]:
            while completed.rest:
                yield from client.carry_out(completed.more())

        return each()

    def delete(self, refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Delete objects everywhere, and cancel reductions. Arrays that came from `get` stay valid.

        For a while gets and puts of these refs raise `ObjectDeletedError`. Deleting a ref that was never put is not an
        error. The `timeout` is for the directory's answer, which has at least 0.75 s: `timeout=0` deletes too. Raises
        `GetTimeoutError` if the directory does not answer; the objects may be deleted nevertheless.
        """
        self._of.client.carry_out(calls.delete(refs, timeout))

    def own(self, refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Have these objects deleted when this process leaves the cluster or ends, however it ends.

        The host's agent does it, so that a kill -9 leaves nothing behind. The refs may be put later, and by others. If
        the agent itself is killed, copies on other hosts stay. The `timeout` is for the agent's answer. Raises
        `GetTimeoutError` without one.
        """
        self._of.client.carry_out(calls.own(refs, timeout))

    # --- reduce -------------------------------------------------------------------------------------------------

    def reduce(
        self,
        refs: Sequence[ObjectRef],
        op: str = "sum",
        count: int | None = None,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> ObjectRef:
        """Combine the first `count` of these objects that are ready (all, if it is not given), element by element.

        Returns at once with the ref of the future result; `ref` gives it a name made before. The operations: sum, prod,
        min, max, mean, and, or, xor. The `timeout` is for submitting the request, and is at least 0.75 s.

        Objects must be arrays, numbers, or trees of them, and all must have the same dtypes, shapes and keys. Put many
        numbers into an array: a tree has up to 16 without any array, and up to 256 beside some. Dicts may have their
        keys in any order: the result has the order, and the types of dicts, named tuples and numbers, of its first
        contributor. The arithmetic is numpy's in the sources' own dtype, so sums may overflow without an error: `uint8`
        sums from 256 up, and those of Python's ints, which are reduced as int64, beyond 63 bits.

        Raises `ObjectDeletedError` if the target's ref was deleted a short while ago, and `GetTimeoutError` if the
        directory does not answer in time. Problems with the objects show when they exist: then a get of the result
        raises the error.
        """
        return self._reduce(refs, op, count, ref, timeout, everywhere=False)

    def allreduce(
        self,
        refs: Sequence[ObjectRef],
        op: str = "sum",
        count: int | None = None,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> ObjectRef:
        """Like `reduce`, for a result that every host with a source will get: large ones are combined in stripes, along
        a ring. `timeout` is that of `reduce`. Raises what `reduce` raises."""
        return self._reduce(refs, op, count, ref, timeout, everywhere=True)

    def _reduce(
        self,
        refs: Sequence[ObjectRef],
        op: str,
        count: int | None,
        ref: ObjectRef | None,
        timeout: float | None,
        *,
        everywhere: bool,
    ) -> ObjectRef:
        ours = self._of.client
        is_near = ours.reader.is_near
        asking = calls.reduce(refs, op, count, ref, timeout, everywhere=everywhere, is_near=is_near)
        return note_made(self._of, ours.carry_out(asking))

    def contributors(self, ref: ObjectRef, *, timeout: float | None = DEFAULT_TIMEOUT) -> list[ObjectRef]:
        """The sources that went into a reduction's result, in the order they were chosen. Waits up to `timeout` seconds
        for the decision; with `timeout=0` it only asks the directory whether there is one.

        Raises `GetTimeoutError` if nothing is decided in time, `InvalidRequestError` if the ref is not the result of a
        reduction, `ObjectDeletedError` if it was deleted, and the reduction's own error if it failed.
        """
        return self._of.client.carry_out(calls.contributors(ref, timeout))

    # --- objects made in place ----------------------------------------------------------------------------------

    def create(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = np.float64,
        *,
        ref: ObjectRef | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        device: int | None = None,
    ) -> Draft:
        """Memory in the store for an array, to be filled in place and sealed: a put without a copy.

        With `device`, the array is one of CuPy on that device, and is copied into the store there when it is sealed:
        memory of a device cannot be protected from later writes.

        Raises what `put` raises; without room or with a ref that was deleted, here and not at the end. The `timeout`
        covers waiting for room here and the answers to what the `Draft` does later, together. The time in which the
        array is filled does not count.
        """
        return open_draft(self._of, shape, dtype, ref, timeout, device)

    def seal(self, draft: Draft) -> ObjectRef:
        """Finish a put that `create` began, and return its ref. It has what is left of the timeout of `create`. Raises
        what `put` raises, and `InvalidRequestError` if the draft was sealed or abandoned already."""
        return one_draft(draft).seal()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Delete on exit the objects that this thread or task put, reduced or sealed inside.

        The exit raises what `delete` raises, after 300 s without an answer; if the block itself has raised, that error
        stays. A cluster that was closed inside has nothing to delete.
        """
        made: list[ObjectRef] = []
        try:
            with scopes.collect(self._of, made):
                yield
        except BaseException as error:
            with scopes.failing_too(error):
                self._delete_all(made)
            raise
        self._delete_all(made)

    @contextlib.contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Record what the cluster does while a block runs, and write it to a file that Perfetto and Chrome show.

            with hoplite.trace("run.json"):
                ...

        All hosts are recorded: streams, slots, placements and waits, on one clock. The block begins when they record,
        and it ends when the file is written. A trace ends by itself after an hour.

        Raises `InvalidRequestError` if the file cannot be written, and `ClosedError` if the directory cannot be traced
        (under TLS, a program needs the certificates of its host). A host that cannot be traced is named in the file.
        """
        from hoplite_ucx.runtime.launch.tracing import trace_of

        recording = trace_of(self._of.attached, check_path("path", path))
        recording.start()
        try:
            yield
        except BaseException as error:
            with scopes.failing_too(error, "the trace was not written"):
                recording.finish()
            raise
        recording.finish()

    def _delete_all(self, made: list[ObjectRef], timeout: float = scopes.DELETE_SECONDS) -> None:
        if made and self.is_open:
            self._of.client.carry_out(calls.delete(made, timeout))


def _get(ours: Client, refs: list[ObjectRef], timeout: float | None, wishes: Sequence[Wish]) -> list[Any]:
    found = ours.get([ref.binary for ref in refs], timeout)
    return [value_of(ref, *got, wish) for ref, got, wish in zip(refs, found, wishes, strict=True)]
