"""Drives the bare peers: the same operations over the same hosts with nothing but sockets, for comparison.

`BarePeers` starts a `peer` in each host of a cluster and runs rounds; a round takes from one common moment until
the last host is done. `measure_bare` makes a cluster for it, measures and reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from hoplite_ucx.bench.harness.timing import LIMITS, Measurement, Round, limit_seconds, measure
from hoplite_ucx.bench.hosts.all_or_nothing import Opened
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.hosts.places import Place

__all__ = ["OPERATIONS", "BarePeers", "measure_bare"]

OPERATIONS = ("broadcast", "reduce", "gather", "allreduce", "echo")
# The time between announcing the start and the start: all peers must be waiting for it.
_NOTICE = 0.03
_PATIENCE = 60.0
_LARGEST = 1 << 30  # one call takes all of it, and a gather has it n times


class BarePeers(Opened):
    """A process in each of the hosts, connected as the operation needs it, until the `with` block ends."""

    def __init__(self, hosts: Sequence[Place], operation: str, size: int, patience: float = _PATIENCE) -> None:
        if operation not in OPERATIONS:
            raise PeerError(f"{operation!r} is not a bare operation; there are: {', '.join(OPERATIONS)}")
        if len(hosts) < 2 or (operation == "echo" and len(hosts) != 2):
            raise PeerError(f"{operation} is between {'two' if operation == 'echo' else 'two or more'} hosts")
        if not 0 < size <= _LARGEST or size % 4:
            raise PeerError(f"the bare peers move whole float32 numbers, up to {_LARGEST >> 20} MiB, not {size} bytes")
        self._hosts = hosts
        self._arguments = operation, size
        self._patience = patience
        self._peers: list[LineProcess] = []
        self.processor: list[float] = []
        """The processor time of each rank in the last round."""

    def _open(self) -> None:
        operation, size = self._arguments
        addresses = [host.address for host in self._hosts]
        for rank, host in enumerate(self._hosts):
            # As a file, not as a module of the package, of which it needs nothing.
            command = [*host.python, f"{host.folder}/bare/participant.py", operation, str(rank), str(size), *addresses]
            self._peers.append(LineProcess(host, command, f"rank {rank} of the bare {operation}"))

    def close(self) -> None:
        for peer in self._peers:
            peer.kill()
        for peer in self._peers:
            peer.close()
        self._peers = []

    def run(self) -> Round:
        """One round."""
        deadline = time.monotonic() + self._patience
        for peer in self._peers:
            peer.line(deadline)
        clocks = [host.clock() for host in self._hosts]
        start = time.monotonic() + _NOTICE + 2 * max(clock.error for clock in clocks)
        for peer, clock in zip(self._peers, clocks, strict=True):
            peer.tell(repr(start + clock.ahead))
        told = [peer.line(deadline).split() for peer in self._peers]
        self.processor = [float(used) for _, used in told]
        return Round(max(float(seconds) for seconds, _ in told), sum(self.processor))


def measure_bare(
    operation: str,
    *,
    hosts: int,
    size: int,
    rate: float | None,
    repeat: int,
    cluster: Cluster | None = None,
    advance: Callable[[], object] = lambda: None,
) -> Measurement:
    """Measure one operation, on a cluster of its own unless one is given (then with as many hosts of it)."""
    limit = limit_seconds(operation, hosts, size, rate) if rate is not None and operation in LIMITS else None
    settings: dict[str, Any] = {"operation": operation, "hosts": hosts, "size": size, "rate": rate}
    with ExitStack() as stack:
        cluster = cluster or stack.enter_context(Cluster(hosts, rate))
        patience = _PATIENCE + 10 * (limit or 0.0)
        peers = stack.enter_context(BarePeers(cluster.hosts[:hosts], operation, size, patience))
        return measure(f"bare {operation}", peers.run, repeat=repeat, limit=limit, settings=settings, advance=advance)
