"""The collective operations as rounds of a live cluster, and side by side with bare sockets on the same hosts.

A round puts what it needs, waits until all puts are done, times the operation from one common moment until the last
get has returned, compares every value, and deletes everything.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any

from hoplite_ucx.bench.bare.driver import BarePeers
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.harness.machine_facts import check_memory, facts, versions
from hoplite_ucx.bench.harness.timing import Measurement, Round, limit_seconds, measure_in_turn
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.places import Place
from hoplite_ucx.bench.peers.rounds import SPACING, calls_of

__all__ = ["ROUNDS", "LiveRounds", "check_cell", "compare_on", "live_clusters"]


class LiveRounds:
    """Rounds of one size on a live cluster with one worker a host."""

    def __init__(self, live: LiveCluster, size: int) -> None:
        _check_size(size)
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
        live.synchronise()
        first = time.monotonic() + 0.2 + self._size / 100e6
        last = first + (self._hosts - 1) * SPACING
        before = live.services_processor()
        putters = {
            rank: {
                "do": "put",
                "ref": refs[rank],
                "size": self._size,
                "seed": seeds[rank],
                "at": first + SPACING * rank,
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

    def rtt(self) -> Round:
        """Host 0 puts an object, host 1 gets it and puts another, which host 0 gets: the median of many of these."""
        there, back = ([self._live.new_ref() for _ in range(calls_of(self._size))] for _ in range(2))
        (seed,) = self._new_seeds(1)
        step = {"do": "trips", "size": self._size, "seed": seed}
        first = {**step, "puts": there, "gets": back, "begins": True}
        timed, told = self._live.timed({0: first, 1: {**step, "puts": back, "gets": there, "begins": False}})
        self._delete([*there, *back])
        return Round(statistics.median(told[0]["trips"]), timed.processor)

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
    "rtt": LiveRounds.rtt,
}


_BARE = {"arrivals": "reduce", "rtt": "echo"}
"""What bare sockets do in their place: they have no arrivals, everything is there."""

_BARE_PATIENCE = 60.0


def check_cell(operation: str, hosts: int, size: int, *, memory: bool = True) -> None:
    """Refuse what cannot be measured, before anything is started; with `memory`, also what cannot be just now."""
    if hosts < 2:
        raise PeerError(f"{operation} is between two or more hosts")
    _check_size(size)
    if memory:
        check_memory(operation, hosts, size)


def _check_size(size: int) -> None:
    if size % 4 or size <= 0:
        raise PeerError(f"objects are whole float32 numbers, not {size} bytes")


def live_clusters(
    stack: ExitStack, machines: Sequence[Place], rate: float, size: int, transports: Sequence[str] = ()
) -> dict[str, LiveCluster]:
    """One for each of `transports`, whose links use it; without any there is one, as configured. By what an operation
    on it is called after its own name."""
    memory = max(2 << 30, (len(machines) + 4) * size)  # a gather has them all in one store
    lives = {}
    for transport in transports or (None,):
        links = {} if transport is None else {"HOPLITE_LINKS_TRANSPORT": transport}
        live = stack.enter_context(LiveCluster(machines, rate, memory=memory, links=links))
        lives["" if transport is None else f" over {transport}"] = live
    return lives


def compare_on(
    machines: Sequence[Place],
    lives: Mapping[str, LiveCluster],
    operation: str,
    *,
    size: int,
    rate: float,
    repeat: int,
    untimed: int = 1,
    seconds: float = math.inf,
    bare: bool = True,
    settings: Mapping[str, Any] = MappingProxyType({}),
    advance: Callable[[], object] = lambda: None,
) -> list[Measurement]:
    """An operation on hosts and with live clusters that are there, in turn; for how long, see `measure_in_turn`.
    `settings` go into every figure."""
    hosts = len(machines)
    alike = _BARE.get(operation, operation)
    limit = limit_seconds(operation, hosts, size, rate)
    told: dict[str, Any] = {
        "operation": operation, "hosts": hosts, "size": size, "rate": rate, "untimed": untimed,
        "versions": versions(), "machine": facts(), **settings,
    }  # fmt: skip
    with ExitStack() as stack:
        runs: dict[str, Callable[[], Round]] = {
            f"{operation}{suffix}": partial(ROUNDS[operation], LiveRounds(live, size)) for suffix, live in lives.items()
        }
        if bare:
            between = machines[:2] if alike == "echo" else machines
            peers = BarePeers(between, alike, size, _BARE_PATIENCE + 10 * limit)
            runs[f"bare {alike}"] = stack.enter_context(peers).run
        return measure_in_turn(
            runs, repeat=repeat, untimed=untimed, limit=limit, settings=told, seconds=seconds, advance=advance
        )
