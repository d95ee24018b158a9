"""The load that a host must carry: many workers on one object, a busy neighbour, an object of many gigabytes, very many
objects.

Each function makes its own emulated hosts, checks every value, and returns the figures.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass

from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.harness.machine_facts import memory_available
from hoplite_ucx.bench.harness.timing import Measurement, Round, limit_seconds, measure, measure_in_turn
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.measures.operations import LiveRounds
from hoplite_ucx.runtime.launch import processes

__all__ = ["Growth", "OneHost", "measure_burner", "measure_large", "measure_many", "measure_one_host"]

Advance = Callable[[], object]


def _nothing() -> None:
    pass


# --- many workers on one host -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneHost:
    measured: Measurement
    together: float
    """How far the first and the last of the gets of a round returned apart, at most, in seconds."""
    crossings: float
    """How often the object crossed the network in a round, at most."""


def measure_one_host(*, workers: int, size: int, rate: float, repeat: int, advance: Advance = _nothing) -> OneHost:
    """All workers of one host get an object that is on another. Nobody touches its pages while the clock runs."""
    apart: list[float] = []
    crossings: list[float] = []
    with (
        Cluster(2, rate) as cluster,
        LiveCluster(cluster.hosts, rate, memory=4 * size, workers=[0, *[1] * workers]) as live,
    ):

        def run() -> Round:
            ref = live.new_ref()
            getters = live.ranks[1:]
            live.ask(0, "put", ref=ref, size=size, seed=1)
            before = live.ask(1, "traffic")
            steps = {rank: {"do": "get", "refs": [ref]} for rank in getters}
            timed, told = live.timed(steps)
            crossings.append((live.ask(1, "traffic") - before) / size)
            ends = [told[rank]["done"] for rank in getters]
            apart.append(max(ends) - min(ends))
            for rank in getters:
                live.ask(rank, "check", seeds=[[1]], size=size)
            live.ask(0, "delete", refs=[ref])
            return timed

        limit = limit_seconds("broadcast", 2, size, rate)
        settings = {"workers": workers, "size": size, "rate": rate}
        measured = measure("get", run, repeat=repeat, limit=limit, settings=settings, advance=advance)
    return OneHost(measured, max(apart[1:]), max(crossings[1:]))


# --- a busy neighbour -------------------------------------------------------------------------------------------


def measure_burner(
    *, hosts: int, size: int, rate: float, repeat: int, advance: Advance = _nothing
) -> list[Measurement]:
    """A broadcast while a worker that also gets it burns Python, on each receiving host in turn; and beside it, while
    a process that has no part in the cluster does."""
    with Cluster(hosts + 1, rate) as cluster, LiveCluster(cluster.hosts[:hosts], rate) as live:
        rounds = LiveRounds(live, size)
        receivers = itertools.cycle(range(1, hosts))

        def inside() -> Round:
            burning = next(receivers)
            live.ask(burning, "burn", go=True)
            timed = rounds.broadcast()
            live.ask(burning, "burn", go=False)
            return timed

        def outside() -> Round:
            burner = cluster.hosts[hosts].popen(processes.module("hoplite_ucx.bench.harness.worker"))
            try:
                return rounds.broadcast()
            finally:
                burner.kill()
                burner.wait()

        limit = limit_seconds("broadcast", hosts, size, rate)
        settings = {"hosts": hosts, "size": size, "rate": rate}
        runs = {"burner in a worker": inside, "burner outside": outside}
        return measure_in_turn(runs, repeat=repeat, limit=limit, settings=settings, advance=advance)


# --- many gigabytes ---------------------------------------------------------------------------------------------


def measure_large(*, size: int, rate: float, advance: Advance = _nothing) -> list[Measurement]:
    """An object made in place travels from one host to another; then two are reduced. Three of them are in memory at
    most: the store of host 1 has no room for another, so that it recycles none."""
    needed = 3 * size + (2 << 30)
    if (there := memory_available()) < needed:
        raise PeerError(f"this takes {needed >> 20} MiB of memory, and {there >> 20} MiB are available")
    settings = {"hosts": 2, "size": size, "rate": rate}
    limit = limit_seconds("broadcast", 2, size, rate)
    measured = []
    with Cluster(2, rate) as cluster, LiveCluster(cluster.hosts, rate, memory=(2 * size, size)) as live:
        refs = [live.new_ref() for _ in range(4)]
        live.ask(0, "create", ref=refs[0], size=size, seed=1)
        advance()
        timed = live.at_once({1: {"do": "get", "refs": refs[:1]}})
        measured.append(Measurement("broadcast", (timed.seconds,), limit, settings, timed.processor))
        live.ask(1, "check", seeds=[[1]], size=size)
        live.ask(0, "delete", refs=refs[:1])
        advance()
        for rank in live.ranks:
            live.ask(rank, "create", ref=refs[1 + rank], size=size, seed=2 + rank)
        advance()
        timed = live.at_once({0: {"do": "get", "refs": refs[3:], "sources": refs[1:3]}})
        measured.append(Measurement("reduce", (timed.seconds,), limit, settings, timed.processor))
        live.ask(0, "check", seeds=[[2, 3]], size=size)
        live.ask(0, "delete", refs=refs[1:])
        advance()
    return measured


# --- very many objects ------------------------------------------------------------------------------------------

_BATCH = 500


@dataclass(frozen=True)
class Growth:
    """Memory and descriptors of one process, after every tenth of the objects."""

    process: str
    resident: tuple[int, ...]
    descriptors: tuple[int, ...]


def measure_many(*, objects: int, size: int, advance: Advance = _nothing) -> tuple[list[Growth], float]:
    """Objects put on one host, got on another and deleted, in batches; how processes grew, and objects per second."""
    tenth = max(1, -(-objects // (10 * _BATCH)))
    batches = 10 * tenth
    uses: dict[str, list[tuple[int, int]]] = {}
    seconds = 0.0
    with Cluster(2, None) as cluster, LiveCluster(cluster.hosts, None) as live:
        for number in range(batches):
            refs, took = live.ask(0, "put_each", count=_BATCH, size=size)
            seconds += sum(took)
            seconds += sum(live.ask(1, "get_each", refs=refs, size=size))
            live.ask(number % 2, "delete", refs=refs)
            if (number + 1) % tenth == 0:
                for name, pid in live.pids.items():
                    uses.setdefault(name, []).append(_use_of(pid))
            advance()
    growth = [Growth(name, *zip(*use, strict=True)) for name, use in uses.items()]
    return growth, batches * _BATCH / seconds


def _use_of(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10, len(os.listdir(f"/proc/{pid}/fd"))
