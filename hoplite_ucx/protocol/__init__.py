"""The protocol, sans-IO: two state machines, the messages they exchange, and their errors.

    effects = machine.handle(event, now)

`Directory` knows objects, locations and waiters and builds the trees; `NodeState` holds objects and runs streams.
Neither has a socket, a thread, a clock or a source of randomness: a shell performs their effects and feeds them events,
and the simulator does the same in virtual time.
"""

from hoplite_ucx.protocol.directory import Directory
from hoplite_ucx.protocol.node import NodeState
from hoplite_ucx.protocol.settings import Settings

__all__ = ["Directory", "NodeState", "Settings"]
