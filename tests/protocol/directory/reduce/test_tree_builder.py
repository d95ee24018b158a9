"""How the sources of a reduction are built into slots, in the order in which they come."""

from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.messages import (
    Bind,
    Completed,
    Contributors,
    Place,
)
from tests.tools.machines import ref, sealed_in
from tests.tools.reducer import TARGET, Reducer


def test_three_sources_make_a_chain_in_their_order_of_arrival() -> None:
    d = Reducer("A", "B", "C", "D")
    assert d.reduce("D", (1, 2, 3)) is None
    third = d.put("C", 3)
    assert d.heard_all(Bind) == [], "a single source is a leaf and serves its object as it is"
    first = d.put("A", 1)
    lower = d.take("A")
    assert lower.parts == (first, third)
    [place] = d.heard_all(Place, "A")
    assert (place.version, place.sender, place.into) == (third, d["C"], lower.version.ref)
    second = d.put("B", 2)
    root = d.take("B")
    assert root.version.ref == ref(TARGET)
    assert root.parts == (second, lower.version)
    assert d.feeders(root) == {short(lower.version.ref): "A"}, "the slot is pulled from while it grows"


def test_the_first_that_are_ready_are_taken() -> None:
    d = Reducer("A", "B", "C", "D")
    assert d.reduce("D", (1, 2, 3, 4), count=2) is None
    third = d.put("C", 3)
    fourth = d.put("D", 4)
    root = d.take("D")
    assert root.parts == (fourth, third)
    d.put("A", 1)
    d.put("B", 2)
    assert d.heard_all(Bind) == []
    d.finish("D", root)
    assert d.contributors("A") == [Contributors(7, (ref(3), ref(4)))]


def test_one_source_is_combined_where_it_is() -> None:
    d = Reducer("A", "B")
    source = d.put("A", 1)
    assert d.reduce("B", (1,)) is None
    root = d.take("A")
    assert root.parts == (source,)
    d.finish("A", root)
    assert root.version in sealed_in(d.heard("A"))


def test_sources_of_one_node_share_a_slot() -> None:
    d = Reducer("A", "B", "C")
    for name, number in (("A", 1), ("A", 2), ("B", 3)):
        d.put(name, number)
    assert d.reduce("C", (1, 2, 3)) is None
    lower = d.take("A")
    assert lower.parts == (d.version_of(1), d.version_of(2))
    assert d.feeders(lower) == {}, "it has both"
    root = d.take("B")
    assert root.parts == (d.version_of(3), lower.version)


def test_a_source_is_not_ready_before_it_is_complete() -> None:
    d = Reducer("A", "B", "C")
    d.put("A", 1)
    second = d.put("B", 2, done=False)
    assert d.reduce("C", (1, 2)) is None
    assert d.heard_all(Bind) == []
    d.tell("B", Completed(second))
    assert d.take("B").parts == (second, d.version_of(1))
