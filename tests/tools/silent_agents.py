"""Sockets under the names of this user's agents that take connections and say nothing, as stopped agents do."""

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hoplite_ucx.runtime.local.socket_names import socket_name


@contextmanager
def silent_agents(count: int, cluster: str | None = None) -> Iterator[dict[str, socket.socket]]:
    """By the names of the agents; each of a cluster of its own, unless one is given. The cluster's id sorts first."""
    with contextlib.ExitStack() as stack:
        found = {}
        for _ in range(count):
            agent = os.urandom(6).hex()
            listening = found[agent] = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(socket_name(cluster or "0" + os.urandom(8).hex(), agent))
            listening.listen()
        yield found
