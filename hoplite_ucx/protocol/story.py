"""What happened to one object, kept short and told in order: the first thing to read when something went wrong.

Entries are kept as tuples and turned into words only when someone asks, because they are written on every
step and read almost never. The entries of one object and the number of objects are bounded, and of finished
objects only the latest are remembered.
"""

from collections import OrderedDict

from hoplite_ucx.protocol.ids import short

_ENTRIES_PER_OBJECT = 200
_OBJECTS = 4096
_ENDED_OBJECTS = 256


class Stories:
    def __init__(self, teller: str) -> None:
        self._teller = teller
        self._entries: OrderedDict[bytes, list[tuple[float, str, tuple[object, ...]]]] = OrderedDict()
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def add(self, now: float, ref: bytes, text: str, *details: object) -> None:
        """Remember `text.format(*details)` at `now`."""
        entries = self._entries.get(ref)
        if entries is None:
            if len(self._entries) >= _OBJECTS:
                oldest, _ = self._entries.popitem(last=False)
                self._ended.pop(oldest, None)
            entries = self._entries[ref] = []
        elif len(entries) == _ENTRIES_PER_OBJECT:
            del entries[0]
        entries.append((now, text, details))

    def end(self, ref: bytes) -> None:
        """The object is over: its story is forgotten sooner than those of others."""
        if ref in self._entries:
            self._ended[ref] = None
            self._ended.move_to_end(ref)
        if len(self._ended) > _ENDED_OBJECTS:
            oldest, _ = self._ended.popitem(last=False)
            del self._entries[oldest]

    def tell(self, ref: bytes) -> list[tuple[float, str]]:
        return [
            (now, f"{self._teller} {short(ref)}: {text.format(*details)}")
            for now, text, details in self._entries.get(ref, ())
        ]
