"""What happened to one object, kept short and told in order: the first thing to read when something went wrong.

Entries are kept as tuples and turned into words only when someone asks, because they are written on every
step and read almost never. Both the entries of one object and the number of objects are bounded.
"""

from collections import OrderedDict, deque

from hoplite_ucx.protocol.ids import short

_ENTRIES_PER_OBJECT = 200
_OBJECTS = 4096


class Stories:
    def __init__(self, teller: str) -> None:
        self._teller = teller
        self._entries: OrderedDict[bytes, deque[tuple[float, str, tuple[object, ...]]]] = OrderedDict()

    def add(self, now: float, ref: bytes, text: str, *details: object) -> None:
        """Remember `text.format(*details)` at `now`."""
        entries = self._entries.get(ref)
        if entries is None:
            if len(self._entries) >= _OBJECTS:
                self._entries.popitem(last=False)
            entries = self._entries[ref] = deque(maxlen=_ENTRIES_PER_OBJECT)
        entries.append((now, text, details))

    def tell(self, ref: bytes) -> list[tuple[float, str]]:
        return [
            (now, f"{self._teller} {short(ref)}: {text.format(*details)}")
            for now, text, details in self._entries.get(ref, ())
        ]
