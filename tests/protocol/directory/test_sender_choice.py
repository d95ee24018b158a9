"""Placement: the shapes that the cost model gives, and that the quick choice is as good as looking at everything."""

import random
from collections import Counter

import pytest

from hoplite_ucx.protocol.cost import Costs, choose_granule
from hoplite_ucx.protocol.directory.sender_choice import Location, Nic, Plan, SenderPool
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.settings import KIB, MIB, Settings
from tests.tools.machines import RATE, ref

SETTINGS = Settings()
SOURCE = 0


def nic(rate: float = RATE) -> Nic:
    return Nic(rate, rate)


class Tree:
    """A pool with receivers placed one after the other, all of the same object."""

    def __init__(self, size: int, hosts: int, source: Nic | None = None) -> None:
        self.size = size
        self.pool = SenderPool(ref(1), choose_granule(size, hosts, RATE, SETTINGS), Costs(SETTINGS))
        self.pool.add(SOURCE, source or nic(), 0.0, 0)
        self.parents: dict[NodeId, NodeId] = {}
        self.plans: dict[NodeId, Plan] = {}

    def place(
        self, node: NodeId, *, now: float = 0.0, on: Nic | None = None, avoid: frozenset[int] = frozenset()
    ) -> Plan:
        account = on or nic()
        plan = self.pool.choose(account, self.size, now, lambda sender: sender not in avoid)
        assert plan is not None
        if plan.displaces is not None:
            self.pool.release(self.parents.pop(plan.displaces), plan.displaces)
        self.pool.occupy(plan, node, account)
        self.pool.add(node, account, plan.finish, 0)
        self.parents[node], self.plans[node] = plan.sender, plan
        return plan

    def depth(self, node: NodeId) -> int:
        return 0 if node == SOURCE else 1 + self.depth(self.parents[node])


# --- shapes -----------------------------------------------------------------------------------------------------


def test_a_chain_grows_without_plans_for_those_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[NodeId] = []
    make = SenderPool._plan

    def counted(pool: SenderPool, location: Location, account: Nic, remaining: int, now: float) -> Plan:
        plans.append(location.node)
        return make(pool, location, account, remaining, now)

    monkeypatch.setattr(SenderPool, "_plan", counted)
    tree = Tree(64 * MIB, 64)
    for node in range(1, 64):
        tree.place(node)
    assert plans == list(range(63))


def test_a_large_object_travels_along_a_chain() -> None:
    tree = Tree(64 * MIB, 64)
    for node in range(1, 64):
        tree.place(node)
    assert tree.parents == {node: node - 1 for node in range(1, 64)}
    ideal = tree.size / RATE
    assert tree.plans[63].finish < 1.10 * ideal


def test_a_small_object_travels_through_a_shallow_tree() -> None:
    tree = Tree(4 * KIB, 64)
    for node in range(1, 64):
        tree.place(node)
    assert max(tree.depth(node) for node in range(1, 64)) <= 7
    assert max(Counter(tree.parents.values()).values()) > 2
    # With a transfer far below the latency a chain would take 63 hops.
    assert max(plan.finish for plan in tree.plans.values()) < 8 * 2 * SETTINGS.latency + 63 * tree.size / RATE


def test_a_trickle_of_receivers_each_gets_the_full_rate() -> None:
    tree = Tree(64 * MIB, 16)
    ideal = tree.size / RATE
    for node in range(1, 16):
        now = 0.3 * ideal * node
        plan = tree.place(node, now=now)
        assert plan.finish - now < 1.10 * ideal


def test_a_complete_and_idle_location_serves_who_comes_late() -> None:
    tree = Tree(64 * MIB, 4)
    ideal = tree.size / RATE
    tree.place(1)
    tree.pool.release(SOURCE, 1)
    tree.pool.set_finish(1, ideal)
    plan = tree.place(2, now=10 * ideal)
    assert plan.sender in (SOURCE, 1)
    assert plan.rate == RATE
    assert plan.finish == pytest.approx(10 * ideal + SETTINGS.latency + ideal)


