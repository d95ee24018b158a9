"""Timed runs: how long a broadcast, gather, reduce or allreduce takes on a virtual cluster, held against what the
network allows.

Time runs from the moment all puts are done; each receiver's own time runs from when it asked. Host 0 is the source of a
broadcast and the receiver of a gather or a reduce. With every host at the rate B the limits are S/B for a broadcast and
a reduce, (n-1)·S/B for a gather, and 2(n-1)/n·S/B for an allreduce. Where the sources of a reduce arrive one by one, it
is asked for before they do, and what counts is the time after the last one that it takes. A disturbed run (hosts killed
or slow) is repeated without the disturbance, so that it can say what the other hosts lost by it. Every result is
checked byte for byte before it counts.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias, TypeVar

from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import ContributorsAre, Got, PutDone
from hoplite_ucx.protocol.ids import CallId, NodeId, Version, identity_of
from hoplite_ucx.protocol.messages import Assemble, Bind, Cut, Place, ToDirectory, ToNode
from hoplite_ucx.simulate.cluster import Call, Shape, VirtualCluster
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.scenario import Kill, Pattern, Scenario
from hoplite_ucx.simulate.static import (
    STATIC_ALLREDUCES,
    STATIC_REDUCTIONS,
    STATIC_TREES,
    allreducing_cluster,
    reducing_cluster,
    static_cluster,
)

SOURCE = 0
# Virtual seconds after which a run is given up, on top of what one host after the other would take.
_PATIENCE = 60.0
# How long everything is left alone, so that all have joined before the puts and no message of these is under way after.
_REST = 0.01
# How long there is no directory after it has crashed.
_SUCCESSION = 0.05


@dataclass(frozen=True, slots=True)
class Ending:
    """How one get ended. Of a gather, `host` is where its object came from."""

    host: int
    asked: float
    seconds: float
    limit_seconds: float
    failure: Failure | None = None

    @property
    def ratio(self) -> float:
        return self.seconds / self.limit_seconds


@dataclass(frozen=True, slots=True)
class Move:
    """A receiver that went on from another sender, at `at` seconds."""

    at: float
    host: int
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class Killed:
    """A host that was killed, and how long after that the directory placed a receiver elsewhere."""

    host: int
    at: float
    noticed_after: float | None


@dataclass(frozen=True, slots=True)
class Loss:
    """What the other hosts lost by a disturbance: per host, against the same run without it."""

    calm_seconds: float
    by_host: dict[int, float]

    @property
    def worst(self) -> float:
        return max(self.by_host.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Result:
    """A run. `seconds` is the time of the slowest get that had an answer, from when it asked."""

    limit_seconds: float
    endings: tuple[Ending, ...]
    edges: tuple[tuple[int, int], ...]
    """Who sent to whom in the end, as far as the object arrived."""
    moves: tuple[Move, ...]
    killed: tuple[Killed, ...]
    unanswered: tuple[int, ...]
    """Hosts whose get had no answer when the run was given up."""
    events: int
    loss: Loss | None = None
    again: Result | None = None
    cut: int = 0
    """How many stripes a crowd got the object in, if it was cut; the edges are those of hosts that got it whole."""

    @property
    def seconds(self) -> float:
        return max((ending.seconds for ending in self.endings), default=0.0)

    @property
    def ratio(self) -> float:
        return self.seconds / self.limit_seconds

    @property
    def finished(self) -> float:
        """When the last get returned, since the puts were done."""
        return max((ending.asked + ending.seconds for ending in self.endings), default=0.0)

    @property
    def failures(self) -> dict[int, Failure]:
        return {ending.host: ending.failure for ending in self.endings if ending.failure is not None}


@dataclass(frozen=True, slots=True)
class Rebinding:
    """A slot that was bound again, at `at` seconds: taken over as it was, or restarted with other parts."""

    at: float
    old: int
    new: int
    restarted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced(Result):
    """A run of a reduction. The edges are those of its tree, without the gets of the target."""

    contributors: tuple[int, ...]
    """The hosts whose sources are in the result, in the order in which they were chosen."""
    ready_seconds: float
    """When as many sources as it takes were there."""
    slots: int
    stripes: int
    """How many pieces the target was made in."""
    rebindings: tuple[Rebinding, ...]

    @property
    def after_last_seconds(self) -> float:
        return self.seconds - self.ready_seconds

    @property
    def after_last_ratio(self) -> float:
        return self.after_last_seconds / self.limit_seconds

    @property
    def restarted(self) -> tuple[int, ...]:
        """The hosts whose slots started over."""
        return tuple(rebinding.old for rebinding in self.rebindings if rebinding.restarted)


@dataclass(frozen=True, slots=True)
class StaticResult:
    """A static tree at its best: whether its nodes serve their children one by one or at once is the faster way."""

    name: str
    seconds: float
    at_once: bool | None = None
    """Of a reduction's tree, where a node has one parent, nothing."""


