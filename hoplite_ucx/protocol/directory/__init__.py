"""The directory: it knows objects, locations and waiters, and builds the trees. Start reading at `machine`.

Each layer uses only those below it:

- `machine` has a handler for every message; `joining` and `recovery` take up what nodes announce, `retiring` lets
  nodes leave without a loss.
- `objects` decides the consequences of a change, in `settle`, which is also passed down to `reduce/`.
- `reduce/` makes objects of others; `versions` begins and ends versions; `spread/` sends one to all receivers.
- `table` answers questions about `records`, which are plain data.
- `members` knows the nodes; `world` has the settings, timers, stories and effects that all of them share.
"""

from hoplite_ucx.protocol.directory.machine import Directory

__all__ = ["Directory"]
