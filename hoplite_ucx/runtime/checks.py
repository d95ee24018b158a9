"""Checks of what users give to the API: refused before anything is allocated or sent, with the remedy."""

import math
from collections.abc import Sequence

import numpy as np

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.layout import Array
from hoplite_ucx.runtime.refs import ObjectRef


def invalid(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.INVALID, detail, remedy).exception()


def about(error: HopliteError, ref: ObjectRef) -> HopliteError:
    """The same error, naming the object it is about."""
    failure = error.failure
    if failure.ref is not None:
        return error
    return Failure(failure.kind, failure.detail, failure.remedy, ref.binary, failure.peer).exception()


def one_ref(ref: object) -> ObjectRef:
    if not isinstance(ref, ObjectRef):
        raise invalid(f"an ObjectRef is needed, not a {type(ref).__name__}", "use what put, reduce or new_ref return")
    return ref


def optional_ref(ref: object) -> ObjectRef:
    return ObjectRef.random() if ref is None else one_ref(ref)


def list_of_refs(refs: object) -> list[ObjectRef]:
    if isinstance(refs, ObjectRef | str | bytes) or not isinstance(refs, Sequence):
        raise invalid(f"a list of refs is needed, not a {type(refs).__name__}", "use [ref, ...]")
    return [one_ref(ref) for ref in refs]


def check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or math.isnan(timeout) or timeout < 0:
        raise invalid(f"a timeout is a number of seconds that is not negative, or None, not {timeout!r}", "correct it")


def check_count(count: object, available: int, what: str) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= available:
        raise invalid(f"a count of {count!r} is not within 1 and the {available} {what} given", "correct the count")


def check_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(f"{name} must be a text, not {value!r}", "write host:port, such as head:7777")


def check_out(out: object) -> Array:
    if not isinstance(out, np.ndarray):
        raise invalid(f"out must be a numpy array, not a {type(out).__name__}", "give an array to fill")
    if not out.flags.writeable:
        raise invalid("out is read-only", "give an array that can be written to")
    return out


def operation(op: object) -> Operation:
    try:
        return Operation(str(op))
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise invalid(f"{op!r} is no operation", f"use one of {known}") from None
