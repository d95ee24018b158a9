"""How long links wait: for a connection, a receiver, use, a turn. All links of a transport share one object."""

from dataclasses import dataclass

__all__ = ["HANDSHAKE_SECONDS", "PAUSED", "LinkTimers"]

HANDSHAKE_SECONDS = 2.0
"""For each step of a handshake, on links and sessions alike."""

PAUSED = 0.5
"""Seconds. Whoever looks so much later than it wanted to was paused, or got no processor: it has not waited for others
in this time, and they could not reach it."""


@dataclass(slots=True)
class LinkTimers:
    """In seconds. The first three are settings of [links]; see `configuration` for what they do."""

    connect: float = 2.0
    idle: float = 60.0
    unclaimed: float = 0.5
    patience: float = 0.25
    """A stream that waited this long for its turn on a link is served next. The layer above sets it: a receiver must
    get some bytes of every stream before it suspects the sender."""
    handshake: float = HANDSHAKE_SECONDS
    """How long a receiver waits in each of the two handshakes: the one that proves the token, and that of TLS."""

    @property
    def grace(self) -> float:
        """How long a stream is served without a connection: longer than connecting may take. A receiver that connected
        later would wait for a stream that is not served any more, and nothing tells it."""
        return self.connect + 2 * self.handshake + self.unclaimed
