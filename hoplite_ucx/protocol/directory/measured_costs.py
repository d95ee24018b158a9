"""What links really cost, measured from reports that the directory gets anyway.

Configured delays and announced rates are only where the cost model starts. Measured are
- the latency L: half the quickest recent round trip of a node's heartbeats, the median over the nodes;
- the hand-over o: a receiver that is fed by another receiver is complete one hop h = L + o + g/B after it. Other work
  on the hosts only makes that longer, so that a low quantile of the last hops counts;
- the rate B of a network card: a stream from a complete copy is never short of bytes, and if both cards have nothing
  else to do, what it carries is what the slower of them can. The most that was lately carried counts, and only if it
  differs clearly from what was thought: rates that tremble would move streams for nothing.
"""

from bisect import bisect_left, insort
from collections import deque

from hoplite_ucx.protocol.cost import Costs
from hoplite_ucx.protocol.directory.sender_choice import Nic
from hoplite_ucx.protocol.ids import NodeId

_HOPS_KEPT = 32
_HOPS_NEEDED = 4
_LOW_QUANTILE = 0.25
_RATES_KEPT = 8
_RATES_NEEDED = 3
# A rate is measured with transfers of at least this many latencies and hand-overs, which then hardly affect it.
_LONG_ENOUGH = 50
_CLEARLY = 0.25
# What a link may cost at most: more than that is a host that was busy or stopped.
_MOST_LATENCY = 0.05
_MOST_HANDOVER = 0.02


class Measuring:
    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._round_trips: dict[NodeId, float] = {}
        self._in_order: list[float] = []  # the same, sorted: a heartbeat must not sort those of all nodes
        self._hops: deque[float] = deque(maxlen=_HOPS_KEPT)

    def round_trip(self, node: NodeId, seconds: float) -> None:
        ordered = self._in_order
        if self._round_trips.get(node) != seconds:
            self.forget(node)
            self._round_trips[node] = seconds
            insort(ordered, seconds)
        half = len(ordered) // 2
        median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        self._costs.latency = min(median / 2, _MOST_LATENCY)

    def forget(self, node: NodeId) -> None:
        seconds = self._round_trips.pop(node, None)
        if seconds is not None:
            del self._in_order[bisect_left(self._in_order, seconds)]

    def hop(self, seconds: float, granule: int, rate: float) -> None:
        """A receiver was complete this long after the receiver that fed it."""
        self._hops.append(max(0.0, seconds - granule / rate))
        if len(self._hops) >= _HOPS_NEEDED:
            delay = sorted(self._hops)[int(len(self._hops) * _LOW_QUANTILE)]
            self._costs.handover = min(max(0.0, delay - self._costs.latency), _MOST_HANDOVER)

    def transfer(self, sender: Nic, receiver: Nic, size: int, seconds: float) -> None:
        """A stream from a complete copy took this long, and both cards had nothing else to do when it ended."""
        if seconds < _LONG_ENOUGH * (self._costs.latency + self._costs.handover):
            return
        rate, up, down = size / seconds, sender.up, receiver.down
        if up <= down:
            sender.up = _corrected(up, sender.up_samples, rate)
        if down <= up:
            receiver.down = _corrected(down, receiver.down_samples, rate)


def _corrected(thought: float, samples: deque[float], rate: float) -> float:
    samples.append(rate)
    while len(samples) > _RATES_KEPT:
        samples.popleft()
    most = max(samples)
    if len(samples) < _RATES_NEEDED or abs(most - thought) <= _CLEARLY * thought:
        return thought
    return most
