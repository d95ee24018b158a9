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
from hoplite_ucx.protocol.settings import Settings
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
    """A process that is killed, or a host that is unplugged: then nobody is told, and its silence must be noticed."""

    host: int
    at: Span
    unplug: bool = False


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
    """Receivers that do not ask."""
    seed: int = 0

    def __post_init__(self) -> None:
        nodes = self.shape.nodes
        if nodes < 2:
            raise ValueError(f"{nodes} hosts are too few: it takes at least 2, a sender and a receiver")
        largest = Settings().max_object
        if not 1 <= self.size <= largest:
            raise ValueError(f"an object of {self.size} bytes cannot be transferred; it has 1 to {largest}")
        if not 1 <= self.copies < nodes:
            raise ValueError(f"{self.copies} copies among {nodes} hosts leave no receiver; keep 1 to {nodes - 1}")
        for what, hosts in (("kill", [kill.host for kill in self.kills]), ("slow", list(self.shape.rates))):
            for host in hosts:
                if not 0 <= host < nodes:
                    raise ValueError(f"there is no host {host} to {what}: hosts are 0 (the source) to {nodes - 1}")

    @property
    def slow(self) -> frozenset[int]:
        return frozenset(host for host, rate in self.shape.rates.items() if rate < self.shape.bandwidth)

    def without_slow(self) -> Scenario:
        """The same, but slow hosts do not ask: what the others can then reach is what they should."""
        receivers = frozenset(range(self.copies, self.shape.nodes))
        return replace(self, absent=self.slow & receivers) if receivers - self.slow else self


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
    """A host that was killed, and how long after that the first receiver it had fed was given another sender."""

    host: int
    at: float
    noticed_after: float | None


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
    """Who sent to whom in the end, as far as the object arrived."""
    moves: tuple[Move, ...]
    killed: tuple[Killed, ...]
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
    calm = replace(scenario.without_slow(), kills=())
    return _with_loss(scenario, calm, lambda scenario: _broadcast(scenario, VirtualCluster))


def gather(scenario: Scenario) -> Result:
    """One object from every other host, to host 0."""
    calm = replace(scenario, kills=(), shape=replace(scenario.shape, rates={}))
    return _with_loss(scenario, calm, _gather)


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


def _with_loss(scenario: Scenario, calm: Scenario, run: Callable[[Scenario], Result]) -> Result:
    result = run(scenario)
    if calm == scenario:
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
    limit = size / shape.bandwidth
    receivers = range(scenario.copies, shape.nodes)
    times = scenario.arrivals.times(len(receivers), limit, scenario.seed)
    asking = {host: at for host, at in zip(receivers, times, strict=True) if host not in scenario.absent}
    gets = [_Get(host, host, ref, put.token, at) for host, at in asking.items()]
    result = _Run(cluster, scenario, limit).measure(gets)
    if not scenario.put_again or not result.failures:
        return result
    dead = {killed.host for killed in result.killed}
    if SOURCE in dead:
        cluster.slots[SOURCE].kill()  # one that was only unplugged
        cluster.restart(SOURCE)
    put = _put(cluster, SOURCE, ref, size)
    _settle(cluster, [put])
    survivors = [_Get(host, host, ref, put.token) for host in asking if host not in dead]
    once_more = replace(scenario, kills=())
    return replace(result, again=_Run(cluster, once_more, limit).measure(survivors))


def _gather(scenario: Scenario) -> Result:
    shape, size = scenario.shape, scenario.size
    cluster = VirtualCluster(shape, scenario.seed)
    _settle(cluster, [])
    sources = range(1, shape.nodes)
    refs = [cluster.new_ref() for _ in sources]
    puts = [_put(cluster, host, ref, size) for host, ref in zip(sources, refs, strict=True)]
    _settle(cluster, puts)
    limit = len(sources) * size / shape.bandwidth
    times = scenario.arrivals.times(len(sources), limit, scenario.seed)
    gets = [
        _Get(host, SOURCE, ref, put.token, at) for host, ref, put, at in zip(sources, refs, puts, times, strict=True)
    ]
    return _Run(cluster, scenario, limit).measure(gets)


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
    """Who asks for what, and when; `host` is whom the result speaks of."""

    host: int
    asker: int
    ref: bytes
    token: int
    at: float = 0.0


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
        self._killed: dict[int, float] = {}

    def measure(self, gets: list[_Get]) -> Result:
        cluster, scenario = self._cluster, self._scenario
        self._pending = dict.fromkeys(gets)
        handles = [
            *(cluster.clock.after(kill.at.seconds(self._limit), self._kill, kill) for kill in scenario.kills),
            *(cluster.clock.after(get.at, self._ask, get) for get in gets),
        ]
        cluster.observers.append(self)
        # No run that gets anywhere is slower than the slowest host serving one after the other.
        slowest = min([scenario.shape.bandwidth, *scenario.shape.rates.values()])
        last_asks = self._began + max((get.at for get in gets), default=0.0)
        horizon = last_asks + scenario.shape.nodes * scenario.size / slowest + _PATIENCE
        events = 0
        while self._pending and cluster.clock.now < horizon and cluster.clock.step():
            events += 1
        cluster.observers.remove(self)
        for handle in handles:
            handle.cancel()
        arrived = [(get.asker, get.ref) for get, call in self._calls.items() if isinstance(call.answer, Got)]
        return Result(
            limit_seconds=self._limit,
            endings=tuple(self._ending(get, call) for get, call in self._calls.items() if call.answer),
            edges=tuple((self._senders[key], key[0]) for key in arrived if key in self._senders),
            moves=tuple(self._moves),
            killed=tuple(Killed(host, at, self._noticed_after(host, at)) for host, at in self._killed.items()),
            unanswered=tuple(get.host for get in self._pending),
            events=events,
        )

    def _ask(self, get: _Get) -> None:
        if get in self._pending:
            self._calls[get] = self._cluster.get(get.asker, get.ref)

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
            wrong = self._cluster.wrong_bytes(call, get.token)
            assert wrong is None, f"host {get.asker} got {wrong}"
        shape = self._scenario.shape
        slowed = shape.bandwidth / min(shape.bandwidth, shape.rates.get(get.host, shape.bandwidth))
        return Ending(get.host, get.at, call.ended - call.began, self._limit * slowed, call.failure)

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
