"""The collective operations as rounds of a live cluster, and side by side with bare sockets on the same hosts.

A round puts what it needs, waits until everybody has, times the operation from one common moment until the last get
has returned, compares every value, and deletes everything.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from hoplite_ucx.bench.bare import BarePeers
from hoplite_ucx.bench.cluster import Cluster
from hoplite_ucx.bench.lines import PeerError
from hoplite_ucx.bench.live import LiveCluster
from hoplite_ucx.bench.timing import Measurement, Round, limit_seconds, measure_in_turn

__all__ = ["ROUNDS", "LiveRounds", "compare"]

_SPACING = 0.1
"""How far the puts of `arrivals` lie apart."""


class LiveRounds:
    """Rounds of one size on a live cluster with one worker a host."""

    def __init__(self, live: LiveCluster, size: int) -> None:
        if size % 4 or size <= 0:
            raise PeerError(f"objects are whole float32 numbers, not {size} bytes")
        self._live = live
        self._size = size
        self._seeds = itertools.count(1)
        self._hosts = len(live.ranks)

    def broadcast(self) -> Round:
        """Host 0 has it, all others get it."""
        (ref,), (seed,) = self._put([0])
        getters = self._live.ranks[1:]
        timed = self._live.at_once({rank: {"do": "get", "refs": [ref]} for rank in getters})
        self._check(getters, [[seed]])
        self._delete([ref])
        return timed

    def gather(self) -> Round:
        """Every other host has one, host 0 gets them all."""
        refs, seeds = self._put(self._live.ranks[1:])
        timed = self._live.at_once({0: {"do": "get", "refs": refs}})
        self._check([0], [[seed] for seed in seeds])
        self._delete(refs)
        return timed

    def reduce(self) -> Round:
        """Every host has one, host 0 asks for the sum and gets it."""
        refs, seeds = self._put(self._live.ranks)
        target = self._live.new_ref()
        timed = self._live.at_once({0: {"do": "get", "refs": [target], "sources": refs}})
        self._check([0], [seeds])
        self._delete([*refs, target])
        return timed

    def allreduce(self) -> Round:
        """Every host has one, and all get the sum; every one of them asks for it, the first one counts."""
        refs, seeds = self._put(self._live.ranks)
        target = self._live.new_ref()
        step = {"do": "get", "refs": [target], "sources": refs, "everywhere": True}
        timed = self._live.at_once(dict.fromkeys(self._live.ranks, step))
        self._check(self._live.ranks, [seeds])
        self._delete([*refs, target])
        return timed

    def arrivals(self) -> Round:
        """A reduce that host 0 asks for before the objects are there: they are put one by one. From the last put on."""
        live = self._live
        refs = [live.new_ref() for _ in live.ranks]
        seeds = self._new_seeds(self._hosts)
        target = live.new_ref()
        # All have their arrays ready long before the first moment.
        first = time.monotonic() + 0.2 + self._size / 100e6
        last = first + (self._hosts - 1) * _SPACING
        before = live.services_processor()
        putters = {
            rank: {
                "do": "put",
                "ref": refs[rank],
                "size": self._size,
                "seed": seeds[rank],
                "at": first + _SPACING * rank,
            }
            for rank in live.ranks[1:]
        }
        # Host 0's worker will be busy with its get, so its own object is there before the first moment.
        live.ask(0, "put", ref=refs[0], size=self._size, seed=seeds[0])
        told = live.together({**putters, 0: {"do": "get", "refs": [target], "sources": refs}})
        used = live.services_processor() - before + sum(each["processor"] for each in told.values())
        self._check([0], [seeds])
        self._delete([*refs, target])
        return Round(told[0]["done"] - last, used)

    # --- parts of rounds ---------------------------------------------------------------------------------------

    def _new_seeds(self, count: int) -> list[int]:
        return [next(self._seeds) % 100 + 1 for _ in range(count)]

    def _put(self, ranks: range | list[int]) -> tuple[list[str], list[int]]:
        refs = [self._live.new_ref() for _ in ranks]
        seeds = self._new_seeds(len(refs))
        self._live.together(
            {
                rank: {"do": "put", "ref": ref, "size": self._size, "seed": seed}
                for rank, ref, seed in zip(ranks, refs, seeds, strict=True)
            }
        )
        return refs, seeds

    def _check(self, ranks: range | list[int], seeds: list[list[int]]) -> None:
        self._live.together({rank: {"do": "check", "seeds": seeds, "size": self._size} for rank in ranks})

    def _delete(self, refs: list[str]) -> None:
        self._live.ask(0, "delete", refs=refs)


ROUNDS: dict[str, Callable[[LiveRounds], Round]] = {
    "broadcast": LiveRounds.broadcast,
    "reduce": LiveRounds.reduce,
    "allreduce": LiveRounds.allreduce,
    "gather": LiveRounds.gather,
    "arrivals": LiveRounds.arrivals,
}


def compare(
    operation: str,
    *,
    hosts: int,
    size: int,
    rate: float,
    repeat: int,
    untimed: int = 1,
    bare: bool = True,
    transports: Sequence[str] = (),
    advance: Callable[[], object] = lambda: None,
) -> list[Measurement]:
    """Measure an operation live and, round by round in turn, with bare sockets on the same hosts.

    Each of `transports` gets a live cluster of its own, whose links use it; without any there is one, as configured.
    """
    if hosts < 2:
        raise PeerError(f"{operation} is between two or more hosts")
    alike = "reduce" if operation == "arrivals" else operation  # sockets have no arrivals: everything is there
    limit = limit_seconds(alike, hosts, size, rate)
    settings: dict[str, Any] = {
        "operation": operation, "hosts": hosts, "size": size, "rate": rate, "untimed": untimed,
    }  # fmt: skip
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(hosts, rate))
        memory = max(2 << 30, (hosts + 4) * size)
        runs: dict[str, Callable[[], Round]] = {}
        for transport in transports or (None,):
            links = {} if transport is None else {"HOPLITE_LINKS_TRANSPORT": transport}
            live = stack.enter_context(LiveCluster(cluster.hosts, rate, memory=memory, links=links))
            name = operation if transport is None else f"{operation} over {transport}"
            runs[name] = partial(ROUNDS[operation], LiveRounds(live, size))
        if bare:
            runs[f"bare {alike}"] = stack.enter_context(BarePeers(cluster.hosts, alike, size)).run
        return measure_in_turn(runs, repeat=repeat, untimed=untimed, limit=limit, settings=settings, advance=advance)
