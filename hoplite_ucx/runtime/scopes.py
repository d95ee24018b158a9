"""Scopes: what is made inside one is deleted when it ends."""

import contextlib
import contextvars
from collections.abc import Iterator

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime import calls, current
from hoplite_ucx.runtime.refs import ObjectRef

_scope: contextvars.ContextVar[list[ObjectRef] | None] = contextvars.ContextVar("hoplite_scope", default=None)
DELETE_SECONDS = 300.0


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Delete on exit what was put, reduced or sealed inside, by this thread or task."""
    made: list[ObjectRef] = []
    try:
        with collect(made):
            yield
    except BaseException as error:
        with failing_too(error):
            _delete_all(made)
        raise
    _delete_all(made)


@contextlib.contextmanager
def collect(made: list[ObjectRef]) -> Iterator[None]:
    """Every ref that is made inside is noted."""
    mark = _scope.set(made)
    try:
        yield
    finally:
        _scope.reset(mark)


@contextlib.contextmanager
def failing_too(error: BaseException) -> Iterator[None]:
    """The user's own error is what counts: if the deletion fails as well, a note says so."""
    try:
        yield
    except HopliteError as failed:
        error.add_note(f"What was made in the scope could not be deleted: {failed}")


def _delete_all(made: list[ObjectRef]) -> None:
    if made and current.is_initialized():
        current.client().carry_out(calls.delete(made, DELETE_SECONDS))


def note_made(ref: ObjectRef) -> ObjectRef:
    """Every ref that a call returns passes through here."""
    made = _scope.get()
    if made is not None:
        made.append(ref)
    return ref
