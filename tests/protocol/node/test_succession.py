"""What becomes of a machine that raised: what its successor keeps, whom it tells, and how a fault that returns is held
in check."""

from collections import Counter
from typing import Any

import pytest

from hoplite_ucx.protocol import Directory, NodeState
from hoplite_ucx.protocol.errors import FailureKind, internal
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    CancelReceive,
    DeleteCall,
    DescribeCall,
    DirectoryConnected,
    DirectoryEvent,
    Fill,
    Free,
    FromDirectory,
    FromNode,
    GetCall,
    Got,
    NodeEffect,
    NodeEvent,
    PutCall,
    PutDone,
    PutFinished,
    Receive,
    ReceiveClosed,
    ReduceCall,
    SendDirectory,
    SendNode,
    Tick,
    Unpin,
    WaitCall,
)
from hoplite_ucx.protocol.ids import StreamId, node_id
from hoplite_ucx.protocol.messages import (
    Ask,
    Completed,
    Delete,
    Deleted,
    Describe,
    Heartbeat,
    Join,
    Operation,
    Place,
    Poll,
    Put,
    PutAccepted,
    Reduce,
    Rejected,
    ToDirectory,
    Unhandled,
    Want,
    Watch,
    Welcome,
)
from hoplite_ucx.protocol.node.invariants import check_node
from hoplite_ucx.protocol.node.succession import RemainingSegment, Remains, asked_again
from hoplite_ucx.protocol.probation import Probation
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.directory import VirtualDirectory
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.sabotage import SabotageError, raise_in
from tests.tools.machines import LARGE, DirectoryDriver, NodeDriver, join, ref, version

FAULT = internal("directory", "FromNode", ValueError("a fault of ours"))
NOTHING: dict[StreamId, int] = {}


def placed(node: NodeDriver, number: int) -> Receive:
    """The node receives an object that a user gets."""
    node.handle(GetCall(number, ref(number), None))
    place = Place(version(number), 1, LARGE, b"layout", 7, "address7", 1 << 20, 1e9)
    [receive] = [e for e in node.directory(place) if isinstance(e, Receive)]
    return receive


def put(node: NodeDriver, number: int, call: int) -> int:
    """The node has put an object; which segment it is in."""
    [segment] = [
        e.segment
        for e in node.handle(PutCall(call, ref(number), LARGE, b"layout", None, None))
        if hasattr(e, "segment")
    ][:1]
    node.handle(PutFinished(call))
    node.directory(PutAccepted(call, version(number), existing=False))
    return segment


def remaining(*final: int, unfinished: tuple[int, ...] = (), pins: tuple[int, ...] = (), **streams: Any) -> Remains:
    segments = {n: RemainingSegment(LARGE, final=n in final) for n in (*final, *unfinished)}
    return Remains(segments, streams.get("receiving", NOTHING), streams.get("serving", NOTHING), pins=frozenset(pins))


def announced(successor: NodeState, now: float) -> Join:
    """What it tells the directory when it is connected again."""
    effects = successor.handle(DirectoryConnected(), now)
    [message] = [e.message for e in effects if isinstance(e, SendDirectory) and isinstance(e.message, Join)]
    return message


def test_a_node_keeps_its_whole_objects_and_who_has_them_mapped() -> None:
    node = NodeDriver()
    segment = put(node, 1, call=1)
    [got] = [e for e in node.handle(GetCall(2, ref(1), None)) if isinstance(e, Got)]
    assert got.segment == segment
    successor, effects = node.state.successor(remaining(segment, pins=(2,)), node.now)
    check_node(successor)
    assert not [e for e in effects if isinstance(e, Free)]
    join_ = announced(successor, node.now)
    assert [copy.version for copy in join_.copies] == [version(1)]
    assert join_.node == node.state.node, "it is the same node"
    [again] = [e for e in successor.handle(GetCall(3, ref(1), None), node.now) if isinstance(e, Got)]
    assert again.segment == segment
    successor.handle(Unpin(2), node.now)
    successor.handle(Unpin(3), node.now)
    check_node(successor)
    assert not successor.memory.pinned


