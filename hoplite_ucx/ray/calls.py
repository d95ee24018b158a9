"""What a Ray user calls. Everything takes and returns plain Ray refs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from hoplite_ucx.ray import client, owners
from hoplite_ucx.ray.session import session
from hoplite_ucx.ray.values import Handle, fetch, peeking, store
from hoplite_ucx.runtime.worker.checks import check_count, invalid, operation

_SECONDS = 300.0


def put(value: object) -> Any:
    """Store a value as one object, a tree of arrays too, whatever its size, and return a Ray ref to it. Raises the
    errors of `hoplite_ucx.put`, and `ClosedError` if hoplite does not run in this job."""
    if client.is_connected():
        (ref,) = client.answer(client.owner().put.remote(value))
        return ref
    return ray.put(store(value, session()))


def get(ref: Any, *, out: Any = None, timeout: float | None = _SECONDS) -> Any:
    """The value behind a Ray ref, as `ray.get` returns it; with `out`, copied into arrays or tensors, such as a
    module's `state_dict()`, which are returned.

    The `timeout` is that of `ray.get`: for the task that makes the value. Raises what `ray.get` and `hoplite_ucx.get`
    raise, and `InvalidRequestError` for `out` with a value that did not travel as one object.
    """
    if client.is_connected():
        if out is not None:
            raise invalid("a program of Ray Client is not in the cluster, and has no out=", "copy what get returns")
        return ray.get(ref, timeout=timeout)
    value = peek(ref, timeout)
    if isinstance(value, Handle):
        return fetch(session(value.job), value.ref, **({} if out is None else {"out": out}))
    if out is not None:
        raise invalid("this value did not travel through hoplite as one object", "use hoplite_ucx.ray.put for it")
    return ray.get(ref, timeout=timeout)


def peek(ref: Any, timeout: float | None = _SECONDS) -> Any:
    """The value behind a Ray ref, with handles in place of what is in hoplite's stores."""
    with peeking():
        return ray.get(ref, timeout=timeout)


@dataclass(frozen=True, slots=True)
class Reduction:
    """What `reduce` and `allreduce` return, at once."""

    ref: Any
    """Of the result: a plain Ray ref."""
    _sources: Sequence[Any] = field(repr=False)
    _places: Any = field(repr=False)

    @property
    def contributors(self) -> list[Any]:
        """The refs that went in. Waits until that is decided, and raises what made the reduction fail."""
        return [self._sources[place] for place in ray.get(self._places)]


def reduce(refs: Sequence[Any], op: str = "sum", count: int | None = None) -> Reduction:
    """Combine what Ray refs stand for, element by element, through a tree: arrays, numbers, or dicts, lists and tuples
    of them, of the same dtypes and shapes.

    With a `count`, the first so many that are ready go in, and nobody waits for stragglers. The operations: sum, prod,
    min, max, mean, and, or, xor. If a task fails and too few others are left, a get of the result raises the task's own
    error. Raises `InvalidRequestError` for invalid arguments.
    """
    return _reduce(refs, op, count, everywhere=False)


def allreduce(refs: Sequence[Any], op: str = "sum", count: int | None = None) -> Reduction:
    """Like `reduce`, for a result that every node with a source will get. Raises what `reduce` raises."""
    return _reduce(refs, op, count, everywhere=True)


def _reduce(refs: Sequence[Any], op: str, count: int | None, *, everywhere: bool) -> Reduction:
    if not isinstance(refs, list | tuple) or not refs:
        raise invalid("reduce needs a list of Ray refs", "give [ref, ...], such as tasks return")
    for ref in refs:
        if not isinstance(ref, ray.ObjectRef):
            detail = f"a source of reduce is a {type(ref).__name__}, not a Ray ref"
            raise invalid(detail, "give what .remote() or ray.put returned")
    if len(set(refs)) != len(refs):
        raise invalid("a source is listed more than once", "give each source once")
    how = operation(op).value
    needed = check_count(len(refs) if count is None else count, len(refs), "refs")
    sources = list(refs)
    reducer = client.owner() if client.is_connected() else session().agent()
    asked = reducer.reduce.options(num_returns=2)
    result, places = asked.remote(sources, how, needed, everywhere)
    return Reduction(result, sources, places)


def status() -> dict[str, Any]:
    """Of the hoplite in this job, in the process that started it: the directory's address, what each node's agent
    holds, how many objects were released, and how often plain Ray was used instead, and why. Raises `ClosedError` in
    any other process."""
    if client.is_connected():
        asked: dict[str, Any] = client.answer(client.owner().status.remote())
        return asked
    return owners.owner().status()
