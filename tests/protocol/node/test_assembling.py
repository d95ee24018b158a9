"""Targets in stripes on a node: one segment, filled through windows."""

import pytest
from msgspec.structs import replace

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import (
    Allocate,
    CallFailed,
    Combined,
    Duplicate,
    Free,
    GetCall,
    Got,
    PutCall,
    Receive,
    ReceiveClosed,
    Window,
)
from hoplite_ucx.protocol.ids import node_id
from hoplite_ucx.protocol.messages import (
    Assemble,
    Bind,
    Completed,
    Declined,
    Drop,
    Evict,
    Operation,
    Place,
    Sealed,
    StreamFailed,
    Stripe,
)
from tests.tools.machines import NodeDriver, ref, version
from tests.tools.reducer import TARGET

HALF = 1 << 20


def assembling(**options: int) -> tuple[NodeDriver, Assemble]:
    """A node with a get of a target in two stripes, of which the second was placed."""
    n = NodeDriver(**options)
    n.handle(GetCall(1, ref(TARGET), None))
    message = Assemble(version(TARGET), 5, 2 * HALF, b"", (Stripe(version(7), HALF), Stripe(version(8), HALF)))
    return n, message


def place(stripe: int, number: int) -> Place:
    return Place(version(stripe), number, HALF, b"", node_id(9), "nine", 1 << 16, 1e6, sealed=False)


def test_a_target_is_filled_through_windows() -> None:
    n, message = assembling()
    effects = n.directory(message)
    whole = n.only(effects, Allocate)
    assert whole.size == 2 * HALF
    windows = [effect for effect in effects if isinstance(effect, Window)]
    assert [(w.of, w.offset, w.size) for w in windows] == [(whole.segment, 0, HALF), (whole.segment, HALF, HALF)]
    streams = [n.only(n.directory(place(stripe, 5 + stripe)), Receive) for stripe in (7, 8)]
    assert [stream.segment for stream in streams] == [w.segment for w in windows]
    first = n.handle(ReceiveClosed(streams[0].stream, HALF, None))
    assert [m.version for m in n.sent(first, Completed)] == [version(7)]
    second = n.handle(ReceiveClosed(streams[1].stream, HALF, None))
    assert [m.version for m in n.sent(second, Completed)] == [version(8), version(TARGET)]
    assert n.none(second, Got)
    assert n.only(n.directory(Sealed(version(TARGET))), Got).segment == whole.segment
    freed = [n.only(n.directory(Drop(version(stripe))), Free).segment for stripe in (7, 8)]
    assert freed == [w.segment for w in windows]


def test_a_stripe_that_was_cut_is_not_got_without_the_target() -> None:
    """Its placement and the report that there is no memory for the target cross."""
    n, message = assembling(memory=2 * HALF - 1)
    assert len(n.sent(n.directory(message), Declined)) == 1
    assert n.directory(replace(place(7, 9), piece=True, sealed=True)) == []
    assert n.connect().partials == ()


def test_a_window_is_announced_as_a_piece() -> None:
    n, message = assembling()
    n.directory(message)
    stream = n.only(n.directory(place(7, 9)), Receive).stream
    n.handle(ReceiveClosed(stream, HALF, None))
    assert [(copy.version, copy.piece) for copy in n.connect().copies] == [(version(7), True)]


def test_a_stripe_that_is_made_here_is_copied() -> None:
    n, message = assembling()
    source = version(1)
    n.directory(Place(source, 1, 2 * HALF, b"", node_id(9), "nine", 1 << 16, 1e6))
    stream = next(iter(n.state.receiving.streams))
    n.handle(ReceiveClosed(stream, 2 * HALF, None))
    bound = n.directory(Bind(version(7), 2, HALF, b"", Operation.SUM, (source,), ref(TARGET), offset=0))
    made = n.only(bound, Allocate).segment
    copy = n.only(n.directory(message), Duplicate)
    assert copy.of == made
    n.handle(Combined(made))
    assert n.only(n.handle(Combined(copy.segment)), Free).segment == copy.segment
    stream = n.only(n.directory(place(8, 9)), Receive).stream
    done = n.handle(ReceiveClosed(stream, HALF, None))
    assert version(TARGET) in [m.version for m in n.sent(done, Completed)]


def test_a_stripe_that_is_made_here_stays_until_the_target_is_whole() -> None:
    n, message = assembling(memory=5 * HALF + 1)
    source = version(1)
    n.directory(Place(source, 1, 2 * HALF, b"", node_id(9), "nine", 1 << 16, 1e6))
    n.handle(ReceiveClosed(next(iter(n.state.receiving.streams)), 2 * HALF, None))
    made = n.only(
        n.directory(Bind(version(7), 2, HALF, b"", Operation.SUM, (source,), ref(TARGET), offset=0)), Allocate
    )
    n.handle(Combined(made.segment))
    n.directory(Sealed(version(7)))
    copy = n.only(n.directory(message), Duplicate)
    n.handle(Combined(copy.segment))
    # There would be room if the stripe, which is in its window, went; but the directory counts on our having it.
    effects = n.handle(PutCall(9, ref(9), 2 * HALF + 2, b"", None, None)) + n.beat(16)
    assert n.sent(effects, Evict) == []
    assert n.only(effects, CallFailed).failure.kind is FailureKind.STORE_FULL


def test_a_slot_of_a_stripe_needs_its_source_here() -> None:
    n = NodeDriver()
    effects = n.directory(Bind(version(7), 2, HALF, b"", Operation.SUM, (version(1),), ref(TARGET), offset=0))
    assert n.sent(effects, Declined) == [Declined(version(7), 2)]


def test_a_stripe_that_ends_ends_the_assembly() -> None:
    n, message = assembling()
    whole = n.only(n.directory(message), Allocate)
    effects = n.directory(Drop(version(7)))
    [failed] = n.sent(effects, StreamFailed)
    assert (failed.version, failed.number, failed.wanted) == (version(TARGET), 5, True)
    assert whole.segment in [effect.segment for effect in effects if isinstance(effect, Free)]
    assert not n.state.memory.segments


def test_memory_is_taken_whole_or_not_at_all() -> None:
    n, message = assembling(memory=2 * HALF - 1)
    effects = n.directory(message)
    assert n.sent(effects, Declined) == [Declined(version(TARGET), 5)]
    assert n.none(effects, Allocate, Window)
    assert not n.state.fetching.assembling.assemblies


@pytest.mark.parametrize(
    "stripes",
    [
        (Stripe(version(7), HALF),),
        (Stripe(version(7), HALF), Stripe(version(7), HALF)),
        (Stripe(version(TARGET), HALF), Stripe(version(7), HALF)),
    ],
)
def test_stripes_that_make_no_sense_are_ignored(stripes: tuple[Stripe, ...]) -> None:
    n, _ = assembling()
    assert not n.directory(Assemble(version(TARGET), 5, 2 * HALF, b"", stripes))
