"""What the programs share: a client with hoplite installed, tasks that make, touch and check objects, and reports."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client

import hoplite_ucx.dask as hoplite_dask
from hoplite_ucx.bench.dask.hosts import END
from hoplite_ucx.bench.harness.contents import Array, fill, matches
from hoplite_ucx.bench.harness.json_lines import say
from hoplite_ucx.bench.harness.timing import PAYLOAD
from hoplite_ucx.dask import leases

__all__ = ["HANG", "Bench", "Plan", "add", "make", "pids_here", "say", "started", "status_here", "touch", "verify"]

HANG = 120.0


@dataclass(frozen=True)
class Plan:
    address: str
    workers: int
    rate: float
    size: int
    more: dict[str, Any]

    @property
    def count(self) -> int:
        """Of the elements of an object."""
        return self.size // 4

    @property
    def names(self) -> list[str]:
        return [f"w{number}" for number in range(1, self.workers + 1)]

    @property
    def limit(self) -> float:
        """The time of one transfer."""
        return self.size / (PAYLOAD * self.rate)


class Bench:
    """A client, with shorthands."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self.client = client
        self.plan = plan

    def on(self, worker: int, function: Any, *arguments: Any, **options: Any) -> Any:
        """Submit a task that runs on this worker only."""
        name = self.plan.names[worker]
        return self.client.submit(function, *arguments, workers=[name], pure=False, **options)

    def on_all(self, function: Any, *arguments: Any) -> list[Any]:
        futures = [self.on(worker, function, *arguments) for worker in range(self.plan.workers)]
        result: list[Any] = self.client.gather(futures)
        return result

    def made(self, seeds: Sequence[int]) -> list[Any]:
        """One object on each of the first workers, ready."""
        futures = [self.on(worker, make, self.plan.count, [seed]) for worker, seed in enumerate(seeds)]
        for future in futures:
            future.result(HANG)
        return [future for future in futures if future.status == "finished"]

    def address_of(self, worker: int) -> str:
        addresses: dict[str, str] = self.client.run_on_scheduler(_addresses)
        return addresses[self.plan.names[worker]]

    def await_another(self, worker: int, address: str) -> None:
        """Until a worker of this name is there, and not the one at that address."""
        ends = time.monotonic() + HANG
        while self.client.run_on_scheduler(_addresses).get(self.plan.names[worker], address) == address:
            if time.monotonic() > ends:
                raise TimeoutError(f"{self.plan.names[worker]} did not come back")
            time.sleep(0.05)

    def pids_of(self, worker: int) -> dict[str, int]:
        """See `pids_here`."""
        address = self.address_of(worker)
        pids: dict[str, int] = self.client.run(pids_here, workers=[address])[address]
        return pids

    def forget(self) -> None:
        """Wait until Dask has forgotten everything that was dropped."""
        ends = time.monotonic() + HANG
        while True:
            gc.collect()
            if not self.client.run_on_scheduler(_tasks) or time.monotonic() > ends:
                return
            time.sleep(0.02)


@contextlib.contextmanager
def started() -> Iterator[Bench]:
    told = json.loads(sys.argv[1])
    plan = Plan(told.pop("address"), told.pop("workers"), told.pop("rate"), told.pop("size", 1 << 20), told)
    with Client(plan.address, timeout=HANG) as client:
        client.wait_for_workers(plan.workers, timeout=HANG)
        hoplite_dask.install(client, rate=PAYLOAD * plan.rate)
        yield Bench(client, plan)
    print(END, flush=True)  # noqa: T201


# --- tasks ------------------------------------------------------------------------------------------------------


def make(count: int, seeds: Sequence[int]) -> Array:
    array: Array = np.empty(count, np.float32)
    fill(array, seeds)
    return array


def touch(array: Array) -> float:
    return float(array[0]) + float(array[-1])


def verify(array: Array, seeds: Sequence[int]) -> bool:
    return matches(np.asarray(array), seeds)


def add(one: Array, other: Array) -> Array:
    return one + other


def pids_here() -> dict[str, int]:
    """The worker's process, its host's keeper and agent."""
    (lease,) = [lease for lease in leases._leases.values() if lease.joined() is not None]
    found = leases._ask_keeper(lease.terms, HANG)
    assert found is not None
    held, report = found
    held.close()
    return {"worker": os.getpid(), "keeper": report["keeper_pid"], "agent": report["agent_pid"]}


def status_here() -> dict[str, Any]:
    (lease,) = [lease for lease in leases._leases.values() if lease.joined() is not None]
    status: dict[str, Any] = lease.cluster._of.client.status()
    return status


def _addresses(dask_scheduler: Any) -> dict[str, str]:
    return {worker.name: address for address, worker in dask_scheduler.workers.items()}


def _tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)
