"""Small objects that came with the directory's answer, kept so that a second get of one does not travel.

The directory knows to whom it sent the bytes and says when they are over, so they are kept only as long as the session
lasts in which they came. They are no holdings: nobody is sent them from here, they are not announced, and they may go
at any time. Those that nobody asked for longest go first.
"""

from collections import OrderedDict

from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import Inline
from hoplite_ucx.protocol.settings import MIB

_MOST_OBJECTS = 4096
_MOST_BYTES = 16 * MIB


class Kept:
    def __init__(self) -> None:
        self._objects: OrderedDict[bytes, Inline] = OrderedDict()
        self.total = 0

    def __contains__(self, ref: bytes) -> bool:
        return ref in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, ref: bytes) -> Inline | None:
        kept = self._objects.get(ref)
        if kept is not None:
            self._objects.move_to_end(ref)
        return kept

    def add(self, inline: Inline) -> None:
        self.forget(inline.version.ref)
        self._objects[inline.version.ref] = inline
        self.total += len(inline.data)
        while len(self._objects) > _MOST_OBJECTS or self.total > _MOST_BYTES:
            self.forget(next(iter(self._objects)))

    def dropped(self, version: Version) -> None:
        kept = self._objects.get(version.ref)
        if kept is not None and kept.version == version:
            self.forget(version.ref)

    def forget(self, ref: bytes) -> None:
        kept = self._objects.pop(ref, None)
        if kept is not None:
            self.total -= len(kept.data)

    def clear(self) -> None:
        self._objects.clear()
        self.total = 0
