"""Hoplite, bare sockets and the peers: any operations and sizes, on one emulated cluster and in one run.

Hoplite runs first, each cell in turn with bare sockets; then every peer, alone on the same hosts, does all cells, small
ones first. What could not be run is listed with the reason. A run may be split into several: each gets the existing
figures and the time to end, and does what is missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import ExitStack

from hoplite_ucx.bench.harness.records import US, Key
from hoplite_ucx.bench.harness.timing import Measurement
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.measures.operations import check_cell, compare_on, live_clusters
from hoplite_ucx.bench.peers.launching import PEERS
from hoplite_ucx.bench.peers.measuring import NotRun, PeerFigures, measure_peers
from hoplite_ucx.bench.peers.rounds import Cell

__all__ = ["keys_of", "measure_beside"]


def keys_of(cells: Sequence[tuple[str, int]], peers: Collection[str], hosts: int, rate: float) -> list[Key]:
    """What a whole run has figures of, bare sockets aside."""
    subjects = [US, *(PEERS[name].title for name in peers)]
    return [(operation, subject, hosts, size, rate) for subject in subjects for operation, size in cells]


def measure_beside(
    cells: Sequence[tuple[str, int]],
    peers: Collection[str],
    *,
    hosts: int,
    rate: float,
    repeat: int,
    untimed: int = 1,
    seconds: float = math.inf,
    until: float = math.inf,
    there: Container[Key] = (),
    bare: bool = True,
    transports: Sequence[str] = (),
    advance: Callable[[], object] = lambda: None,
    told: Callable[[Measurement | NotRun], object] = lambda _: None,
) -> PeerFigures:
    """Of every cell, an operation and a size: our figures, over each of `transports`; bare sockets'; the peers'.

    A cell has a timed round, and more for as long as `seconds`, `repeat` at most. No cell begins after the moment
    `until`, and none of those that are `there`. Each figure is also `told` as soon as it is there, so that a run which
    is ended early is not for nothing.
    """
    fitting, not_run = _sort_out(cells, peers, hosts, rate)
    figures = PeerFigures(not_run=not_run)
    for each in not_run:
        told(each)

    def missing(subject: str) -> list[tuple[str, int]]:
        return [cell for cell in fitting if (cell[0], subject, hosts, cell[1], rate) not in there]

    plans = {
        name: [Cell(operation, size, untimed + repeat, untimed + 1, seconds) for operation, size in missing(title)]
        for name, title in ((name, PEERS[name].title) for name in peers)
    }
    with Cluster(hosts, rate) as cluster:
        with ExitStack() as stack:
            lives = None
            for operation, size in missing(US):
                if time.monotonic() > until:
                    break
                if lives is None:
                    lives = live_clusters(stack, cluster.hosts, rate, max(size for _, size in fitting), transports)
                for measured in compare_on(
                    cluster.hosts, lives, operation,
                    size=size, rate=rate, repeat=repeat, untimed=untimed, seconds=seconds, bare=bare, advance=advance,
                ):  # fmt: skip
                    figures.measured.append(measured)
                    told(measured)
        theirs = measure_peers(cluster, plans, rate=rate, untimed=untimed, until=until, advance=advance, told=told)
    return PeerFigures(figures.measured + theirs.measured, figures.not_run + theirs.not_run)


def _sort_out(
    cells: Sequence[tuple[str, int]], peers: Collection[str], hosts: int, rate: float
) -> tuple[list[tuple[str, int]], list[NotRun]]:
    """What can be measured here, and what cannot; refused before anything starts, if nothing can."""
    fitting, not_run = [], []
    for operation, size in cells:
        try:
            check_cell(operation, hosts, size)
            fitting.append((operation, size))
        except PeerError as failure:
            settings = {"operation": operation, "hosts": hosts, "size": size, "rate": rate}
            names = operation, *(f"{PEERS[name].title} {operation}" for name in peers)
            not_run += [NotRun(name, str(failure), settings) for name in names]
    if not fitting:
        raise PeerError(not_run[0].why if not_run else "there is nothing to measure")
    return fitting, not_run