_AnyResult = TypeVar("_AnyResult", bound=Result)
MakeCluster: TypeAlias = Callable[[Shape, int], VirtualCluster]
"""Of a shape and a seed. A run that is measured may have a cluster of its own; one that it is compared with has not."""


def broadcast(scenario: Scenario, make: MakeCluster = VirtualCluster) -> Result:
    """One object, from the source to every other host."""
    calm = replace(scenario.without_slow(), kills=(), directory_crash=None)
    return _with_loss(scenario, calm, _broadcast, make)


def gather(scenario: Scenario, make: MakeCluster = VirtualCluster) -> Result:
    """One object from every other host, to host 0."""
    calm = replace(scenario, kills=(), directory_crash=None, shape=replace(scenario.shape, rates={}))
    return _with_loss(scenario, calm, _gather, make)


def reduce(scenario: Scenario, make: MakeCluster = VirtualCluster) -> Reduced:
    """One object from every host, or the first `count` of them, combined; host 0 gets the result."""
    calm = replace(scenario, kills=(), directory_crash=None, shape=replace(scenario.shape, rates={}))
    return _with_loss(scenario, calm, _reduce, make)


def allreduce(scenario: Scenario, make: MakeCluster = VirtualCluster) -> Reduced:
    """One object from every host, or the first `count` of them, combined; every host gets the result."""
    return reduce(replace(scenario, everywhere=True, getters=scenario.shape.nodes), make)


def static_trees(scenario: Scenario, progress: Callable[[str], object] = lambda _: None) -> list[StaticResult]:
    """Every static tree in the same scenario, the fastest first; nobody is killed, since these do not repair."""
    calm = replace(scenario, kills=(), directory_crash=None, put_again=False)
    results = []
    for tree in STATIC_TREES:
        progress(tree.name)
        runs = [(way, _broadcast(calm, static_cluster(tree, at_once=way)).seconds) for way in (False, True)]
        at_once, seconds = min(runs, key=lambda run: run[1])
        results.append(StaticResult(tree.name, seconds, at_once))
    return sorted(results, key=lambda result: result.seconds)


def static_reductions(scenario: Scenario, progress: Callable[[str], object] = lambda _: None) -> list[StaticResult]:
    """The same reduction with every fixed degree, the fastest first."""
    calm = replace(scenario, kills=(), directory_crash=None)
    results = []
    for name, degree in STATIC_REDUCTIONS.items():
        progress(name)
        results.append(StaticResult(name, _reduce(calm, reducing_cluster(degree)).after_last_seconds))
    return sorted(results, key=lambda result: result.seconds)


def static_allreduces(scenario: Scenario, progress: Callable[[str], object] = lambda _: None) -> list[StaticResult]:
    """The same allreduce in every fixed way, the fastest first."""
    calm = replace(scenario, kills=(), everywhere=True, getters=scenario.shape.nodes)
    results = []
    for scheme in STATIC_ALLREDUCES:
        progress(scheme.name)
        ways = (False,) if scheme.tree is None else (False, True)
        runs = [(way, _reduce(calm, allreducing_cluster(scheme, at_once=way)).after_last_seconds) for way in ways]
        at_once, seconds = min(runs, key=lambda run: run[1])
        results.append(StaticResult(scheme.name, seconds, at_once))
    return sorted(results, key=lambda result: result.seconds)


def _with_loss(
    scenario: Scenario, calm: Scenario, run: Callable[[Scenario, MakeCluster], _AnyResult], make: MakeCluster
) -> _AnyResult:
    result = run(scenario, make)
    if calm == scenario:
        return result
    undisturbed = run(calm, VirtualCluster)
    before = {ending.host: ending.seconds for ending in undisturbed.endings}
    lost = {
        ending.host: ending.seconds - before[ending.host]
        for ending in result.endings
        if ending.host in before and ending.failure is None
    }
    return replace(result, loss=Loss(undisturbed.seconds, lost))


