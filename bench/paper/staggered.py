"""Figure 8's rounds on a live cluster: the hosts come one by one, and time runs from the first of them.

Host 0 comes first: it has the object of a broadcast, and gets the sum of a reduce. Each host puts its own object,
if it has one, and then asks for what it is to get. Peers that run a program on every host do the same in the same
order, see `peers.rounds`.
"""

from __future__ import annotations

import time
from typing import Any

from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.harness.timing import Round

__all__ = ["staggered_round"]

_NOTICE = 0.2
_FILLED = 100e6
"""How many bytes a second all hosts together make ready, at the least."""


def staggered_round(live: LiveCluster, operation: str, size: int, spacing: float, number: int) -> Round:
    ranks = live.ranks
    target = live.new_ref()
    broadcast = operation == "broadcast"
    sources = {0: target} if broadcast else {rank: live.new_ref() for rank in ranks}
    seeds = {rank: (number * len(ranks) + rank) % 100 + 1 for rank in sources}
    getters = {"broadcast": ranks[1:], "reduce": ranks[:1], "allreduce": ranks}[operation]
    first = time.monotonic() + _NOTICE + len(sources) * size / (4 * _FILLED)
    steps: dict[int, dict[str, Any]] = {}
    for rank in ranks:
        step: dict[str, Any] = {"do": "arrive", "at": first + spacing * rank}
        if rank in sources:
            step |= {"put": sources[rank], "size": size, "seed": seeds[rank]}
        if rank in getters:
            step |= {"get": target}
            if not broadcast:
                step |= {"sources": list(sources.values()), "everywhere": operation == "allreduce"}
        steps[rank] = step
    before = live.services_processor()
    told = live.together(steps)
    used = live.services_processor() - before + sum(each["processor"] for each in told.values())
    summed = list(seeds.values())
    live.together({rank: {"do": "check", "seeds": [summed], "size": size} for rank in getters})
    live.ask(0, "delete", refs=list({*sources.values(), target}))
    return Round(max(told[rank]["done"] for rank in getters) - first, used)
