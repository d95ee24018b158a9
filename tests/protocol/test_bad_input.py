"""Whatever a machine is told, it answers in a typed way and is not harmed: bad messages change nothing."""

import copy
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    DeleteCall,
    FromNode,
    GetCall,
    NodeEffect,
    Probed,
    PutCall,
    PutFinished,
    SendDirectory,
    WaitCall,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId, Version, next_life, node_id
from hoplite_ucx.protocol.messages import (
    PROTOCOL,
    Aborted,
    Alive,
    Completed,
    Contributors,
    Copy,
    Declined,
    Delete,
    Deleted,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Fenced,
    Halt,
    Halted,
    Heartbeat,
    Inline,
    Join,
    Partial,
    Place,
    Progress,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    Reduced,
    Rejected,
    StreamCancel,
    StreamFailed,
    StreamFault,
    StreamRefused,
    StreamRequest,
    StreamStatus,
    ToDirectory,
    ToNode,
    ToPeer,
    Unwant,
    Unwatch,
    Want,
    Watch,
    Welcome,
    malformed,
)
from hoplite_ucx.protocol.settings import KIB
from tests.tools.machines import LARGE, RATE, DirectoryDriver, NodeDriver, join, ref, snapshot, version
from tests.tools.strategies import Known, message_of, one_of

LIVE, DELETED, PENDING, SMALL, UNKNOWN = ref(1), ref(2), ref(3), ref(4), ref(5)
LIMITS = Settings(max_refs=3)


def busy_directory() -> DirectoryDriver:
    """A has an object that B and C receive; one ref is deleted, one is waited for, one is inline; F is fenced."""
    d = DirectoryDriver("A", "B", "C", "F", settings=LIMITS)
    d.put("A", 1)
    d.want("B", 1)
    d.want("C", 1)
    d.tell("A", Delete(1, (DELETED,)), Put(2, SMALL, 3, b"", b"abc"))
    d.tell("C", Want(PENDING), Watch((PENDING,)))
    d.handle(Probed(d["F"], accepted=False))
    for name in "ABCF":
        d.heard(name)
    return d


BUSY = busy_directory()
CURRENT = version(1)
NUMBER = BUSY.receiver("B", 1).number


def after(name: str, *messages: object, node: NodeId | None = None) -> list[ToNode]:
    """What the directory answers; it must be as it was."""
    d = copy.deepcopy(BUSY)
    before = snapshot(d.directory)
    sender = d[name] if node is None else node
    for message in messages:
        d.handle(FromNode(sender, message))  # type: ignore[arg-type]
    assert snapshot(d.directory) == before
    others = [m for other in "ABC" if d[other] != sender for m in d.heard(other)]
    assert others == [], "nobody else hears of it"
    return d._sent.get(sender, [])


def test_a_snapshot_sees_changes() -> None:
    d = copy.deepcopy(BUSY)
    before = snapshot(d.directory)
    assert snapshot(copy.deepcopy(BUSY).directory) == before
    for message in (Want(UNKNOWN), Heartbeat((Progress(CURRENT, 5),)), Delete(1, (PENDING,))):
        d.tell("B", message)
        assert snapshot(d.directory) != before
        before = snapshot(d.directory)


# --- the directory: who speaks ----------------------------------------------------------------------------------


@given(message=one_of(ToDirectory))
def test_who_has_not_joined_is_told_so(message: ToDirectory) -> None:
    [answer] = after("nobody", message, node=node_id(999))
    assert isinstance(answer, Rejected)
    assert answer.failure.kind in (FailureKind.STALE, FailureKind.INVALID)
    assert answer.failure.remedy


@given(message=one_of(ToDirectory))
def test_the_fenced_are_told_so(message: ToDirectory) -> None:
    [answer] = after("F", message)
    if isinstance(message, Join):
        assert isinstance(answer, Rejected), "it is for another cluster, or from another node"
    else:
        assert answer == Fenced(BUSY["F"])


def test_the_fenced_cannot_join_under_their_old_name() -> None:
    assert after("F", join(BUSY["F"])) == [Fenced(BUSY["F"])]


@given(
    st.sampled_from(
        [
            {"protocol": PROTOCOL + 1},
            {"protocol": 0},
            {"cluster": "another"},
            {"node": node_id(77)},
            {"node": BUSY["A"]},
            {"cluster": "", "wants": (LIVE,), "deletes": (Delete(1, (LIVE,)),)},
        ]
    )
)
def test_a_join_that_does_not_belong_here_is_rejected_whole(changes: dict[str, object]) -> None:
    hello = msgspec.structs.replace(join(BUSY["B"]), **changes)
    [answer] = after("B", hello)
    assert isinstance(answer, Rejected)
    assert answer.failure.kind is FailureKind.INVALID


