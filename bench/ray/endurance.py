"""Many rounds of put, broadcast, reduce and release: what is left afterwards must not grow with their number.

At its end the driver waits to be killed: everything of its job must go with it.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import ray

import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.bench.harness.json_lines import say
from hoplite_ucx.bench.ray.program import HANG, Bench, cost_of, make, started

_SETTLING = 15.0
_ALIVE = "ALIVE"


def _round(bench: Bench, number: int) -> None:
    count, workers = bench.plan.count, bench.workers
    ref = ray.put(make(count, [number]))
    assert all(ray.get([worker.verify.remote(ref, [number]) for worker in workers], timeout=HANG))
    seeds = [number + each for each in range(len(workers))]
    made = [worker.make.remote(count, seed) for worker, seed in zip(workers, seeds, strict=True)]
    some = number % 3 == 0
    how = hoplite_ray.allreduce if number % 2 else hoplite_ray.reduce
    reduced = how(made, count=len(made) - some)
    chosen = [seed for seed, each in zip(seeds, made, strict=True) if each in reduced.contributors]
    assert ray.get(workers[0].verify.remote(reduced.ref, chosen), timeout=HANG)
    assert ray.get(workers[-1].verify.remote(make(count, [number]), [number]), timeout=HANG)


def _look(bench: Bench) -> dict[str, Any]:
    gc.collect()
    ends = time.monotonic() + _SETTLING
    while (objects := bench.objects()) and time.monotonic() < ends:
        time.sleep(0.5)  # deletes are sent together, a moment after Ray has dropped the last ref
    pids = bench.pids()
    costs = {
        "actors": ray.get([worker.cost.remote() for worker in bench.workers], timeout=HANG),
        "agents": [cost_of(pid) for pid in pids["agents"]],
        "agent actors": [cost_of(pid) for pid in pids["agent_actors"]],
        "directory and head": [cost_of(pids["directory"]), cost_of(pids["head"])],
        "driver": [cost_of(os.getpid())],
    }
    actors = ray._private.state.actors().values()
    return {
        "objects": objects,
        "actors": sum(actor["State"] == _ALIVE for actor in actors),
        "threads": sum(cost["threads"] for each in costs.values() for cost in each),
        **{
            what: {part: sum(cost[what] for cost in each) for part, each in costs.items()}
            for what in ("descriptors", "memory")
        },
    }


def main() -> None:
    with started() as bench:
        bench.warm_up()
        rounds = bench.plan.more["rounds"]
        looks = {max(1, rounds // 10), rounds // 2, rounds}
        for number in range(1, rounds + 1):
            _round(bench, number)
            if number in looks:
                say(round=number, **_look(bench))
        held = ray.put(make(bench.plan.count, [1]))
        assert ray.get(bench.workers[-1].verify.remote(held, [1]), timeout=HANG)
        say(ready=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