def test_what_the_shell_does_not_have_whole_is_not_kept() -> None:
    node = NodeDriver()
    segment = put(node, 1, call=1)
    successor, effects = node.state.successor(remaining(unfinished=(segment,)), node.now)
    assert Free(segment) in effects
    assert not announced(successor, node.now).copies


def test_memory_goes_only_when_the_streams_over_it_are_closed() -> None:
    node = NodeDriver()
    receive = placed(node, 1)
    streams = {receive.stream: receive.segment}
    remains = remaining(unfinished=(receive.segment,), receiving=streams)
    successor, effects = node.state.successor(remains, node.now)
    check_node(successor)
    assert not [e for e in effects if isinstance(e, Free | CancelReceive)], "the shell cancelled it, and it may write"
    closed = successor.handle(ReceiveClosed(receive.stream, 100, None), node.now)
    assert Free(receive.segment) in closed
    check_node(successor)
    assert not successor.memory.used


def test_no_stream_or_segment_has_the_name_of_an_earlier_one() -> None:
    node = NodeDriver()
    receive = placed(node, 1)
    remains = remaining(unfinished=(receive.segment,), receiving={receive.stream: receive.segment})
    node.state, _ = node.state.successor(remains, node.now)
    node.connect()
    again = placed(node, 2)
    assert again.stream != receive.stream
    assert again.segment != receive.segment


def test_what_a_user_was_told_is_put_is_put_again() -> None:
    node = NodeDriver()
    effects = node.handle(PutCall(1, ref(1), 3, b"layout", b"abc", None, fresh=True))
    assert [e for e in effects if isinstance(e, PutDone)]
    successor, effects = node.state.successor(Remains({1: RemainingSegment(3, True)}, {}, {}, frozenset()), node.now)
    assert Free(1) in effects
    assert Fill(2, b"abc") in effects
    assert not [e for e in effects if isinstance(e, PutDone)], "once is enough"
    assert [put.data for put in announced(successor, node.now).puts] == [b"abc"]
    effects = successor.handle(Tick(), node.now)
    check_node(successor)


def test_calls_are_asked_again_unless_they_may_be_the_reason() -> None:
    get, put = GetCall(1, ref(1), None), PutCall(2, ref(2), LARGE, b"", None, None)
    place = FromDirectory(Place(version(1), 1, LARGE, b"layout", 7, "address7", 1 << 20, 1e9))
    assert not asked_again(get, place), "the event is about its object"
    assert not asked_again(get, get), "it is the event"
    assert not asked_again(get, CancelCall(1))
    assert not asked_again(DeleteCall(8, (ref(8),), None), FromDirectory(Deleted(8))), "it is its answer"
    assert asked_again(GetCall(3, ref(3), None), place)
    assert asked_again(get, Tick())
    assert not asked_again(put, Tick()), "nobody knows how far it came"
    assert not asked_again(WaitCall(4, (ref(3), ref(1)), 1, None), place)


@pytest.mark.parametrize("times", [1, 2])
def test_a_get_of_something_else_goes_on_once(times: int) -> None:
    cluster = VirtualCluster(Shape(nodes=2), checked=True)
    run(cluster, 1.0)
    later, other = cluster.new_ref(), cluster.new_ref()
    waiting = cluster.get(1, later)
    for _ in range(times):
        raise_in(cluster.slots[1].machine, 3, beats=False)
        failed = cluster.get(1, other)
        assert failed.failure is not None
        run(cluster, 5.0)
    assert (waiting.failure is not None) == (times > 1), "if it happens again, it may be the reason"
    puts = cluster.put(0, later, LARGE)
    assert cluster.settle([puts, waiting], 10.0)
    assert times > 1 or cluster.wrong_bytes(waiting, puts.token) is None