# --- accounts ---------------------------------------------------------------------------------------------------


def test_first_come_first_served() -> None:
    """With one sender to choose from, the second stream is planned to start when the first is over."""
    tree = Tree(64 * MIB, 3)
    first = tree.place(1)
    second = tree.place(2, avoid=frozenset({1}))
    transfer = tree.size / RATE
    assert first.finish == pytest.approx(transfer + SETTINGS.latency)
    assert second.finish == pytest.approx(2 * transfer + SETTINGS.latency)
    assert first.rate == second.rate == RATE


def test_capacity_that_a_slow_receiver_leaves_is_used() -> None:
    tree = Tree(64 * MIB, 3, source=nic(RATE))
    slow = tree.place(1, on=nic(0.08 * RATE))
    fast = tree.place(2, avoid=frozenset({1}))
    assert slow.rate == pytest.approx(0.08 * RATE)
    assert fast.displaces is None
    assert fast.rate == pytest.approx(0.92 * RATE)
    assert fast.finish < slow.finish


def test_a_slow_child_that_holds_capacity_is_displaced() -> None:
    tree = Tree(64 * MIB, 3)
    tree.place(1, on=nic(0.5 * RATE))
    plan = tree.pool.choose(nic(), tree.size, 0.0, lambda sender: sender == SOURCE)
    assert plan is not None
    assert plan.displaces == 1
    assert plan.sender == SOURCE
    assert plan.rate == RATE


def test_a_child_as_fast_as_its_sender_is_not_displaced() -> None:
    tree = Tree(64 * MIB, 3, source=nic(0.5 * RATE))
    tree.place(1)
    plan = tree.pool.choose(nic(), tree.size, 0.0, lambda sender: sender == SOURCE)
    assert plan is not None
    assert plan.displaces is None


def test_nobody_is_displaced_for_little() -> None:
    """Near its end a slow stream gives its capacity back soon anyway."""
    tree = Tree(64 * MIB, 3)
    plan = tree.place(1, on=nic(0.5 * RATE))
    tree.pool.revise(SOURCE, 1, finish=0.01 * plan.finish)
    newcomer = tree.pool.choose(nic(), tree.size, 0.0, lambda sender: sender == SOURCE)
    assert newcomer is not None
    assert newcomer.displaces is None


def test_two_objects_share_a_nic() -> None:
    source, mine, other = nic(), nic(), nic()
    pools = [SenderPool(ref(number), MIB, Costs(SETTINGS)) for number in (1, 2)]
    for pool in pools:
        pool.add(SOURCE, source, 0.0, 0)
    rates = []
    for pool, account in zip(pools, (mine, other), strict=True):
        plan = pool.choose(account, 64 * MIB, 0.0, lambda _: True)
        assert plan is not None
        pool.occupy(plan, 1, account)
        rates.append(plan.rate)
    assert rates == [RATE, RATE / 2]
    assert source.sending == {ref(1): 1, ref(2): 1}


def test_unacceptable_senders_are_skipped() -> None:
    tree = Tree(64 * MIB, 8)
    for node in range(1, 6):
        tree.place(node)
    assert tree.place(6, avoid=frozenset({0, 1, 2, 3, 5})).sender == 4
    assert tree.pool.choose(nic(), tree.size, 0.0, lambda _: False) is None
    # Looking costs nothing: the same question has the same answer.
    once, again = (tree.pool.choose(nic(), tree.size, 0.0, lambda _: True) for _ in range(2))
    assert once == again


def test_an_empty_pool_has_no_sender() -> None:
    assert SenderPool(ref(1), MIB, Costs(SETTINGS)).choose(nic(), 1, 0.0, lambda _: True) is None


