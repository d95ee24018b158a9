"""Allreduces on the virtual network: how near the limit they come, and what disturbs them."""

import pytest

from hoplite_ucx.protocol.settings import KIB, MIB
from hoplite_ucx.simulate.cluster import Shape
from hoplite_ucx.simulate.measure import allreduce, reduce, static_allreduces
from hoplite_ucx.simulate.scenario import Arrivals, Kill, Pattern, Scenario, Span


def of(nodes: int, size: int, **options: object) -> Scenario:
    return Scenario(shape=Shape(nodes=nodes), size=size, **options)  # type: ignore[arg-type]


def test_eight_hosts_in_stripes() -> None:
    result = allreduce(of(8, 64 * MIB))
    assert result.stripes == 8
    assert len(result.endings) == 8
    assert result.ratio <= 1.02


def test_many_hosts_in_stripes() -> None:
    result = allreduce(of(24, 16 * MIB))
    assert result.stripes == 24
    assert result.ratio <= 1.02


def test_getters_of_an_ordinary_target_stand_in_a_chain() -> None:
    result = reduce(of(8, 16 * MIB, getters=8))
    assert result.seconds <= 2.2 * 16 * MIB / 125e6


@pytest.mark.parametrize(
    ("hosts", "size"), [(8, 64 * KIB), (8, 512 * KIB), (8, 2 * MIB), (16, 64 * KIB), (24, 256 * KIB), (24, MIB)]
)
def test_no_static_way_is_much_better(hosts: int, size: int) -> None:
    best = static_allreduces(of(hosts, size))[0]
    assert allreduce(of(hosts, size)).seconds <= 1.25 * best.seconds


def test_sources_that_come_late_are_waited_for_no_longer_than_needed() -> None:
    late = Arrivals(Pattern.EVERY, Span(0.3, of_limit=True))
    result = allreduce(of(6, 8 * MIB, arrivals=late))
    assert result.stripes == 1
    assert result.after_last_ratio <= 1.15


@pytest.mark.parametrize("unplug", [False, True])
def test_a_spare_takes_the_place_of_a_dead_source(unplug: bool) -> None:
    kill = Kill(4, Span(0.5, of_limit=True), unplug=unplug)
    result = allreduce(of(9, 8 * MIB, count=8, kills=(kill,)))
    assert not result.failures
    assert not result.unanswered
    assert len(result.endings) == 8
    assert 4 not in result.contributors


def test_another_copy_of_a_source_changes_no_version() -> None:
    result = allreduce(of(6, 8 * MIB, copies=2, kills=(Kill(3, Span(0.5, of_limit=True)),)))
    assert not result.failures
    assert not result.restarted
    assert 3 in result.contributors


def test_a_source_without_a_spare_is_a_typed_error_for_all() -> None:
    result = allreduce(of(6, 8 * MIB, kills=(Kill(3, Span(0.5, of_limit=True)),)))
    assert len(result.failures) == 5
