"""Objects whose release token has ended for Ray, though somebody may still refer to it.

Ray's owner of an object hears from a borrower to whom that has passed the object on when the borrower drops it. If the
borrower dies before, the owner takes the object for unused: Ray knows of this, and leaves it so. A token is owned by
the driver and borrowed by the worker that makes an array; a caller that is not the driver gets the array's Ray object,
and with it the token, from that worker. So when the maker dies, the end of a token is not believed: Ray's own books of
all processes, which `ray memory` prints, say whether somebody refers to it, and the object lives as long as that is so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

LOOK_SECONDS = 2.0
_LOOKS = 2
"""So often in a row, nobody may refer to it: a ref may be on its way from one process to another."""
_LEASE_SECONDS = 600.0
"""Without Ray's books, it lives that long."""


@dataclass(slots=True)
class _Orphan:
    token: bytes
    """The id of its release token."""
    since: float
    looks: int = 0


class Orphans:
    """Used by one thread. `referred` returns those of these tokens to which somebody refers, or None if it does not
    know."""

    def __init__(self, referred: Callable[[Collection[bytes]], set[bytes] | None]) -> None:
        self._referred = referred
        self._orphans: dict[bytes, _Orphan] = {}
        self._next_look = 0.0
        self.looks = 0
        """So often was looked."""

    def __len__(self) -> int:
        return len(self._orphans)

    def __contains__(self, name: bytes) -> bool:
        return name in self._orphans

    def add(self, tokens: dict[bytes, bytes]) -> None:
        """Names of objects, and the ids of their tokens."""
        if tokens and not self._orphans:
            self._next_look = time.monotonic()
        for name, token in tokens.items():
            self._orphans[name] = _Orphan(token, time.monotonic())

    def over(self) -> list[bytes]:
        """Those that nobody refers to any more, if it is time to look: they are orphans no longer."""
        if not self._orphans or time.monotonic() < self._next_look:
            return []
        referred = self._referred({orphan.token for orphan in self._orphans.values()})
        self.looks += 1
        self._next_look = time.monotonic() + LOOK_SECONDS
        for orphan in self._orphans.values():
            orphan.looks = 0 if referred is None or orphan.token in referred else orphan.looks + 1
        leased = time.monotonic() - _LEASE_SECONDS
        ended = [
            name
            for name, orphan in self._orphans.items()
            if orphan.looks >= _LOOKS or (referred is None and orphan.since < leased)
        ]
        for name in ended:
            del self._orphans[name]
        return ended
