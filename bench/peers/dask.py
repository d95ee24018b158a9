"""Dask: objects are futures on the workers, one worker a host; the work is done in tasks.

A broadcast is a task on every worker that needs the object; a reduce is a tree of pairwise sums. Arguments: the cells,
and the addresses of all hosts; the scheduler and this client run on the first.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import distributed
import numpy as np
from distributed import Client, wait

from hoplite_ucx.bench.harness.contents import Array, fill
from hoplite_ucx.bench.harness.json_lines import say
from hoplite_ucx.bench.peers.rounds import SPACING, calls_of, check, lead, seeds_of, sleep_until

_PATIENCE = 90.0


# --- tasks ------------------------------------------------------------------------------------------------------


def make(size: int, seed: int) -> Array:
    array = np.empty(size // 4, np.float32)
    fill(array, [seed])
    return array


def hand_over(array: Array, moment: float) -> Array:
    sleep_until(moment)
    return array.copy()  # else it would be the object that is there already


def add(one: Array, other: Array) -> Array:
    return one + other


def moment_of(*_arrays: Array) -> float:
    return time.monotonic()


def same(array: Array) -> Array:
    return array.copy()


def verify(arrays: list[Array], seeds: list[list[int]]) -> None:
    for array, summed in zip(arrays, seeds, strict=True):
        check(array, summed)


# --- rounds -----------------------------------------------------------------------------------------------------


class Rounds:
    def __init__(self, addresses: list[str]) -> None:
        self._client = Client(f"tcp://{addresses[0]}:8786", timeout=_PATIENCE)
        self._client.wait_for_workers(len(addresses), timeout=_PATIENCE)
        self._workers = [f"host-{rank}" for rank in range(len(addresses))]
        self._calls = 0

    def run(self, operation: str, size: int, number: int) -> float:
        seeds = seeds_of(number, len(self._workers))
        self._calls = calls_of(size)
        objects = [self._on(rank, make, size, seed) for rank, seed in enumerate(seeds)]
        wait(objects)
        time.sleep(0.05)
        seconds: float = getattr(self, f"_{operation}")(objects, seeds)
        return seconds

    def _on(self, rank: int, task: Any, *arguments: Any) -> Any:
        return self._client.submit(task, *arguments, workers=[self._workers[rank]], pure=False)

    def _broadcast(self, objects: list[Any], seeds: list[int]) -> float:
        others = range(1, len(objects))
        at = _begin()
        ends = self._client.gather([self._on(rank, moment_of, objects[0]) for rank in others])
        self._verify(others, objects[:1], [seeds[:1]])
        return float(max(ends)) - at

    def _gather(self, objects: list[Any], seeds: list[int]) -> float:
        at = _begin()
        end: float = self._on(0, moment_of, *objects[1:]).result()
        self._verify([0], objects[1:], [[seed] for seed in seeds[1:]])
        return end - at

    def _reduce(self, objects: list[Any], seeds: list[int]) -> float:
        at = _begin()
        total = self._tree(objects)
        end: float = self._on(0, moment_of, total).result()
        self._verify([0], [total], [seeds])
        return end - at

    def _allreduce(self, objects: list[Any], seeds: list[int]) -> float:
        at = _begin()
        total = self._tree(objects)
        ends = self._client.gather([self._on(rank, moment_of, total) for rank in range(len(objects))])
        self._verify(range(len(objects)), [total], [seeds])
        return float(max(ends)) - at

    def _arrivals(self, objects: list[Any], seeds: list[int]) -> float:
        at = _begin() + 0.1
        late = [self._on(rank, hand_over, each, at + SPACING * rank) for rank, each in enumerate(objects)]
        total = self._tree(late)
        end: float = self._on(0, moment_of, total).result()
        self._verify([0], [total], [seeds])
        return end - at - SPACING * (len(objects) - 1)

    def _rtt(self, objects: list[Any], _seeds: list[int]) -> float:
        took = []
        _begin()
        for _ in range(self._calls):
            fresh = self._on(0, same, objects[0])  # what went to a worker once stays there, and would not go again
            wait(fresh)
            began = time.monotonic()
            end = self._on(0, moment_of, self._on(1, same, fresh)).result()
            took.append(end - began)
        return float(np.median(took))

    def _tree(self, objects: list[Any]) -> Any:
        level = list(enumerate(objects))
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            added = [(rank, self._on(rank, add, one, other)) for (rank, one), (_, other) in pairs]
            level = added + level[len(level) & ~1 :]
        return level[0][1]

    def _verify(self, ranks: Any, objects: list[Any], seeds: list[list[int]]) -> None:
        self._client.gather([self._on(rank, verify, objects, seeds) for rank in ranks])


def _begin() -> float:
    at = time.monotonic()
    say(at=at)
    return at


if __name__ == "__main__":
    lead(Rounds(sys.argv[2:]).run, {"distributed": distributed.__version__})
