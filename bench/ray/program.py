"""What the drivers of `faults` and `endurance` share: a job with hoplite, an actor on every node, and its processes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.bench.harness.contents import Array, fill, matches
from hoplite_ucx.bench.harness.timing import PAYLOAD
from hoplite_ucx.bench.peers.ray import places_of
from hoplite_ucx.bench.ray.nodes import PORT
from hoplite_ucx.ray import owners

__all__ = ["HANG", "Bench", "Plan", "Worker", "make", "started"]

HANG = 120.0


@dataclass(frozen=True)
class Plan:
    addresses: list[str]
    rate: float
    memory: int
    size: int
    more: dict[str, Any]

    @property
    def count(self) -> int:
        """Of the elements of an object."""
        return self.size // 4

    @property
    def limit(self) -> float:
        """The time of one transfer."""
        return self.size / (PAYLOAD * self.rate)


def make(count: int, seeds: Sequence[int]) -> Array:
    array: Array = np.empty(count, np.float32)
    fill(array, seeds)
    return array


class Worker:
    """An actor."""

    def pid(self) -> int:
        return os.getpid()

    def make(self, count: int, seed: int, seconds: float = 0.0) -> Array:
        time.sleep(seconds)
        return make(count, [seed])

    def put(self, count: int, seed: int) -> list[Any]:
        return [ray.put(make(count, [seed]))]

    def verify(self, array: Array, seeds: Sequence[int]) -> bool:
        return matches(np.asarray(array), seeds)

    def cost(self) -> dict[str, int]:
        return cost_of(os.getpid())


class Bench:
    """A job with hoplite, and a worker on every node."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        ends = time.monotonic() + HANG
        while True:
            self.places = places_of(plan.addresses)
            actor = ray.remote(num_cpus=0, max_restarts=1)(Worker)
            self.workers = [actor.options(scheduling_strategy=place).remote() for place in self.places]
            try:
                pids = ray.get([worker.pid.remote() for worker in self.workers], timeout=HANG)
            except ray.exceptions.ActorUnschedulableError:  # for a moment, Ray also lists a node that was killed
                if time.monotonic() > ends:
                    raise
            else:
                self.worker_pids: list[int] = pids
                return

    def warm_up(self) -> None:
        """An agent on every node, and a worker that has joined it."""
        ref = ray.put(make(self.plan.count, [1]))
        assert all(ray.get([worker.verify.remote(ref, [1]) for worker in self.workers], timeout=HANG))

    @property
    def node_ids(self) -> list[str]:
        return [place.node_id for place in self.places]

    def pids(self) -> dict[str, Any]:
        """Of the directory and the head actor, and of the agent actor and the agent on each node, in order."""
        found = owners.owner().pids()
        head = ray.get(owners.owner().head.__ray_call__.remote(_pid), timeout=HANG)
        actors, agents = zip(*(found["nodes"][node] for node in self.node_ids), strict=True)
        return {"directory": found["directory"], "head": head, "agent_actors": actors, "agents": agents}

    def objects(self) -> int:
        """In all stores."""
        return sum(int(node["objects"]) for node in hoplite_ray.status()["nodes"].values())


def _pid(_actor: Any) -> int:
    return os.getpid()


def cost_of(pid: int) -> dict[str, int]:
    """What a process holds. Pages that it shares, as those of objects are, do not count."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "memory": (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE"),
    }


@contextlib.contextmanager
def started() -> Iterator[Bench]:
    told = json.loads(sys.argv[1])
    plan = Plan(told.pop("addresses"), told.pop("rate"), told.pop("memory"), told.pop("size"), told)
    head = plan.addresses[0]
    hoplite_ray.init(
        rate=PAYLOAD * plan.rate,
        memory=plan.memory,
        address=f"{head}:{PORT}",
        _node_ip_address=head,
        logging_level="warning",
        log_to_driver=False,
    )
    yield Bench(plan)
