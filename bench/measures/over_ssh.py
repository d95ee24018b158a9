"""Our figures, and those of bare sockets, on machines that a file lists and ssh reaches: see `ssh`.

The limit comes from the rate that is given. Without one, bare streams between neighbours are measured first: each
machine sends once and receives once, and the slowest of these streams is what the links have. Machines have clocks of
their own, so a round starts at a moment that each has translated; every figure says how wrong that may have been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hoplite_ucx.bench.bare.driver import BarePeers
from hoplite_ucx.bench.harness.machine_facts import check_memory_of
from hoplite_ucx.bench.harness.timing import PAYLOAD, Measurement
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.places import Place
from hoplite_ucx.bench.hosts.ssh import SshCluster, read_hosts, ssh_words
from hoplite_ucx.bench.measures.operations import check_cell, compare_on, live_clusters

__all__ = ["RealFigures", "measure_on_machines", "measure_rate"]

_STREAM = 32 << 20
_STREAMS = 3  # of each pair; the first opens the connection


@dataclass(frozen=True)
class RealFigures:
    measured: list[Measurement]
    machines: tuple[str, ...]
    rate: float
    """Of each machine, in bytes per second: as it was given, or as streams had it."""


def measure_on_machines(
    path: Path,
    operation: str,
    *,
    size: int,
    hosts: int | None = None,
    rate: float | None = None,
    ssh: str = "ssh",
    repeat: int,
    untimed: int = 1,
    bare: bool = True,
    transports: Sequence[str] = (),
    advance: Callable[[], object] = lambda: None,
) -> RealFigures:
    """An operation on the first `hosts` machines of a file, or on all."""
    named = read_hosts(path)
    if hosts is not None and hosts > len(named):
        raise PeerError(f"{path} lists {len(named)} machines, not {hosts}")
    chosen = named[:hosts]
    check_cell(operation, len(chosen), size, memory=False)
    with ExitStack() as stack:
        machines = stack.enter_context(SshCluster(chosen, ssh_words(ssh))).hosts
        check_memory_of({host.name: host.told["memory_available"] for host in machines}, operation, size)
        given = rate is not None
        rate = measure_rate(machines) if rate is None else rate
        settings = {
            "rate_given": given,
            "clock_error_seconds": max(host.clock().error for host in machines),
            "machines": [
                {"name": host.name, "address": host.address, **{key: host.told[key] for key in ("versions", "machine")}}
                for host in machines
            ],
        }
        lives = live_clusters(stack, machines, rate, size, transports)
        measured = compare_on(
            machines, lives, operation, size=size, rate=rate, repeat=repeat, untimed=untimed, bare=bare,
            settings=settings, advance=advance,
        )  # fmt: skip
        return RealFigures(measured, tuple(host.name for host in machines), rate)


def measure_rate(places: Sequence[Place]) -> float:
    """What links must have, if a bare stream is all that they can carry of users' bytes: the slowest of a ring."""
    fastest = []
    for place, after in zip(places, [*places[1:], places[0]], strict=True):
        with BarePeers([place, after], "broadcast", _STREAM) as stream:
            fastest.append(min(stream.run().seconds for _ in range(_STREAMS)))
    return _STREAM / max(fastest) / PAYLOAD
