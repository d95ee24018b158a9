"""How refs are made: at random, or from a name."""

import hashlib
import os

from hoplite_ucx.protocol.errors import Failure, FailureKind, ObjectRef
from hoplite_ucx.protocol.ids import REF_BYTES

__all__ = ["ObjectRef", "is_large", "new_ref", "ref_for", "ref_of_large"]

_NAMED = b"hoplite name"
"""Names are hashed for this purpose only, so that no other use of the hash gives the same refs."""

_LARGE = b"\xf5\x6c"
"""How a ref ends that was made for an object which is too large for the directory. It is a hint: of the other refs, one
in 65,536 ends so by chance."""

_NAMES_KEPT = 4096
_SHOWN = 200

_names: dict[bytes, str] = {}
"""The latest names of this process, as people are shown them. A ref does not contain its name."""


def new_ref() -> ObjectRef:
    """A name for an object that does not exist yet: `put(value, ref=...)` creates the object, and gets of the ref wait
    for that. Raises nothing."""
    return ObjectRef(os.urandom(REF_BYTES))


def ref_of_large() -> ObjectRef:
    """A new ref that tells those who get it that the directory does not have the object itself."""
    return ObjectRef(os.urandom(REF_BYTES - len(_LARGE)) + _LARGE)


def is_large(ref: bytes) -> bool:
    """Whether the ref says so."""
    return ref.endswith(_LARGE)


def ref_for(name: str) -> ObjectRef:
    """The ref of a named object: the same name gives the same ref, in every process and cluster.

    A name is any text, of any length; a prefix as in `ref_for("run 7/weights")` keeps the names of several programs
    apart. The first object put under a name stays until it is deleted; then the name is refused for a while. Raises
    `InvalidRequestError` if the name is not a text.
    """
    given: object = name
    if not isinstance(given, str):
        detail = f"a name must be a string, not a {type(given).__name__}"
        raise Failure(FailureKind.INVALID, detail, 'give one such as "weights"').exception()
    data = name.encode("utf-8", "surrogatepass")
    ref = hashlib.blake2b(data, digest_size=REF_BYTES, person=_NAMED).digest()
    if ref not in _names:
        shown = name if len(name) <= _SHOWN else name[:_SHOWN] + "…"
        _names[ref] = shown.encode("utf-8", "backslashreplace").decode()
        if len(_names) > _NAMES_KEPT:
            _names.pop(next(iter(_names)), None)
    return ObjectRef(ref)


def name_of(ref: bytes) -> str:
    """For people: the name that this process made the ref from, lately; empty if it did not."""
    return _names.get(ref, "")
