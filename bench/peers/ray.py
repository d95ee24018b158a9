"""Ray's object store: an actor on every host; objects are put and got, sums are made by tasks of the actors.

A reduce is a tree of pairwise sums, each where its first operand is. Objects that come one by one (`arrivals`) are
added by one actor as they come. Arguments: the cells, and the addresses of all hosts; the driver runs on the first.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite_ucx.bench.harness.contents import Array, fill
from hoplite_ucx.bench.harness.json_lines import say
from hoplite_ucx.bench.peers.rounds import SPACING, calls_of, check, lead, seeds_of, sleep_until

_NOTICE = 0.08  # a call of an actor takes some milliseconds
_PATIENCE = 120.0


class Holder:
    """What runs on one host. Refs come in lists, so that Ray does not fetch them before the call."""

    def make(self, size: int, seed: int) -> None:
        self._array = np.empty(size // 4, np.float32)
        fill(self._array, [seed])

    def put(self) -> list[Any]:
        return [ray.put(self._array)]

    def put_at(self, moment: float) -> Array:
        sleep_until(moment)
        return self._array

    def get(self, refs: list[Any], at: float) -> float:
        sleep_until(at)
        self._kept = ray.get(refs)
        return time.monotonic()

    def add(self, one: Array, other: Array) -> Array:
        return one + other

    def add_as_they_come(self, refs: list[Any]) -> float:
        total = None
        while refs:
            (ready,), refs = ray.wait(refs, num_returns=1)
            total = ray.get(ready).copy() if total is None else np.add(total, ray.get(ready), out=total)
        self._kept = [total]
        return time.monotonic()

    def check(self, seeds: list[list[int]]) -> None:
        for array, summed in zip(self._kept, seeds, strict=True):
            check(array, summed)
        self._kept = []

    def same(self, array: Array) -> Array:
        return array

    def echo(self, refs: list[Any]) -> list[Any]:
        return [ray.put(ray.get(refs[0]))]

    def trips(self, other: Any) -> float:
        took = []
        for _ in range(calls_of(self._array.nbytes)):
            began = time.monotonic()
            (back,) = ray.get(other.echo.remote([ray.put(self._array)]))
            ray.get(back)
            took.append(time.monotonic() - began)
        return float(np.median(took))


def places_of(addresses: list[str]) -> list[Any]:
    """What puts an actor or a task on each of these nodes, when all of them have come up."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if len(nodes) >= len(addresses):
            return [NodeAffinitySchedulingStrategy(nodes[address], soft=False) for address in addresses]
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(nodes)} of {len(addresses)} Ray nodes came up")
        time.sleep(0.2)


class Rounds:
    def __init__(self, addresses: list[str]) -> None:
        self._connect(address=f"{addresses[0]}:6379", _node_ip_address=addresses[0], logging_level="warning")
        actor = ray.remote(num_cpus=0)(Holder)
        self.places = places = places_of(addresses)
        self._holders = [actor.options(scheduling_strategy=place).remote() for place in places]
        self._reducer = actor.options(scheduling_strategy=places[0]).remote()
        ray.get([holder.make.remote(4, 1) for holder in (*self._holders, self._reducer)], timeout=_PATIENCE)

    def _connect(self, **options: Any) -> None:
        ray.init(**options)

    def run(self, operation: str, size: int, number: int) -> float:
        seeds = seeds_of(number, len(self._holders))
        ray.get([holder.make.remote(size, seed) for holder, seed in zip(self._holders, seeds, strict=True)])
        seconds: float = getattr(self, f"_{operation}")(seeds)
        time.sleep(0.05 if size < 16 << 20 else 0.3)  # until what is not referred to any more is freed
        return seconds

    def _put(self, holders: list[Any]) -> list[Any]:
        return [ref for (ref,) in ray.get([holder.put.remote() for holder in holders])]

    def _broadcast(self, seeds: list[int]) -> float:
        refs = self._put(self._holders[:1])
        at = _moment()
        ends = ray.get([holder.get.remote(refs, at) for holder in self._holders[1:]])
        ray.get([holder.check.remote([seeds[:1]]) for holder in self._holders[1:]])
        return float(max(ends)) - at

    def _gather(self, seeds: list[int]) -> float:
        refs = self._put(self._holders[1:])
        at = _moment()
        end: float = ray.get(self._holders[0].get.remote(refs, at))
        ray.get(self._holders[0].check.remote([[seed] for seed in seeds[1:]]))
        return end - at

    def _reduce(self, seeds: list[int], everywhere: bool = False) -> float:
        refs = self._put(self._holders)
        at = _moment()
        sleep_until(at)
        total = self._combine(refs, everywhere)
        getters = self._holders if everywhere else self._holders[:1]
        ends = ray.get([holder.get.remote([total], at) for holder in getters])
        ray.get([holder.check.remote([seeds]) for holder in getters])
        return float(max(ends)) - at

    def _allreduce(self, seeds: list[int]) -> float:
        return self._reduce(seeds, everywhere=True)

    def _combine(self, refs: list[Any], everywhere: bool) -> Any:  # noqa: ARG002 - a tree does the same for both
        return self._tree(refs)

    def _tree(self, refs: list[Any]) -> Any:
        level = list(zip(self._holders, refs, strict=True))
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            added = [(holder, holder.add.remote(one, other)) for (holder, one), (_, other) in pairs]
            level = added + level[len(level) & ~1 :]
        return level[0][1]

    def _arrivals(self, seeds: list[int]) -> float:
        at = _moment()
        refs = [holder.put_at.remote(at + SPACING * rank) for rank, holder in enumerate(self._holders)]
        end: float = ray.get(self._reducer.add_as_they_come.remote(refs))
        ray.get(self._reducer.check.remote([seeds]))
        return end - at - SPACING * (len(refs) - 1)

    def _rtt(self, _seeds: list[int]) -> float:
        _moment()
        return float(ray.get(self._holders[0].trips.remote(self._holders[1])))


def _moment() -> float:
    at = time.monotonic() + _NOTICE
    say(at=at)
    return at


if __name__ == "__main__":
    lead(Rounds(sys.argv[2:]).run, {"ray": ray.__version__})
