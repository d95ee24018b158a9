"""What it costs a broadcast that somebody looks at the live view: rounds with viewers and without, in turns.

The view's process and its viewers run on host 0, beside the directory. Viewers are plain HTTP clients, so that no
browser is measured. After the viewers have left, a round waits until the directory has noticed.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.hosts.places import Place
from hoplite_ucx.bench.measures.operations import LiveRounds, check_cell
from hoplite_ucx.runtime.launch.view_port import PROGRAM, key_for

__all__ = ["QUIET", "Interval", "Viewing", "ask_viewers", "measure_viewing", "median_interval", "open_viewers"]

_PATIENCE = 60.0
QUIET = 6.0
"""Seconds after which nobody looks: the view asks on for 2 s, and the directory notes what happens for 3 more."""


@dataclass(frozen=True)
class Interval:
    """A median, and where it lies with 95 % confidence, by the order of the values alone."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Viewing:
    viewers: int
    hosts: int
    size: int
    watched: tuple[float, ...]
    alone: tuple[float, ...]
    directory_watched: tuple[float, ...]
    """Processor seconds of the directory in each round."""
    directory_alone: tuple[float, ...]
    lines: int
    """That the viewers read."""

    @property
    def ratio(self) -> Interval:
        return median_interval([a / b for a, b in zip(self.watched, self.alone, strict=True)])

    def json_line(self) -> str:
        ratio = self.ratio
        return json.dumps(
            {
                "what": "broadcast with viewers",
                "viewers": self.viewers,
                "hosts": self.hosts,
                "size": self.size,
                "rounds": len(self.watched),
                "ratio": ratio.median,
                "ratio_interval": [ratio.low, ratio.high],
                "seconds": list(self.watched),
                "seconds_alone": list(self.alone),
                "directory_processor": statistics.median(self.directory_watched),
                "directory_processor_alone": statistics.median(self.directory_alone),
                "lines": self.lines,
            }
        )


def median_interval(values: Sequence[float]) -> Interval:
    """The widest pair of values, counted from both ends, that has the median between it in 95 % of all samples."""
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += math.comb(count, rank) / 2**count
        if 2 * outside > 0.05:
            break
        rank += 1
    below = max(rank - 1, 0)
    return Interval(statistics.median(ordered), ordered[below], ordered[count - 1 - below])


def measure_viewing(
    *, hosts: int, size: int, rate: float, rounds: int, viewers: int, advance: Callable[[], object] = lambda: None
) -> Viewing:
    check_cell("broadcast", hosts, size)
    watched: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    lines = 0
    with Cluster(hosts, rate) as cluster, LiveCluster(cluster.hosts, rate) as live, ExitStack() as stack:
        clients = open_viewers(stack, cluster.hosts[0], live, viewers)
        operation = LiveRounds(live, size)
        operation.broadcast()
        for number in range(rounds):
            for looks in (True, False) if number % 2 else (False, True):
                if looks:
                    if ask_viewers(clients, "look") != "looking":
                        raise PeerError("the view did not answer its viewers")
                    time.sleep(1.0)  # until agents are asked, too
                before = live.directory_processor()
                seconds = operation.broadcast().seconds
                (watched if looks else alone).append((seconds, live.directory_processor() - before))
                if looks:
                    lines += int(ask_viewers(clients, "leave"))
                    time.sleep(QUIET)
                advance()
    return Viewing(
        viewers,
        hosts,
        size,
        tuple(seconds for seconds, _ in watched),
        tuple(seconds for seconds, _ in alone),
        tuple(used for _, used in watched),
        tuple(used for _, used in alone),
        lines,
    )


def open_viewers(stack: ExitStack, host: Place, live: LiveCluster, viewers: int) -> LineProcess:
    view = LineProcess(host, [*host.module(PROGRAM), "view", "any", "free"], "the live view")
    stack.callback(view.close)
    task = {"directory": live.address, "token": live.token.hex(), "host": host.address, "port": 0}
    view.tell(json.dumps({**task, "stop": 3.0}))
    report = json.loads(view.line(time.monotonic() + _PATIENCE))
    if "error" in report:
        raise PeerError(f"the live view cannot be measured: {report['error']}; {report['remedy']}")
    key = key_for(live.token, report["cluster"])
    command = [*host.module("hoplite_ucx.bench.measures.view_clients"), report["address"], key, str(viewers)]
    clients = LineProcess(host, command, "viewers")
    stack.callback(clients.close)
    return clients


def ask_viewers(clients: LineProcess, command: str) -> str:
    clients.tell(command)
    return clients.line(time.monotonic() + _PATIENCE)
