"""What a cluster knows of an object, as users see it."""

from dataclasses import dataclass

from hoplite_ucx.protocol.errors import HopliteError, ObjectRef
from hoplite_ucx.protocol.messages import Description, ObjectState
from hoplite_ucx.runtime.objects.layouts import decode_layout

__all__ = ["ObjectInfo", "ObjectState", "info_of"]

DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the directory said of a ref. A moment later it may be different."""

    ref: ObjectRef
    state: ObjectState
    """"ready"; "coming", while it is put or reduced; "unknown", if it was never put or was lost; "deleted"; or
    "failed", for a reduction that cannot be carried out."""
    size: int | None = None
    """In bytes; None while that is not known."""
    layout: str | None = None
    """Such as "float32[1000]" or "a pickled object"; None while that is not known, or if its description is long."""
    where: tuple[str, ...] = ()
    """The addresses of agents that hold a copy, some of them if there are many, and "directory" for a small object that
    the directory itself has."""
    copies: int = 0
    """How many agents hold a copy."""
    creator: str | None = None
    """The address of the agent at which it was put; None for a reduction, or if that agent is gone."""
    age: float | None = None
    """In seconds, since its put or reduction began; None if the directory was started anew since then."""

    @property
    def exists(self) -> bool:
        """Whether a get need not wait for a put of it."""
        return self.state in (ObjectState.READY, ObjectState.COMING)


def info_of(known: Description) -> ObjectInfo:
    return ObjectInfo(
        ObjectRef(known.ref),
        known.state,
        known.size,
        _layout(known),
        (*known.holders, *((DIRECTORY,) if known.inline else ())),
        known.copies,
        known.creator,
        known.age,
    )


def _layout(known: Description) -> str | None:
    if not known.layout or known.size is None:
        return None
    try:
        return str(decode_layout(known.layout, known.size))
    except HopliteError:  # of a build that has others
        return None