def _broadcast(scenario: Scenario, make: MakeCluster) -> Result:
    shape, size = scenario.shape, scenario.size
    cluster = make(shape, scenario.seed)
    _assemble(cluster)
    ref = cluster.new_ref()
    put = _put(cluster, SOURCE, ref, size)
    _settle(cluster, [put])
    for holder in range(1, scenario.copies):
        _settle(cluster, [cluster.get(holder, ref)])
    limit = size / shape.bandwidth
    receivers = range(scenario.copies, shape.nodes)
    times = scenario.arrivals.times(len(receivers), limit, scenario.seed)
    asking = {host: at for host, at in zip(receivers, times, strict=True) if host not in scenario.absent}
    gets = [_Get(host, host, ref, at) for host, at in asking.items()]
    result = _Run(cluster, scenario, limit, {ref: put.token}).measure(gets)
    if not scenario.put_again or not result.failures:
        return result
    dead = {killed.host for killed in result.killed}
    if SOURCE in dead:
        cluster.slots[SOURCE].kill()  # one that was only unplugged
        cluster.restart(SOURCE)
    put = _put(cluster, SOURCE, ref, size)
    _settle(cluster, [put])
    survivors = [_Get(host, host, ref) for host in asking if host not in dead]
    once_more = replace(scenario, kills=())
    return replace(result, again=_Run(cluster, once_more, limit, {ref: put.token}).measure(survivors))


def _gather(scenario: Scenario, make: MakeCluster) -> Result:
    shape, size = scenario.shape, scenario.size
    cluster = make(shape, scenario.seed)
    _assemble(cluster)
    sources = range(1, shape.nodes)
    refs = [cluster.new_ref() for _ in sources]
    puts = [_put(cluster, host, ref, size) for host, ref in zip(sources, refs, strict=True)]
    _settle(cluster, puts)
    limit = len(sources) * size / shape.bandwidth
    times = scenario.arrivals.times(len(sources), limit, scenario.seed)
    gets = [_Get(host, SOURCE, ref, at) for host, ref, at in zip(sources, refs, times, strict=True)]
    tokens = {ref: put.token for ref, put in zip(refs, puts, strict=True)}
    return _Run(cluster, scenario, limit, tokens).measure(gets)


def _reduce(scenario: Scenario, make: MakeCluster) -> Reduced:
    shape, size = scenario.shape, scenario.size
    cluster = make(shape, scenario.seed)
    _assemble(cluster)
    sources = [cluster.new_ref() for _ in range(shape.nodes)]
    puts: list[Call] = []
    limit = size / shape.bandwidth
    if scenario.everywhere:
        limit *= 2 * (shape.nodes - 1) / shape.nodes
    if scenario.arrivals.pattern is Pattern.TOGETHER:
        puts = [_put(cluster, host, ref, size) for host, ref in enumerate(sources)]
        _settle(cluster, puts)
        for distance in range(1, scenario.copies):
            holders = [(host + distance) % shape.nodes for host in range(shape.nodes)]
            _settle(cluster, [cluster.get(holder, ref) for holder, ref in zip(holders, sources, strict=True)])
    return _Reduction(cluster, scenario, limit, sources, puts).run()


def _put(cluster: VirtualCluster, host: int, ref: bytes, size: int) -> Call:
    return cluster.put(host, ref, size, inline=size < cluster.settings.inline_limit)


def _assemble(cluster: VirtualCluster) -> None:
    """Wait until all hosts have joined."""
    _settle(cluster, [])
    while not cluster.everyone_joined() and cluster.clock.now < _PATIENCE:
        _settle(cluster, [])


def _settle(cluster: VirtualCluster, calls: list[Call]) -> None:
    """What comes before the clock starts must work; then everyone's messages get time to arrive and to be handled."""
    done = cluster.settle(calls, _PATIENCE)
    if not done or any(call.failure for call in calls):
        raise AssertionError(f"the run could not be prepared: {[call.answer for call in calls]}")
    cluster.clock.run(until=cluster.clock.now + _REST)
    cluster.clock.run(until=cluster.clock.now + cluster.directory.backlog)


