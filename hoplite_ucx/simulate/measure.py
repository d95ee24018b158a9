"""Timed runs: how long a broadcast or a gather takes on a virtual cluster, held against what the network allows.

Time runs from the moment all puts are done; each receiver's own time runs from when it asked. Host 0 is the source of a
broadcast and the receiver of a gather. With every host at the rate B the limits are S/B for a broadcast and (n-1)·S/B
for a gather. A disturbed run (hosts killed or slow) is repeated without the disturbance, so that it can say what the
others lost by it. Every result is checked byte for byte before it counts.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import Got
from hoplite_ucx.protocol.ids import NodeId, identity_of
from hoplite_ucx.protocol.messages import Place, ToDirectory, ToNode
from hoplite_ucx.simulate.cluster import Call, Shape, VirtualCluster
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.static import STATIC_TREES, static_cluster

SOURCE = 0
# Virtual seconds after which a run is given up, on top of what one host after the other would take.
_PATIENCE = 60.0
# How long everything is left alone, so that all have joined before the puts and no message of these is under way after.
_REST = 0.01


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time: in seconds, or as a part of the run's limit."""

    value: float
    of_limit: bool = False

    def seconds(self, limit: float) -> float:
        return self.value * limit if self.of_limit else self.value


class Pattern(enum.StrEnum):
    TOGETHER = "together"
    EVERY = "every"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When the receivers ask: all together, one every so often, or each at random within a while."""

    pattern: Pattern = Pattern.TOGETHER
    span: Span = Span(0.0)

    def times(self, count: int, limit: float, seed: int) -> list[float]:
        span = self.span.seconds(limit)
        match self.pattern:
            case Pattern.TOGETHER:
                return [0.0] * count
            case Pattern.EVERY:
                return [span * position for position in range(count)]
            case Pattern.RANDOM:
                draw = random.Random(seed)
                return [draw.uniform(0.0, span) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Kill:
    host: int
    at: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is to be run. `copies` hosts, the source first, hold the object before the clock starts."""

    shape: Shape
    size: int
    arrivals: Arrivals = Arrivals()
    kills: tuple[Kill, ...] = ()
    copies: int = 1
    put_again: bool = False
    """If the object is lost, its source comes back and puts it again, and everyone asks again."""
    absent: frozenset[int] = frozenset()
    """Hosts that do not ask."""
    seed: int = 0

    def __post_init__(self) -> None:
        nodes = self.shape.nodes
        if nodes < 2:
            raise ValueError(f"{nodes} hosts are too few: it takes a sender and a receiver")
        if self.size < 1:
            raise ValueError("an object of 0 bytes has nothing to transfer")
        if not 1 <= self.copies < nodes:
            raise ValueError(f"{self.copies} copies among {nodes} hosts leave no receiver; keep 1 to {nodes - 1}")
        for what, hosts in (("kill", [kill.host for kill in self.kills]), ("slow", list(self.shape.rates))):
            for host in hosts:
                if not 0 <= host < nodes:
                    raise ValueError(f"there is no host {host} to {what}: hosts are 0 (the source) to {nodes - 1}")

    @property
    def slow(self) -> frozenset[int]:
        return frozenset(host for host, rate in self.shape.rates.items() if rate < self.shape.bandwidth)

    def calm(self) -> Scenario | None:
        """The same without what disturbs it: nobody is killed, slow hosts do not ask. None if nothing does."""
        slow_receivers = frozenset(host for host in self.slow if host >= self.copies)
        if not self.kills and not slow_receivers:
            return None
        if len(slow_receivers) == self.shape.nodes - self.copies:
            slow_receivers = frozenset()
        return replace(self, kills=(), absent=self.absent | slow_receivers)


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
class Loss:
    """What the others lost by a disturbance: per host, against the same run without it."""

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
    """Who sent to whom in the end."""
    moves: tuple[Move, ...]
    killed: tuple[int, ...]
    unanswered: tuple[int, ...]
    """Hosts whose get had no answer when the run was given up."""
    events: int
    loss: Loss | None = None
    again: Result | None = None

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
class StaticResult:
    """A static tree at its best: whether its nodes serve their children one by one or at once is the faster way."""

    name: str
    at_once: bool
    seconds: float


