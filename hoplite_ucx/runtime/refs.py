"""References to objects, as users hold them."""

import os

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import REF_BYTES


class ObjectRef:
    """The name of an object, perhaps before it exists. Refs can be compared, hashed, pickled and sent anywhere."""

    __slots__ = ("_binary",)

    def __init__(self, binary: bytes) -> None:
        given: object = binary
        if not isinstance(given, bytes) or len(given) != REF_BYTES:
            detail = f"a ref is made of {REF_BYTES} bytes, not of {given!r}"
            raise Failure(FailureKind.INVALID, detail[:200], "use new_ref(), or the binary of another ref").exception()
        self._binary = binary

    @classmethod
    def random(cls) -> "ObjectRef":
        return cls(os.urandom(REF_BYTES))

    @property
    def binary(self) -> bytes:
        return self._binary

    def hex(self) -> str:
        return self._binary.hex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._binary == other._binary

    def __hash__(self) -> int:
        return hash(self._binary)

    def __repr__(self) -> str:
        return f"ObjectRef({self._binary.hex()})"

    def __reduce__(self) -> tuple[type["ObjectRef"], tuple[bytes]]:
        return ObjectRef, (self._binary,)


def new_ref() -> ObjectRef:
    """A name for an object that does not exist yet: `put(value, ref=...)` fulfils it, and gets of it wait for that."""
    return ObjectRef.random()