CALLS: list[NodeEvent] = [
    PutCall(9, ref(9), LARGE, b"", None, None),
    GetCall(9, ref(9), None),
    WaitCall(9, (ref(9),), 1, None),
    DeleteCall(9, (ref(9),), None),
    ReduceCall(9, ref(9), (ref(1),), Operation.SUM, 1, None),
    DescribeCall(9, (ref(9),), None),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_what_the_directory_failed_over_fails_with_the_name_of_its_object(call: NodeEvent) -> None:
    node = NodeDriver()
    effects = node.handle(call)
    asked: list[ToDirectory] = [e.message for e in effects if isinstance(e, SendDirectory)]
    directory = Directory(1, "test")
    told = [e.message for m in asked for e in directory.farewell(FromNode(1, m), FAULT) if isinstance(e, SendNode)]
    [failed] = [e for message in told for e in node.directory(message) if isinstance(e, CallFailed)]
    assert failed.failure.kind is FailureKind.INTERNAL
    assert failed.failure.ref == ref(9)
    if isinstance(call, PutCall):
        node.handle(PutFinished(9))
    assert announced(node.state, node.now).puts == announced(node.state, node.now).deletes == ()
    assert not announced(node.state, node.now).wants + announced(node.state, node.now).watches


def test_a_farewell_names_all_that_was_asked() -> None:
    everything = join(
        1,
        puts=(Put(1, ref(1), 1, b"", b"x"),),
        wants=(ref(2),),
        watches=(ref(3),),
        deletes=(Delete(4, (ref(4),)),),
        reduces=(Reduce(5, ref(5), (ref(1),), Operation.SUM, 1),),
        asks=(Ask(6, ref(5)),),
        questions=(Describe(7, (ref(1),)),),
    )
    directory = Directory(1, "test")
    [told] = directory.farewell(FromNode(1, everything), FAULT)
    assert told == SendNode(1, Unhandled(FAULT, (1, 4, 5, 6, 7), (ref(2), ref(3))))
    for message, calls, refs in (
        (Poll(8, ref(1)), (8,), ()),
        (Want(ref(1)), (), (ref(1),)),
        (Watch((ref(1),)), (), (ref(1),)),
    ):
        assert directory.farewell(FromNode(1, message), FAULT) == [SendNode(1, Unhandled(FAULT, calls, refs))]
    for nobody_waits in (FromNode(1, Completed(version(1))), FromNode(1, Heartbeat(())), Tick()):
        assert not directory.farewell(nobody_waits, FAULT)


def test_the_wait_doubles_and_is_forgotten_after_long_quiet() -> None:
    probation = Probation()
    lease, now, waits = 2.0, 0.0, []
    for _ in range(12):
        probation.note("n", now, lease)
        waits.append(probation.left("n", now))
        now += waits[-1]
    assert waits[:4] == [0.0, 0.5, 1.0, 2.0]
    assert max(waits) == 32.0
    assert probation.left("other", now) == 0.0
    now += 100.0
    probation.note("n", now, lease)
    assert probation.left("n", now) == 0.0


def test_a_node_whose_join_makes_the_directory_raise_is_turned_away_for_a_while() -> None:
    driver = DirectoryDriver("A", "B")
    bad: DirectoryEvent = FromNode(driver["A"], join(driver["A"]))
    for incarnation in (2, 3):
        driver.directory = driver.directory.successor(incarnation, bad, driver.now)
    driver.join("A", incarnation=1)
    [rejected] = [m for m in driver.heard("A") if isinstance(m, Rejected | Welcome)]
    assert isinstance(rejected, Rejected)
    assert rejected.failure.kind is FailureKind.INTERNAL
    assert "failed 2 times" in rejected.failure.detail
    driver.join("B", incarnation=1)
    assert [m for m in driver.heard("B") if isinstance(m, Welcome)], "others are not held up"
    driver.now += driver.directory.settings.lease
    driver.join("A", incarnation=1)
    assert [m for m in driver.heard("A") if isinstance(m, Welcome)]


# --- a fault that always returns, in a whole cluster -----------------------------------------------------------------


class _HatesOne(Directory):
    """Raises over every `Join` of the first node that it takes in."""

    def handle(self, event: DirectoryEvent, now: float) -> Any:
        effects = super().handle(event, now)
        if self.members.get(node_id(1)) is not None:
            raise SabotageError("always")
        return effects


class _NeverTicks(NodeState):
    def handle(self, event: NodeEvent, now: float) -> list[NodeEffect]:
        if isinstance(event, Tick) and "h0" in str(self._profile.host):
            raise SabotageError("always")
        return super().handle(event, now)


class _RaisesAlways(Directory):
    def handle(self, event: DirectoryEvent, now: float) -> Any:
        raise SabotageError("always")


def counting(monkeypatch: pytest.MonkeyPatch, shell: type) -> Counter[str]:
    found: Counter[str] = Counter()
    succeed = shell._succeed  # type: ignore[attr-defined]

    def counted(self: Any, event: Any, error: Exception) -> None:
        found[type(event).__name__] += 1
        succeed(self, event, error)

    monkeypatch.setattr(shell, "_succeed", counted)
    return found


def run(cluster: VirtualCluster, seconds: float) -> None:
    cluster.clock.run(until=cluster.clock.now + seconds, max_events=2_000_000)


def test_a_node_that_always_breaks_the_directory_harms_others_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = counting(monkeypatch, VirtualDirectory)
    cluster = type("C", (VirtualCluster,), {"directory_machine": _HatesOne})(Shape(nodes=3), checked=True)
    run(cluster, 300.0)
    assert 5 <= found.total() <= 20, found
    name = cluster.new_ref()
    puts = cluster.put(1, name, LARGE)
    gets = cluster.get(2, name)
    assert cluster.settle([puts, gets], 40.0)
    assert isinstance(gets.answer, Got)


def test_a_directory_that_always_raises_does_so_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counting(monkeypatch, VirtualDirectory)
    cluster = type("C", (VirtualCluster,), {"directory_machine": _RaisesAlways})(Shape(nodes=3))
    run(cluster, 60.0)
    rate = found.total() / 60.0
    assert 0 < rate < 3 * 4 / cluster.settings.lease + 1, "each node tries four times in a lease, and a timer once"


def test_a_node_that_always_raises_does_so_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counting(monkeypatch, VirtualNode)
    cluster = type("C", (VirtualCluster,), {"node_machine": _NeverTicks})(Shape(nodes=3))
    run(cluster, 300.0)
    assert 5 <= found["Tick"] <= 40, found
    name = cluster.new_ref()
    puts, gets = cluster.put(1, name, LARGE), cluster.get(2, name)
    assert cluster.settle([puts, gets], 10.0)
    assert isinstance(gets.answer, Got)


@pytest.mark.parametrize("lines", [1, 3, 10, 30, 60, 100])
def test_a_get_at_a_node_that_raises_fails_and_the_next_one_has_the_bytes(lines: int) -> None:
    cluster = VirtualCluster(Shape(nodes=2), checked=True)
    run(cluster, 1.0)
    name = cluster.new_ref()
    puts = cluster.put(0, name, LARGE)
    assert cluster.settle([puts], 10.0)
    raise_in(cluster.slots[1].machine, lines, beats=False)
    first = cluster.get(1, name)
    assert cluster.settle([first], 10.0)
    assert first.failure is not None
    assert first.failure.kind is FailureKind.INTERNAL
    second = cluster.get(1, name)
    assert cluster.settle([second], 10.0)
    assert cluster.wrong_bytes(second, puts.token) is None


@pytest.mark.parametrize("lines", [1, 5, 20, 50, 100, 200])
def test_a_put_that_makes_the_directory_raise_fails_and_what_was_there_stays(lines: int) -> None:
    cluster = VirtualCluster(Shape(nodes=2), checked=True)
    run(cluster, 1.0)
    there, new = cluster.new_ref(), cluster.new_ref()
    before = cluster.put(0, there, LARGE)
    assert cluster.settle([before], 10.0)
    run(cluster, 1.0)  # until the directory has heard all of it
    raise_in(cluster.directory.machine, lines, beats=False)
    failed = cluster.put(0, new, LARGE)
    after = cluster.get(1, there)
    assert cluster.settle([failed, after], 20.0)
    calls = [failed, after] if after.failure is None else [failed, cluster.get(1, there)]
    assert cluster.settle(calls, 20.0)
    assert any(call.failure is not None and call.failure.kind is FailureKind.INTERNAL for call in (failed, after))
    assert cluster.wrong_bytes(calls[1], before.token) is None
