"""Reductions that make no sense, such as xor of floats: who should combine says so, and everybody hears why."""

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.messages import (
    Ask,
    Bind,
    CombinedInline,
    CombineInline,
    Contributors,
    Drop,
    Failed,
    Ready,
    Unfit,
    Want,
    Watch,
)
from tests.tools.allreduce import Allreduce
from tests.tools.machines import ref, snapshot, version
from tests.tools.reducer import OUTER, TARGET, chain, small_at_node

SENSELESS = Failure(FailureKind.INVALID, "xor is not defined for float64", "reduce other arrays")


def unfit(of: Bind | CombineInline) -> Unfit:
    return Unfit(of.version, SENSELESS.detail, SENSELESS.remedy)


def test_everybody_hears_why_and_nothing_is_left_of_it() -> None:
    d, lower, root = chain()
    d.tell("D", Want(ref(TARGET)), Ask(7, ref(TARGET)))
    d.tell("A", Watch((ref(TARGET),)))
    d.quiet()
    d.tell("D", Want(ref(TARGET)))
    d.tell("B", unfit(lower))
    [failed] = d.heard_all(Failed, "D")
    assert failed.failure == Failure(FailureKind.INVALID, SENSELESS.detail, SENSELESS.remedy, ref(TARGET))
    assert d.heard_all(Ready, "A") == [Ready((ref(TARGET),))]
    assert Drop(root.version) in d.heard("C")
    assert d.contributors("E") == [Contributors(7, (), failed.failure)]
    d.tell("E", Want(ref(TARGET)))
    assert [message.failure for message in d.heard_all(Failed, "E")] == [failed.failure]


def test_a_source_that_is_put_again_does_not_reopen_it() -> None:
    d, lower, _ = chain()
    d.tell("B", unfit(lower))
    d.quiet()
    d.kill("A")
    d.put("D", 1)
    assert d.heard_all(Bind) == []


def test_who_asks_again_gets_another_try() -> None:
    d, lower, _ = chain()
    d.tell("B", unfit(lower))
    d.quiet()
    assert d.reduce("E", (1, 2, 3)) is None
    assert d.take("B").parts == lower.parts


def test_a_reduction_chained_to_it_lacks_a_source() -> None:
    d, _, root = chain()
    assert d.reduce("E", (TARGET, 1), target=OUTER) is None
    d.tell("E", Want(ref(OUTER)))
    d.quiet()
    d.tell("C", unfit(root))
    assert [m.failure.kind for m in d.heard_all(Failed, "E") if m.ref == ref(OUTER)] == [FailureKind.LOST]


def test_only_who_combines_it_can_say_so() -> None:
    d, lower, root = chain()
    before = snapshot(d.directory)
    d.tell("A", unfit(lower))
    d.tell("B", unfit(root), Unfit(version(99), "", ""))
    assert snapshot(d.directory) == before


def test_small_objects() -> None:
    d, combine = small_at_node("A", "B")
    d.tell("A", unfit(combine))
    assert d.heard_all(Failed, "D") == []
    d.tell("C", unfit(combine))
    [failed] = d.heard_all(Failed, "D")
    assert (failed.ref, failed.failure.detail) == (ref(TARGET), SENSELESS.detail)
    d.tell("C", CombinedInline(combine.version, b"\0\0"))
    assert d.directory.records[ref(TARGET)].broadcast is None


def test_one_stripe_speaks_for_all() -> None:
    d = Allreduce()
    d.listen()
    [bind, *_] = [message for message in d.said["b"] if isinstance(message, Bind)]
    d.tell("b", unfit(bind))
    d.listen()
    for name in "abc":
        assert [m.failure.detail for m in d.said[name] if isinstance(m, Failed)] == [SENSELESS.detail]
    assert not d.directory.records[ref(TARGET)].slot
