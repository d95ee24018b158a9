"""What is on its way to this node, as plain data: a `Fetch` for each wanted object, and the stream that brings it.

`receiving` runs the streams, `fetching` and `assembling` decide what becomes of the fetches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hoplite_ucx.protocol.ids import NO_SLOT, CallId, StreamId, Version
from hoplite_ucx.protocol.messages import Assemble, Place, Sealed, StreamFault
from hoplite_ucx.protocol.node.memory import Holding, Input, Request


@dataclass(slots=True, eq=False)
class Fetch:
    """`into` names the slot that it is for; otherwise it is for the store and its gets."""

    ref: bytes
    into: bytes = NO_SLOT
    getters: dict[CallId, None] = field(default_factory=dict)
    placement: Place | Assemble | None = None
    number: int = 0
    """The newest placement heard of, kept after it failed: an older one that arrives late is ignored."""
    version: Version | None = None
    """What the directory knows that we are getting, with a sender or without."""
    sink: Holding | Input | None = None
    incoming: Incoming | None = None
    sealed: Sealed | None = None
    """Which version is known to be decided, and what it came from."""
    halt: int | None = None
    hungry_for: int | None = None
    """How much memory was missing when a placement was declined; it is asked for again when there may be room."""
    hungry_since: int = 0
    """The heartbeat in which it was declined first."""
    wanted_at: int | None = None
    """Of one that was declined: the heartbeat in which it was wanted again."""
    request: Request | None = None
    whole: bytes | None = None
    """Of a stripe: the target that is put together from it, whose memory it fills."""

    def wanted(self) -> bool:
        return bool(self.getters or self.into or self.whole)


@dataclass(slots=True, eq=False)
class Incoming:
    stream: StreamId
    placement: Place
    sink: Holding | Input
    fetch: Fetch
    position: int
    sign_of_life: float
    fault: StreamFault | None = None
    closing: bool = False


class Fetches(dict[tuple[bytes, bytes], Fetch]):
    """All fetches, by ref and slot."""

    def of_store(self, ref: bytes) -> Fetch | None:
        return self.get((ref, NO_SLOT))

    def for_store(self, ref: bytes) -> Fetch:
        """The one that there is, or a new one."""
        return self.setdefault((ref, NO_SLOT), Fetch(ref))

    def newest_number(self, ref: bytes) -> int:
        fetch = self.of_store(ref)
        return fetch.number if fetch is not None else 0

    def is_stripe(self, ref: bytes) -> bool:
        fetch = self.of_store(ref)
        return fetch is not None and fetch.whole is not None

    def may_be_stripe(self, ref: bytes, whole: bytes) -> bool:
        """Whether no call gets the ref, except perhaps as a stripe of the same target."""
        fetch = self.of_store(ref)
        return fetch is None or (not fetch.getters and fetch.whole in (None, whole) and fetch.hungry_for is None)
