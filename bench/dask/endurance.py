"""Many rounds of broadcast, reduce, share and forget: what is left afterwards must not grow with their number."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import hoplite_ucx.dask as hoplite_dask
from hoplite_ucx.bench.dask.program import HANG, Bench, make, pids_here, say, started, status_here, touch, verify

_SETTLING = 3.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _share(count: int, seed: int) -> hoplite_dask.SharedResult:
    return hoplite_dask.share(make(count, [seed]))


def _round(bench: Bench, number: int) -> None:
    client, count, workers = bench.client, bench.plan.count, bench.plan.workers
    shared = hoplite_dask.broadcast(client, make(count, [number]), prefetch=number % 2 == 0)
    assert all(bench.on_all(verify, shared, [number]))
    seeds = [number + each for each in range(workers)]
    futures = [bench.on(each, make, count, [seed]) for each, seed in enumerate(seeds)]
    some = number % 3 == 0 and workers > 1
    reduced = hoplite_dask.reduce(futures, count=workers - 1 if some else None)
    chosen = [seeds[place] for place in reduced.contributors()]
    assert client.submit(verify, reduced, chosen, pure=False).result(HANG)
    made = client.submit(_share, count, number, pure=False)
    client.submit(touch, hoplite_dask.value_of(made), pure=False).result(HANG)


def main() -> None:
    with started() as bench:
        rounds = bench.plan.more["rounds"]
        looks = {max(1, rounds // 10), rounds // 2, rounds}
        for number in range(1, rounds + 1):
            _round(bench, number)
            if number in looks:
                say(round=number, **_left(bench))


def _left(bench: Bench) -> dict[str, Any]:
    bench.forget()
    time.sleep(_SETTLING)  # deletes are sent together, and memory is given back a moment later
    client = bench.client
    workers = client.run(_process)
    hosts = client.run(_host)
    return {
        "objects": sum(host["objects"] for host in hosts.values()) + status_here()["objects"],
        "tasks": client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)),
        "shared": client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.plugins["hoplite"]._made)),
        "descriptors": {
            "workers": sum(each["descriptors"] for each in workers.values()),
            "agents": sum(each["agent"] for each in hosts.values()),
            "keepers": sum(each["keeper"] for each in hosts.values()),
            "client": len(os.listdir("/proc/self/fd")),
        },
        "threads": sum(each["threads"] for each in workers.values()),
        "memory": {
            "workers": sum(each["memory"] for each in workers.values()),
            "agents": sum(each["agent_memory"] for each in hosts.values()),
        },
    }


def _process() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "memory": _private_memory(os.getpid()),
    }


def _host() -> dict[str, int]:
    pids = pids_here()
    return {
        "objects": int(status_here()["objects"]),
        "agent": len(os.listdir(f"/proc/{pids['agent']}/fd")),
        "keeper": len(os.listdir(f"/proc/{pids['keeper']}/fd")),
        "agent_memory": _private_memory(pids["agent"]),
    }


def _private_memory(pid: int) -> int:
    """Without pages that are shared, as those of objects are."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE


if __name__ == "__main__":
    main()
