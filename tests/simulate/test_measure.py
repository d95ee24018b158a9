"""What broadcast, gather and reduce must reach at 1 Gbit/s, 100 µs latency and 150 µs hand-over delay."""

import pytest

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.settings import KIB, MIB
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.measure import SOURCE, broadcast, gather, reduce, static_reductions, static_trees
from hoplite_ucx.simulate.scenario import Arrivals, Kill, Pattern, Scenario, Span

HALF = 62.5e6
MIDDLE = Span(0.5, of_limit=True)


def scenario(nodes: int, size: int = 64 * MIB, **options: object) -> Scenario:
    return Scenario(shape=Shape(nodes=nodes), size=size, **options)  # type: ignore[arg-type]


def every(part: float) -> Arrivals:
    return Arrivals(Pattern.EVERY, Span(part, of_limit=True))


# --- undisturbed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [8, 64])
def test_large_broadcast_takes_little_more_than_one_transfer(nodes: int) -> None:
    result = broadcast(scenario(nodes))
    assert len(result.endings) == nodes - 1
    assert not result.failures
    assert result.ratio <= 1.10


@pytest.mark.parametrize("part", [0.01, 0.1, 0.3, 0.5, 1.0, 1.5])
def test_each_trickling_receiver_is_done_one_transfer_after_it_asked(part: float) -> None:
    result = broadcast(scenario(8, arrivals=every(part)))
    assert max(ending.ratio for ending in result.endings) <= 1.10


@pytest.mark.parametrize("seed", range(4))
def test_receivers_at_random_times_are_done_one_transfer_after_they_asked(seed: int) -> None:
    arrivals = Arrivals(Pattern.RANDOM, Span(2.0, of_limit=True))
    result = broadcast(scenario(16, 16 * MIB, arrivals=arrivals, seed=seed))
    assert max(ending.ratio for ending in result.endings) <= 1.10


@pytest.mark.parametrize("size", [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB])
@pytest.mark.parametrize("nodes", [8, 16, 64])
def test_small_broadcast_keeps_up_with_the_best_static_tree(nodes: int, size: int) -> None:
    run = scenario(nodes, size)
    assert broadcast(run).seconds <= 1.25 * static_trees(run)[0].seconds


def test_hosts_that_join_after_the_put_do_not_slow_the_pipeline() -> None:
    cluster = VirtualCluster(Shape(nodes=64))
    ref = cluster.new_ref()
    put = cluster.put(SOURCE, ref, 16 * MIB)  # its node brings the put along when it joins, before the others
    assert cluster.settle([put], 1.0)
    gets = [cluster.get(host, ref) for host in range(1, 64)]
    began = cluster.clock.now
    assert cluster.settle(gets, 10.0)
    assert cluster.clock.now - began <= 1.25 * 16 * MIB / 125e6


def test_static_trees_behave_as_their_theory_says() -> None:
    run = scenario(8, 8 * MIB)
    seconds = {tree.name: tree.seconds for tree in static_trees(run)}
    transfer = 8 * MIB / run.shape.bandwidth
    assert seconds["star"] == pytest.approx(7 * transfer, rel=0.02)
    assert seconds["chain"] == pytest.approx(transfer, rel=0.06)
    assert seconds["2-ary"] == pytest.approx(2 * transfer, rel=0.06)
    assert seconds["binomial"] >= 2 * transfer


def test_gather_fills_the_gatherers_network_card() -> None:
    result = gather(scenario(8, 8 * MIB))
    assert result.limit_seconds == pytest.approx(7 * 8 * MIB / 125e6)
    assert 1.0 <= result.ratio <= 1.05
    assert sorted(result.edges) == [(host, SOURCE) for host in range(1, 8)]


def test_the_same_scenario_gives_the_same_result() -> None:
    run = scenario(16, 4 * MIB, arrivals=Arrivals(Pattern.RANDOM, Span(0.05)), seed=7, kills=(Kill(3, Span(0.03)),))
    assert broadcast(run) == broadcast(run)