@given(message=one_of(ToNode) | one_of(ToPeer) | st.sampled_from([None, 5, b"bytes", ("Want", LIVE)]))
def test_what_is_not_for_the_directory_is_rejected(message: object) -> None:
    [answer] = after("B", message)
    assert isinstance(answer, Rejected)
    assert answer.failure == malformed(f"{type(message).__name__} is not for the directory")


# --- the directory: what is said --------------------------------------------------------------------------------

STALE_VERSIONS = st.sampled_from(
    [
        Version(LIVE, 0, 1),  # of an earlier directory
        Version(LIVE, 2, 1),
        Version(LIVE, 1, 0),
        Version(LIVE, 1, 2),
        Version(DELETED, 1, 1),
        Version(PENDING, 1, 1),
        Version(UNKNOWN, 1, 1),
    ]
)


@pytest.mark.parametrize("kind", [Completed, Aborted, StreamFailed, Halted, Declined])
@given(data=st.data())
def test_whoever_speaks_of_a_version_that_is_over_is_told_to_drop_it(kind: type, data: st.DataObject) -> None:
    message = data.draw(message_of(kind, {Version: STALE_VERSIONS}))
    assert after("B", message) == [Drop(message.version)]


@given(stale=STALE_VERSIONS)
def test_a_version_that_is_over_may_be_evicted(stale: Version) -> None:
    assert after("B", Evict(stale)) == [EvictAnswer(stale, Eviction.GRANTED)]


@given(stale=STALE_VERSIONS, watermark=st.integers(0, 1 << 61))
def test_progress_of_a_version_that_is_over_is_nothing(stale: Version, watermark: int) -> None:
    assert after("B", Heartbeat((Progress(stale, watermark),))) == [Alive(members=3)]


@given(
    watermark=st.integers(LARGE + 1, (1 << 62) - 1), number=st.sampled_from([NUMBER, 0, 10**6]), wanted=st.booleans()
)
def test_a_watermark_beyond_the_end_is_rejected(watermark: int, number: int, wanted: bool) -> None:
    for message in (
        Halted(CURRENT, number, watermark, wanted),
        *(StreamFailed(CURRENT, number, watermark, BUSY["A"], fault, wanted) for fault in StreamFault),
    ):
        [answer] = after("B", message)
        assert isinstance(answer, Rejected)
        assert answer.failure.kind is FailureKind.INVALID
        assert answer.failure.ref == LIVE
        assert str(watermark) in answer.failure.detail


@given(watermark=st.integers(LARGE + 1, (1 << 62) - 1))
def test_a_watermark_beyond_the_end_in_a_join_is_rejected(watermark: int) -> None:
    hello = join(BUSY["B"], partials=(Partial(CURRENT, watermark, b"", watermark, NUMBER),))
    welcome, answer = after("B", hello)
    assert isinstance(welcome, Welcome)
    assert isinstance(answer, Rejected)
    assert answer.failure.ref == LIVE


def test_nobody_goes_on_with_a_put_of_what_is_inline() -> None:
    inline = version(4, counter=2)
    hello = join(BUSY["B"], producing=(Copy(inline, 3, b""),), partials=(Partial(CURRENT, LARGE, b"", 0, NUMBER),))
    welcome, answer = after("B", hello)
    assert isinstance(welcome, Welcome)
    assert answer == Drop(inline)


@given(fault=st.sampled_from(StreamFault), number=st.integers(0, 1 << 40), watermark=st.integers(0, LARGE))
def test_reports_of_other_placements_are_nothing(fault: StreamFault, number: int, watermark: int) -> None:
    if number != NUMBER:
        assert after("B", Halted(CURRENT, number, watermark, wanted=True), Declined(CURRENT, number)) == []
        failed = StreamFailed(CURRENT, number, watermark, node_id(999), fault, wanted=True)
        assert after("B", failed) == []


def test_messages_over_the_limits_are_refused() -> None:
    many = tuple(ref(number) for number in range(100, 104))
    for message in (Watch(many), Delete(7, many)):
        [answer] = after("B", message)
        assert isinstance(answer, Rejected)
        assert "over the limit" in answer.failure.detail


