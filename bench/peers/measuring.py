"""The figures of peers: each is started on the cluster's hosts, does its cells alone there, and is ended.

A peer that fails on the way is started again for the cells after the one it failed in; one that fails before its first
figure is given up. What there are no figures of is listed with the reason, and the others go on. Processor time is that
of everything that runs in the hosts while a round does.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.harness import machine_facts
from hoplite_ucx.bench.harness.timing import Measurement, Round, limit_seconds
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.hosts.places import processor_seconds
from hoplite_ucx.bench.peers.launching import PEERS, running, why_missing
from hoplite_ucx.bench.peers.rounds import Cell

__all__ = ["NotRun", "PeerFigures", "measure_peers"]

_START = 90.0
# How long a peer may be silent, and how many times the limit a round may take on top.
_PATIENCE = 40.0
_SLOWEST = 15.0


@dataclass(frozen=True)
class NotRun:
    what: str
    why: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of a cell: the operation, hosts, size and rate that there is no figure of."""

    def json_line(self) -> str:
        return json.dumps({"what": self.what, "not_run": self.why, **self.settings})


@dataclass
class PeerFigures:
    measured: list[Measurement] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)


def measure_peers(
    cluster: Cluster,
    plans: Mapping[str, Sequence[Cell]],
    *,
    rate: float,
    untimed: int = 1,
    until: float = math.inf,
    advance: Callable[[], object] = lambda: None,
    told: Callable[[Measurement | NotRun], object] = lambda _: None,
) -> PeerFigures:
    """The cells of each peer; `untimed` of the rounds of a cell come before those that count. No cell begins after the
    moment `until`."""
    figures = PeerFigures()
    for name, cells in plans.items():
        why = why_missing(name)
        if why is not None:
            figures.not_run.append(NotRun(PEERS[name].title, why))
            continue
        for each in _measure(cluster, name, cells, rate, untimed, until, advance):
            if isinstance(each, Measurement):
                figures.measured.append(each)
            else:
                figures.not_run.append(each)
            told(each)
    return figures


def _measure(
    cluster: Cluster,
    name: str,
    cells: Sequence[Cell],
    rate: float,
    untimed: int,
    until: float,
    advance: Callable[[], object],
) -> Iterator[Measurement | NotRun]:
    left = list(cells)
    while left and time.monotonic() < until:
        before = len(left)
        try:
            with running(name, cluster, left) as leader:
                for measured in _listen(leader, name, cluster, tuple(left), rate, untimed, advance):
                    del left[0]
                    yield measured
                    if time.monotonic() > until:
                        return
        except PeerError as failure:
            failed = left if len(left) == before else left[:1]
            for cell in failed:
                what = f"{PEERS[name].title} {cell.operation}"
                yield NotRun(what, _last_line(failure), _settings(cell, len(cluster.hosts), rate))
            left = left[len(failed) :]


def _settings(cell: Cell, hosts: int, rate: float) -> dict[str, Any]:
    return {"operation": cell.operation, "hosts": hosts, "size": cell.size, "rate": rate}


def _last_line(failure: PeerError) -> str:
    """Of a traceback, what it ends with."""
    first, *rest = str(failure).splitlines()
    return f"{first} … {rest[-1].strip()}" if rest else first


def _listen(
    leader: LineProcess,
    name: str,
    cluster: Cluster,
    cells: Sequence[Cell],
    rate: float,
    untimed: int,
    advance: Callable[[], object],
) -> Iterator[Measurement]:
    hosts = len(cluster.hosts)
    inodes = {os.stat(host.namespace).st_ino for host in cluster.hosts}
    versions = _told(leader, _START, "versions")["versions"]
    for cell in cells:
        limit = limit_seconds(cell.operation, hosts, cell.size, rate)
        patience = _PATIENCE + _SLOWEST * limit + hosts * cell.spacing
        rounds = []
        while "rounds" not in _told(leader, patience, "at", "rounds"):
            before = _processor(inodes)
            seconds = _told(leader, patience, "seconds")["seconds"]
            used = sum(total - before.get(pid, 0.0) for pid, total in _processor(inodes).items())
            rounds.append(Round(seconds, used))
            advance()
        timed = rounds[untimed:]
        settings = {
            **_settings(cell, hosts, rate),
            "untimed": untimed, "peer": name, "versions": versions, "machine": machine_facts.facts(),
        }  # fmt: skip
        if cell.spacing:
            settings["spacing"] = cell.spacing
        yield Measurement(
            f"{PEERS[name].title} {cell.operation}",
            tuple(each.seconds for each in timed),
            None if cell.spacing else limit,
            settings,
            statistics.median(each.processor for each in timed),
        )


def _told(leader: LineProcess, patience: float, *expected: str) -> dict[str, Any]:
    """The next thing it tells, one of these; launchers say other things in between."""
    deadline = time.monotonic() + patience
    while True:
        line = leader.line(deadline)
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            if not told.keys() & set(expected):
                raise PeerError(f"{leader.name} told {line} where {' or '.join(expected)} was expected")
            return told


def _processor(inodes: Collection[int]) -> dict[int, float]:
    """What each process in these network namespaces has taken so far."""
    used = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                    used[int(entry)] = processor_seconds(int(entry))
            except OSError:
                pass  # it has just ended
    return used
