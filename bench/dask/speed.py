"""Broadcast, reduce and allreduce, as plain Dask programs do them and with hoplite, in turns in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np

import hoplite_ucx.dask as hoplite_dask
from hoplite_ucx.bench.dask.program import HANG, Bench, add, make, say, started, touch, verify

__all__ = ["OURS"]

OURS = "hoplite"

Way = Callable[[Bench, Any], tuple[Any, list[int]]]
"""Takes the sources, and returns what stands for the result and the workers that have touched it."""


# --- from one to all --------------------------------------------------------------------------------------------


def _scatter(bench: Bench, value: Any) -> tuple[Any, list[int]]:
    future = bench.client.scatter(value, broadcast=True, hash=False)
    return future, _touch_everywhere(bench, future)


def _scatter_direct(bench: Bench, value: Any) -> tuple[Any, list[int]]:
    future = bench.client.scatter(value, broadcast=True, hash=False, direct=True)
    return future, _touch_everywhere(bench, future)


def _broadcast(bench: Bench, value: Any) -> tuple[Any, list[int]]:
    shared = hoplite_dask.broadcast(bench.client, value)
    return shared, _touch_everywhere(bench, shared)


def _touch_everywhere(bench: Bench, handle: Any) -> list[int]:
    bench.on_all(touch, handle)
    return list(range(bench.plan.workers))


# --- from all to one --------------------------------------------------------------------------------------------


def _tree_of_adds(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    return _touch_once(bench, _tree(bench, futures))


def _delayed_tree(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    level, added = list(futures), dask.delayed(add, pure=False)
    while len(level) > 1:
        level = [added(*pair) for pair in zip(level[::2], level[1::2], strict=False)] + level[len(level) & ~1 :]
    return _touch_once(bench, bench.client.compute(level[0]))


def _one_task(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    return _touch_once(bench, bench.client.submit(_add_all, futures, pure=False))


def _add_all(arrays: list[Any]) -> Any:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def _array_sum(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    count = bench.plan.count
    rows = [da.from_delayed(dask.delayed(future), (count,), np.float32) for future in futures]
    return _touch_once(bench, bench.client.compute(da.stack(rows).sum(axis=0, dtype=np.float32, split_every=2)))


def _reduce(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    return _touch_once(bench, hoplite_dask.reduce(futures))


def _touch_once(bench: Bench, handle: Any) -> tuple[Any, list[int]]:
    bench.client.submit(touch, handle, pure=False).result(HANG)
    return handle, []


# --- from all to all --------------------------------------------------------------------------------------------


def _tree_to_all(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    total = _tree(bench, futures)
    return total, _touch_everywhere(bench, total)


def _allreduce(bench: Bench, futures: Any) -> tuple[Any, list[int]]:
    shared = hoplite_dask.allreduce(futures)
    return shared, _touch_everywhere(bench, shared)


def _tree(bench: Bench, futures: Any) -> Any:
    level = list(futures)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [bench.client.submit(add, *pair, pure=False) for pair in pairs] + level[len(level) & ~1 :]
    return level[0]


WAYS: dict[str, dict[str, Way]] = {
    "broadcast": {"scatter(broadcast)": _scatter, "scatter(broadcast, direct)": _scatter_direct, OURS: _broadcast},
    "reduce": {
        "tree of adds": _tree_of_adds,
        "delayed tree": _delayed_tree,
        "one task": _one_task,
        "da.sum": _array_sum,
        OURS: _reduce,
    },
    "allreduce": {"tree of adds to all": _tree_to_all, OURS: _allreduce},
}


def main() -> None:
    with started() as bench:
        for number in range(bench.plan.more["repeat"] + 1):
            for operation in bench.plan.more["operations"]:
                for name, way in WAYS[operation].items():
                    seconds = _timed(bench, operation, way, number)
                    if number:  # the first round is not timed
                        say(operation=operation, way=name, seconds=seconds)


def _timed(bench: Bench, operation: str, way: Way, number: int) -> float:
    count, workers = bench.plan.count, bench.plan.workers
    seeds = [100 * number] if operation == "broadcast" else [100 * number + each for each in range(workers)]
    sources = make(count, seeds) if operation == "broadcast" else bench.made(seeds)
    began = time.monotonic()
    handle, touched = way(bench, sources)
    seconds = time.monotonic() - began
    checks = [bench.on(worker, verify, handle, seeds) for worker in touched] or [
        bench.client.submit(verify, handle, seeds, pure=False)
    ]
    if not all(bench.client.gather(checks)):
        raise AssertionError(f"{operation} gave wrong bytes")
    del handle, sources, checks
    bench.forget()
    return seconds


if __name__ == "__main__":
    main()
