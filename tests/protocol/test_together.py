"""A directory and a few nodes against each other in random order: every event is followed by `check()`.

This is a shell at its smallest, without a network model: connections are queues that a seed empties in any order
(each in its own order), and streams move by random steps. It finds broken accounts; what the protocol achieves is
the simulator's business.
"""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from hoplite_ucx.protocol import Directory, NodeState, Settings
from hoplite_ucx.protocol import events as ev
from hoplite_ucx.protocol.ids import NodeId, StreamId, identity_of, node_id
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import Operation, StreamFault, ToNode
from hoplite_ucx.protocol.node import NodeProfile
from hoplite_ucx.protocol.node.memory import Phase
from hoplite_ucx.protocol.settings import KIB

CLUSTER = "together"
SIZES = (0, 5, 40 * KIB, 100 * KIB, 300 * KIB)


@dataclass(eq=False)
class Shell:
    state: NodeState
    alive: bool = True
    session: NodeId | None = None  # the name under which it is connected to the directory
    watermarks: dict[int, int] = field(default_factory=dict)  # by segment
    writing: dict[int, tuple[int, int]] = field(default_factory=dict)  # put call → segment, size
    receives: dict[StreamId, ev.Receive] = field(default_factory=dict)
    serves: dict[StreamId, ev.Serve] = field(default_factory=dict)
    holds: list[int] = field(default_factory=list)  # gets whose memory was given out
    answers: dict[int, int] = field(default_factory=dict)
    combines: dict[int, ev.Combine] = field(default_factory=dict)  # slots that are not complete, by segment
    inputs: dict[tuple[int, int], int] = field(default_factory=dict)  # what came of a slot's part, by segment and part

    def position(self, receive: ev.Receive) -> int:
        if receive.part is None:
            return self.watermarks[receive.segment]
        return self.inputs.get((receive.segment, receive.part), receive.offset)


