"""The bare peers, driven: the same operations over the same hosts with nothing but sockets, to compare with.

`BarePeers` starts a `bare_peer` in each host of a cluster and runs rounds; a round takes from one common moment until
the last host is done. `measure_bare` makes a cluster for it, measures and reports.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any, Self

from hoplite_ucx.bench.cluster import Cluster, Host
from hoplite_ucx.bench.timing import LIMITS, Measurement, limit_seconds, measure

__all__ = ["OPERATIONS", "BareError", "BarePeers", "measure_bare"]

OPERATIONS = (*LIMITS, "echo")
# From telling everybody the moment to start until it comes: all of them must be waiting for it.
_NOTICE = 0.03
_PATIENCE = 60.0
_LARGEST = 1 << 30  # one call takes all of it, and a gather has it n times
_PEER = str(Path(__file__).with_name("bare_peer.py"))  # not imported: only the peers themselves need numpy


class BareError(RuntimeError):
    """A bare peer failed, or did not finish in time."""


class BarePeers:
    """A process in each of the hosts, connected as the operation needs it, until the `with` block ends."""

    def __init__(self, hosts: list[Host], operation: str, size: int, patience: float = _PATIENCE) -> None:
        if operation not in OPERATIONS:
            raise BareError(f"{operation!r} is none of the bare operations: {', '.join(OPERATIONS)}")
        if len(hosts) < 2 or (operation == "echo" and len(hosts) != 2):
            raise BareError(f"{operation} is between {'two' if operation == 'echo' else 'two or more'} hosts")
        if not 0 < size <= _LARGEST or size % 4:
            raise BareError(f"the bare peers move whole float32 numbers, up to {_LARGEST >> 20} MiB, not {size} bytes")
        self._hosts = hosts
        self._arguments = operation, size
        self._patience = patience
        self._peers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        operation, size = self._arguments
        addresses = [host.address for host in self._hosts]
        try:
            for rank, host in enumerate(self._hosts):
                command = [sys.executable, _PEER, operation, str(rank), str(size), *addresses]
                pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
                # Without a buffer, so that waiting for a line and reading it agree on what has come.
                self._peers.append(host.popen(command, bufsize=0, **pipes))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for peer in self._peers:
            peer.kill()
        for peer in self._peers:
            with peer:  # closes its pipes and waits for it
                pass
        self._peers = []

    def run(self) -> float:
        """One round, in seconds."""
        deadline = time.monotonic() + self._patience
        for rank in range(len(self._peers)):
            self._line(rank, deadline)
        start = f"{time.monotonic() + _NOTICE!r}\n".encode()
        for rank, peer in enumerate(self._peers):
            assert peer.stdin is not None
            try:
                peer.stdin.write(start)
            except BrokenPipeError:
                raise self._failure(rank) from None
        return max(float(self._line(rank, deadline)) for rank in range(len(self._peers)))

    def _line(self, rank: int, deadline: float) -> str:
        peer = self._peers[rank]
        assert peer.stdout is not None
        if not select([peer.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise BareError(f"the bare {self._arguments[0]} took over {self._patience:g} s: rank {rank} is silent")
        line: bytes = peer.stdout.readline()
        if not line:
            raise self._failure(rank)
        return line.decode().strip()

    def _failure(self, rank: int) -> BareError:
        """Of a peer that has ended, so that all it had to say is there."""
        peer = self._peers[rank]
        assert peer.stderr is not None
        why = peer.stderr.read().decode().strip() or f"it ended with {peer.wait(_PATIENCE)}"
        return BareError(f"rank {rank} of the bare {self._arguments[0]} failed: {why}")


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
