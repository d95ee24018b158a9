"""What can go wrong, twice: as a `Failure` that travels in messages, and as the exception a user catches.

Every failure names its object, the peer where there is one, and what to do about it. `FailureKind` is the
one list of what may happen; each kind maps to one exception class. `ObjectRef`, the name of an object as users hold it,
is here too: an error has the ref that it is about, and a malformed ref is an error.
"""

import enum
from functools import total_ordering
from typing import Any

from msgspec import Struct

from hoplite_ucx.protocol.ids import REF_BYTES, short

_SHOWN = 80


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
    """A typed error on its way to its caller."""

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


def internal(where: str, doing: str, error: Exception) -> Failure:
    """A bug of ours in the agent or the directory, as an error for users."""
    detail = f"{doing} failed in the {where}: {type(error).__name__}: {error}"
    return Failure(FailureKind.INTERNAL, detail, f"see the {where}'s messages, and report this")


@total_ordering
class ObjectRef:
    """The name of an object, perhaps before it exists. Refs can be compared, sorted, hashed, pickled and sent anywhere.

    A ref belongs to no cluster: it names an object in each of them.
    """

    __slots__ = ("_binary",)

    def __init__(self, binary: bytes) -> None:
        """Raises `InvalidRequestError` unless there are 16 bytes."""
        given: object = binary
        if not isinstance(given, bytes) or len(given) != REF_BYTES:
            raise _refusal(f"a ref has {REF_BYTES} bytes", given, "use new_ref(), or the binary of another ref")
        self._binary = binary

    @classmethod
    def fromhex(cls, text: str) -> "ObjectRef":
        """The ref whose `hex()` this is. Raises `InvalidRequestError` unless there are 32 hexadecimal digits."""
        given: object = text
        if isinstance(given, str) and len(given) == 2 * REF_BYTES:
            try:
                return cls(bytes.fromhex(text))
            except (ValueError, TypeError):  # no digit, or a blank
                pass
        raise _refusal(f"a ref has {2 * REF_BYTES} hexadecimal digits", given, "use the hex() of another ref")

    @property
    def binary(self) -> bytes:
        """Its 16 bytes."""
        return self._binary

    def hex(self) -> str:
        """Its 32 hexadecimal digits, as messages show it; `fromhex` is the way back."""
        return self._binary.hex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._binary == other._binary

    def __lt__(self, other: object) -> bool:
        return self._binary < other._binary if isinstance(other, ObjectRef) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._binary)

    def __repr__(self) -> str:
        return f"ObjectRef({self._binary.hex()})"

    def __reduce__(self) -> tuple[type["ObjectRef"], tuple[bytes]]:
        return ObjectRef, (self._binary,)


class HopliteError(Exception):
    """The base of everything this library raises on purpose."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @property
    def ref(self) -> ObjectRef | None:
        """The object that it is about, where there is one; None also if the call was given an invalid ref."""
        name = self.failure.ref
        return ObjectRef(name) if name is not None and len(name) == REF_BYTES else None

    @property
    def peer(self) -> str | None:
        """The node that it is about, where there is one."""
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
    """Something failed inside the runtime that should not: a bug in this library; please report it."""


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


def _refusal(form: str, given: object, remedy: str) -> HopliteError:
    shown = f"{given[:_SHOWN]!r}" if isinstance(given, bytes | str) else f"a {type(given).__name__}"
    return Failure(FailureKind.INVALID, f"{form}, not {shown}", remedy).exception()
