"""The names of the faults, for whoever runs them: what each does is in `faults`, which loads Dask."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Case"]


class Case(StrEnum):
    """What is killed, and in the middle of what."""

    BROADCAST_WORKER = "broadcast: a worker"
    BROADCAST_AGENT = "broadcast: an agent"
    BROADCAST_HOST = "broadcast: a host"
    BROADCAST_SOURCE = "broadcast: the source's host"
    BROADCAST_DIRECTORY = "broadcast: the directory"
    REDUCE_WORKER = "reduce: a worker"
    REDUCE_AGENT = "reduce: an agent"
    REDUCE_SOURCE = "reduce: a source's host"
    REDUCE_DIRECTORY = "reduce: the directory"
    STRAGGLER = "reduce: a straggler, with count"
    NANNY = "a nanny restarts a worker"
    RESTART = "client.restart()"
    RETIRE = "retire_workers of the last holder"

    @property
    def nanny(self) -> bool:
        """Whether workers must have one."""
        return self in (Case.NANNY, Case.RESTART)
