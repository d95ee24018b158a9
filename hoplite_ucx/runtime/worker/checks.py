"""Checks of the API's arguments: bad ones are refused before anything is allocated or sent, with the remedy."""

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects import filling
from hoplite_ucx.runtime.objects.layouts import MAX_BYTES, SAFE_DIMENSIONS, Kind, Leaf, describe_dtype
from hoplite_ucx.runtime.settings import HostSettings, load
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref, ref_of_large
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.settings.quantities import format_size, parse_size
from hoplite_ucx.settings.reading import Argument

DEFAULT_TIMEOUT = 300.0
"""Seconds, for every call without a timeout."""

REJOIN_SECONDS = 20.0
"""An agent that is started again is there long before, also on a busy machine."""


def invalid(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.INVALID, detail, remedy).exception()


def no_memory(error: OSError) -> HopliteError:
    remedy = "drop arrays that came from get, or raise RLIMIT_NOFILE and vm.max_map_count"
    return Failure(FailureKind.STORE_FULL, f"memory could not be mapped: {error}", remedy).exception()


def about(error: HopliteError, ref: ObjectRef) -> HopliteError:
    """The same error, naming the object it is about."""
    failure = error.failure
    if failure.ref is not None:
        return error
    return Failure(failure.kind, failure.detail, failure.remedy, ref.binary, failure.peer).exception()


def one_ref(ref: object) -> ObjectRef:
    if not isinstance(ref, ObjectRef):
        raise invalid(
            f"an ObjectRef is needed, not a {type(ref).__name__}", "use a ref that put, reduce or new_ref returned"
        )
    return ref


def optional_ref(ref: object) -> ObjectRef:
    return new_ref() if ref is None else one_ref(ref)


def ref_for_object(ref: object, size: int, inline_limit: int) -> ObjectRef:
    """The one that was given, or a new one that says whether the directory has the object itself."""
    return ref_of_large() if ref is None and size > inline_limit else optional_ref(ref)


def list_of_refs(refs: object, most: int | None = None) -> list[ObjectRef]:
    """`most` is the number that one call can carry."""
    if isinstance(refs, ObjectRef | str | bytes) or not isinstance(refs, Sequence):
        raise invalid(f"a list of refs is needed, not a {type(refs).__name__}", "use [ref, ...]")
    if most is not None and len(refs) > most:
        raise invalid(f"{len(refs)} refs are more than the {most} that one call takes", "make several calls")
    return [one_ref(ref) for ref in refs]


def list_of_values(values: object) -> list[object]:
    """The argument of `put_many`; one value alone is probably a mistake."""
    one = (str, bytes, bytearray, memoryview, Mapping, np.ndarray)
    if isinstance(values, one) or hasattr(values, "__dlpack__") or not isinstance(values, Iterable):
        raise invalid(f"a list of values is needed, not a {type(values).__name__}", "use put() for one value")
    return list(values)


def refs_for_values(refs: object, needed: int) -> list[ObjectRef]:
    if refs is None:
        return [new_ref() for _ in range(needed)]
    given = list_of_refs(refs)
    if len(given) != needed:
        raise invalid(f"{len(given)} refs were given for {needed} values", "give one ref for each value")
    return given


def check_timeout(timeout: object) -> float | None:
    """As a plain number: numpy's are accepted too, but cannot be sent."""
    if timeout is None or (type(timeout) is float and timeout >= 0):
        return timeout
    try:
        if _is_number(timeout) and (seconds := float(timeout)) >= 0:
            return seconds
    except OverflowError:
        pass
    raise invalid(f"timeout must be a number of seconds from 0 on, or None, not {timeout!r}", "correct it")


def check_seconds(timeout: object) -> float:
    """A timeout that must have an end."""
    seconds = check_timeout(timeout)
    if seconds is None:
        raise invalid("this timeout cannot be None", "give a number of seconds")
    return seconds


def check_count(count: object, available: int, what: str) -> int:
    if not available:
        raise invalid(f"the list of {what} is empty", "give at least one")
    if not is_whole(count) or not 1 <= (number := int(count)) <= available:
        raise invalid(
            f"count is {count!r}, and must be from 1 to the number of {what}, {available}", "correct the count"
        )
    return number


