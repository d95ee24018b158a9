"""Processes that die in the middle of a broadcast or a reduce: the right value, or what a Dask user expects.

Each case has a Dask cluster of its own, and reports how long after the fault its results were there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from distributed.client import FutureCancelledError

import hoplite_ucx.dask as hoplite_dask
from hoplite_ucx.bench.dask.cases import Case
from hoplite_ucx.bench.dask.program import HANG, Bench, make, pids_here, say, started, touch, verify
from hoplite_ucx.bench.harness.contents import Array

_PART = 0.4
"""Faults come when about so much of a transfer is done."""
_STRAGGLER = 60.0
_SEED = 7

Run = Callable[[Bench], tuple[float, bool]]
"""Returns how long it took after the fault, and whether every result was right."""


_HOST = ("worker", "keeper", "agent")


def _kill(pids: dict[str, int], *parts: str) -> None:
    """These processes of a worker's host. Their numbers are asked for beforehand: nothing stands between the middle of
    a transfer and the fault."""
    for part in parts:
        os.kill(pids[part], signal.SIGKILL)


def _wait_a_part(bench: Bench) -> float:
    time.sleep(_PART * bench.plan.limit)
    return time.monotonic()


# --- broadcast --------------------------------------------------------------------------------------------------


def _broadcast(bench: Bench, *parts: str) -> tuple[float, bool]:
    """Of a client's value, while every worker receives it; the first worker's host is hit."""
    pids = bench.pids_of(0)
    shared = hoplite_dask.broadcast(bench.client, make(bench.plan.count, [_SEED]))
    others = [bench.on(each, verify, shared, [_SEED]) for each in range(1, bench.plan.workers)]
    bench.on(0, verify, shared, [_SEED])
    free = [bench.client.submit(verify, shared, [_SEED], pure=False) for _ in range(2)]
    began = _wait_a_part(bench)
    _kill(pids, *parts)
    right = all(bench.client.gather([*others, *free]))
    return time.monotonic() - began, right


def _broadcast_source(bench: Bench) -> tuple[float, bool]:
    """Of a future's value; the host that has it dies, and it is computed again on another."""
    names = bench.plan.names
    source = bench.client.submit(make, bench.plan.count, [_SEED], workers=names[:2], pure=False)
    shared = hoplite_dask.broadcast(bench.client, source)
    shared.future.result(HANG)
    (address,) = bench.client.who_has([source])[source.key]
    pids = bench.pids_of(0 if bench.address_of(0) == address else 1)
    receivers = [bench.on(each, verify, shared, [_SEED]) for each in range(2, bench.plan.workers)]
    began = _wait_a_part(bench)
    _kill(pids, *_HOST)
    right = all(bench.client.gather(receivers))
    return time.monotonic() - began, right


def _broadcast_directory(bench: Bench) -> tuple[float, bool]:
    directory = bench.client.run_on_scheduler(_directory)
    shared = hoplite_dask.broadcast(bench.client, make(bench.plan.count, [_SEED]))
    futures = [bench.on(each, verify, shared, [_SEED]) for each in range(bench.plan.workers)]
    began = _wait_a_part(bench)
    os.kill(directory, signal.SIGKILL)
    right = all(bench.client.gather(futures))
    seconds = time.monotonic() - began
    return seconds, right and hoplite_dask.broadcast(bench.client, 3).result() == 3


def _directory(dask_scheduler: Any) -> int:
    pid: int = dask_scheduler.plugins["hoplite"]._directory.pid
    return pid


# --- reduce -----------------------------------------------------------------------------------------------------


def _sources(bench: Bench) -> tuple[list[Any], list[int]]:
    """Each can be computed again on the next worker, should its own be gone."""
    names, seeds = bench.plan.names, [_SEED + each for each in range(bench.plan.workers)]
    futures = []
    for each, seed in enumerate(seeds):
        either = [names[each], names[(each + 1) % len(names)]]
        futures.append(bench.client.submit(make, bench.plan.count, [seed], workers=either, pure=False))
    for future in futures:
        future.result(HANG)
    return futures, seeds


def _reduce(bench: Bench, *parts: str) -> tuple[float, bool]:
    futures, seeds = _sources(bench)
    pids = bench.pids_of(1)
    directory = bench.client.run_on_scheduler(_directory)
    reduced = hoplite_dask.reduce(futures)
    checked = bench.on(0, verify, reduced, seeds)
    reduced.future.result(HANG)
    began = _wait_a_part(bench)
    if parts:
        _kill(pids, *parts)
    else:
        os.kill(directory, signal.SIGKILL)
    right = bench.client.gather(checked)
    return time.monotonic() - began, right