def test_accounts_return_to_zero() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        nics = [nic(RATE * rng.choice((0.3, 1.0))) for _ in range(5)]  # hosts have several nodes
        tree = Tree(MIB, 20, source=nics[0])
        for node in range(1, 20):
            tree.place(node, now=node * 1e-3, on=rng.choice(nics))
        for node in rng.sample(range(20), 20):
            parent = tree.parents.get(node)
            location = None if parent is None else tree.pool.locations.get(parent)
            if location is not None and node in location.children and rng.random() < 0.5:
                tree.pool.release(location.node, node)
            orphans = tree.pool.remove(node)
            assert all(tree.parents[orphan] == node for orphan in orphans)
        assert all(not n.sending and not n.receiving for n in nics)
        assert not tree.pool.locations
        assert not tree.pool._slow


def test_a_location_is_free_again_when_its_streams_are() -> None:
    tree = Tree(64 * MIB, 3)
    tree.place(1)
    assert tree.pool.locations[SOURCE].free_at > 0
    tree.pool.release(SOURCE, 1)
    assert tree.pool.locations[SOURCE].free_at < 0
    assert tree.pool.locations[SOURCE].load == 0.0
    assert tree.place(2, avoid=frozenset({1})).finish == pytest.approx(tree.size / RATE + SETTINGS.latency)


def test_a_location_whose_streams_should_be_over_counts_as_free() -> None:
    """Late reports must not hide it behind others that were busy for a shorter time."""
    pool = SenderPool(ref(1), MIB, Costs(SETTINGS))
    for node in range(8):
        pool.add(node, nic(), finish=100.0 - node, depth=0)
        pool.occupy(Plan(node, RATE, finish=1.0 + node), 100 + node, nic())
    plan = pool.choose(nic(), 64 * MIB, 50.0, lambda _: True)
    assert plan is not None
    assert plan.sender == 7, "it has everything first"


# --- against looking at everything ------------------------------------------------------------------------------


def _brute_force(pool: SenderPool, account: Nic, size: int, now: float, avoid: set[NodeId]) -> float:
    plans = [pool._plan(location, account, size, now) for node, location in pool.locations.items() if node not in avoid]
    return min(plan.finish for plan in plans)


@pytest.mark.parametrize("rates", [(1.0,), (0.5, 1.0, 2.0)], ids=["equal", "mixed"])
@pytest.mark.parametrize("size", [4 * KIB, 256 * KIB, 4 * MIB, 64 * MIB])
def test_the_choice_is_as_good_as_looking_at_every_location(size: int, rates: tuple[float, ...]) -> None:
    """Pools as they come about: receivers arrive, finish early or late, and some senders are not acceptable."""
    for seed in range(25):
        rng = random.Random(seed)
        tree = Tree(size, 40)
        now = 0.0
        for node in range(1, 40):
            now += rng.choice((0.0, 0.1, 1.0)) * size / RATE
            account = nic(rng.choice(rates) * RATE)
            avoid = {n for n in tree.pool.locations if rng.random() < 0.2} - {SOURCE}
            best = _brute_force(tree.pool, account, size, now, avoid)
            plan = tree.pool.choose(account, size, now, set(tree.pool.locations).difference(avoid).__contains__)
            assert plan is not None
            slack = 0.05 * (size / account.down + SETTINGS.latency)
            assert plan.finish <= best + slack, f"seed {seed}, receiver {node}: {plan.finish} against {best}"
            if plan.displaces is not None:
                tree.pool.release(tree.parents.pop(plan.displaces), plan.displaces)
            tree.pool.occupy(plan, node, account)
            tree.pool.add(node, account, plan.finish, 0)
            tree.parents[node] = plan.sender
            for child, parent in list(tree.parents.items()):
                if tree.pool.locations[child].finish < now and rng.random() < 0.5:
                    tree.pool.release(parent, child)
                    tree.pool.set_finish(child, now)
                    del tree.parents[child]
