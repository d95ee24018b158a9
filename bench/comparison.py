"""Us, bare sockets and the peers: any operations and sizes, on one emulated cluster and in one run.

Ours come first, each cell with bare sockets in turn; then every peer, alone on the same hosts, does all cells. What
could not be run is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

from hoplite_ucx.bench.cluster import Cluster
from hoplite_ucx.bench.operations import check_cell, compare_on, live_clusters
from hoplite_ucx.bench.peers.measuring import PeerFigures, measure_peers
from hoplite_ucx.bench.peers.rounds import Cell
from hoplite_ucx.bench.timing import Measurement

__all__ = ["measure_beside"]


def measure_beside(
    cells: Sequence[tuple[str, int]],
    peers: Collection[str],
    *,
    hosts: int,
    rate: float,
    repeat: int,
    untimed: int = 1,
    bare: bool = True,
    transports: Sequence[str] = (),
    advance: Callable[[], object] = lambda: None,
    told: Callable[[Measurement], object] = lambda _: None,
) -> PeerFigures:
    """Of every cell, an operation and a size: our figures, over each of `transports`; bare sockets'; the peers'.

    Each is also `told` as soon as it is there, so that a run which is ended early is not for nothing.
    """
    for operation, size in cells:
        check_cell(operation, hosts, size)
    figures = PeerFigures()
    with Cluster(hosts, rate) as cluster:
        with ExitStack() as stack:
            largest = max(size for _, size in cells)
            lives = live_clusters(stack, cluster.hosts, rate, largest, transports)
            rounds: dict[str, Any] = {"repeat": repeat, "untimed": untimed, "bare": bare, "advance": advance}
            for operation, size in cells:
                ours = compare_on(cluster.hosts, lives, operation, size=size, rate=rate, **rounds)
                figures.measured += ours
                for measured in ours:
                    told(measured)
        plan = [Cell(operation, size, untimed + repeat) for operation, size in cells]
        theirs = measure_peers(cluster, plan, rate=rate, names=peers, untimed=untimed, advance=advance, told=told)
    return PeerFigures(figures.measured + theirs.measured, theirs.not_run)
