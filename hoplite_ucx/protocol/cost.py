"""What a transfer costs: the few numbers behind every placement.

A pipelined hop delays the last byte by h = L + o + g/B: the link's latency, the hand-over delay of a chunk, and
the time until a whole granule has arrived and can be forwarded. The hand-over overlaps with sending and takes no
time from the network; what does occupy the sender for each chunk is a parameter of its own.
"""

import heapq
import math
from dataclasses import dataclass, field

from hoplite_ucx.protocol.messages import BIND_ALIGNMENT
from hoplite_ucx.protocol.settings import Settings

# A pipeline of `depth` hops then spends about 1/32 of the transfer filling itself.
_GRANULES_PER_HOP = 32
# Whole pages: a chunk that ends in the middle of an element leaves a few bytes for a frame of their own.
_GRANULE_ALIGNMENT = 4096
# Requests for one object wait for this part of its transfer for others, so as to be placed together.
CROWD_PATIENCE = 0.01


@dataclass(slots=True)
class Costs:
    """What a link costs: as configured, until it is measured (see `directory.measured_costs`)."""

    settings: Settings
    latency: float = field(init=False)
    handover: float = field(init=False)

    def __post_init__(self) -> None:
        self.latency = self.settings.latency
        self.handover = self.settings.handover


def choose_granule(size: int, depth: int, bandwidth: float, settings: Settings) -> int:
    """The chunk that a relay waits for: small for deep trees, but never so small that hand-overs cannot keep up. It
    uses the configured hand-over, which is work; the measured one is mostly waiting, and would make granules grow."""
    by_depth = size / (_GRANULES_PER_HOP * max(1, depth))
    # Filling the pipeline takes depth * g / B, the chunks size / g * work: from here on the former is more.
    by_work = math.sqrt(settings.chunk_work * bandwidth * size / max(1, depth))
    by_handover = settings.handover * bandwidth
    by_sender = math.sqrt(settings.sender_cost * bandwidth * size / max(1, depth))
    wanted = math.ceil(max(min(by_depth, by_work), by_handover, by_sender, settings.min_granule))
    return max(1, min(wanted + -wanted % _GRANULE_ALIGNMENT, settings.max_granule, size))


def hop_delay(granule: int, bandwidth: float, costs: Costs) -> float:
    return costs.latency + costs.handover + costs.settings.sender_cost + granule / bandwidth


def choose_degree(size: int, count: int, bandwidth: float, costs: Costs) -> int:
    """How many terms a slot takes: a chain for large objects, a star for small ones, a tree between them."""
    degree, _ = _best_tree(size, count, bandwidth, costs)
    return degree


def choose_stripes(size: int, count: int, bandwidth: float, settings: Settings) -> int:
    """Into how many stripes to cut a target that the hosts of all its sources get, along a ring of them. That saves
    every link 1/count of its load, and short pieces make short hops. A stripe saves one link its way in, and the link
    before that its way out, so links have equal load if a stripe ends at every host, or at every second. Half as many
    stripes need half the slots (one per host and stripe), but every second host begins and ends a piece later. It is 1
    if a tree is as fast."""
    if count < 3:
        return 1
    costs = Costs(settings)
    steps = 2 * (count - 1)
    granule = choose_granule(size, 1, bandwidth, settings)

    def duration(stripes: int) -> float:
        piece = min(granule, size // stripes)
        late = 0.0 if stripes == count else 2 * piece / bandwidth
        along_the_ring = max(steps * hop_delay(piece, bandwidth, costs), steps / count * size / bandwidth)
        return along_the_ring + late + stripes * count * settings.slot_cost

    stripes = min([count] if count % 2 else [count, count // 2], key=duration)
    _, combining = _best_tree(size, count, bandwidth, costs)
    # Cards that receive terms receive the target too, so combining takes a transfer longer than alone.
    tree = combining + size / bandwidth + _spreading(size, count - 1, bandwidth, costs) + count * settings.slot_cost
    return stripes if duration(stripes) < tree else 1


def choose_cut(size: int, crowd: int, bandwidth: float, costs: Costs) -> int:
    """Into how many stripes to cut an object that so many hosts ask for together; 1 if they should be placed one behind
    the other. Each host sends one stripe to as many others as there are stripes, in turns, so that a hop takes a
    granule for each; but there are only as many hops as the tree is high."""
    settings = costs.settings
    stripes = min(settings.stripes, size // BIND_ALIGNMENT)
    if stripes < 2 or crowd < settings.crowd:
        return 1
    if not settings.depth_cost:
        return stripes
    granule = min(choose_granule(size, crowd, bandwidth, settings), size // stripes)
    transfer = size / bandwidth
    hops = 1 + math.ceil(math.log(crowd, stripes))
    in_stripes = CROWD_PATIENCE * transfer + hops * hop_delay(stripes * granule, bandwidth, costs)
    plainly = _spreading(size, crowd, bandwidth, costs)
    return stripes if plainly > max(settings.depth_cost / 100 * transfer, in_stripes) else 1


def _best_tree(size: int, count: int, bandwidth: float, costs: Costs) -> tuple[int, float]:
    """The degree of the tree that combines this many sources soonest, and the time that it takes."""
    granule = choose_granule(size, count, bandwidth, costs.settings)

    def duration(degree: int) -> float:
        height, width = _tree_of(count, degree)
        # Terms that come in together share the network card: a hop takes a granule of each.
        return height * hop_delay(degree * granule, bandwidth, costs) + width * (size - granule) / bandwidth

    degree = min(range(1, max(count, 2)), key=duration)
    return degree, duration(degree)


def _spreading(size: int, receivers: int, bandwidth: float, costs: Costs) -> float:
    """How long after its root the last receiver has an object: each receiver feeds one that is a hop behind it, and
    then others, one after the other."""
    hop = hop_delay(choose_granule(size, receivers, bandwidth, costs.settings), bandwidth, costs)
    one_by_one = costs.latency + size / bandwidth
    soonest = [hop]
    at = 0.0
    for _ in range(receivers):
        at = heapq.heappop(soonest)
        heapq.heappush(soonest, at + hop)
        heapq.heappush(soonest, at + one_by_one)
    return at


def _tree_of(count: int, degree: int) -> tuple[int, int]:
    """Its height, and how many terms the widest slot takes: the root takes all remaining terms."""
    full = [1]  # the sources below a full term of each height
    while full[-1] * degree + 1 < count:
        full.append(full[-1] * degree + 1)
    left, rest = 0, count - 1
    for sources in reversed(full):
        left += rest // sources
        rest %= sources
    return len(full), max(degree, left)
