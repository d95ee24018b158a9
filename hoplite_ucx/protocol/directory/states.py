"""The states of receivers, slots and reductions, and the moves between them: one table for each. Code that changes a
state checks the move in its table, and docs/protocol.md shows the same tables."""

import enum
from collections.abc import Mapping
from typing import TypeAlias, TypeVar


class _Quick(enum.Enum):
    __hash__ = object.__hash__  # every move looks up two states, and `Enum` hashes names in Python


class State(_Quick):
    """Of a receiver in the tree of a version."""

    WAITING = "waiting"
    """Its watermark is known, and it needs a sender. A fresh one waits at watermark 0, so that first placements and
    repairs are the same thing."""
    STREAMING = "streaming"
    HALTING = "halting"
    ASSEMBLING = "assembling"
    ADOPTED = "adopted"


class SlotState(_Quick):
    VACANT = "vacant"
    ASKED = "asked"
    TAKEN = "taken"
    BOUND = "bound"
    GATHERING = "gathering"


class ReductionState(_Quick):
    OPEN = "open"
    FAILED = "failed"
    GIVEN_UP = "given up"
    DECIDED = "decided"
    CANCELLED = "cancelled"


_S = TypeVar("_S", bound=enum.Enum)
Moves: TypeAlias = Mapping[tuple[_S, _S], str]

RECEIVER_MOVES: Moves[State] = {
    (State.WAITING, State.STREAMING): "it is placed behind a sender",
    (State.WAITING, State.ASSEMBLING): "the object comes in stripes, and all of them grow",
    (State.STREAMING, State.ASSEMBLING): "it has just begun, and the object is cut for a crowd that has come",
    (State.WAITING, State.ADOPTED): "an earlier directory placed it behind a sender that is not known yet",
    (State.ADOPTED, State.STREAMING): "its sender is known, and its bytes come from a root",
    (State.ADOPTED, State.HALTING): "its sender did not come, or others need its streams",
    (State.ADOPTED, State.WAITING): "it reports that its stream ended",
    (State.STREAMING, State.HALTING): "its sender is gone, another receiver needs the sender more, or no root is left",
    (State.STREAMING, State.WAITING): "it reports that its stream ended",
    (State.HALTING, State.WAITING): "it reports its watermark",
    (State.ASSEMBLING, State.WAITING): "it reports that a stripe was lost",
}
SLOT_MOVES: Moves[SlotState] = {
    (SlotState.VACANT, SlotState.ASKED): "a node is asked to run it: every part exists, or a node was asked for it",
    (SlotState.ASKED, SlotState.TAKEN): "the node has memory for it",
    (SlotState.TAKEN, SlotState.BOUND): "all slots below it grow: it pulls, and others pull from it",
    (SlotState.ASKED, SlotState.VACANT): "the node has no memory or is gone, or a part has changed",
    (SlotState.TAKEN, SlotState.VACANT): "no node has memory for a slot below, the host is gone, or a part has changed",
    (SlotState.BOUND, SlotState.VACANT): "the host is gone, a part has changed, or lower bytes are needed",
    (SlotState.VACANT, SlotState.BOUND): "its host runs it since an earlier directory",
    (SlotState.VACANT, SlotState.GATHERING): "it is the root of stripes, and all of them grow",
    (SlotState.GATHERING, SlotState.VACANT): "a stripe starts over",
}
REDUCTION_MOVES: Moves[ReductionState] = {
    (ReductionState.OPEN, ReductionState.FAILED): "too few sources are left",
    (ReductionState.FAILED, ReductionState.OPEN): "a source has come back",
    (ReductionState.OPEN, ReductionState.GIVEN_UP): "the sources do not fit together, or no node has room",
    (ReductionState.GIVEN_UP, ReductionState.OPEN): "a user asks again",
    (ReductionState.OPEN, ReductionState.DECIDED): "the target is complete, and so are the sources that are targets",
    (ReductionState.OPEN, ReductionState.CANCELLED): "the target is deleted, or an earlier directory had decided it",
    (ReductionState.FAILED, ReductionState.CANCELLED): "the same",
    (ReductionState.GIVEN_UP, ReductionState.CANCELLED): "the same",
}