@given(
    size=st.integers(LIMITS.max_object + 1, (1 << 62) - 1),
    data=st.none() | st.binary(max_size=5),
    name=st.sampled_from([LIVE, DELETED, PENDING, UNKNOWN]),
)
def test_a_put_over_the_limits_is_refused(size: int, data: bytes | None, name: bytes) -> None:
    [answer] = after("B", Put(7, name, size, b"", data))
    assert isinstance(answer, PutRefused)
    assert (answer.call, answer.failure.ref) == (7, name)


@given(data=st.binary(max_size=50), size=st.integers(0, 64 * KIB))
def test_inline_bytes_of_another_size_are_refused(data: bytes, size: int) -> None:
    if len(data) != size:
        [answer] = after("B", Put(7, UNKNOWN, size, b"", data))
        assert isinstance(answer, PutRefused)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Want(DELETED), Failed),
        (Put(7, DELETED, 1, b""), PutRefused),
        (Put(7, DELETED, 1, b"", b"x"), PutRefused),
    ],
)
def test_a_deleted_ref_is_said_to_be_deleted(message: ToDirectory, kind: type) -> None:
    [answer] = after("B", message)
    assert isinstance(answer, Failed | PutRefused)
    assert type(answer) is kind
    assert (answer.failure.kind, answer.failure.ref) == (FailureKind.DELETED, DELETED)


def test_a_deleted_ref_is_ready_to_whoever_waits_for_it() -> None:
    assert after("B", Watch((DELETED,))) == [Ready((DELETED,))]


@pytest.mark.parametrize("message", [Unwant(DELETED), Unwant(UNKNOWN), Unwatch((DELETED, UNKNOWN, LIVE)), Want(LIVE)])
def test_what_is_already_so_is_nothing(message: ToDirectory) -> None:
    assert after("B", message) == []


# --- the directory: anything at all -----------------------------------------------------------------------------

NODES = [BUSY[name] for name in "ABCF"] + [next_life(BUSY["F"]), node_id(999)]
PLAUSIBLE: Known = {
    Version: st.builds(
        Version, st.sampled_from([LIVE, DELETED, PENDING, SMALL, UNKNOWN]), st.integers(0, 2), st.integers(0, 4)
    )
    | st.just(CURRENT),
    "ref": st.sampled_from([LIVE, DELETED, PENDING, SMALL, UNKNOWN]),
    "refs": st.lists(st.sampled_from([LIVE, DELETED, PENDING, SMALL, UNKNOWN]), max_size=4).map(tuple),
    "wants": st.lists(st.sampled_from([LIVE, DELETED, PENDING, SMALL, UNKNOWN]), max_size=4).map(tuple),
    "sources": st.lists(st.sampled_from([LIVE, DELETED, PENDING, SMALL, UNKNOWN]), max_size=4).map(tuple),
    "target": st.sampled_from([LIVE, PENDING, UNKNOWN, ref(6)]),
    "into": st.sampled_from([b"", b"", ref(6), UNKNOWN]),
    "count": st.integers(0, 3),
    "watches": st.lists(st.sampled_from([LIVE, DELETED, PENDING, SMALL, UNKNOWN]), max_size=4).map(tuple),
    "sender": st.sampled_from(NODES),
    "node": st.sampled_from(NODES),
    "number": st.integers(0, 6),
    "call": st.integers(0, 3),
    "watermark": st.sampled_from([0, 1, 3, 4, LARGE - 1, LARGE, LARGE + 1]),
    "size": st.sampled_from([0, 3, LARGE, LIMITS.max_object + 1]),
    "data": st.none() | st.just(b"abc"),
    "protocol": st.just(PROTOCOL),
    "cluster": st.just("test"),
    "address": st.sampled_from(["x", "y", f"address{BUSY['A']}"]),
    "up": st.just(RATE),
    "down": st.just(RATE),
}


@settings(max_examples=100)
@given(steps=st.lists(st.tuples(st.sampled_from(NODES), one_of(ToDirectory, PLAUSIBLE)), min_size=1, max_size=12))
def test_no_message_harms_the_directory(steps: list[tuple[NodeId, ToDirectory]]) -> None:
    """Messages that are plausible one by one and make no sense together: accounts stay right, refusals are no-ops."""
    d = copy.deepcopy(BUSY)
    for node, message in steps:
        if isinstance(message, Join):
            message = msgspec.structs.replace(message, node=node)
        d.handle(FromNode(node, Heartbeat()))  # whoever speaks is not suspect any more
        d._sent.pop(node, None)
        before = snapshot(d.directory)
        d.now += 0.01
        d.handle(FromNode(node, message))  # checks
        answers = d._sent.pop(node, [])
        if not isinstance(message, Join) and any(map(_is_refusal, answers)):
            assert snapshot(d.directory) == before


