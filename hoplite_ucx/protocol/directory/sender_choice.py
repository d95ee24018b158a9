"""Who sends to whom: list scheduling over the locations of one object, and the accounts of the hosts' NICs.

Each location has `finish`, when it will hold every byte, and `free_at`, when its NIC can start another stream
of this object. A receiver takes the location with the least

    max(finish + h, max(now, free_at) + L + remaining / rate)

which gives chains for large objects, shallow trees for small ones, and never worsens a running stream. A NIC
serves one object first come, first served, and starts another stream of it only where the running ones leave
capacity; different objects share it fairly.

Locations of about the same rate stand in heaps, the free ones and those with capacity left by `finish`, the busy ones
by `free_at`, so that a placement looks at a handful of the best of each instead of at all of them. A receiver slower
than its sender's NIC holds capacity that a faster one could fill: such children are listed apart, and may be displaced.
"""

import enum
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from hoplite_ucx.protocol.cost import Costs, hop_delay
from hoplite_ucx.protocol.ids import NodeId, ReceiverKey

# How many acceptable locations of each heap are compared exactly.
_LOOK_AT = 4
# A child counts as slow, and may be displaced, below this part of its sender's rate.
_SLOW = 0.8
# Displacing must save at least this part of the newcomer's own transfer time.
_WORTH_DISPLACING = 0.1
# Capacity below this part of a NIC is not worth starting a stream on.
_WORTH_USING = 0.05
# A sender with more than this part of its NIC left is worth asking beside the stream it runs.
_ROOMY = 0.2
# Heaps are rid of stale entries when they have grown to several times their locations, and by so many.
_SLACK = 64


@dataclass(slots=True)
class Nic:
    """The account of one host: its rates, and how many streams of which objects use them."""

    up: float
    down: float
    sending: dict[bytes, int] = field(default_factory=dict)
    receiving: dict[bytes, int] = field(default_factory=dict)
    sending_changes: int = 0
    receiving_changes: int = 0
    """How often streams have begun or ended: as long as that stays the same, so do those that use it."""
    up_samples: deque[float] = field(default_factory=deque)
    down_samples: deque[float] = field(default_factory=deque)
    """What single streams lately carried (see `directory.measured_costs`)."""

    def count_sending(self, ref: bytes, change: int) -> None:
        _count(self.sending, ref, change)
        self.sending_changes += 1

    def count_receiving(self, ref: bytes, change: int) -> None:
        _count(self.receiving, ref, change)
        self.receiving_changes += 1

    def up_share(self, ref: bytes) -> float:
        return self.up / _objects_with(self.sending, ref)

    def down_share(self, ref: bytes) -> float:
        return self.down / _objects_with(self.receiving, ref)


def _objects_with(streams: dict[bytes, int], ref: bytes) -> int:
    return len(streams) + (ref not in streams)


def _count(streams: dict[bytes, int], ref: bytes, change: int) -> None:
    count = streams.get(ref, 0) + change
    if count:
        streams[ref] = count
    else:
        del streams[ref]


@dataclass(slots=True)
class Child:
    """A stream that a location sends, as it was planned."""

    nic: Nic
    rate: float
    until: float


@dataclass(slots=True)
class Location:
    """A node that has, or is getting, the object, seen as a sender."""

    node: NodeId
    nic: Nic
    finish: float
    depth: int
    children: dict[ReceiverKey, Child] = field(default_factory=dict)
    free_at: float = -math.inf
    load: float = 0.0
    stamp: int = 0
    rate_class: int = field(init=False)
    """Locations whose rates differ little stand in one heap, the others side by side."""

    def __post_init__(self) -> None:
        self.rate_class = round(2 * math.log2(self.nic.up))

    def left(self, ref: bytes) -> float:
        """What of its NIC's share for this object its streams leave; other objects' streams have theirs."""
        return self.nic.up_share(ref) - self.load


class Shelf(enum.Enum):
    FREE = "free"
    ROOMY = "roomy"
    BUSY = "busy"


_Entry: TypeAlias = tuple[float, int, NodeId]
"""The key of a heap, the stamp by which it is current, and whose it is."""


@dataclass(slots=True, frozen=True)
class Plan:
    """One way to serve a receiver: from whom, how fast, until when, and whom it would displace."""

    sender: NodeId
    rate: float
    finish: float
    displaces: ReceiverKey | None = None


