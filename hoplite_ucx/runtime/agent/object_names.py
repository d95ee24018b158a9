"""The names of objects that this host's workers put or reduced lately, for people to read: refs do not contain them."""

from itertools import islice

_KEPT = 4096


class Names:
    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self.count = 0
        """How many were learned so far."""

    def note(self, ref: bytes, name: str) -> None:
        if ref not in self._names:
            self._names[ref] = name
            self.count += 1
            if len(self._names) > _KEPT:
                del self._names[next(iter(self._names))]

    def after(self, count: int) -> list[tuple[bytes, str]]:
        """Those that were learned after the first ones, as far as they are kept. An agent that was started anew has
        learned fewer than somebody may remember."""
        new = self.count - count if count <= self.count else self.count
        return list(islice(reversed(self._names.items()), new))[::-1]
