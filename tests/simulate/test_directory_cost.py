"""A directory that takes its time: one event after the other, and what waits when it dies is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.simulate.chaos import run_seed
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.measure import Result, broadcast, reduce
from hoplite_ucx.simulate.scenario import Scenario, Span

COST = 1e-3
SMALL = 1000  # the directory itself answers a get of it


def test_those_who_ask_together_are_answered_one_after_the_other() -> None:
    shape = Shape(nodes=5, directory_cost=COST)
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
    swift, slow = (broadcast(Scenario(shape=Shape(nodes=2, directory_cost=cost), size=size)) for cost in (0.0, COST))
    assert slow.seconds == pytest.approx(swift.seconds + COST)


@pytest.mark.parametrize("run", [broadcast, reduce])
def test_what_waits_in_a_directory_that_dies_comes_again(run: Callable[[Scenario], Result]) -> None:
    shape = Shape(nodes=6, directory_cost=COST)
    result = run(Scenario(shape=shape, size=4 << 20, directory_crash=Span(2.5 * COST)))
    assert not result.unanswered
    assert not result.failures


class _SlowDirectory(VirtualCluster):
    def __init__(self, shape: Shape, seed: int = 0, settings: Settings | None = None, *, checked: bool = False) -> None:
        super().__init__(shape, seed, settings, checked=checked)
        self.directory_cost = 200e-6


@pytest.mark.parametrize("seed", range(10))
def test_the_promises_hold_when_the_directory_is_late(seed: int) -> None:
    outcome = run_seed(seed, _SlowDirectory)
    assert outcome.ok, outcome.problem