def broadcast(scenario: Scenario) -> Result:
    """One object, from the source to every other host."""
    return _with_loss(scenario, lambda scenario: _broadcast(scenario, VirtualCluster))


def gather(scenario: Scenario) -> Result:
    """One object from every other host, to host 0."""
    if scenario.copies != 1 or scenario.put_again:
        raise ValueError("a gather takes one object from each host: copies and putting again belong to broadcasts")
    if any(kill.host == SOURCE for kill in scenario.kills):
        raise ValueError("host 0 does the gathering; kill one of the others")
    return _with_loss(scenario, _gather)


def static_trees(scenario: Scenario, progress: Callable[[str], object] = lambda _: None) -> list[StaticResult]:
    """Every static tree in the same scenario, the fastest first; nobody is killed, since these do not repair."""
    calm = replace(scenario, kills=(), put_again=False)
    results = []
    for tree in STATIC_TREES:
        progress(tree.name)
        runs = [(way, _broadcast(calm, static_cluster(tree, at_once=way)).seconds) for way in (False, True)]
        at_once, seconds = min(runs, key=lambda run: run[1])
        results.append(StaticResult(tree.name, at_once, seconds))
    return sorted(results, key=lambda result: result.seconds)


def _with_loss(scenario: Scenario, run: Callable[[Scenario], Result]) -> Result:
    result, calm = run(scenario), scenario.calm()
    if calm is None:
        return result
    undisturbed = run(calm)
    before = {ending.host: ending.seconds for ending in undisturbed.endings}
    lost = {
        ending.host: ending.seconds - before[ending.host]
        for ending in result.endings
        if ending.host in before and ending.failure is None
    }
    return replace(result, loss=Loss(undisturbed.seconds, lost))


def _broadcast(scenario: Scenario, cluster_type: type[VirtualCluster]) -> Result:
    shape, size = scenario.shape, scenario.size
    cluster = cluster_type(shape, scenario.seed)
    _settle(cluster, [])
    ref = cluster.new_ref()
    put = _put(cluster, SOURCE, ref, size)
    _settle(cluster, [put])
    for holder in range(1, scenario.copies):
        _settle(cluster, [cluster.get(holder, ref)])
    receivers = [host for host in range(scenario.copies, shape.nodes) if host not in scenario.absent]
    limit = size / shape.bandwidth
    result = _Run(cluster, scenario, limit).measure([_Get(host, host, ref, put.token) for host in receivers])
    if not scenario.put_again or not result.failures:
        return result
    if not cluster.slots[SOURCE].alive:
        cluster.restart(SOURCE)
    put = _put(cluster, SOURCE, ref, size)
    _settle(cluster, [put])
    survivors = [_Get(host, host, ref, put.token) for host in receivers if cluster.slots[host].alive]
    once_more = replace(scenario, arrivals=Arrivals(), kills=())
    return replace(result, again=_Run(cluster, once_more, limit).measure(survivors))


def _gather(scenario: Scenario) -> Result:
    shape, size = scenario.shape, scenario.size
    cluster = VirtualCluster(shape, scenario.seed)
    _settle(cluster, [])
    sources = [host for host in range(1, shape.nodes) if host not in scenario.absent]
    refs = [cluster.new_ref() for _ in sources]
    puts = [_put(cluster, host, ref, size) for host, ref in zip(sources, refs, strict=True)]
    _settle(cluster, puts)
    gets = [_Get(host, SOURCE, ref, put.token) for host, ref, put in zip(sources, refs, puts, strict=True)]
    return _Run(cluster, scenario, (shape.nodes - 1) * size / shape.bandwidth).measure(gets)


def _put(cluster: VirtualCluster, host: int, ref: bytes, size: int) -> Call:
    return cluster.put(host, ref, size, inline=size < cluster.settings.inline_limit)