class SenderPool:
    def __init__(self, ref: bytes, granule: int, costs: Costs) -> None:
        self._ref = ref
        self.granule = granule
        self._costs = costs
        self.locations: dict[NodeId, Location] = {}
        self._slow: dict[ReceiverKey, NodeId] = {}  # child → its sender
        self._heaps: dict[tuple[Shelf, int], list[_Entry]] = {}
        self._stamps = 0

    def add(self, node: NodeId, nic: Nic, finish: float, depth: int) -> None:
        self.locations[node] = location = Location(node, nic, finish, depth)
        self._file(location)

    def remove(self, node: NodeId) -> list[ReceiverKey]:
        """Take a location away; its children, which are returned, lose their account here."""
        location = self.locations[node]
        children = list(location.children)
        for child in children:
            self.release(node, child)
        del self.locations[node]
        return children

    def set_finish(self, node: NodeId, finish: float) -> None:
        location = self.locations[node]
        location.finish = finish
        self._file(location)

    def occupy(self, plan: Plan, receiver: ReceiverKey, nic: Nic) -> None:
        location = self.locations[plan.sender]
        location.children[receiver] = Child(nic, plan.rate, plan.finish - self._costs.latency)
        location.load += plan.rate
        location.nic.count_sending(self._ref, +1)
        nic.count_receiving(self._ref, +1)
        if plan.rate < _SLOW * location.nic.up_share(self._ref):
            self._slow[receiver] = plan.sender
        location.free_at = max(location.free_at, location.children[receiver].until)
        self._file(location)

    def release(self, sender: NodeId, receiver: ReceiverKey) -> None:
        location = self.locations[sender]
        child = location.children.pop(receiver)
        location.load = location.load - child.rate if location.children else 0.0
        location.nic.count_sending(self._ref, -1)
        child.nic.count_receiving(self._ref, -1)
        self._slow.pop(receiver, None)
        if child.until >= location.free_at:
            self._account(location)

    def revise(self, sender: NodeId, receiver: ReceiverKey, finish: float) -> None:
        """The receiver will be done at another time than planned."""
        location = self.locations[sender]
        location.children[receiver].until = finish - self._costs.latency
        self._account(location)

    def choose(self, nic: Nic, remaining: int, now: float, acceptable: Callable[[NodeId], bool]) -> Plan | None:
        """The best sender for a receiver with this NIC that still needs `remaining` bytes."""
        self._refile(now)
        shortest = remaining / nic.down_share(self._ref)
        best: Plan | None = None
        for heap in self._heaps.values():
            for location in self._best_of(heap, acceptable):
                if best is not None and self._cannot_beat(location, best, shortest):
                    continue
                plan = self._plan(location, nic, remaining, now)
                if best is None or plan.finish < best.finish:
                    best = plan
        for child, sender in islice(self._slow.items(), _LOOK_AT):
            displacing = self._plan_displacing(child, sender, nic, remaining, now)
            if (
                displacing is not None
                and acceptable(sender)
                and (best is None or displacing.finish < best.finish - _WORTH_DISPLACING * shortest)
            ):
                best = displacing
        return best

    def plan(self, sender: NodeId, nic: Nic, remaining: int, now: float) -> Plan:
        """How this sender would serve a receiver."""
        return self._plan(self.locations[sender], nic, remaining, now)

    def _plan(self, location: Location, nic: Nic, remaining: int, now: float) -> Plan:
        full = min(location.nic.up_share(self._ref), nic.down_share(self._ref))
        plan = self._plan_from(location, full, remaining, max(now, location.free_at))
        if location.free_at > now and location.left(self._ref) > _WORTH_USING * location.nic.up:
            sooner = self._plan_from(location, min(full, location.left(self._ref)), remaining, now)
            if sooner.finish < plan.finish:
                return sooner
        return plan

    def _cannot_beat(self, location: Location, best: Plan, shortest: float) -> bool:
        """Whether its running streams alone make the location later, which is so for all of a chain but its end: then
        the plan need not be made."""
        late = location.free_at + self._costs.latency + shortest >= best.finish
        return late and location.left(self._ref) <= _WORTH_USING * location.nic.up

    def _plan_displacing(self, slow: ReceiverKey, sender: NodeId, nic: Nic, remaining: int, now: float) -> Plan | None:
        location = self.locations[sender]
        rate = location.children[slow].rate
        full = min(location.nic.up_share(self._ref), nic.down_share(self._ref))
        if rate >= _SLOW * full or location.left(self._ref) + rate < _SLOW * full:
            return None
        plan = self._plan_from(location, full, remaining, now)
        return Plan(plan.sender, plan.rate, plan.finish, displaces=slow)

    def _plan_from(self, location: Location, rate: float, remaining: int, start: float) -> Plan:
        hop = hop_delay(self.granule, rate, self._costs)
        finish = max(location.finish + hop, start + self._costs.latency + remaining / rate)
        return Plan(location.node, rate, finish)

    def _account(self, location: Location) -> None:
        location.free_at = max((child.until for child in location.children.values()), default=-math.inf)
        self._file(location)

    def _file(self, location: Location) -> None:
        """Put a location into the heap it belongs to; its older entries become stale by their stamp."""
        self._stamps += 1
        location.stamp = self._stamps
        if not location.children:
            shelf, key = Shelf.FREE, location.finish
        elif location.left(self._ref) > _ROOMY * location.nic.up:
            shelf, key = Shelf.ROOMY, location.finish
        else:
            shelf, key = Shelf.BUSY, location.free_at
        heap = self._heap(location, shelf)
        heapq.heappush(heap, (key, self._stamps, location.node))
        if len(heap) > 4 * len(self.locations) + _SLACK:
            heap[:] = [entry for entry in heap if self._current(entry) is not None]
            heapq.heapify(heap)

    def _refile(self, now: float) -> None:
        """Busy locations whose streams should be over count as free, by their `finish`."""
        for (shelf, _), busy in list(self._heaps.items()):
            while shelf is Shelf.BUSY and busy and busy[0][0] <= now:
                location = self._current(heapq.heappop(busy))
                if location is not None:
                    free = self._heap(location, Shelf.FREE)
                    heapq.heappush(free, (location.finish, location.stamp, location.node))

    def _heap(self, location: Location, shelf: Shelf) -> list[_Entry]:
        return self._heaps.setdefault((shelf, location.rate_class), [])

    def _current(self, entry: _Entry) -> Location | None:
        location = self.locations.get(entry[2])
        return location if location is not None and location.stamp == entry[1] else None

    def _best_of(self, heap: list[_Entry], acceptable: Callable[[NodeId], bool]) -> Iterator[Location]:
        """The first few acceptable locations of a heap, which is left as it was but for stale entries."""
        looked_at = []
        found = 0
        while heap and found < _LOOK_AT:
            entry = heapq.heappop(heap)
            location = self._current(entry)
            if location is None:
                continue
            looked_at.append(entry)
            if acceptable(location.node):
                found += 1
                yield location
        for entry in looked_at:
            heapq.heappush(heap, entry)