def _is_refusal(message: ToNode) -> bool:
    if isinstance(message, Reduced | Contributors):
        return message.failure is not None
    return isinstance(message, Rejected | PutRefused | Fenced)


# --- a node -----------------------------------------------------------------------------------------------------

PEER = node_id(7)
HELD, COMING, PUTTING = version(11), version(12), version(13)


def busy_node() -> NodeDriver:
    """A node that holds, receives, puts, serves, waits and deletes."""
    n = NodeDriver(streams_out=3)
    n.handle(PutCall(1, HELD.ref, LARGE, b"", None, None))
    n.directory(PutAccepted(1, HELD, existing=False))
    n.handle(PutFinished(1))
    n.handle(GetCall(2, HELD.ref, None))
    n.handle(GetCall(3, COMING.ref, 100.0))
    n.directory(Place(COMING, 5, LARGE, b"", PEER, "there", KIB, RATE))
    n.handle(PutCall(4, PUTTING.ref, LARGE, b"", None, None))
    n.directory(PutAccepted(4, PUTTING, existing=False))
    n.handle(WaitCall(5, (PENDING,), 1, None))
    n.handle(DeleteCall(6, (DELETED,), None))
    n.handle(GetCall(7, PENDING, None))
    n.peer(PEER, StreamRequest(StreamId(PEER, 1), HELD, 0, KIB, RATE))
    n.peer(PEER, StreamRequest(StreamId(PEER, 2), version(14), 0, KIB, RATE))
    return n


BUSY_NODE = busy_node()


def node_after(tell: Callable[[NodeDriver], list[NodeEffect]]) -> list[NodeEffect]:
    n = copy.deepcopy(BUSY_NODE)
    before = snapshot(n.state)
    effects = tell(n)
    assert snapshot(n.state) == before
    return effects


def node_after_peer(message: ToPeer) -> list[NodeEffect]:
    return node_after(lambda n: n.peer(PEER, message))


FAILURE = Failure(FailureKind.LOST, "lost", "put it again", UNKNOWN)


@pytest.mark.parametrize(
    "message",
    [
        Alive(),
        PutAccepted(99, version(15), existing=True),
        PutRefused(99, FAILURE),
        Place(COMING, 5, LARGE, b"", PEER, "there", KIB, RATE),
        Place(COMING, 4, LARGE, b"", PEER, "there", KIB, RATE),
        Inline(version(15), b"", b"abc"),
        Failed(UNKNOWN, FAILURE),
        Drop(version(15)),
        Drop(version(12, 0)),
        EvictAnswer(HELD, Eviction.GRANTED),  # nobody asked
        EvictAnswer(version(15), Eviction.GRANTED),
        Halt(COMING, 4),
        Halt(version(15), 1),
        Ready((UNKNOWN, LIVE)),
        Deleted(99),
        Fenced(node_id(999)),
        Rejected(FAILURE),
    ],
    ids=str,
)
def test_news_of_what_a_node_does_not_know_is_nothing(message: ToNode) -> None:
    assert node_after(lambda n: n.directory(message)) == []


def test_a_version_for_a_put_that_is_over_is_given_back() -> None:
    effects = node_after(lambda n: n.directory(PutAccepted(99, version(15), existing=False)))
    assert effects == [SendDirectory(Aborted(version(15)))]


def test_a_copy_that_is_placed_again_is_reported() -> None:
    effects = node_after(lambda n: n.directory(Place(HELD, 9, LARGE, b"", PEER, "there", KIB, RATE)))
    assert effects == [SendDirectory(Completed(HELD))]