def _settle(cluster: VirtualCluster, calls: list[Call]) -> None:
    """What comes before the clock starts must work; then everyone's messages get time to arrive."""
    done = cluster.settle(calls, _PATIENCE)
    if not done or any(call.failure for call in calls):
        raise AssertionError(f"the run could not be prepared: {[call.answer for call in calls]}")
    cluster.clock.run(until=cluster.clock.now + _REST)


@dataclass(frozen=True, slots=True, eq=False)
class _Get:
    """Who asks for what; `host` is whom the result speaks of."""

    host: int
    asker: int
    ref: bytes
    token: int


class _Run:
    """One timed run on a cluster that is ready for it; also the observer that sees its placements and answers."""

    def __init__(self, cluster: VirtualCluster, scenario: Scenario, limit: float) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self._limit = limit
        self._began = cluster.clock.now
        self._hosts = {node.identity: host for host, node in enumerate(cluster.slots)}
        self._pending: dict[_Get, None] = {}
        self._calls: dict[_Get, Call] = {}
        self._senders: dict[tuple[int, bytes], int] = {}
        self._moves: list[Move] = []
        self._killed: list[int] = []

    def measure(self, gets: list[_Get]) -> Result:
        cluster, scenario = self._cluster, self._scenario
        arrivals = scenario.arrivals.times(len(gets), self._limit, scenario.seed)
        self._pending = dict.fromkeys(gets)
        handles = [
            *(cluster.clock.after(kill.at.seconds(self._limit), self._kill, kill.host) for kill in scenario.kills),
            *(cluster.clock.after(at, self._ask, get) for get, at in zip(gets, arrivals, strict=True)),
        ]
        cluster.observers.append(self)
        # No run that gets anywhere is slower than the slowest host serving one after the other.
        slowest = min([scenario.shape.bandwidth, *scenario.shape.rates.values()])
        horizon = self._began + max(arrivals) + scenario.shape.nodes * scenario.size / slowest + _PATIENCE
        events = 0
        while self._pending and cluster.clock.now < horizon and cluster.clock.step():
            events += 1
        cluster.observers.remove(self)
        for handle in handles:
            handle.cancel()
        asked = dict(zip(gets, arrivals, strict=True))
        return Result(
            limit_seconds=self._limit,
            endings=tuple(self._ending(get, call, asked[get]) for get, call in self._calls.items() if call.answer),
            edges=tuple((sender, receiver) for (receiver, _), sender in self._senders.items()),
            moves=tuple(self._moves),
            killed=tuple(self._killed),
            unanswered=tuple(get.host for get in self._pending),
            events=events,
        )

    def _ask(self, get: _Get) -> None:
        if get in self._pending:
            self._calls[get] = self._cluster.get(get.asker, get.ref)

    def _kill(self, host: int) -> None:
        node = self._cluster.slots[host]
        if node.alive:
            node.kill()
            self._killed.append(host)
            for get in [get for get in self._pending if get.asker == host]:
                del self._pending[get]

    def _ending(self, get: _Get, call: Call, asked: float) -> Ending:
        assert call.ended is not None
        if isinstance(call.answer, Got):
            wrong = self._cluster.wrong_bytes(call, get.token)
            assert wrong is None, f"host {get.asker} got {wrong}"
        shape = self._scenario.shape
        slowed = shape.bandwidth / min(shape.bandwidth, shape.rates.get(get.host, shape.bandwidth))
        return Ending(get.host, asked, call.ended - call.began, self._limit * slowed, call.failure)

    # --- the observer ------------------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        for get in self._pending:
            if self._calls.get(get) is call:
                del self._pending[get]
                return

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        if not isinstance(message, Place):
            return
        host, sender = self._hosts[identity_of(node)], self._hosts[identity_of(message.sender)]
        key = (host, message.version.ref)
        if key in self._senders:
            self._moves.append(Move(self._cluster.clock.now - self._began, host, self._senders[key], sender))
        self._senders[key] = sender

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        """Nothing that is measured."""
