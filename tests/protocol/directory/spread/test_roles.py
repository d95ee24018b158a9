"""The roles of a crowd: every host gets every stripe, sends as much as it receives, and the trees are flat."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.protocol.directory.spread.roles import Seat, lay


def depth(tree: list[Seat]) -> int:
    """Also asserts that each host comes once, and after its sender."""
    depths: dict[int, int] = {}
    for node, behind in tree:
        assert node not in depths
        depths[node] = depths[behind] + 1 if behind is not None else 0
    return max(depths.values())


@given(st.integers(1, 90), st.integers(2, 9), st.data())
def test_every_host_gets_every_stripe_from_one_that_has_it(hosts: int, stripes: int, data: st.DataObject) -> None:
    crowd = list(range(1, hosts + 1))
    relays = data.draw(st.lists(st.sampled_from(crowd), min_size=1, unique=True))
    trees = lay(crowd, relays, stripes)
    assert len(trees) == stripes
    for tree in trees:
        depth(tree)
        assert sorted(seat.node for seat in tree) == crowd
        assert {seat.behind for seat in tree if seat.behind is not None} <= set(relays)


@given(st.integers(1, 300), st.integers(2, 9))
def test_no_host_sends_more_than_it_receives(hosts: int, stripes: int) -> None:
    crowd = list(range(1, hosts + 1))
    sent = Counter(seat.behind for tree in lay(crowd, crowd, stripes) for seat in tree)
    assert sent.pop(None) == stripes
    assert max(sent.values(), default=0) <= stripes


@pytest.mark.parametrize(("hosts", "deepest"), [(8, 1), (24, 2), (63, 3), (255, 3), (999, 4), (9_999, 5)])
def test_trees_are_flat(hosts: int, deepest: int) -> None:
    crowd = list(range(1, hosts + 1))
    assert max(map(depth, lay(crowd, crowd, 8))) == deepest


def test_every_root_keeps_a_seat_for_the_next_crowd() -> None:
    crowd = list(range(1, 41))
    trees = lay(crowd, crowd, 8)
    sent = Counter(seat.behind for tree in trees for seat in tree)
    assert all(sent[tree[0].node] < 8 for tree in trees)
