"""References to objects, as users hold them."""

from functools import total_ordering

from hoplite_ucx.protocol.ids import REF_BYTES

_SHOWN = 80


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
        return self._binary

    def hex(self) -> str:
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


def _refusal(form: str, given: object, remedy: str) -> Exception:
    from hoplite_ucx.protocol.errors import Failure, FailureKind  # which name refs themselves

    shown = f"{given[:_SHOWN]!r}" if isinstance(given, bytes | str) else f"a {type(given).__name__}"
    return Failure(FailureKind.INVALID, f"{form}, not {shown}", remedy).exception()