def is_whole(number: object) -> TypeGuard[int]:
    """A whole number of Python's or numpy's, but not a bool."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def _is_number(number: object) -> TypeGuard[float]:
    return isinstance(number, Real) and not isinstance(number, bool)


def check_text(name: str, value: object, remedy: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(f"{name} must be a string, not {_text_shown(name, value)}", remedy)


def check_token(token: object) -> bytes | None:
    """As it is sent: only what an environment variable could hold, too."""
    check_text("token", token, "give the cluster's secret")
    if not isinstance(token, str):
        return None
    try:
        secret = os.fsencode(token.strip())
    except UnicodeEncodeError:
        secret = b""
    if not secret or b"\0" in secret:
        raise invalid("the token is blank, or cannot be held by an environment variable", "give the cluster's secret")
    return secret


def _text_shown(name: str, value: object) -> str:
    return f"a {type(value).__name__}" if name == "token" else repr(value)[:_SHOWN]


def check_path(name: str, value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise invalid(f"{name} must be the path of a file, not {value!r}"[:200], "give a str or a Path")
    return path


def check_settings(path: str | None = None, memory: int | None = None) -> HostSettings:
    """The settings of processes that this one is about to start."""
    given = [] if memory is None else [Argument("memory", "store", "memory", format_size(memory))]
    try:
        return load(None if path is None else Path(os.path.abspath(path)), arguments=given)
    except ConfigurationError as error:
        raise invalid(error.detail, error.remedy) from error


def check_memory(memory: object) -> int | None:
    """In bytes, or as people write it."""
    if memory is None:
        return None
    try:
        limit = parse_size(memory) if isinstance(memory, str) else memory
    except ValueError as error:
        raise invalid(f"memory: {error}", "correct it") from error
    if not is_whole(limit) or not 1 <= limit < MAX_BYTES:
        raise invalid(f"memory must be a number of bytes, not {_shown(memory)}", 'give "4GiB" or 4 << 30, for example')
    return int(limit)


def check_like(like: object) -> Kind | None:
    """Which library's arrays are wanted."""
    if like is None:
        return None
    kind = _LIBRARIES.get(like) if isinstance(like, str) else None
    if kind is None:
        known = ", ".join(f'"{name}"' for name in _LIBRARIES)
        raise invalid(f"like= is the name of a library, not {_shown(like)}", f"use one of {known}")
    return kind


_LIBRARIES = {"numpy": Kind.ARRAY, "torch": Kind.TORCH, "cupy": Kind.CUPY}


def check_out(copy: object, like: object, out: object) -> object:
    if out is not None:
        if copy:
            raise invalid("copy=True and out= cannot both be given", "give one of them: out= already receives a copy")
        if like is not None:
            raise invalid("like= and out= cannot both be given", "give one of them: out= is filled, whatever it is")
        filling.check(out)
    return out


def check_stream(stream: object) -> int:
    """The pointer of a CUDA stream: of CuPy's, of torch's, or as it is given."""
    found = getattr(stream, "ptr", getattr(stream, "cuda_stream", stream))
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        detail = f"stream must be a CUDA stream, not a {type(stream).__name__}"
        raise invalid(detail, "give a stream of CuPy or torch, or its pointer")
    return found


def check_progress(progress: object, out: object) -> filling.Progress | None:
    if progress is not None:
        if out is None:
            raise invalid("progress= is given without out=", "give what is to be filled, too")
        if not callable(progress):
            raise invalid(f"progress= is a function of two numbers, not a {type(progress).__name__}", "correct it")
    return progress


def list_of_outs(outs: object, needed: int) -> Sequence[object]:
    if outs is None:
        return [None] * needed
    if not isinstance(outs, list | tuple) or len(outs) != needed or any(each is None for each in outs):
        raise invalid(f"out must be a list of {needed} arrays", "give one array or tree of them for each ref")
    return outs


def check_array(shape: object, dtype: Any) -> Leaf:
    """The argument of `create`, as a leaf that numpy can make."""
    extents = _extents(shape)
    try:
        leaf = Leaf(describe_dtype(np.dtype(dtype)), extents)
    except Exception as error:  # numpy raises many kinds, and runs code of what it is given
        raise invalid(
            f"objects cannot have the dtype {_shown(dtype)}: {str(error)[:_SHOWN]}", "give a numeric dtype"
        ) from error
    size = leaf.numpy_dtype().itemsize
    for extent in extents:
        size *= max(extent, 1)  # numpy bounds empty arrays too
        if size >= MAX_BYTES:
            raise invalid(f"{leaf} is larger than the largest possible object", "make it smaller")
    return leaf


def _extents(shape: object) -> tuple[int, ...]:
    if is_whole(shape):
        given: Sequence[Any] = (shape,)
    elif isinstance(shape, np.ndarray) and shape.ndim == 1:
        given = shape[: SAFE_DIMENSIONS + 1].tolist()
    elif isinstance(shape, Sequence) and not isinstance(shape, str | bytes | bytearray | memoryview):
        given = shape
    else:
        raise invalid(f"a shape is a whole number or a list of them, not {_shown(shape)}", _SHAPE_REMEDY)
    if len(given) > SAFE_DIMENSIONS:
        raise invalid(f"a shape can have at most {SAFE_DIMENSIONS} dimensions, and this one has more", _SHAPE_REMEDY)
    for extent in given:
        if not is_whole(extent) or not 0 <= extent < MAX_BYTES:
            raise invalid(f"{_shown(extent)} cannot be an extent of a shape", _SHAPE_REMEDY)
    return tuple(int(extent) for extent in given)


_SHAPE_REMEDY = "give a shape such as 1000 or (1000, 3)"
_SHOWN = 80


def _shown(value: object) -> str:
    """For an error text: short, whatever it is."""
    if isinstance(value, str | bytes | bytearray):
        value = value[:_SHOWN]
    elif isinstance(value, int) and abs(value) >= MAX_BYTES:
        return "an int of more than 62 bits"
    elif not isinstance(value, int | float | np.generic):
        return f"a {type(value).__name__}"
    return f"the {type(value).__name__} {value!r}"[:_SHOWN]


def operation(op: object) -> Operation:
    try:
        return Operation(str(op))
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise invalid(f"{op!r} is not an operation", f"use one of {known}") from None
