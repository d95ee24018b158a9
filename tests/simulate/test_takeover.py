"""What the death of a slot's host may cost if its sources live elsewhere: nothing that was done is done again."""

import pytest

from hoplite_ucx.protocol.events import Got
from hoplite_ucx.protocol.settings import MIB
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.measure import reduce
from hoplite_ucx.simulate.scenario import Kill, Scenario, Span

NODES = 8
SIZE = 64 * MIB
TRANSFER = SIZE / 125e6


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("victim", [1, 2, 4, 7])
def test_a_slot_is_taken_over_where_its_receiver_is(victim: int, part: float) -> None:
    """Host 1 has a source that is no slot's, 2 the first slot, 7 the last one below the root."""
    kill = Kill(victim, Span(part, of_limit=True))
    result = reduce(Scenario(shape=Shape(nodes=NODES), size=SIZE, copies=2, kills=(kill,)))
    assert not result.failures
    assert sorted(result.contributors) == list(range(NODES))
    assert result.restarted == ()
    assert result.loss is not None
    assert result.loss.worst <= 0.02 * result.loss.calm_seconds


def test_two_neighbours_die_one_after_the_other() -> None:
    """The second death takes the slot that was taken over, and the one that pulled from it."""
    kills = tuple(Kill(host, Span(part, of_limit=True)) for host, part in ((3, 0.4), (4, 0.6)))
    result = reduce(Scenario(shape=Shape(nodes=NODES), size=SIZE, copies=3, kills=kills))
    assert not result.failures
    assert result.restarted == ()
    assert result.loss is not None
    assert result.loss.worst <= 0.10 * result.loss.calm_seconds


@pytest.mark.parametrize("copy", [8, 9])
@pytest.mark.parametrize("part", [0.25, 0.5, 0.75, None])
def test_the_root_is_taken_over_where_its_getter_is(copy: int, part: float | None) -> None:
    """Hosts 0 to 7 have a source each, host 8 gets the result, and `copy` has the root's source too: a getter that can
    combine the rest itself, or a node that combines it for the getter."""
    cluster = VirtualCluster(Shape(nodes=10), 0)
    assert cluster.settle([], 1.0)
    sources = [cluster.new_ref() for _ in range(NODES)]
    puts = [cluster.put(host, ref, SIZE) for host, ref in enumerate(sources)]
    assert cluster.settle(puts, 10.0)
    assert cluster.settle([cluster.get(copy, sources[-1])], 10.0)
    cluster.clock.run(until=cluster.clock.now + 0.01)
    target = cluster.new_ref()
    cluster.reduce(8, target, tuple(sources), NODES)
    get = cluster.get(8, target)
    if part is not None:
        cluster.clock.after(part * TRANSFER, cluster.slots[NODES - 1].kill)
    assert cluster.settle([get], 10.0)
    assert isinstance(get.answer, Got)
    assert get.ended is not None
    assert cluster.wrong_bytes(get, cluster.provenance.combined(put.token for put in puts)) is None
    assert get.ended - get.began <= 1.06 * TRANSFER
