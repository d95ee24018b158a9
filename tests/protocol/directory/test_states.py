"""The moves of receivers, slots and reductions: docs/protocol.md shows the tables, and no other move is made."""

from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.protocol.directory.records import Slot
from hoplite_ucx.protocol.directory.states import (
    RECEIVER_MOVES,
    REDUCTION_MOVES,
    SLOT_MOVES,
    Moves,
    ReductionState,
    SlotState,
    State,
)
from tests.tools.machines import ref
from tests.tools.reducer import TARGET, Reducer

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


@pytest.mark.parametrize("moves", [RECEIVER_MOVES, SLOT_MOVES, REDUCTION_MOVES], ids=["receiver", "slot", "reduction"])
def test_the_page_shows_the_tables(moves: Moves[Any]) -> None:
    rows = [f"| {before.value} | {after.value} | {why} |" for (before, after), why in moves.items()]
    expected = "\n".join(["| from | to | when |", "|---|---|---|", *rows, ""])
    assert expected in PAGE.read_text(), f"docs/protocol.md should have:\n{expected}"


def test_other_moves_are_refused() -> None:
    d, slot = Reducer("A"), Slot(ref(1), [], 1, 1)
    slot.move(SlotState.ASKED)
    with pytest.raises(AssertionError, match="asked does not become bound"):
        slot.move(SlotState.BOUND)
    d.put("A", 1)
    d.join("B")
    d.want("B", 1)
    with pytest.raises(AssertionError, match="streaming does not become adopted"):
        d.broadcast(1)._move(d.receiver("B", 1), State.ADOPTED)
    d.reduce("A", (1, 2))
    reduction = d.directory.records[ref(TARGET)].reduction
    assert reduction is not None
    reduction.move(ReductionState.FAILED)
    with pytest.raises(AssertionError, match="failed does not become decided"):
        reduction.move(ReductionState.DECIDED)