class Together:
    def __init__(self, seed: int, nodes: int = 5, objects: int = 5, targets: int = 0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.settings = Settings(inline_total=8, tombstone=1.0)
        self.directory = Directory(1, CLUSTER, self.settings)
        self.refs = [bytes([n + 1] * 16) for n in range(objects + targets)]
        self.targets = self.refs[objects:]
        self.sizes = (*SIZES, *[self.random.choice(SIZES)] * 30) if targets else SIZES  # mostly one, to be combined
        self.queues: dict[object, deque[Callable[[], None]]] = {}
        self.calls = 0
        self.check_seconds = {"directory": 0.0, "node": 0.0}
        self.checks = {"directory": 0, "node": 0}
        self.shells = [self._start(n + 1) for n in range(nodes)]

    def _start(self, number: int) -> Shell:
        profile = NodeProfile(
            host=f"h{number % 4}",
            address=f"a{number}",
            up=125e6,
            down=125e6,
            cluster=CLUSTER,
            memory=self.random.choice((400, 1000, 10_000)) * KIB,
            streams_in=self.random.choice((2, 100)),
            streams_out=self.random.choice((2, 100)),
        )
        shell = Shell(NodeState(node_id(number), profile, self.settings))
        self._perform(shell, shell.state.start(self.now))
        return shell

    # --- delivering --------------------------------------------------------------------------------------------

    def later(self, connection: object, action: Callable[[], None]) -> None:
        self.queues.setdefault(connection, deque()).append(action)

    def tell_directory(self, event: ev.DirectoryEvent) -> None:
        for effect in self.directory.handle(event, self.now):
            match effect:
                case ev.SendNode(node, message):
                    self.later(("down", node), partial(self._to_node, node, message))
                case ev.Probe(node):
                    self.later(("probe", node), partial(self._probe, node))
                case ev.Disconnect(node):
                    self.later(("down", node), partial(self._cut, node))
                case ev.CombineBytes(version, parts=parts):
                    result = ev.CombinedBytes(version, parts[0])
                    self.later("combine", partial(self.tell_directory, result))
        self._check("directory", self.directory)

    def tell(self, shell: Shell, event: ev.NodeEvent) -> None:
        if shell.alive:
            self._perform(shell, shell.state.handle(event, self.now))
            self._check("node", shell.state)

    def _check(self, kind: str, machine: Directory | NodeState) -> None:
        begin = time.perf_counter()
        check(machine)
        self.check_seconds[kind] += time.perf_counter() - begin
        self.checks[kind] += 1

    def _shell_of(self, node: NodeId) -> Shell | None:
        return next((s for s in self.shells if s.alive and identity_of(s.state.node) == identity_of(node)), None)

    def _to_node(self, node: NodeId, message: ToNode) -> None:
        shell = self._shell_of(node)
        if shell is not None and shell.session == node:
            self.tell(shell, ev.FromDirectory(message))

    def _probe(self, node: NodeId) -> None:
        self.tell_directory(ev.Probed(node, self._shell_of(node) is not None))

    def _cut(self, node: NodeId) -> None:
        shell = self._shell_of(node)
        if shell is not None and shell.session == node:
            shell.session = None
            self.tell(shell, ev.DirectoryLost())

    def _close_session(self, shell: Shell) -> None:
        node, shell.session = shell.session, None
        if node is not None:
            self.queues.pop(("up", node), None)
            self.later(("up", node), lambda: self.tell_directory(ev.SessionLost(node)))

    def _perform(self, shell: Shell, effects: list[ev.NodeEffect]) -> None:
        for effect in effects:
            self._perform_one(shell, effect)

    def _perform_one(self, shell: Shell, effect: ev.NodeEffect) -> None:
        me = shell.state.node
        match effect:
            case ev.ConnectDirectory():
                self.later(("connect", me), lambda: self._connect(shell))
            case ev.DisconnectDirectory():
                self._close_session(shell)
            case ev.SendDirectory():
                if shell.session is not None:
                    event = ev.FromNode(shell.session, effect.message)
                    self.later(("up", shell.session), partial(self.tell_directory, event))
            case ev.SendPeer(peer):
                self.later((me, peer), partial(self._to_peer, shell, me, effect))
            case ev.Allocate(segment, _):
                shell.watermarks[segment] = 0
            case ev.Fill(segment, data):
                shell.watermarks[segment] = len(data)
            case ev.Free(segment):
                assert all(r.segment != segment for r in shell.receives.values()), "freed under a receive"
                assert all(s.segment != segment for s in shell.serves.values()), "freed under a serve"
                del shell.watermarks[segment]
                shell.combines.pop(segment, None)
                shell.inputs = {key: at for key, at in shell.inputs.items() if key[0] != segment}
            case ev.Combine(segment):
                shell.combines[segment] = effect
            case ev.Supply(segment, part, data):
                shell.inputs[segment, part] = len(data)
            case ev.CombineBytes(version, parts=parts):
                self.later(("combine", me), lambda: self.tell(shell, ev.CombinedBytes(version, parts[0])))
            case ev.Receive(stream):
                shell.receives[stream] = effect
            case ev.CancelReceive(stream):
                self.later(("cancel", stream), lambda: self._end_receive(shell, stream, None))
            case ev.Serve(stream):
                shell.serves[stream] = effect
            case ev.CancelServe(stream):
                self.later(("cancel serve", stream), lambda: self._end_serve(shell, stream))
            case ev.PutReady(call, segment):
                shell.writing[call] = (segment, -1)
            case (
                ev.PutDone(call)
                | ev.Got(call)
                | ev.Waited(call)
                | ev.DeleteDone(call)
                | ev.CallFailed(call)
                | (ev.ReduceDone(call) | ev.ContributorsAre(call))
            ):
                shell.answers[call] = shell.answers.get(call, 0) + 1
                assert shell.answers[call] == 1, f"call {call} was answered twice"
                if isinstance(effect, ev.Got) and effect.segment is not None:
                    assert shell.watermarks[effect.segment] == effect.size
                    shell.holds.append(call)

    def _connect(self, shell: Shell) -> None:
        if shell.alive and shell.session is None:
            shell.session = shell.state.node
            self.queues.pop(("down", shell.session), None)
            self.tell(shell, ev.DirectoryConnected())

    def _to_peer(self, shell: Shell, me: NodeId, sent: ev.SendPeer) -> None:
        to = self._shell_of(sent.peer)
        if to is None:
            self.tell(shell, ev.PeerLost(sent.peer))
        elif shell.alive:
            self.tell(to, ev.FromPeer(me, sent.message))

    # --- streams -----------------------------------------------------------------------------------------------

    def _end_receive(self, shell: Shell, stream: StreamId, fault: StreamFault | None) -> None:
        receive = shell.receives.pop(stream, None)
        if receive is not None:
            self.tell(shell, ev.ReceiveClosed(stream, shell.position(receive), fault))

    def _end_serve(self, shell: Shell, stream: StreamId) -> None:
        if shell.serves.pop(stream, None) is not None:
            self.tell(shell, ev.ServeClosed(stream))

    def _move(self, sender: Shell, serve: ev.Serve) -> None:
        receiver = self._shell_of(serve.stream.receiver)
        receive = receiver.receives.get(serve.stream) if receiver is not None else None
        if receiver is None or receive is None:
            self._end_serve(sender, serve.stream)
            return
        at = receiver.position(receive)
        limit = sender.watermarks[serve.segment]
        if at < limit:
            at = min(limit, at + self.random.choice((20, 100, 300)) * KIB)
            if receive.part is None:
                receiver.watermarks[receive.segment] = at
            else:
                receiver.inputs[receive.segment, receive.part] = at
        if at == serve.size:
            self._end_receive(receiver, serve.stream, None)
            self._end_serve(sender, serve.stream)

    def _combine(self, shell: Shell) -> None:
        """Every slot gets as far as its parts have come."""
        for segment, combine in list(shell.combines.items()):
            come = (
                shell.inputs.get((segment, index), 0) if part is None else shell.watermarks[part]
                for index, part in enumerate(combine.parts)
            )
            shell.watermarks[segment] = min(come)
            if shell.watermarks[segment] == combine.size:
                del shell.combines[segment]
                self.tell(shell, ev.Combined(segment))

    # --- what may happen ---------------------------------------------------------------------------------------

    def step(self, *, faults: bool = True) -> None:
        chance = self.random.random()
        if chance < 0.6 and self.queues:
            connection = self.random.choice(list(self.queues))
            queue = self.queues[connection]
            action = queue.popleft()
            if not queue:
                del self.queues[connection]
            action()
        elif chance < 0.75:
            moving = [(s, serve) for s in self.shells if s.alive for serve in s.serves.values()]
            if moving:
                self._move(*self.random.choice(moving))
            for shell in self.shells:
                self._combine(shell)
        elif chance < 0.82:
            self.pass_time(self.random.choice((0.001, 0.01, 0.1)))
        elif chance < 0.97 or not faults:
            self._user(self.random.choice([s for s in self.shells if s.alive]))
        else:
            self._fault()

    def settle(self) -> None:
        """No more calls and faults: what can end ends."""
        for _ in range(400):
            while self.queues:
                queue = self.queues.pop(next(iter(self.queues)))
                for action in queue:
                    action()
            for shell in filter(lambda shell: shell.alive, self.shells):
                for serve in list(shell.serves.values()):
                    self._move(shell, serve)
                self._combine(shell)
                while shell.writing:
                    self._write(shell)
                while shell.holds:
                    self.tell(shell, ev.Unpin(shell.holds.pop()))
            self.pass_time(0.05)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tell_directory(ev.Tick())
        for shell in self.shells:
            positions: dict[StreamId | int, int] = {stream: shell.position(r) for stream, r in shell.receives.items()}
            positions |= {stream: shell.watermarks[s.segment] for stream, s in shell.serves.items()}
            positions |= {call: shell.watermarks[segment] for call, (segment, _) in shell.writing.items()}
            self.tell(shell, ev.Tick(positions, {segment: shell.watermarks[segment] for segment in shell.combines}))

    def _user(self, shell: Shell) -> None:
        ref = self.random.choice(self.refs)
        deadline = None if self.random.random() < 0.5 else self.now + self.random.random()
        self.calls += 1
        call = self.calls
        calls = ("put", "get", "get", "get", "wait", "delete", "unpin", "write", "write", "cancel")
        match self.random.choice((*calls, "put", "put", "reduce", "reduce", "ask") if self.targets else calls):
            case "reduce":
                sources = tuple(self.random.sample(self.refs, self.random.randint(1, 5)))
                count = self.random.randint(1, len(sources))
                target = self.random.choice(self.targets)
                self.tell(shell, ev.ReduceCall(call, target, sources, Operation.SUM, count, deadline))
            case "ask":
                self.tell(shell, ev.ContributorsCall(call, self.random.choice(self.targets), deadline))
            case "put":
                size = self.random.choice(self.sizes)
                data = bytes(size) if size <= self.settings.inline_limit else None
                self.tell(shell, ev.PutCall(call, ref, size, b"", data, deadline))
            case "get":
                self.tell(shell, ev.GetCall(call, ref, deadline))
            case "wait":
                refs = tuple(self.random.sample(self.refs, self.random.randint(1, len(self.refs))))
                self.tell(shell, ev.WaitCall(call, refs, self.random.randint(1, len(refs)), deadline))
            case "delete" if self.random.random() < 0.3:
                self.tell(shell, ev.DeleteCall(call, (ref,), deadline))
            case "unpin" if shell.holds:
                self.tell(shell, ev.Unpin(shell.holds.pop()))
            case "write" if shell.writing:
                self._write(shell)
            case "cancel":
                cancelled = self.random.randint(1, call)
                shell.writing.pop(cancelled, None)
                if cancelled in shell.holds:
                    shell.holds.remove(cancelled)
                self.tell(shell, ev.CancelCall(cancelled))

    def _write(self, shell: Shell) -> None:
        call, (segment, _) = next(iter(shell.writing.items()))
        size = shell.state.memory.segments[segment].size
        if shell.watermarks[segment] < size and self.random.random() < 0.5:
            shell.watermarks[segment] = min(size, shell.watermarks[segment] + 50 * KIB)
        else:
            shell.watermarks[segment] = size
            del shell.writing[call]
            self.tell(shell, ev.PutFinished(call))

    def _fault(self) -> None:
        shell = self.random.choice(self.shells)
        if not shell.alive:
            return
        match self.random.choice(("session", "silence", "stream", "peer", "kill")):
            case "session" if shell.session is not None:
                self._close_session(shell)
                self.tell(shell, ev.DirectoryLost())
            case "silence" if self.random.random() < 0.2:
                self.now += self.settings.lease  # nobody was heard in time: all are declared dead, and come back
                self.tell_directory(ev.Tick())
            case "stream" if shell.receives:
                self._end_receive(shell, self.random.choice(list(shell.receives)), StreamFault.BROKEN)
            case "peer":
                other = self.random.choice(self.shells)
                self.tell(shell, ev.PeerLost(other.state.node))
            case "kill" if sum(s.alive for s in self.shells) > 2 and self.random.random() < 0.3:
                shell.alive = False
                self._close_session(shell)


@pytest.mark.parametrize("seed", range(60))
def test_accounts_stay_right_whatever_happens(seed: int) -> None:
    together = Together(seed)
    for _ in range(600):
        together.step()
    together.settle()
    _assert_at_rest(together)


def _assert_at_rest(together: Together) -> None:
    """Nothing runs, nothing waits for what could be had, and the directory equals the union of the nodes."""
    copies: set[tuple[NodeId, object]] = set()
    for shell in filter(lambda shell: shell.alive, together.shells):
        state = shell.state
        assert not state.receiving.streams
        assert not state.serving.streams
        assert not state.calls.puts
        assert not state.calls.deletes
        assert len(state.memory.segments) == len(state.memory.holdings)
        copies |= {(state.node, version) for version in state.memory.holdings}
        for ref in (*(ref for ref, _ in state.fetching.fetches), *state.calls._watchers):
            record = together.directory.records.get(ref)
            assert record is not None, f"{state.node} waits for {ref!r}, and the directory does not know"
            assert not record.deleted
            assert record.broadcast is None, f"{state.node} waits for {ref!r}, which is there"
            assert state.node in {*record.waiting, *record.watchers}
    broadcasts = [r.broadcast for r in together.directory.records.values() if r.broadcast is not None]
    assert copies == {(node, broadcast.version) for broadcast in broadcasts for node in broadcast.copies}
    assert not any(broadcast.receivers for broadcast in broadcasts)


@pytest.mark.parametrize("seed", range(60))
def test_reductions_stay_right_whatever_happens(seed: int) -> None:
    together = Together(seed, objects=6, targets=3)
    for _ in range(1000):
        together.step()
    together.settle()
    _assert_reductions_at_rest(together)


def _assert_reductions_at_rest(together: Together) -> None:
    """Like the above; but what lacks sources may have slots, which are complete, and nodes that wait for it."""
    records = together.directory.records
    copies: set[tuple[NodeId, object]] = set()
    for shell in filter(lambda shell: shell.alive, together.shells):
        state = shell.state
        assert not state.receiving.streams
        assert not state.serving.streams
        assert not state.calls.puts
        assert not state.calls.deletes
        assert not state.calls.reduces
        assert len(state.memory.segments) == len(state.memory.holdings)
        assert {holding.phase for holding in state.memory.holdings.values()} <= {Phase.COMPLETE}
        copies |= {(state.node, version) for version in state.memory.holdings}
        for ref, into in state.fetching.fetches:
            assert not into
            record = records.get(ref)
            assert record is not None, f"{state.node} waits for {ref!r}, and the directory does not know"
            assert record.broadcast is None or record.reduction is not None, f"{state.node} waits for what is there"
            assert state.node in {*record.waiting, *(record.broadcast.copies if record.broadcast else ())}
    broadcasts = [record.broadcast for record in records.values() if record.broadcast is not None]
    assert copies == {(node, broadcast.version) for broadcast in broadcasts for node in broadcast.copies}
    assert not any(broadcast.receivers for broadcast in broadcasts)
