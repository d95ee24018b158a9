"""When the next message of a link is due, by how the last ones came.

On a slow network a message comes in many packets, and UCX wakes its thread for each few of them, only to find that the
message is not there yet. On a machine with much to do every such time costs as much as to take in a third of it. (A
frame over TCP is waited for by the kernel.) So UCX is left alone until the message is nearly due. What comes meanwhile
lies in the kernel: it must be little, and where messages take no time to speak of nothing is waited for.

Whoever takes in a message late must not wait longer for the next one, which may be half there. So a message is due by
those of the last ones that came the soonest; after a pause that is at once, until the pause is long ago.
"""

from collections import deque

__all__ = ["Pace"]

# So many of the last messages count.
_MESSAGES = 8
# Who sends in smaller pieces does so for the sake of round trips.
_LEAST_BYTES = 64 << 10
# So much of the time that a message takes is left for it to come early.
_EARLY = 0.25
# No more than so many bytes and so much time are waited for, and no less is worth it.
_MOST_BYTES = 256 << 10
_MOST_SECONDS = 2e-3
_LEAST_SECONDS = 3e-4


class Pace:
    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque(maxlen=_MESSAGES + 1)

    def came(self, now: float, total: int) -> None:
        """Something has come; so many bytes in all."""
        self._came.append((now, total))

    def due(self, length: int) -> float:
        """Until this moment the next message, of this length, need not be looked for."""
        if length < _LEAST_BYTES or len(self._came) <= _MESSAGES:
            return 0.0
        (first, before), (last, after) = self._came[0], self._came[-1]
        seconds = (last - first) / max(after - before, 1)  # for a byte
        soonest = min(moment + (after + length - total) * seconds for moment, total in self._came)
        due = min(soonest - _EARLY * length * seconds, last + _MOST_BYTES * seconds, last + _MOST_SECONDS)
        return due if due >= last + _LEAST_SECONDS else 0.0