@given(
    stream=st.builds(StreamId, st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    fault=st.sampled_from(StreamFault),
    at=st.integers(0, 1 << 60),
    queued=st.booleans(),
)
def test_news_of_unknown_streams_is_nothing(stream: StreamId, fault: StreamFault, at: int, queued: bool) -> None:
    if stream.receiver not in (PEER, BUSY_NODE.state.node):
        for message in (StreamStatus(stream, at, queued), StreamRefused(stream, fault), StreamCancel(stream)):
            assert node_after_peer(message) == []


@given(
    offset=st.integers(LARGE + 1, (1 << 62) - 1),
    stale=st.sampled_from([version(11, 0), version(12, 0), Version(HELD.ref, 0, 9)]),
)
def test_requests_that_cannot_be_served_are_refused(offset: int, stale: Version) -> None:
    stream = StreamId(PEER, 50)
    for wrong in (
        StreamRequest(stream, HELD, offset, KIB, RATE),
        StreamRequest(stream, stale, 0, KIB, RATE),
    ):
        effects = node_after_peer(wrong)
        assert NodeDriver.sent(effects, StreamRefused) == [StreamRefused(stream, StreamFault.ABSENT)]
        assert len(effects) == 1


def test_nobody_speaks_for_another_node() -> None:
    """A stream is asked for and cancelled by its receiver, and refused by its sender, whoever else knows its name."""
    stranger = node_id(99)

    def later(message: ToPeer, peer: NodeId = stranger) -> Callable[[NodeDriver], list[NodeEffect]]:
        def tell(n: NodeDriver) -> list[NodeEffect]:
            n.now += 0.1
            return n.peer(peer, message)

        return tell

    [incoming] = BUSY_NODE.state.receiving.streams
    for message in (
        StreamCancel(StreamId(PEER, 1)),
        StreamCancel(StreamId(PEER, 2)),
        StreamRequest(StreamId(PEER, 60), HELD, 0, KIB, RATE),
        StreamRefused(incoming, StreamFault.ABSENT),
        StreamStatus(incoming, 0, queued=True),
    ):
        assert node_after(later(message)) == [], message
    assert node_after(later(StreamRequest(StreamId(stranger, 60), HELD, 0, KIB, RATE), PEER)) == []
    for message in (StreamCancel(StreamId(PEER, 1)), StreamRefused(incoming, StreamFault.ABSENT)):
        assert copy.deepcopy(BUSY_NODE).peer(next_life(PEER), message) != [], "another life of the node is the node"


def test_requests_over_the_limit_are_refused() -> None:
    n = copy.deepcopy(BUSY_NODE)
    n.peer(PEER, StreamRequest(StreamId(PEER, 3), HELD, 0, KIB, RATE))
    before = snapshot(n.state)
    effects = n.peer(PEER, StreamRequest(StreamId(PEER, 4), HELD, 0, KIB, RATE))
    assert NodeDriver.sent(effects, StreamRefused) == [StreamRefused(StreamId(PEER, 4), StreamFault.BUSY)]
    assert snapshot(n.state) == before


NODE_PLAUSIBLE: Known = {
    Version: st.sampled_from([HELD, COMING, PUTTING, version(11, 2), version(12, 0), version(12, 2), version(15)]),
    StreamId: st.builds(StreamId, st.sampled_from([PEER, BUSY_NODE.state.node]), st.integers(0, 4)),
    Settings: st.just(Settings()),
    "ref": st.sampled_from([HELD.ref, COMING.ref, PUTTING.ref, PENDING, UNKNOWN]),
    "refs": st.lists(st.sampled_from([HELD.ref, COMING.ref, PENDING, UNKNOWN]), max_size=3).map(tuple),
    "call": st.integers(0, 8),
    "number": st.integers(0, 9),
    "size": st.sampled_from([LARGE, LARGE, 0, 1 << 50]),
    "offset": st.sampled_from([0, 5, LARGE, LARGE + 1]),
    "node": st.sampled_from([BUSY_NODE.state.node, PEER]),
    "into": st.sampled_from([b"", HELD.ref, COMING.ref, ref(15)]),
    "sender": st.sampled_from([PEER, node_id(8)]),
    "incarnation": st.integers(0, 2),
    "cluster": st.sampled_from(["test", "another"]),
}


@settings(max_examples=100)
@given(
    steps=st.lists(one_of(ToNode, NODE_PLAUSIBLE) | one_of(ToPeer, NODE_PLAUSIBLE), min_size=1, max_size=12),
)
def test_no_message_harms_a_node(steps: list[ToNode | ToPeer]) -> None:
    """After each of them its invariants hold: the driver checks them."""
    n = copy.deepcopy(BUSY_NODE)
    for message in steps:
        n.now += 0.01
        if isinstance(message, StreamRequest | StreamStatus | StreamRefused | StreamCancel):
            n.peer(PEER, message)
        else:
            n.directory(message)
