"""What one run of a program is: read by the program from its command line, and written by who starts it."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

__all__ = ["AT_ONCE", "END", "Job", "Row", "end", "tell"]

END = "end"
"""A program's last line."""


AT_ONCE = 16
"""Queries that are under way at most; others wait, and their waiting counts."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    """Of the Ray cluster."""
    nodes: list[str]
    """The addresses of its nodes. The server, learner or front end runs on the first."""
    rounds: int
    """At most so many; versions, with weight sync."""
    task: str
    """What is computed: the name of a model, or of an environment."""
    compute: float | None = None
    """Seconds for which a timer stands for the accelerator; None computes for real, in each round."""
    size: int = 0
    """Bytes of a query, or of the layer that makes a policy large; 0 for what the task has by itself."""
    seconds: float = 0.0
    """For how long rounds begin; 0 for as long as it takes."""
    kill: float | None = None
    """So many seconds after the first round began, a worker is killed with -9. Weight sync then has engines that join
    and leave, too."""
    patience: float | None = None
    """How much longer than the others the last model of an ensemble may take, as a share; None waits for all."""
    load: float = 0.0
    """Queries a second, as they come by themselves; 0 asks one after another."""
    memory: int = 1 << 30
    """Of each node's agent."""
    rate: float | None = None
    """Of each node's link, in bytes a second."""
    seed: int = 0

    @classmethod
    def from_command_line(cls) -> Job:
        return msgspec.json.decode(sys.argv[1], type=cls)

    def written(self) -> str:
        return msgspec.json.encode(self).decode()


Row = dict[str, Any]


def tell(row: Row) -> None:
    """One line for who started the program."""
    print(msgspec.json.encode(row).decode(), flush=True)  # noqa: T201


def end() -> None:
    print(END, flush=True)  # noqa: T201
