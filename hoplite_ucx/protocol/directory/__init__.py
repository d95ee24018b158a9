"""The directory: it knows objects, locations and waiters, and lays the trees. See `machine` for where to begin.

Each layer uses only those below it:

- `machine` has a handler for every message; `joining` and `recovery` take up what nodes announce.
- `objects` decides what follows from a change, in `settle`, which is also handed down to `reduce/`.
- `reduce/` makes objects of others; `versions` begins and ends what there is of one; `spread/` sends it to everybody.
- `table` answers questions about `records`, which are plain data.
- `members` knows who is there; `world` has the settings, timers, stories and effects that all of them share.
"""

from hoplite_ucx.protocol.directory.machine import Directory

__all__ = ["Directory"]
