"""What an event costs the directory: the processor time of its process, divided by the events that it handled.

Broadcasts one after the other, put, checked and deleted, on a live cluster; every event counts, heartbeats too. What a
busy directory can do at most follows from it, and it is what the simulator charges (`--directory-cost`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from hoplite_ucx.bench.hosts.line_process import LineProcess
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.measures.operations import LiveRounds, check_cell
from hoplite_ucx.bench.measures.timed_directory import EVENTS, PROCESS_SECONDS, TimedCluster

__all__ = ["DirectoryCost", "measure_directory_cost"]

_PATIENCE = 60.0


@dataclass(frozen=True)
class DirectoryCost:
    hosts: int
    size: int
    rounds: int
    events: int
    seconds: float
    """Of the whole process: reading, decoding, deciding, sending."""

    @property
    def per_event(self) -> float:
        return self.seconds / self.events

    def json_line(self) -> str:
        what = {"what": "directory's processor time"}
        return json.dumps({**what, **asdict(self), "seconds_per_event": self.per_event})


def measure_directory_cost(
    *, hosts: int, size: int, rate: float, rounds: int, advance: Callable[[], object] = lambda: None
) -> DirectoryCost:
    check_cell("broadcast", hosts, size)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(hosts, rate))
        live = stack.enter_context(TimedCluster(cluster.hosts, rate))
        command = [*cluster.hosts[0].module("hoplite_ucx.bench.measures.observer")]
        asker = LineProcess(cluster.hosts[0], command, "the observer")
        stack.callback(asker.close)
        asker.tell("{}")
        asker.line(time.monotonic() + _PATIENCE)

        def spent() -> tuple[int, float]:
            asker.tell(f"ask {live.address} {live.token.decode()}")
            told = json.loads(asker.line(time.monotonic() + _PATIENCE))
            return told[EVENTS], told[PROCESS_SECONDS]

        operation = LiveRounds(live, size)
        operation.broadcast()  # what is loaded or connected at first use does not count
        events, seconds = spent()
        for _ in range(rounds):
            operation.broadcast()
            advance()
        events_after, seconds_after = spent()
    return DirectoryCost(hosts, size, rounds, events_after - events, seconds_after - seconds)
