"""Scopes: objects made inside one are deleted when it ends."""

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.worker.membership import Membership
from hoplite_ucx.runtime.worker.refs import ObjectRef

DELETE_SECONDS = 300.0
UNDO_SECONDS = 5.0
"""For deleting what a failed call has made: its caller waits for the error."""


@dataclass(slots=True, eq=False)
class _Scope:
    of: Membership
    made: list[ObjectRef]
    is_over: bool = False
    """Tasks that were started in it and outlive it still find it."""


_scopes: contextvars.ContextVar[tuple[_Scope, ...]] = contextvars.ContextVar("hoplite_scopes", default=())
"""Those that this thread or task is in, the innermost last."""


@contextlib.contextmanager
def collect(of: Membership, made: list[ObjectRef]) -> Iterator[None]:
    """Record every ref that is made inside, in this cluster."""
    scope = _Scope(of, made)
    mark = _scopes.set((*_scopes.get(), scope))
    try:
        yield
    finally:
        scope.is_over = True
        with contextlib.suppress(ValueError):  # a generator may end it elsewhere than it began it
            _scopes.reset(mark)


@contextlib.contextmanager
def failing_too(error: BaseException, what: str = "the scope's objects could not be deleted") -> Iterator[None]:
    """The user's own error counts: if the end of the block fails as well, a note says so."""
    try:
        yield
    except HopliteError as failed:
        error.add_note(f"{what}: {failed}")


def note_made(of: Membership, ref: ObjectRef) -> ObjectRef:
    """Every ref that a call returns passes through here."""
    for scope in reversed(_scopes.get()):
        if scope.of is of and not scope.is_over:
            scope.made.append(ref)
            break
    return ref
