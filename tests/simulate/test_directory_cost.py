"""A directory that takes its time: one event after the other, and what waits when it dies is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.events import DirectoryEffect, DirectoryEvent, Tick
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import Heartbeat, Progress
from hoplite_ucx.simulate.chaos import run_seed
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.directory_costs import MEASURED, OTHERS, PROGRESS, DirectoryCosts, costs_from, every_event
from hoplite_ucx.simulate.measure import Result, broadcast, reduce
from hoplite_ucx.simulate.scenario import Scenario, Span

COST = 1e-3
SMALL = 1000  # the directory itself answers a get of it


def test_those_who_ask_together_are_answered_one_after_the_other() -> None:
    shape = Shape(nodes=5, directory_costs=every_event(COST))
    result = broadcast(Scenario(shape=shape, size=SMALL))
    there_and_back = 2 * shape.latency
    assert [ending.seconds for ending in result.endings] == pytest.approx(
        [there_and_back + turn * COST for turn in range(1, 5)]
    )


def test_without_a_cost_everything_is_answered_at_once() -> None:
    result = broadcast(Scenario(shape=Shape(nodes=5), size=SMALL))
    assert [ending.seconds for ending in result.endings] == pytest.approx([200e-6] * 4)


def test_large_objects_wait_for_their_placement() -> None:
    size = 8 << 20
    swift, slow = (
        broadcast(Scenario(shape=Shape(nodes=2, directory_costs=every_event(cost)), size=size)) for cost in (0.0, COST)
    )
    assert slow.seconds == pytest.approx(swift.seconds + COST)


@pytest.mark.parametrize("run", [broadcast, reduce])
def test_what_waits_in_a_directory_that_dies_comes_again(run: Callable[[Scenario], Result]) -> None:
    shape = Shape(nodes=6, directory_costs=every_event(COST))
    result = run(Scenario(shape=shape, size=4 << 20, directory_crash=Span(2.5 * COST)))
    assert not result.unanswered
    assert not result.failures


def test_each_kind_costs_its_own() -> None:
    """A get of a small object is answered after its want; what the answer costs, the next want waits for."""
    costs = DirectoryCosts({"Want": COST, OTHERS: 1e-5}, {"Inline": 2 * COST})
    result = broadcast(Scenario(shape=Shape(nodes=4, directory_costs=costs), size=SMALL))
    seconds = sorted(ending.seconds for ending in result.endings)
    assert seconds == pytest.approx([200e-6 + (3 * turn + 1) * COST for turn in range(3)], abs=5e-5)


def test_what_comes_to_a_directory_that_sleeps_wakes_it() -> None:
    costs = DirectoryCosts({"Want": COST}, wake_up=5 * COST)
    result = broadcast(Scenario(shape=Shape(nodes=3, directory_costs=costs), size=SMALL))
    assert sorted(ending.seconds for ending in result.endings) == pytest.approx(
        [200e-6 + 6 * COST, 200e-6 + 7 * COST], abs=5e-5
    )


def test_a_heartbeat_costs_more_for_each_stream_that_it_reports() -> None:
    costs = DirectoryCosts({"Heartbeat": 1e-6, PROGRESS: 10e-6})
    progress = Progress(Version(bytes(16), 1, 1), 0)
    assert costs.of_received(Heartbeat((progress, progress))) == pytest.approx(21e-6)


def test_a_late_directory_is_woken_once() -> None:
    """A wake-up that waits its turn is due until its turn comes: every event in between says so again."""
    cluster = VirtualCluster(Shape(nodes=20, directory_costs=every_event(10e-3)))
    cluster.clock.run(until=cluster.settings.heartbeat * 2)
    ticks: list[Tick] = []
    handle = cluster.directory.machine.handle

    def counted(event: DirectoryEvent, now: float) -> list[DirectoryEffect]:
        ticks.extend([event] if isinstance(event, Tick) else [])
        return handle(event, now)

    cluster.directory.machine.handle = counted  # type: ignore[method-assign]
    cluster.clock.run(until=cluster.clock.now + 4 * cluster.settings.heartbeat)
    assert 1 <= len(ticks) <= 5


def test_a_directory_that_is_busy_while_all_join_does_not_make_links_look_slow() -> None:
    """Heartbeats were answered late; with the latency that follows, a chain looked slower than a tree of full links."""
    shape = Shape(nodes=48, directory_costs=every_event(4e-3))
    result = reduce(Scenario(shape=shape, size=8 << 20))
    assert result.slots == 47


def test_costs_are_read_as_they_are_written() -> None:
    assert costs_from(json.loads(json.dumps(MEASURED.as_dict()))) == MEASURED


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"received": {}, "sent": {}},
        {"received": 1, "sent": {}, "wake_up": 0},
        [],
        MEASURED.as_dict() | {"wake_up": -1},
    ],
)
def test_what_are_no_costs_is_refused(told: Any) -> None:
    with pytest.raises(ValueError, match="of a directory"):
        costs_from(told)


@pytest.mark.parametrize("given", ["fast", "-1us", "nowhere.json"])
def test_an_option_that_says_no_cost_is_refused(given: str) -> None:
    done = CliRunner().invoke(app, ["simulate", "broadcast", "--directory-cost", given])
    assert done.exit_code == 2
    assert "neither" in done.output


class _SlowDirectory(VirtualCluster):
    def __init__(self, shape: Shape, seed: int = 0, settings: Settings | None = None, *, checked: bool = False) -> None:
        super().__init__(shape, seed, settings, checked=checked)
        self.directory_costs = every_event(200e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_promises_hold_when_the_directory_is_late(seed: int) -> None:
    outcome = run_seed(seed, _SlowDirectory)
    assert outcome.ok, outcome.problem