# --- disturbed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [1, 8, 15], ids=["first", "midway", "last"])
@pytest.mark.parametrize("arrivals", [Arrivals(), every(0.1), every(1.0)], ids=["together", "every 10%", "every 100%"])
def test_a_host_at_half_the_bandwidth_slows_only_itself(slow: int, arrivals: Arrivals) -> None:
    shape = Shape(nodes=16, rates={slow: HALF})
    result = broadcast(Scenario(shape=shape, size=64 * MIB, arrivals=arrivals))
    assert result.loss is not None
    assert len(result.loss.by_host) == 14
    assert result.loss.worst <= 0.01 * result.limit_seconds
    own = next(ending for ending in result.endings if ending.host == slow)
    assert own.ratio <= 1.5


@pytest.mark.parametrize("victim", range(1, 9))
def test_a_killed_receiver_costs_the_others_nothing_beyond_its_detection(victim: int) -> None:
    result = broadcast(scenario(9, kills=(Kill(victim, MIDDLE),)))
    assert {ending.host for ending in result.endings} == set(range(1, 9)) - {victim}
    assert not result.failures
    assert result.loss is not None
    noticed = result.killed[0].noticed_after or 0.0
    assert result.loss.worst <= noticed + 0.05 * result.limit_seconds
    assert noticed <= 0.01


@pytest.mark.parametrize("victim", [1, 4, 8])
def test_an_unplugged_receiver_costs_the_others_nothing_beyond_its_detection(victim: int) -> None:
    result = broadcast(scenario(9, kills=(Kill(victim, MIDDLE, unplug=True),)))
    assert not result.failures
    assert result.loss is not None
    noticed = result.killed[0].noticed_after or 0.0
    assert noticed <= 1.0
    assert result.loss.worst <= noticed + 0.05 * result.limit_seconds


def test_a_killed_source_is_replaced_by_another_copy() -> None:
    result = broadcast(scenario(8, copies=2, kills=(Kill(SOURCE, MIDDLE),)))
    assert len(result.endings) == 6
    assert not result.failures
    # Everyone went on from its watermark: from the start it would have taken half as long again.
    assert result.ratio <= 1.10


def test_without_another_copy_everyone_hears_of_the_loss_at_once_and_of_the_next_put() -> None:
    result = broadcast(scenario(8, put_again=True, kills=(Kill(SOURCE, MIDDLE),)))
    assert {failure.kind for failure in result.failures.values()} == {FailureKind.LOST}
    assert len(result.failures) == 7
    assert result.seconds - 0.5 * result.limit_seconds <= 0.005
    assert result.again is not None
    assert len(result.again.endings) == 7
    assert not result.again.failures
    assert result.again.ratio <= 1.10


def test_a_gather_says_which_object_was_lost() -> None:
    result = gather(scenario(4, 8 * MIB, kills=(Kill(2, MIDDLE),)))
    assert {host: failure.kind for host, failure in result.failures.items()} == {2: FailureKind.LOST}
    assert {ending.host for ending in result.endings} == {1, 2, 3}


# --- reduce ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "size"), [(8, 64 * MIB), (16, 32 * MIB)])
def test_large_reduce_takes_little_more_than_one_transfer(nodes: int, size: int) -> None:
    result = reduce(scenario(nodes, size))
    assert result.ratio <= 1.10
    assert sorted(result.contributors) == list(range(nodes))
    assert result.slots == len(result.edges) == nodes - 1


