"""A Ray node on every emulated host, as on separate machines.

Each host has its name and its own /dev/shm, where Ray keeps its store, its sockets and its logs: nothing is written to
the disk. All of it ends with the cluster, whatever ends the cluster. A node that does not start is started again: on a
busy machine Ray gives up early, and says so only in its exit status. Nobody but these hosts can reach the nodes, so
Ray has no token.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host

__all__ = ["PORT", "RayNodes", "ray_nodes"]

PORT = 6379
"""Of Ray's head."""
_FOLDER = "/dev/shm/ray"
_TRIES = 3
_START_SECONDS = 120.0
_AT_ONCE = 2
"""So many nodes start at a time: each has four processes that load much Python."""
_CPUS = 4
_LEAST_STORE = 200 << 20
_LOGS = 64 << 20

# It becomes the host. Its arguments: the host's name, the size of its /dev/shm, the names of all hosts, a command line.
# Ray asks for the names of hosts; nobody would answer for others.
_MACHINE = """
set -e
hostname "$1"
mount -t tmpfs -o "size=$2" tmpfs /dev/shm
printf %s "$3" >/dev/shm/names
mount --bind /dev/shm/names /etc/hosts
mount --bind /dev/null /etc/resolv.conf
shift 3
"$@" >&2 </dev/null
echo up
exec cat >/dev/null
"""

_VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "false",
    "OMP_NUM_THREADS": "1",
    # On few cores, everything takes its time to start.
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    # Ray gives its own processes precedence over workers. Here the workers of one host would wait for another host.
    "RAY_worker_niceness": "0",
    # Workers that nobody needs load the machine.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_num_prestart_python_workers": "0",
}
# Each host has all ports for itself; a port that Ray chooses itself is one more thing that it waits for.
_PORTS = {
    "--dashboard-agent-listen-port": 52365,
    "--dashboard-agent-grpc-port": 52366,
    "--runtime-env-agent-port": 52367,
    "--metrics-export-port": 52368,
}


class RayNodes:
    """The nodes that run, one a host, the head on the first."""

    def __init__(self, cluster: Cluster, python: str, store: int) -> None:
        self._cluster = cluster
        self._python = python
        self._store = max(_LEAST_STORE, store)
        self._inodes = [os.stat(host.namespace).st_ino for host in cluster.hosts]
        self._up: dict[int, LineProcess] = {}
        self._stack = ExitStack()

    @property
    def hosts(self) -> Sequence[Host]:
        return self._cluster.hosts

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    def start(self) -> None:
        self._await(self._begin(self.hosts[0]))
        waiting: deque[Host] = deque()
        for host in self.hosts[1:]:
            if len(waiting) == _AT_ONCE:
                self._await(waiting.popleft())
            waiting.append(self._begin(host))
        for host in waiting:
            self._await(host)

    def start_again(self, host: Host) -> None:
        """A node that was killed: all of it must be gone."""
        self._end(host)
        self._await(self._begin(host))

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line of a driver, for the first host."""
        head = self._up[0].pid
        return ["nsenter", f"--mount=/proc/{head}/ns/mnt", f"--uts=/proc/{head}/ns/uts", "--", *arguments]

    def processes(self) -> dict[int, str]:
        """What runs on all hosts: numbers and command lines."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                with contextlib.suppress(OSError):  # it has just ended
                    if os.stat(f"/proc/{entry}/ns/net").st_ino in self._inodes:
                        line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(entry)] = line.decode(errors="replace").strip()
        return found

    def close(self) -> None:
        for host in self.hosts:
            self._end(host)
        self._stack.close()

    def _begin(self, host: Host) -> Host:
        log = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        names = "".join(["127.0.0.1 localhost\n", *(f"{each.address} host-{each.index}\n" for each in self.hosts)])
        machine = ["unshare", "--uts", "--mount", "sh", "-c", _MACHINE, "machine"]
        own = [f"host-{host.index}", str(2 * self._store + _LOGS), names]
        command = [*machine, *own, *self._ray_start(host)]
        environment = {**os.environ, **_VARIABLES}
        self._up[host.index] = LineProcess(host, command, f"Ray on host {host.index}", environment, log)
        return host

    def _ray_start(self, host: Host) -> list[str]:
        role = ["--address", self.address]
        if host.index == 0:
            role = ["--head", "--port", str(PORT), "--include-dashboard=false", f"--temp-dir={_FOLDER}"]
        start = [self._python, "-m", "ray.scripts.scripts", "start", *role, "--disable-usage-stats"]
        start += ["--node-ip-address", host.address, "--num-cpus", str(_CPUS), "--include-log-monitor=false"]
        start += ["--object-store-memory", str(self._store), *(f"{name}={port}" for name, port in _PORTS.items())]
        return start

    def _await(self, host: Host) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._up[host.index].line(time.monotonic() + _START_SECONDS)
                return
            except PeerError as error:
                if not left:
                    raise PeerError(f"{error}\nRay did not start in {_TRIES} attempts; is the machine busy?") from error
                self._end(host)
                self._begin(host)

    def _end(self, host: Host) -> None:
        """Everything that runs on this host."""
        spared = {os.getpid(), self._cluster.keeper_pid}
        if not namespace_keeper.kill_all("", {self._inodes[host.index]}, spared):
            raise PeerError(f"some processes of Ray on host {host.index} cannot be killed")
        if (process := self._up.pop(host.index, None)) is not None:
            process.close()


@contextmanager
def ray_nodes(cluster: Cluster, store: int, python: str = sys.executable) -> Iterator[RayNodes]:
    """With so many bytes for the objects of each node."""
    nodes = RayNodes(cluster, python, store)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.close()
