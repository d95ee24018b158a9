"""How long links wait: for a connection, a receiver, use, a turn. All links of a transport share one object."""

from dataclasses import dataclass

__all__ = ["LinkTimers"]


@dataclass(slots=True)
class LinkTimers:
    """In seconds. The first three are settings of [links]; see `configuration` for what they do."""

    connect: float = 2.0
    idle: float = 60.0
    unclaimed: float = 2.5
    patience: float = 0.25
    """A stream that waited this long for its turn on a link is served next. The layer above sets it: a receiver must
    get some bytes of every stream before it suspects the sender."""
