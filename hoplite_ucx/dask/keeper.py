"""The keeper: one process per host and Dask cluster, which owns the host's agent and outlives Dask's workers.

Every Dask process of the host that uses the agent holds a connection to the keeper, a *lease*. It says nothing: that it
is open is all that counts. A worker that its nanny restarts, or a client that comes back, finds the agent and its
objects as they were. The keeper ends 15 seconds after the last lease, or sooner if the directory is gone as well, and
the agent with it. It ends at once if its agent does: then whoever holds a lease starts another one.

The keeper's socket has an abstract name, which only one process can bind: that makes it the only one. This module is
the keeper's program and loads no Dask.
"""

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from typing import Any

from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.launch.inspection import directory_status
from hoplite_ucx.runtime.launch.owned_processes import AgentProcess, start_agent
from hoplite_ucx.transports import shm

_GRACE = 15.0
"""Longer than a nanny takes to start its worker again."""
_PATIENCE = 60.0
"""The agent ends by itself after so long without a directory. A scheduler that restarts its directory takes seconds."""
_LOOK = 1.0
_GONE_LOOKS = 2
"""So many times in a row without a directory and without a lease, the Dask cluster is over."""
_ERROR_SECONDS = 2.0
_BACKLOG = 256
_HAND_OVER = 30.0
"""For other hosts to take over what only this one holds, as after the last worker of a host was retired."""


def socket_of(cluster_id: str) -> str:
    return f"\0hoplite_keeper-{os.getuid()}-{cluster_id}"


def main() -> int:
    terms = Terms(**json.loads(sys.stdin.readline()))
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(socket_of(terms.cluster_id))
    except OSError:
        return 0  # another process of this host was first
    listener.listen(_BACKLOG)  # whoever connects now waits for the report
    try:
        agent = start_agent(terms.address, token=terms.token, memory=terms.memory, rate=terms.rate, patience=_PATIENCE)
    except HopliteError as error:
        _tell_error(listener, error)
        return 1
    with agent:
        _serve(listener, agent, terms)
        listener.close()  # before the agent ends: nobody new relies on it
        if agent.running and _has_directory(terms):
            agent.close(hand_over=_HAND_OVER)
    return 0


def _tell_error(listener: socket.socket, error: HopliteError) -> None:
    """Those who wait for the agent hear why there is none."""
    report = _line({"error": error.failure.detail, "remedy": error.failure.remedy})
    ends = time.monotonic() + _ERROR_SECONDS
    while (left := ends - time.monotonic()) > 0:
        if select.select([listener], [], [], left)[0]:
            lease, _ = listener.accept()
            with lease, contextlib.suppress(OSError):  # it may have gone meanwhile
                lease.sendall(report)


def _serve(listener: socket.socket, agent: AgentProcess, terms: Terms) -> None:
    """Until nobody needs the agent any more, or it has ended."""
    report = _line({"agent": agent.agent, "agent_pid": agent.pid, "keeper_pid": os.getpid()})
    over = _notice_end(agent)
    leases: dict[int, socket.socket] = {}
    idle_since, gone = time.monotonic(), 0
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(over, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(_LOOK * 1000)}
        if over in ready:
            for lease in leases.values():
                lease.close()
            return
        for fd in ready & leases.keys():  # a lease says nothing: this is its end
            poll.unregister(fd)
            leases.pop(fd).close()
        if listener.fileno() in ready:
            lease, _ = listener.accept()
            if _told(lease, report):
                leases[lease.fileno()] = lease
                poll.register(lease, select.POLLIN)
            else:
                lease.close()
        if leases:
            idle_since, gone = time.monotonic(), 0
        elif not ready:
            gone = 0 if _has_directory(terms) else gone + 1
            if gone >= _GONE_LOOKS or time.monotonic() - idle_since >= _GRACE:
                return


def _told(lease: socket.socket, report: bytes) -> bool:
    """Whether it belongs to this user, and is still there: a process may die as soon as it has connected."""
    if shm.peer_uid(lease) != os.getuid():
        return False
    try:
        lease.sendall(report)
    except OSError:
        return False
    return True


def _has_directory(terms: Terms) -> bool:
    try:
        directory_status(terms.address, terms.token.encode())
    except HopliteError:
        return False
    return True


def _notice_end(agent: AgentProcess) -> int:
    """A descriptor that becomes readable when the agent has ended."""
    over = os.eventfd(0, os.EFD_CLOEXEC)

    def wait() -> None:
        agent.wait()
        os.eventfd_write(over, 1)

    threading.Thread(target=wait, name="hoplite-agent-end", daemon=True).start()
    return over


def _line(report: dict[str, Any]) -> bytes:
    return json.dumps(report).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main())
