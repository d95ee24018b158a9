"""The socket names under which the workers of a user find the agents of their host."""

import os
from contextlib import suppress


def socket_name(cluster: str, agent: str) -> str:
    """Where the workers of a host find its agent: an abstract name, which is seen within a network namespace only."""
    return f"\0hoplite-{os.getuid()}-{cluster}-{agent}"


def agents(uid: int | None = None) -> list[str]:
    """The socket names of this user's agents in this network namespace."""
    prefix = f"@hoplite-{os.getuid() if uid is None else uid}-"
    found = set()
    # Any process can give a socket a name that is not text; that must not hide other agents.
    with suppress(OSError), open("/proc/net/unix", errors="surrogateescape") as table:
        for line in table:
            name = line.rsplit(" ", 1)[-1].strip()
            if name.startswith(prefix):
                found.add("\0" + name[1:])
    return sorted(found)
