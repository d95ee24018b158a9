"""The names of the faults, for whoever runs them: what each does is in `faults`, which loads Ray."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Case"]


class Case(StrEnum):
    """What is killed, and in the middle of what."""

    BROADCAST_RECEIVER = "broadcast: a receiving actor"
    BROADCAST_MAKER = "broadcast: the actor that returned it"
    BROADCAST_PUTTER = "broadcast: the actor that put it"
    BROADCAST_AGENT = "broadcast: a receiver's agent"
    BROADCAST_AGENT_ACTOR = "broadcast: a receiver's agent actor"
    BROADCAST_DIRECTORY = "broadcast: the directory"
    BROADCAST_HEAD = "broadcast: the head actor"
    BROADCAST_NODE = "broadcast: a receiving node"
    REDUCE_SOURCE = "reduce: the actor of a source"
    REDUCE_AGENT = "reduce: the agent of a source"
    REDUCE_DIRECTORY = "reduce: the directory"
    REDUCE_HEAD = "reduce: the head actor"
    REDUCE_NODE = "reduce: the node of a source"
    STRAGGLER = "reduce: a straggler, with count"
    ONLY_COPY = "the only copy"
    TASK = "a task that dies once, and is retried"
    ACTOR = "an actor that is restarted"
    ALL = "head actor, agents and directory at once"

    @property
    def kills_node(self) -> bool:
        return self in (Case.BROADCAST_NODE, Case.REDUCE_NODE)
