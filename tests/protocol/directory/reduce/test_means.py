"""Means: slots sum, and who makes the target divides, whatever became of those who began it."""

import pytest

from hoplite_ucx.protocol.events import Combine, CombineBytes
from hoplite_ucx.protocol.messages import Bind, CombineInline, Operation
from tests.tools.allreduce import Allreduce
from tests.tools.machines import NodeDriver, ref, version
from tests.tools.reducer import Reducer, chain, copied, small, split

SLOT, PART = version(1), version(2)


@pytest.fixture(autouse=True)
def means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reducer, "op", Operation.MEAN)
    monkeypatch.setattr(Allreduce, "op", Operation.MEAN)


def test_the_root_of_a_chain_divides() -> None:
    _, lower, root = chain()
    assert (lower.divisor, root.divisor) == (0, 3)


def test_a_slot_that_is_bound_before_there_is_a_root_does_not_divide() -> None:
    d = Reducer("A", "B", "C", "D")
    assert d.reduce("D", (1, 2, 3)) is None
    d.put("A", 1)
    d.put("B", 2)
    assert d.take("B").divisor == 0
    d.put("C", 3)
    assert d.take("C").divisor == 3


def test_sums_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reducer, "op", Operation.SUM)
    _, lower, root = chain()
    assert (lower.divisor, root.divisor) == (0, 0)
    assert small("A", "B")[1].divisor == 0


def test_who_takes_the_root_over_divides_the_rest() -> None:
    d, _, _ = chain()
    copied(d, "D", 3)
    d.want("D", 100)
    d.lose("C")
    bind = d.take("D")
    assert bind.resume
    assert bind.divisor == 3


def test_of_a_split_root_only_who_has_the_beginning_divides() -> None:
    _, below, rest = split()
    assert (below.divisor, rest.divisor) == (0, 3)


def test_small_objects() -> None:
    assert small("A", "B")[1].divisor == 2


def test_the_root_of_every_stripe_divides() -> None:
    d = Allreduce()
    d.bind_all()
    stripes = {stripe.version for stripe in d.assembly_of("a").stripes}
    assert len(d.taken) == 9
    assert all(bind.divisor == (3 if bind.version in stripes else 0) for bind in d.taken)


def test_the_node_passes_it_on() -> None:
    n = NodeDriver()
    bind = Bind(SLOT, 1, 1 << 20, b"", Operation.MEAN, (PART,), ref(100), divisor=3)
    assert n.only(n.directory(bind), Combine).divisor == 3
    inline = CombineInline(version(3), b"", Operation.MEAN, (b"1", b"2"), 2)
    assert n.only(n.directory(inline), CombineBytes).divisor == 2
