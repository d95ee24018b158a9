"""Dask on emulated hosts: the scheduler and the program on the first, one worker on each of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hoplite_ucx.bench.hosts.line_process import LineProcess
from hoplite_ucx.bench.hosts.namespaces import Cluster

__all__ = ["END", "reports"]

END = "end"
"""The program's last line."""
_PORT = 8786
# Mapped pages count as a worker's memory: Dask must neither spill nor pause because of them here.
_MEMORY = ("TARGET", "SPILL", "PAUSE", "TERMINATE")


def reports(
    program: str,
    plan: dict[str, Any],
    *,
    workers: int,
    rate: float,
    seconds: float,
    nanny: bool = False,
    profile: bool = True,
) -> Iterator[dict[str, Any]]:
    """Run a module of this package as a client of a Dask cluster that is made for it, and yield what it reports. Each
    report has so many seconds. Without `profile`, Dask's profiler is off: its history grows for a quarter of an
    hour."""
    environment = _environment(profile)
    with _dask(workers, rate, nanny, environment) as (cluster, folder, stack):
        address = f"tcp://{cluster.hosts[0].address}:{_PORT}"
        log = stack.enter_context((folder / "program").open("w+b"))
        command = [sys.executable, "-P", "-m", f"hoplite_ucx.bench.dask.{program}"]
        told = {"address": address, "workers": workers, "rate": rate, **plan}
        leader = LineProcess(
            cluster.hosts[0], [*command, json.dumps(told)], f"the Dask program {program}", environment, log
        )
        stack.callback(leader.close)
        while (line := leader.line(time.monotonic() + seconds)) != END:
            yield json.loads(line)


@contextmanager
def _dask(
    workers: int, rate: float, nanny: bool, environment: dict[str, str]
) -> Iterator[tuple[Cluster, Path, ExitStack]]:
    with Cluster(hosts=workers + 1, rate=rate) as cluster, ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="hoplite-dask-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        head, *others = cluster.hosts

        def start(index: int, arguments: list[str]) -> None:
            with (folder / f"host-{index}").open("ab") as log:
                cluster.hosts[index].popen(
                    [sys.executable, "-P", "-m", *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

        serve = ["--host", head.address, "--port", str(_PORT), "--no-dashboard", "--no-show"]
        start(0, ["distributed.cli.dask_scheduler", *serve])
        for host in others:
            own = ["--host", host.address, "--name", f"w{host.index}", "--local-directory", str(folder / host.name)]
            kind = "--nanny" if nanny else "--no-nanny"
            work = [f"tcp://{head.address}:{_PORT}", "--nthreads", "1", kind, "--no-dashboard", "--memory-limit", "0"]
            start(host.index, ["distributed.cli.dask_worker", *work, *own])
        yield cluster, folder, stack


def _environment(profile: bool) -> dict[str, str]:
    memory = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in _MEMORY}
    profiler = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": str(profile)}
    return {**os.environ, "OMP_NUM_THREADS": "1", **memory, **profiler}
