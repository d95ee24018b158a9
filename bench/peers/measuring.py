"""The figures of peers: each is started on the cluster's hosts, does all its cells alone there, and is ended.

A peer that cannot be started, or fails on the way, is listed with the reason as not run, and the others go on. What it
has told until then is kept. Processor time is that of everything that runs in the hosts while a round does.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench import machine
from hoplite_ucx.bench.cluster import Cluster
from hoplite_ucx.bench.lines import LineProcess, PeerError
from hoplite_ucx.bench.live import processor_seconds
from hoplite_ucx.bench.peers.launching import PEERS, running, why_missing
from hoplite_ucx.bench.peers.rounds import Cell
from hoplite_ucx.bench.timing import Measurement, Round, limit_seconds

__all__ = ["NotRun", "PeerFigures", "measure_peers"]

_START = 90.0
_PATIENCE = 60.0


@dataclass(frozen=True)
class NotRun:
    what: str
    why: str

    def json_line(self) -> str:
        return json.dumps({"what": self.what, "not_run": self.why})


@dataclass
class PeerFigures:
    measured: list[Measurement] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)


def measure_peers(
    cluster: Cluster,
    cells: Sequence[Cell],
    *,
    rate: float,
    names: Collection[str] = tuple(PEERS),
    untimed: int = 1,
    advance: Callable[[], object] = lambda: None,
    told: Callable[[Measurement], object] = lambda _: None,
) -> PeerFigures:
    """All cells with each peer; `untimed` of the rounds of a cell come before those that count."""
    figures = PeerFigures()
    for name in names:
        title = PEERS[name].title
        why = why_missing(name)
        if why is not None:
            figures.not_run.append(NotRun(title, why))
            continue
        try:
            with running(name, cluster, cells) as leader:
                for measured in _listen(leader, name, cluster, cells, rate, untimed, advance):
                    figures.measured.append(measured)
                    told(measured)
        except PeerError as failure:
            figures.not_run.append(NotRun(title, _last_line(failure)))
    return figures


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
    versions = _told(leader, "versions", _START)
    for cell in cells:
        limit = limit_seconds(cell.operation, hosts, cell.size, rate)
        patience = _PATIENCE + 40 * limit + hosts * cell.spacing
        rounds = []
        for _ in range(cell.rounds):
            _told(leader, "at", patience)
            before = _processor(inodes)
            seconds = _told(leader, "seconds", patience)
            used = sum(total - before.get(pid, 0.0) for pid, total in _processor(inodes).items())
            rounds.append(Round(seconds, used))
            advance()
        timed = rounds[untimed:]
        settings = {
            "operation": cell.operation, "hosts": hosts, "size": cell.size, "rate": rate, "untimed": untimed,
            "peer": name, "versions": versions, "machine": machine.facts(),
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


def _told(leader: LineProcess, what: str, patience: float) -> Any:
    """The next thing it tells of this kind; launchers say other things in between."""
    deadline = time.monotonic() + patience
    while True:
        line = leader.line(deadline)
        if line.startswith("{"):
            told = json.loads(line)
            if what not in told:
                raise PeerError(f"{leader.name} told {line} where {what!r} was expected")
            return told[what]


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
