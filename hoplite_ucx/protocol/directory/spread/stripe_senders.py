"""Who sends a stripe to whom, and how many streams of all stripes of an object each host sends.

A stream of a stripe is planned with the rate of a card divided by the number of stripes. So a host can receive all
stripes at once, and send as many streams as there are stripes: its *seats*, whichever stripes they are of. A crowd that
comes together is laid with `roles`; whoever is placed alone, or loses its sender, takes a free seat, as near to a root
as there is one. If there is none, it goes to the host with the fewest streams, which all of them then share. A host
that is much slower than the receiver is the last choice.
"""

import math
from collections.abc import Callable
from itertools import islice

from hoplite_ucx.protocol.cost import Costs, hop_delay
from hoplite_ucx.protocol.directory.sender_choice import Location, Nic, Plan, SenderPool
from hoplite_ucx.protocol.ids import NodeId, ReceiverKey

# A host with less than this part of the others' rate sends nothing, if it can be avoided.
TOO_SLOW = 0.5
# How many hosts with free seats are compared.
_LOOK_AT = 32


class Seats:
    """The streams of all stripes of one object, by the host that sends them."""

    def __init__(self, stripes: int) -> None:
        self.stripes = stripes
        self.taken: dict[NodeId, int] = {}
        self.free: dict[NodeId, None] = {}
        """Hosts that can send more."""
        self._pools: dict[NodeId, int] = {}  # how many stripes a host has, or gets

    def enter(self, node: NodeId) -> None:
        self._pools[node] = self._pools.get(node, 0) + 1
        self.take(node, 0)

    def leave(self, node: NodeId) -> None:
        self._pools[node] -= 1
        if not self._pools[node]:
            del self._pools[node], self.taken[node]
            self.free.pop(node, None)

    def take(self, node: NodeId, change: int) -> None:
        self.taken[node] = taken = self.taken.get(node, 0) + change
        if taken < self.stripes:
            self.free[node] = None
        else:
            self.free.pop(node, None)


class StripePool(SenderPool):
    """The possible senders of one stripe."""

    def __init__(self, ref: bytes, granule: int, costs: Costs, seats: Seats) -> None:
        super().__init__(ref, granule, costs)
        self.seats = seats

    def add(self, node: NodeId, nic: Nic, finish: float, depth: int) -> None:
        super().add(node, nic, finish, depth)
        self.seats.enter(node)

    def remove(self, node: NodeId) -> list[ReceiverKey]:
        children = super().remove(node)
        self.seats.leave(node)
        return children

    def occupy(self, plan: Plan, receiver: ReceiverKey, nic: Nic) -> None:
        super().occupy(plan, receiver, nic)
        self._slow.pop(receiver, None)  # none is displaced: each has its share
        self.seats.take(plan.sender, +1)

    def release(self, sender: NodeId, receiver: ReceiverKey) -> None:
        super().release(sender, receiver)
        self.seats.take(sender, -1)

    def choose(self, nic: Nic, remaining: int, now: float, acceptable: Callable[[NodeId], bool]) -> Plan | None:
        locations, taken = self.locations, self.seats.taken

        def nearness(node: NodeId) -> tuple[bool, int, int]:
            location = locations[node]
            return location.finish > now, location.depth, taken[node]

        def is_slow(node: NodeId) -> bool:
            return locations[node].nic.up < TOO_SLOW * nic.down

        free = (node for node in self.seats.free if node in locations and not is_slow(node) and acceptable(node))
        best = min(islice(free, _LOOK_AT), key=nearness, default=None)
        if best is None:
            by_load = sorted(locations, key=lambda node: (is_slow(node), taken[node], nearness(node)))
            best = next(filter(acceptable, by_load), None)
        return self.plan(best, nic, remaining, now) if best is not None else None

    def plan(self, sender: NodeId, nic: Nic, remaining: int, now: float) -> Plan:
        location = self.locations[sender]
        rate = max(1.0, min(location.nic.up, nic.down) / self.seats.stripes)
        finish = location.finish + hop_delay(self.granule, rate, self._costs)
        return Plan(sender, rate, max(finish, now + self._costs.latency + remaining / rate))

    def _file(self, location: Location) -> None:
        """There are no heaps: free seats are listed by `Seats`."""
        location.stamp = 0

    def _account(self, location: Location) -> None:
        location.free_at = max((child.until for child in location.children.values()), default=-math.inf)
