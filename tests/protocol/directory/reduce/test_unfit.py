"""Reductions that make no sense, such as xor of floats: who should combine says so, and everybody hears why."""

import pytest

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import Combine, CombineBytes, CombineFailed, DirectoryLost, Fill, Free
from hoplite_ucx.protocol.messages import (
    Ask,
    Bind,
    CombinedInline,
    CombineInline,
    Contributors,
    Drop,
    Failed,
    Operation,
    Ready,
    Unfit,
    Want,
    Watch,
)
from tests.protocol.directory.spread.test_stripes import Allreduce
from tests.tools.machines import NodeDriver, ref, snapshot, version
from tests.tools.reducer import OUTER, TARGET, chain, small

SENSELESS = Failure(FailureKind.INVALID, "xor is not defined for float64", "reduce other arrays")
SLOT, PART = version(1), version(2)


def unfit(of: Bind | CombineInline) -> Unfit:
    return Unfit(of.version, SENSELESS.detail, SENSELESS.remedy)


# --- the directory ----------------------------------------------------------------------------------------------


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
    d, combine = small("A", "B")
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


# --- the node ---------------------------------------------------------------------------------------------------


def test_a_node_lets_go_of_the_slot_and_says_why() -> None:
    n = NodeDriver()
    combine = n.only(n.directory(Bind(SLOT, 1, 1 << 20, b"", Operation.XOR, (PART,), ref(TARGET))), Combine)
    effects = n.handle(CombineFailed(combine.segment, SENSELESS))
    assert n.sent(effects, Unfit) == [Unfit(SLOT, SENSELESS.detail, SENSELESS.remedy)]
    assert n.only(effects, Free).segment == combine.segment
    assert n.sent(n.handle(CombineFailed(combine.segment, SENSELESS)), Unfit) == []


def test_small_objects_that_cannot_be_combined_are_not_kept() -> None:
    n = NodeDriver()
    combine = n.only(n.directory(CombineInline(SLOT, b"", Operation.XOR, (b"1", b"2"))), CombineBytes)
    effects = n.handle(CombineFailed(combine.version, SENSELESS))
    assert n.sent(effects, Unfit) == [Unfit(SLOT, SENSELESS.detail, SENSELESS.remedy)]
    assert n.none(effects, Fill)
    assert n.sent(n.handle(CombineFailed(combine.version, SENSELESS)), Unfit) == []


@pytest.mark.parametrize("length", [10, 100_000])
def test_the_word_may_be_lost_with_the_session(length: int) -> None:
    """Then the slot is not announced: the directory gives it away again, and whoever gets it says it anew."""
    n = NodeDriver()
    combine = n.only(n.directory(Bind(SLOT, 1, 1 << 20, b"", Operation.XOR, (PART,), ref(TARGET))), Combine)
    n.handle(DirectoryLost())
    n.handle(CombineFailed(combine.segment, Failure(FailureKind.INVALID, "x" * length, "")))
    assert n.connect().slots == ()
    d, lower, _ = chain()
    d.rejoin("B", copies=(2,), slots=())
    d.report_halts("C")
    assert d.take("B").parts == lower.parts
