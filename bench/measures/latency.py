"""Small objects: how long a put, a get and a broadcast take compared with a bare round trip, and how many run per
second.

Every figure is a median over many calls of one round, and the rounds of all of them take turns with the bare echo, so
that other load on the machine affects all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from hoplite_ucx.bench.bare.driver import BarePeers
from hoplite_ucx.bench.harness.live_cluster import NOTICE, LiveCluster
from hoplite_ucx.bench.harness.timing import Measurement, Round, measure_in_turn
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster

__all__ = ["Latencies", "measure_latencies"]

_CALLS = 200
_BROADCASTS = 25
_BETWEEN_BROADCASTS = 0.03
_GETS_EACH = 400


@dataclass(frozen=True)
class Latencies:
    echo: Measurement
    put: Measurement
    get: Measurement
    put_get: Measurement
    broadcast: Measurement
    gets_per_second: float
    """Of all clients together, each of which gets one object after the other."""

    @property
    def measurements(self) -> list[Measurement]:
        return [self.echo, self.put, self.get, self.put_get, self.broadcast]


def measure_latencies(
    *, hosts: int, size: int, rate: float, repeat: int, advance: Callable[[], object] = lambda: None
) -> Latencies:
    if hosts < 2:
        raise PeerError("a round trip is between two or more hosts")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(hosts, rate))
        live = stack.enter_context(LiveCluster(cluster.hosts, rate))
        echo = stack.enter_context(BarePeers(cluster.hosts[:2], "echo", size)).run
        puts: list[float] = []
        rates: list[float] = []

        def put_and_get() -> Round:
            put, get = _put_and_get(live, size)
            puts.append(put)
            return Round(put + get, 0.0)

        def many_gets() -> Round:
            seconds = _many_gets(live, size)
            rates.append(hosts * _GETS_EACH / seconds)
            return Round(seconds, 0.0)

        runs = {
            "bare echo": echo,
            "put + get between two hosts": put_and_get,
            f"broadcast to {hosts}": lambda: _broadcast(live, size),
            "gets": many_gets,
        }
        settings = {"hosts": hosts, "size": size, "rate": rate, "yardstick": "bare echo"}
        measured = measure_in_turn(runs, repeat=repeat, settings=settings, advance=advance)
    bare, put_get, broadcast, _ = measured

    def beside_echo(what: str, runs: tuple[float, ...]) -> Measurement:
        return Measurement(what, runs, bare.seconds, settings)

    put_runs = tuple(puts[1:])  # the first round is not timed
    get_runs = tuple(both - put for both, put in zip(put_get.runs, put_runs, strict=True))
    return Latencies(
        beside_echo(bare.what, bare.runs),
        beside_echo("put", put_runs),
        beside_echo("get on another host", get_runs),
        beside_echo(put_get.what, put_get.runs),
        beside_echo(broadcast.what, broadcast.runs),
        statistics.median(rates[1:]),
    )


def _put_and_get(live: LiveCluster, size: int) -> tuple[float, float]:
    refs, puts = live.ask(0, "put_each", count=_CALLS, size=size)
    gets = live.ask(1, "get_each", refs=refs, size=size)
    live.ask(0, "delete", refs=refs)
    return statistics.median(puts), statistics.median(gets)


def _broadcast(live: LiveCluster, size: int) -> Round:
    """All hosts, the one that put it too, get it at the same moment; until the last has it."""
    refs, _ = live.ask(0, "put_each", count=_BROADCASTS, size=size)
    first = time.monotonic() + NOTICE
    moments = [first + number * _BETWEEN_BROADCASTS for number in range(_BROADCASTS)]
    step = {"do": "get_each", "refs": refs, "size": size, "moments": moments}
    told = live.together(dict.fromkeys(live.ranks, step))
    live.ask(0, "delete", refs=refs)
    return Round(statistics.median(max(took) for took in zip(*told.values(), strict=True)), 0.0)


def _many_gets(live: LiveCluster, size: int) -> float:
    """Every worker gets objects of its own, which another host has put."""
    step = {"do": "put_each", "count": _GETS_EACH, "size": size}
    put = [refs for refs, _ in live.together(dict.fromkeys(live.ranks, step)).values()]
    moments = [time.monotonic() + NOTICE, *[0.0] * (_GETS_EACH - 1)]
    told = live.together(
        {rank: {"do": "get_each", "refs": put[rank - 1], "size": size, "moments": moments} for rank in live.ranks}
    )
    live.ask(0, "delete", refs=[ref for refs in put for ref in refs])
    return max(float(sum(took)) for took in told.values())
