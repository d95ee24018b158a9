"""What a transfer costs: the few numbers behind every placement.

A pipelined hop delays the last byte by h = L + o + g/B: the link's latency, the hand-over delay of a chunk, and
the time until a whole granule has arrived and can be forwarded. The hand-over overlaps with sending and takes no
time from the network; what does occupy the sender for each chunk is a parameter of its own.
"""

import math

from hoplite_ucx.protocol.settings import Settings

# A pipeline of `depth` hops then spends about 1/32 of the transfer filling itself.
_GRANULES_PER_HOP = 32


def choose_granule(size: int, depth: int, bandwidth: float, settings: Settings) -> int:
    """The chunk that a relay waits for: small for deep trees, but never so small that hand-overs cannot keep up."""
    by_depth = size / (_GRANULES_PER_HOP * max(1, depth))
    by_handover = settings.handover * bandwidth
    by_sender = math.sqrt(settings.sender_cost * bandwidth * size / max(1, depth))
    wanted = max(by_depth, by_handover, by_sender, settings.min_granule)
    return max(1, min(int(wanted), settings.max_granule, size))


def hop_delay(granule: int, bandwidth: float, settings: Settings) -> float:
    return settings.latency + settings.handover + settings.sender_cost + granule / bandwidth
