import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.protocol.cost import Costs, choose_degree, choose_granule, hop_delay
from hoplite_ucx.protocol.settings import KIB, MIB, Settings

SETTINGS = Settings()
GBIT = 125e6


@given(size=st.integers(0, 1 << 42), depth=st.integers(0, 100_000), bandwidth=st.floats(1, 1e12))
def test_the_granule_is_within_its_bounds(size: int, depth: int, bandwidth: float) -> None:
    granule = choose_granule(size, depth, bandwidth, SETTINGS)
    assert 1 <= granule <= SETTINGS.max_granule
    assert granule <= max(1, size)
    assert granule >= min(SETTINGS.min_granule, max(1, size))


@given(size=st.integers(1, 1 << 36), depth=st.integers(1, 1000), bandwidth=st.floats(1e6, 1e11))
def test_deeper_trees_take_smaller_granules(size: int, depth: int, bandwidth: float) -> None:
    assert choose_granule(size, depth + 1, bandwidth, SETTINGS) <= choose_granule(size, depth, bandwidth, SETTINGS)


@given(size=st.integers(1, 1 << 36), depth=st.integers(1, 1000), bandwidth=st.floats(1e6, 1e11))
def test_hand_overs_keep_up_with_the_network(size: int, depth: int, bandwidth: float) -> None:
    """A granule takes at least as long on the wire as its hand-over, unless a bound is in the way."""
    granule = choose_granule(size, depth, bandwidth, SETTINGS)
    assert (granule + 1) / bandwidth >= SETTINGS.handover or granule in (SETTINGS.max_granule, size)


@pytest.mark.parametrize(
    ("size", "depth", "granule"),
    [
        (64 * MIB, 1, 581_632),  # a lone hop: larger ones would save too little work
        (64 * MIB, 7, 221_184),
        (32 * MIB, 7, 151_552),  # 1/32 of the object over the hops
        (64 * MIB, 1000, 32 * KIB),  # a long chain: the smallest
        (100, 5, 100),  # never more than the object
        (0, 5, 1),
    ],
)
def test_the_granule_follows_size_and_depth(size: int, depth: int, granule: int) -> None:
    assert choose_granule(size, depth, GBIT, SETTINGS) == granule


def test_a_chain_is_filled_in_a_small_part_of_the_transfer() -> None:
    for hosts in (8, 64):
        size, hops = 64 * MIB, hosts - 1
        granule = choose_granule(size, hops, GBIT, SETTINGS)
        filling = hops * hop_delay(granule, GBIT, Costs(SETTINGS))
        assert filling < 0.1 * size / GBIT


def test_a_cost_that_occupies_the_sender_calls_for_larger_granules() -> None:
    costly = Settings(sender_cost=1e-4)
    assert choose_granule(64 * MIB, 63, GBIT, costly) > choose_granule(64 * MIB, 63, GBIT, SETTINGS)


def test_a_hop_costs_latency_hand_over_and_granule() -> None:
    settings = Settings(latency=1.0, handover=2.0, sender_cost=4.0)
    assert hop_delay(80, 10.0, Costs(settings)) == 1.0 + 2.0 + 4.0 + 8.0


@pytest.mark.parametrize(
    ("size", "count", "degree"),
    [
        (64 * MIB, 64, 1),  # large: a chain
        (4 * MIB, 64, 1),
        (2 * MIB, 64, 2),  # the chain's hops would take longer than twice the bytes
        (128 * KIB, 64, 2),  # three terms a slot would leave six for the root
        (64 * KIB, 64, 4),
        (256 * KIB, 8, 1),
        (64 * KIB, 8, 2),
        (100, 8, 7),  # next to nothing: a star
        (MIB, 1, 1),
    ],
)
def test_the_degree_follows_size_and_count(size: int, count: int, degree: int) -> None:
    assert choose_degree(size, count, GBIT, Costs(SETTINGS)) == degree
