"""The refs that were deleted recently: only their names, in the order in which they will be forgotten.

A deleted ref has a record only as long as a node is involved with it, so very many short-lived objects leave about a
hundred bytes each, for the time of a tombstone. All tombstones last equally long, so one timer serves all.
"""

from collections.abc import Iterator

from hoplite_ucx.protocol.directory.world import World

_KEPT = 100_000
"""If there are more, the oldest go early: a node that was away so long could put under such a ref again."""

TIMER = "tombstones"


class Tombstones:
    def __init__(self, world: World) -> None:
        self._world = world
        self._until: dict[bytes, float] = {}  # the soonest first
        self.undecided: set[bytes] = set()
        """Targets that were deleted before it was decided what they are: what there is of them may go into nothing."""

    def __contains__(self, ref: bytes) -> bool:
        return ref in self._until

    def __len__(self) -> int:
        return len(self._until)

    def overflow(self) -> bool:
        return len(self._until) > _KEPT

    def add(self, ref: bytes, *, undecided: bool = False) -> None:
        if undecided:
            self.undecided.add(ref)
        until = self._world.now + self._world.settings.tombstone
        self._until.pop(ref, None)
        self._until[ref] = until
        self._world.timers.set_if_absent(TIMER, until)

    def pop_over(self) -> Iterator[tuple[bytes, bool]]:
        """Forget those whose time is over, or that are too many, one by one, and say whether it was undecided."""
        count = len(self._until)  # what is added meanwhile waits for the next look
        while count > 0:
            ref, until = next(iter(self._until.items()))
            if until > self._world.now and count <= _KEPT:
                self._world.timers.set(TIMER, until)
                break
            count -= 1
            del self._until[ref]
            undecided = ref in self.undecided
            self.undecided.discard(ref)
            yield ref, undecided