@pytest.mark.parametrize("nodes", [8, 16])
@pytest.mark.parametrize(
    "arrivals",
    [every(1.0), every(0.1), Arrivals(Pattern.BIMODAL, Span(0.5, of_limit=True))],
    ids=["every 100%", "every 10%", "bimodal"],
)
def test_reduce_is_done_one_transfer_after_its_last_source(nodes: int, arrivals: Arrivals) -> None:
    result = reduce(scenario(nodes, arrivals=arrivals))
    assert not result.failures
    assert result.ready_seconds > 0.0
    assert result.after_last_ratio <= 1.15


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_reduce_of_sources_at_random_times_is_done_one_transfer_after_the_last(seed: int) -> None:
    arrivals = Arrivals(Pattern.RANDOM, Span(0.5, of_limit=True))
    assert reduce(scenario(8, arrivals=arrivals, seed=seed)).after_last_ratio <= 1.15


def test_reduce_takes_the_first_sources_that_are_ready() -> None:
    result = reduce(scenario(8, 4 * MIB, arrivals=every(0.5), count=5))
    assert result.contributors == (0, 1, 2, 3, 4)
    assert result.after_last_ratio <= 1.15


@pytest.mark.parametrize("size", [64 * KIB, 256 * KIB, MIB])
@pytest.mark.parametrize("nodes", [8, 16])
def test_small_reduce_keeps_up_with_the_best_static_tree(nodes: int, size: int) -> None:
    run = scenario(nodes, size)
    assert reduce(run).seconds <= 1.25 * static_reductions(run)[0].seconds


def test_static_reductions_behave_as_their_theory_says() -> None:
    run = scenario(8, 8 * MIB)
    seconds = {tree.name: tree.seconds for tree in static_reductions(run)}
    transfer = 8 * MIB / run.shape.bandwidth
    assert seconds["star"] == pytest.approx(7 * transfer, rel=0.02)
    assert seconds["chain"] == pytest.approx(transfer, rel=0.07)
    assert seconds["2-ary"] == pytest.approx(2 * transfer, rel=0.06)


def test_a_lost_source_is_replaced_by_a_spare_and_only_what_is_above_it_begins_anew() -> None:
    result = reduce(scenario(9, 16 * MIB, count=8, kills=(Kill(4, MIDDLE),)))
    assert set(result.contributors) == set(range(9)) - {4}
    assert result.restarted == (4, 5, 6, 7, 0)
    assert result.killed[0].noticed_after == pytest.approx(0.0003)
    assert result.ratio <= 1.65


def test_without_a_spare_the_reduction_fails_at_once() -> None:
    result = reduce(scenario(8, 8 * MIB, kills=(Kill(4, MIDDLE),)))
    assert {failure.kind for failure in result.failures.values()} == {FailureKind.LOST}
    assert result.contributors == ()
    assert result.seconds - 0.5 * result.limit_seconds <= 0.005


def test_several_hosts_get_the_result_while_it_grows() -> None:
    result = reduce(scenario(8, 16 * MIB, getters=2))
    assert {ending.host for ending in result.endings} == {0, 1}


def test_a_reduction_is_the_same_each_time() -> None:
    arrivals = Arrivals(Pattern.RANDOM, Span(0.05))
    run = scenario(8, 2 * MIB, arrivals=arrivals, count=6, seed=3, kills=(Kill(3, Span(0.03)),))
    assert reduce(run) == reduce(run)


# --- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "options", "complaint"),
    [
        (1, {}, "too few"),
        (8, {"size": 0}, "0 bytes"),
        (8, {"size": 1 << 50}, "bytes cannot be transferred"),
        (8, {"copies": 0}, "0 copies"),
        (8, {"copies": 8}, "leave no receiver"),
        (8, {"count": 0}, "0 sources"),
        (8, {"count": 9}, "9 sources"),
        (8, {"getters": 9}, "9 of 8 hosts"),
        (8, {"kills": (Kill(8, MIDDLE),)}, "no host 8"),
        (8, {"kills": (Kill(-1, MIDDLE),)}, "no host -1"),
    ],
)
def test_impossible_scenarios_are_refused(nodes: int, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        scenario(nodes, **options)  # type: ignore[arg-type]
