"""What can go wrong, twice: as a `Failure` that travels in messages, and as the exception a user catches.

Every failure names its object, the peer where there is one, and what to do about it. `FailureKind` is the
one list of what may happen; each kind maps to one exception class.
"""

import enum
from typing import Any

from msgspec import Struct

from hoplite_ucx.protocol.ids import REF_BYTES, short
from hoplite_ucx.protocol.refs import ObjectRef


class FailureKind(enum.StrEnum):
    LOST = "lost"
    ABORTED = "aborted"
    DELETED = "deleted"
    TIMEOUT = "timeout"
    STORE_FULL = "store_full"
    INVALID = "invalid"
    STALE = "stale"
    CLOSED = "closed"
    INTERNAL = "internal"


class Failure(Struct, frozen=True, array_like=True):
    """A typed error on its way to whoever must hear of it."""

    kind: FailureKind
    detail: str
    remedy: str
    ref: bytes | None = None
    peer: str | None = None

    def __str__(self) -> str:
        about = f"object {short(self.ref)}: " if self.ref else ""
        peer = f" (peer {self.peer})" if self.peer else ""
        return f"{about}{self.detail}{peer}; {self.remedy}"

    def exception(self) -> "HopliteError":
        return _EXCEPTIONS[self.kind](self)


class HopliteError(Exception):
    """The base of everything this library raises on purpose."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @property
    def ref(self) -> ObjectRef | None:
        """The object that it is about, where there is one; None also if what was given could not be the ref of any."""
        name = self.failure.ref
        return ObjectRef(name) if name is not None and len(name) == REF_BYTES else None

    @property
    def peer(self) -> str | None:
        return self.failure.peer

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.failure.remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Processes send errors to each other."""
        return type(self), (self.failure,), self.__dict__


class ObjectLostError(HopliteError):
    """Every complete copy of the object died with its node."""


class PutAbortedError(ObjectLostError):
    """The process that was putting the object ended before the last byte."""


class ObjectDeletedError(HopliteError):
    """The object was deleted; its ref will not come back."""


class GetTimeoutError(HopliteError, TimeoutError):
    """The time given for a call ran out."""


class StoreFullError(HopliteError, MemoryError):
    """The object does not fit beside what the store must keep."""


class InvalidRequestError(HopliteError, ValueError):
    """A call or message that cannot be carried out as it is written."""


class StaleError(HopliteError):
    """A message from an earlier life of a node or of the directory."""


class ClosedError(HopliteError):
    """The runtime is closed."""


class InternalError(HopliteError):
    """Something failed inside of the runtime that should not: a fault of this library, to be reported."""


_EXCEPTIONS: dict[FailureKind, type[HopliteError]] = {
    FailureKind.LOST: ObjectLostError,
    FailureKind.ABORTED: PutAbortedError,
    FailureKind.DELETED: ObjectDeletedError,
    FailureKind.TIMEOUT: GetTimeoutError,
    FailureKind.STORE_FULL: StoreFullError,
    FailureKind.INVALID: InvalidRequestError,
    FailureKind.STALE: StaleError,
    FailureKind.CLOSED: ClosedError,
    FailureKind.INTERNAL: InternalError,
}