def _count(bench: Bench) -> tuple[float, bool]:
    """All but a straggler."""
    workers, count = bench.plan.workers, bench.plan.count
    seeds = [_SEED + each for each in range(workers)]
    futures = [bench.on(each, make, count, [seed]) for each, seed in enumerate(seeds[:-1])]
    futures.append(bench.on(workers - 1, _late, count, seeds[-1]))
    began = time.monotonic()
    reduced = hoplite_dask.reduce(futures, count=workers - 1)
    right = bench.on(0, verify, reduced, seeds[:-1]).result(HANG)
    seconds = time.monotonic() - began
    return seconds, right and seconds < _STRAGGLER and sorted(reduced.contributors()) == list(range(workers - 1))


def _late(count: int, seed: int) -> Array:
    time.sleep(_STRAGGLER)
    return make(count, [seed])


# --- workers that come and go -----------------------------------------------------------------------------------


def _nanny(bench: Bench) -> tuple[float, bool]:
    """The agent lives on, and the restarted worker finds the object there."""
    shared = hoplite_dask.broadcast(bench.client, make(bench.plan.count, [_SEED]), prefetch=True)
    agents = {each["agent"] for each in bench.client.run(pids_here).values()}
    before, pids = bench.address_of(0), bench.pids_of(0)
    began = time.monotonic()
    _kill(pids, "worker")
    bench.await_another(0, before)  # a task that is pinned to the old one would wait for it for ever
    right = bench.on(0, verify, shared, [_SEED]).result(HANG)
    seconds = time.monotonic() - began
    return seconds, right and {each["agent"] for each in bench.client.run(pids_here).values()} == agents


def _restart(bench: Bench) -> tuple[float, bool]:
    shared = hoplite_dask.broadcast(bench.client, make(bench.plan.count, [_SEED]), prefetch=True)
    began = time.monotonic()
    bench.client.restart()
    try:
        bench.on(0, touch, shared).result(HANG)
    except FutureCancelledError:
        pass
    else:
        return time.monotonic() - began, False
    again = hoplite_dask.broadcast(bench.client, make(bench.plan.count, [_SEED + 1]))
    right = all(bench.on_all(verify, again, [_SEED + 1]))
    return time.monotonic() - began, right


def _retire(bench: Bench) -> tuple[float, bool]:
    """The only holder's worker is retired. Its host's agent serves on, and hands the object over before it ends."""
    handle = bench.on(0, _share, bench.plan.count)
    handle.result(HANG)
    address = bench.address_of(0)
    agent = bench.pids_of(0)["agent"]
    computed = bench.client.run_on_scheduler(_runs_of, key=handle.key)
    began = time.monotonic()
    bench.client.retire_workers([address])
    while os.path.exists(f"/proc/{agent}") and time.monotonic() - began < HANG:
        time.sleep(0.1)
    right = bench.client.submit(verify, hoplite_dask.value_of(handle), [_SEED], pure=False).result(HANG)
    return time.monotonic() - began, right and bench.client.run_on_scheduler(_runs_of, key=handle.key) == computed


def _share(count: int) -> hoplite_dask.SharedResult:
    return hoplite_dask.share(make(count, [_SEED]))


def _runs_of(dask_scheduler: Any, key: str) -> int:
    """How many objects its task has shared: one each time that it ran."""
    return len(dask_scheduler.plugins["hoplite"]._made[key])


CASES: dict[Case, Run] = {
    Case.BROADCAST_WORKER: lambda bench: _broadcast(bench, "worker"),
    Case.BROADCAST_AGENT: lambda bench: _broadcast(bench, "agent"),
    Case.BROADCAST_HOST: lambda bench: _broadcast(bench, *_HOST),
    Case.BROADCAST_SOURCE: _broadcast_source,
    Case.BROADCAST_DIRECTORY: _broadcast_directory,
    Case.REDUCE_WORKER: lambda bench: _reduce(bench, "worker"),
    Case.REDUCE_AGENT: lambda bench: _reduce(bench, "agent"),
    Case.REDUCE_SOURCE: lambda bench: _reduce(bench, *_HOST),
    Case.REDUCE_DIRECTORY: _reduce,
    Case.STRAGGLER: _count,
    Case.NANNY: _nanny,
    Case.RESTART: _restart,
    Case.RETIRE: _retire,
}


def main() -> None:
    with started() as bench:
        case = Case(bench.plan.more["case"])
        seconds, right = CASES[case](bench)
        say(case=case.value, seconds=seconds, right=right)


if __name__ == "__main__":
    main()