@contextlib.contextmanager
def _seldom_collecting() -> Iterator[None]:
    """A run makes millions of chunks and hardly a cycle: to look for cycles as often as usual takes a third of it."""
    usual = gc.get_threshold()
    gc.set_threshold(1_000_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@dataclass(frozen=True, slots=True, eq=False)
class _Get:
    """Who asks for what, and when; `host` is whom the result speaks of."""

    host: int
    asker: int
    ref: bytes
    at: float = 0.0


class _Run:
    """One timed run on a cluster that is ready for it; also the observer that sees its placements and answers.

    `tokens` say what the bytes of each ref must be.
    """

    def __init__(self, cluster: VirtualCluster, scenario: Scenario, limit: float, tokens: dict[bytes, int]) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self._limit = limit
        self._began = cluster.clock.now
        self._hosts = {node.identity: host for host, node in enumerate(cluster.slots)}
        self._tokens = tokens
        self._pending: dict[_Get, None] = {}
        self._calls: dict[_Get, Call] = {}
        self._asked: dict[CallId, _Get] = {}
        self._senders: dict[tuple[int, bytes], int] = {}
        self._moves: list[Move] = []
        self._killed: dict[int, float] = {}
        self._cut = 0

    def measure(self, gets: list[_Get]) -> Result:
        events = self._play(gets)
        return Result(
            limit_seconds=self._limit,
            endings=tuple(self._ending(get, call) for get, call in self._calls.items() if call.answer),
            edges=self._edges(),
            moves=tuple(self._moves),
            killed=tuple(Killed(host, at, self._noticed_after(host, at)) for host, at in self._killed.items()),
            unanswered=tuple(get.host for get in self._pending),
            events=events,
            cut=self._cut,
        )

    def _edges(self) -> tuple[tuple[int, int], ...]:
        arrived = [(get.asker, get.ref) for get, call in self._calls.items() if isinstance(call.answer, Got)]
        return tuple((self._senders[key], key[0]) for key in arrived if key in self._senders)

    def _play(self, gets: list[_Get]) -> int:
        """Run until everyone has an answer; the number of events that it took."""
        cluster, scenario = self._cluster, self._scenario
        self._pending = dict.fromkeys(gets)
        handles = [
            *(cluster.clock.after(kill.at.seconds(self._limit), self._kill, kill) for kill in scenario.kills),
            *(cluster.clock.after(get.at, self._ask, get) for get in gets),
        ]
        if scenario.directory_crash is not None:
            moment = scenario.directory_crash.seconds(self._limit)
            handles.append(cluster.clock.after(moment, cluster.crash_directory))
            handles.append(cluster.clock.after(moment + _SUCCESSION, cluster.restart_directory))
        cluster.observers.append(self)
        # No run that gets anywhere is slower than the slowest host serving one after the other.
        slowest = min([scenario.shape.bandwidth, *scenario.shape.rates.values()])
        nodes = scenario.shape.nodes
        last_arrival = self._began + max(scenario.arrivals.times(nodes, self._limit, scenario.seed))
        horizon = last_arrival + nodes * scenario.size / slowest + _PATIENCE
        with _seldom_collecting():
            events = cluster.clock.run(unless=lambda: not self._pending or cluster.clock.now >= horizon)
        cluster.observers.remove(self)
        for handle in handles:
            handle.cancel()
        return events

    def _ask(self, get: _Get) -> None:
        if get in self._pending:
            self._calls[get] = call = self._cluster.get(get.asker, get.ref)
            self._asked[call.event.call] = get

    def _kill(self, kill: Kill) -> None:
        node = self._cluster.slots[kill.host]
        if kill.host in self._killed or not node.alive:
            return
        if kill.unplug:
            self._cluster.network.isolate(node.host)
        else:
            node.kill()
        self._killed[kill.host] = self._cluster.clock.now - self._began
        for get in [get for get in self._pending if get.asker == kill.host]:
            del self._pending[get]

    def _noticed_after(self, host: int, at: float) -> float | None:
        return min((move.at - at for move in self._moves if move.old == host and move.at >= at), default=None)

    def _ending(self, get: _Get, call: Call) -> Ending:
        assert call.ended is not None
        if isinstance(call.answer, Got):
            wrong = self._cluster.wrong_bytes(call, self._tokens[get.ref])
            assert wrong is None, f"host {get.asker} got {wrong}"
        shape = self._scenario.shape
        slowed = shape.bandwidth / min(shape.bandwidth, shape.rates.get(get.host, shape.bandwidth))
        return Ending(get.host, get.at, call.ended - call.began, self._limit * slowed, call.failure)

    # --- the observer ------------------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        get = self._asked.get(call.event.call)
        if get is not None:
            self._pending.pop(get, None)

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        if isinstance(message, Assemble):
            self._senders.pop((self._hosts[identity_of(node)], message.version.ref), None)
        if isinstance(message, Cut):
            self._cut = len(message.stripes)
        if not isinstance(message, Place):
            return
        host, sender = self._hosts[identity_of(node)], self._hosts[identity_of(message.sender)]
        key = (host, message.version.ref)
        if key in self._senders and self._senders[key] != sender:
            self._moves.append(Move(self._cluster.clock.now - self._began, host, self._senders[key], sender))
        self._senders[key] = sender

    def directory_combines(self, version: Version) -> None:
        """Nothing that is measured."""

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        """Nor is this."""


class _Reduction(_Run):
    """One timed reduction: what it is made of is put before, or arrives while the clock runs."""

    def __init__(
        self, cluster: VirtualCluster, scenario: Scenario, limit: float, sources: list[bytes], puts: Sequence[Call]
    ) -> None:
        super().__init__(cluster, scenario, limit, {})
        self._sources = sources
        self._puts = dict(enumerate(puts))
        self._count = len(sources) if scenario.count is None else scenario.count
        self._target = cluster.new_ref()
        self._contributors: tuple[int, ...] = ()
        self._binds: dict[bytes, tuple[int, Bind]] = {}
        self._rebindings: list[Rebinding] = []

    def run(self) -> Reduced:
        cluster, scenario = self._cluster, self._scenario
        if not self._puts:
            for host, at in enumerate(scenario.arrivals.times(scenario.shape.nodes, self._limit, scenario.seed)):
                cluster.clock.after(at, self._arrive, host)
        cluster.reduce(SOURCE, self._target, tuple(self._sources), self._count, everywhere=scenario.everywhere)
        result = self.measure([_Get(host, host, self._target) for host in range(scenario.getters)])
        inherited = {field.name: getattr(result, field.name) for field in fields(Result)}
        return Reduced(
            **inherited,
            contributors=self._contributors,
            ready_seconds=self._ready_seconds(),
            slots=len(self._binds),
            stripes=len({bind.offset for _, bind in self._binds.values()}),
            rebindings=tuple(self._rebindings),
        )

    def _arrive(self, host: int) -> None:
        if self._cluster.slots[host].alive:
            self._puts[host] = _put(self._cluster, host, self._sources[host], self._scenario.size)

    def _ready_seconds(self) -> float:
        times = sorted(call.ended for call in self._puts.values() if isinstance(call.answer, PutDone) and call.ended)
        return max(0.0, times[self._count - 1] - self._began) if len(times) >= self._count else 0.0

    def _play(self, gets: list[_Get]) -> int:
        events = super()._play(gets)
        if any(isinstance(call.answer, Got) for call in self._calls.values()):
            living = next(host for host, node in enumerate(self._cluster.slots) if node.alive)
            asked = self._cluster.contributors(living, self._target)
            _settle(self._cluster, [asked])
            assert isinstance(asked.answer, ContributorsAre)
            self._contributors = tuple(self._sources.index(ref) for ref in asked.answer.refs)
            assert len(set(self._contributors)) == self._count, f"{self._contributors} went into it"
            tokens = (self._puts[host].token for host in self._contributors)
            self._tokens[self._target] = self._cluster.provenance.combined(tokens)
        return events

    def _edges(self) -> tuple[tuple[int, int], ...]:
        feeds = [(host, part.ref) for host, bind in self._binds.values() for part in bind.parts]
        return tuple(dict.fromkeys((self._senders[feed], feed[0]) for feed in feeds if feed in self._senders))

    def _noticed_after(self, host: int, at: float) -> float | None:
        rebound = [each.at - at for each in self._rebindings if each.old == host and each.at >= at]
        moved = super()._noticed_after(host, at)
        return min([*rebound, *([] if moved is None else [moved])], default=None)

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        super().directory_says(node, message)
        if not isinstance(message, Bind):
            return
        host, slot = self._hosts[identity_of(node)], message.version.ref
        if slot in self._binds:
            old, bind = self._binds[slot]
            now = self._cluster.clock.now - self._began
            self._rebindings.append(Rebinding(now, old, host, restarted=bind.version != message.version))
        self._binds[slot] = (host, message)
