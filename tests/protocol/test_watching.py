"""What viewers are told of a directory's work, from its events and effects alone."""

from typing import Any

import pytest

from hoplite_ucx.protocol.events import DirectoryEffect, DirectoryEvent
from hoplite_ucx.protocol.messages import Completed, Delete, Operation, Put, Reduce, StreamFailed, StreamFault, Want
from hoplite_ucx.protocol.watching import (
    KEPT,
    Arrived,
    Begun,
    Dropped,
    Placed,
    ReductionIs,
    Stopped,
    Told,
    Watching,
    members_of,
    picture_of,
)
from tests.tools.machines import LARGE, DirectoryDriver, ref


class Watched(DirectoryDriver):
    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.watching = Watching(self.directory)
        self._read = 0

    def handle(self, event: DirectoryEvent) -> list[DirectoryEffect]:
        effects = super().handle(event)
        if hasattr(self, "watching"):
            self.watching.handled(event, effects)
        return effects

    def told(self) -> list[Told]:
        """Since the last look."""
        told = self.watching.since(self._read)
        assert told is not None
        self._read = self.watching.number
        return list(told)


def kinds(told: list[Told]) -> list[type]:
    return [type(each) for each in told]


def test_a_broadcast_is_told_from_its_put_to_its_last_copy() -> None:
    directory = Watched("A", "B", "C")
    version = directory.put("A", 1)
    first, second = directory.want("B", 1), directory.want("C", 1)
    directory.tell("B", Completed(version))
    told = directory.told()
    assert kinds(told) == [Begun, Arrived, Placed, Placed, Arrived]
    assert told[0] == Begun(0.0, ref(1), directory["A"], LARGE)
    assert told[2] == Placed(0.0, ref(1), directory["B"], first.sender, LARGE, b"", first.number)
    assert told[3] == Placed(0.0, ref(1), directory["C"], second.sender, LARGE, b"", second.number)
    assert told[4] == Arrived(0.0, ref(1), directory["B"])


def test_a_stream_that_breaks_and_the_new_placement_are_told() -> None:
    directory = Watched("A", "B", "C")
    version = directory.put("A", 1)
    directory.want("B", 1)
    place = directory.want("C", 1)
    directory.told()
    directory.now = 1.0
    broke = StreamFailed(version, place.number, 1000, place.sender, StreamFault.BROKEN, wanted=True)
    directory.tell("C", broke)
    directory.pass_time(2.0, beating=("A", "B", "C"))
    told = directory.told()
    assert told[0] == Stopped(1.0, ref(1), directory["C"], b"", place.number, 1000, "broken")
    assert isinstance(told[1], Placed)
    assert told[1].node == directory["C"]
    assert told[1].number > place.number


def test_small_objects_are_not_told() -> None:
    directory = Watched("A")
    directory.tell("A", Put(1, ref(1), 4, b"layout", b"data"))
    assert directory.told() == []


def test_the_end_of_an_object_is_told_once() -> None:
    directory = Watched("A", "B")
    version = directory.put("A", 1)
    directory.want("B", 1)
    directory.tell("B", Completed(version))
    directory.told()
    directory.tell("A", Delete(9, (ref(1),)))
    assert directory.told() == [Dropped(0.0, ref(1))]


def test_a_reduction_is_told_as_it_is_each_time_something_of_it_has_changed() -> None:
    directory = Watched("A", "B", "C")
    directory.tell("A", Reduce(1, ref(9), (ref(1), ref(2), ref(3)), Operation.SUM, 3))
    directory.put("A", 1)
    directory.put("B", 2)
    [reduction] = [each for each in directory.told() if isinstance(each, ReductionIs)]
    assert (reduction.op, reduction.count, reduction.sources) == ("sum", 3, (ref(1), ref(2), ref(3)))
    assert set(reduction.ready) == {ref(1), ref(2)}
    assert dict(zip(reduction.ready, reduction.homes, strict=True)) == {ref(1): directory["A"], ref(2): directory["B"]}
    directory.put("C", 3)
    later = [each for each in directory.told() if isinstance(each, ReductionIs)]
    assert len(later) == 1
    assert set(later[0].chosen) == {ref(1), ref(2), ref(3)}
    assert later[0].slots
    assert any(slot.host is not None for slot in later[0].slots)
    assert directory.told() == []


def test_who_falls_behind_starts_over() -> None:
    directory = Watched("A")
    directory.checked = False
    for number in range(KEPT // 2 + 1):  # each is told twice
        directory.put("A", number)
    assert directory.watching.since(0) is None
    assert directory.watching.since(directory.watching.number - KEPT) is not None
    assert directory.watching.since(directory.watching.number + 1) is None


def test_a_fresh_picture_has_what_goes_on_and_nothing_that_only_lies_there() -> None:
    directory = Watched("A", "B", "C")
    for number in range(10, 20):
        directory.put("A", number)
    directory.put("A", 1)
    place = directory.want("B", 1)
    directory.tell("C", Want(ref(77)))
    directory.tell("A", Reduce(1, ref(9), (ref(1), ref(2)), Operation.SUM, 2))
    told = list(picture_of(directory.directory, directory.directory.records.values()))
    assert {each.ref for each in told} == {ref(1), ref(9)}
    placed = [each for each in told if isinstance(each, Placed)]
    assert [(each.node, each.sender) for each in placed] == [(directory["B"], place.sender)]


@pytest.mark.parametrize(
    ("change", "state"), [({}, "up"), ({"suspect": True}, "suspect"), ({"connected": False}, "away")]
)
def test_members_are_told_with_their_state(change: dict[str, Any], state: str) -> None:
    directory = Watched("A", "B")
    for name, value in change.items():
        setattr(directory.directory.members[directory["B"]], name, value)
    assert {each.node: each.state for each in members_of(directory.directory)} == {
        directory["A"]: "up",
        directory["B"]: state,
    }


def test_deaths_losses_and_failed_reductions_are_kept_as_incidents() -> None:
    directory = Watched("A", "B")
    directory.put("B", 1)
    directory.put("A", 2, layout=b"another")
    directory.put("A", 3)
    directory.tell("A", Reduce(1, ref(9), (ref(2), ref(3)), Operation.SUM, 2))
    directory.pass_time(10.0, beating=("A",))
    failed, dead, lost = directory.directory.world.incidents
    assert (failed.what, failed.ref, failed.node) == ("invalid", ref(9), None)
    assert (dead.what, dead.node, dead.ref) == ("dead", directory["B"], ref(1))
    assert "lease" in dead.detail
    assert (lost.what, lost.ref) == ("lost", ref(1))
    assert failed.remedy
    assert lost.remedy
