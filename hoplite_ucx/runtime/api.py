"""The public API: every function of `hoplite_ucx`, with its checks, on one client per process.

Bad input is refused here, before anything is allocated or sent, with an error that names the ref and the remedy. What
can only be seen where the objects are is refused there.
"""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime import calls, current, values
from hoplite_ucx.runtime.checks import (
    about,
    check_array,
    check_out,
    check_outs,
    check_timeout,
    invalid,
    list_of_refs,
    optional_ref,
)
from hoplite_ucx.runtime.client import Client
from hoplite_ucx.runtime.drafts import Draft
from hoplite_ucx.runtime.layout import Array, ArrayLayout, encode_layout
from hoplite_ucx.runtime.refs import ObjectRef
from hoplite_ucx.runtime.scopes import note_made

DEFAULT_TIMEOUT = 300.0

# --- put and get ------------------------------------------------------------------------------------------------


def new_ref() -> ObjectRef:
    """A name for an object that does not exist yet: `put(value, ref=...)` fulfils it, and gets of it wait for that."""
    return ObjectRef.random()


def put(value: object, *, ref: ObjectRef | None = None, timeout: float | None = DEFAULT_TIMEOUT) -> ObjectRef:
    """Store a value, and return its ref.

    A numpy array, or a dict, list or tuple of arrays (nested too), is stored as it is and can be reduced; any other
    value is pickled. If the ref has an object already, that one stays. The value may be changed after `put` returns.
    """
    ours = current.client()
    seconds = check_timeout(timeout)
    name = optional_ref(ref)
    ours.put(name.binary, values.encode(value), seconds, fresh=ref is None)
    return note_made(name)


@overload
def get(ref: ObjectRef, *, timeout: float | None = ..., out: Array | None = ...) -> Any: ...
@overload
def get(ref: Sequence[ObjectRef], *, timeout: float | None = ..., out: Sequence[Array] | None = ...) -> list[Any]: ...
def get(
    ref: ObjectRef | Sequence[ObjectRef],
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    out: Array | Sequence[Array] | None = None,
) -> Any:
    """The value of a ref, or the values of several, which are fetched at the same time.

    Arrays are read-only and lie in memory that this host's processes share; they stay valid for as long as they are
    used. With `out`, the value is copied into an array of the same dtype and shape, which is returned. A get waits for
    an object that is yet to come; `timeout=None` waits as long as it still can come.
    """
    ours = current.client()
    seconds = check_timeout(timeout)
    if isinstance(ref, ObjectRef):
        into = None if out is None else check_out(out)
        return value_of(ref, *ours.get_one(ref.binary, seconds), into)
    refs = list_of_refs(ref)
    return _get(ours, refs, seconds, None if out is None else check_outs(out, len(refs)))


def _get(ours: Client, refs: list[ObjectRef], timeout: float | None, outs: list[Array] | None) -> list[Any]:
    found = ours.get([ref.binary for ref in refs], timeout)
    into = outs if outs is not None else [None] * len(refs)
    return [value_of(ref, memory, layout, out) for ref, (memory, layout), out in zip(refs, found, into, strict=True)]


def value_of(ref: ObjectRef, memory: memoryview, layout: bytes, out: Array | None) -> Any:
    """What was got, as the user is to have it."""
    try:
        if out is None:
            return values.decode(memory, layout)
        values.copy_out(memory, layout, out)
    except HopliteError as error:
        raise about(error, ref) from error
    return out


def gather(refs: Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> list[Any]:
    """The values of all refs, in order; all are fetched at the same time."""
    ours = current.client()
    seconds = check_timeout(timeout)
    return _get(ours, list_of_refs(refs), seconds, None)


def wait(
    refs: Sequence[ObjectRef], count: int = 1, *, timeout: float | None = DEFAULT_TIMEOUT
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Wait until `count` of the refs have an object, or the time is over: those that have, and the rest."""
    return current.client().carry_out(calls.wait(refs, count, timeout))


def delete(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = DEFAULT_TIMEOUT) -> None:
    """Forget objects everywhere, and cancel reductions. Arrays that came from `get` stay valid."""
    current.client().carry_out(calls.delete(refs, timeout))


# --- reduce -----------------------------------------------------------------------------------------------------


def reduce(
    refs: Sequence[ObjectRef],
    op: str = "sum",
    count: int | None = None,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ObjectRef:
    """Combine the first `count` of these objects that are ready (all, if it is not given), element by element.

    Returns at once with the ref of a result that is still to come; `ref` gives it a name made before. The operations:
    sum, prod, min, max, mean, and, or, xor. Objects must be arrays, or trees of arrays, of one dtype and shape. The
    `timeout` is for handing in the request.
    """
    return _reduce(refs, op, count, ref, timeout, everywhere=False)


def allreduce(
    refs: Sequence[ObjectRef],
    op: str = "sum",
    count: int | None = None,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ObjectRef:
    """Like `reduce`, for a result that every host with a source will get."""
    return _reduce(refs, op, count, ref, timeout, everywhere=True)


def _reduce(
    refs: Sequence[ObjectRef],
    op: str,
    count: int | None,
    ref: ObjectRef | None,
    timeout: float | None,
    *,
    everywhere: bool,
) -> ObjectRef:
    ours = current.client()
    is_near = ours.reader.is_near
    asking = calls.reduce(refs, op, count, ref, timeout, everywhere=everywhere, is_near=is_near)
    return note_made(ours.carry_out(asking))


def contributors(ref: ObjectRef, *, timeout: float | None = DEFAULT_TIMEOUT) -> list[ObjectRef]:
    """The sources that went into a reduction's result, in the order they were chosen; waits until that is decided."""
    return current.client().carry_out(calls.contributors(ref, timeout))


# --- objects made in place --------------------------------------------------------------------------------------


def create(
    shape: int | Sequence[int],
    dtype: npt.DTypeLike = np.float64,
    *,
    ref: ObjectRef | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> Draft:
    """Memory in the store for an array, to be filled in place and sealed: a put without a copy."""
    ours = current.client()
    seconds = check_timeout(timeout)
    name = optional_ref(ref)
    try:
        leaf = check_array(shape, dtype)
    except HopliteError as error:
        raise about(error, name) from error
    size = leaf.nbytes()
    if size <= ours.greeting.small_limit:
        return Draft(name, np.zeros(leaf.shape, leaf.numpy_dtype()), None, seconds)
    open_put = ours.begin_put(name.binary, size, encode_layout(ArrayLayout(leaf)), seconds)
    return Draft(name, leaf.on(open_put.memory), open_put, seconds)


def seal(draft: Draft) -> ObjectRef:
    """Finish what `create` began, and return its ref."""
    if not isinstance(draft, Draft):
        raise invalid(f"seal takes what create returned, not a {type(draft).__name__}", "call create() first")
    return draft.seal()
