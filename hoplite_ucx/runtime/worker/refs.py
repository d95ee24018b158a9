"""How refs are made: at random, or from a name."""

import hashlib
import os

from hoplite_ucx.protocol.errors import Failure, FailureKind, ObjectRef
from hoplite_ucx.protocol.ids import REF_BYTES

__all__ = ["ObjectRef", "new_ref", "ref_for"]

_NAMED = b"hoplite name"
"""Names are hashed for this purpose only, so that no other use of the hash gives the same refs."""


def new_ref() -> ObjectRef:
    """A name for an object that does not exist yet: `put(value, ref=...)` creates the object, and gets of the ref wait
    for that."""
    return ObjectRef(os.urandom(REF_BYTES))


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
    return ObjectRef(hashlib.blake2b(data, digest_size=REF_BYTES, person=_NAMED).digest())
