"""The moves of receivers, slots and reductions: docs/protocol.md shows the tables, and no other move is made."""

from pathlib import Path

import pytest

from hoplite_ucx.protocol.directory.states import (
    RECEIVER_MOVES,
    REDUCTION_MOVES,
    SLOT_MOVES,
    Moves,
    SlotState,
    State,
    check_move,
)

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


@pytest.mark.parametrize("moves", [RECEIVER_MOVES, SLOT_MOVES, REDUCTION_MOVES], ids=["receiver", "slot", "reduction"])
def test_the_page_shows_the_tables(moves: Moves) -> None:
    rows = [f"| {before.value} | {after.value} | {why} |" for (before, after), why in moves.items()]
    expected = "\n".join(["| from | to | when |", "|---|---|---|", *rows, ""])
    assert expected in PAGE.read_text(), f"docs/protocol.md should have:\n{expected}"


def test_other_moves_are_refused() -> None:
    check_move(SLOT_MOVES, SlotState.ASKED, SlotState.TAKEN)
    with pytest.raises(AssertionError, match="asked does not become bound"):
        check_move(SLOT_MOVES, SlotState.ASKED, SlotState.BOUND)
    with pytest.raises(AssertionError, match="assembling does not become streaming"):
        check_move(RECEIVER_MOVES, State.ASSEMBLING, State.STREAMING)
