"""The hosts of the demo: one directory, and on each host an agent and a worker, all of them real processes.

Hosts are emulated ones (`bench.hosts.namespaces`) where this machine can have them, else addresses of loopback.
Everything ends with the `with` block, and with this process even if it is killed: see `bench.hosts.namespace_keeper`
and `runtime.processes`.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterUnavailableError
from hoplite_ucx.runtime.host.addresses import LOOPBACK_RATE
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import ADDRESS, AGENT, agent_task, directory_task
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.launch.tokens import TOKEN

LOOPBACK_HOSTS = 4
_START_SECONDS = 30.0
_ROOM = 6
"""How many objects the store of a host takes; the demo needs half of that."""
_USED = 3
"""How many objects a host really has at one time, and what its two processes take besides."""
_PROCESSES = 150 << 20


class DemoError(RuntimeError):
    """The demo cannot continue; the message says why."""


@dataclass(eq=False)
class Machine:
    """A host. Its processes are gone while it is dead; it may be started again, with nothing in its store."""

    index: int
    address: str
    agent: Child | None = None
    worker: subprocess.Popen[bytes] | None = None
    node: str = ""
    """What other nodes call its agent."""
    pending: bytes = field(default=b"", repr=False)
    """The beginning of a line that the worker is still writing."""

    @property
    def alive(self) -> bool:
        return self.worker is not None

    def tell(self, do: str, **arguments: Any) -> None:
        """Give the worker something to do."""
        assert self.worker is not None
        assert self.worker.stdin is not None
        with suppress(BrokenPipeError):  # that it has ended is seen where its answers are read
            self.worker.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.worker.stdin.flush()

    def kill(self) -> None:
        """Both processes at once, as when the machine loses power."""
        assert self.agent is not None
        assert self.worker is not None
        both = (self.agent.process, self.worker)
        for process in both:
            process.kill()
        for process in both:
            _end(process)
        self.agent = self.worker = None
        self.pending = b""


class Hosts:
    """`count` hosts with links of `rate` bytes per second, for objects of `size` bytes."""

    def __init__(self, count: int, rate: float, size: int) -> None:
        self._wanted = count
        self.rate: float | None = rate
        self.size = size
        self.remark = ""
        """Why these are not the hosts that were asked for."""
        self.machines: list[Machine] = []
        self._token = secrets.token_hex(16)
        self._cluster: Cluster | None = None
        self._directory = ""
        self._stack = ExitStack()

    @property
    def emulated(self) -> bool:
        return self._cluster is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def up(self) -> None:
        """Make the hosts, and start everything; to be called once, within the block."""
        self._make()
        self._start_directory()
        self.start(self.machines)

    # --- machines ----------------------------------------------------------------------------------------------

    def _make(self) -> None:
        fitting = _fitting(self.size)
        if fitting < min(3, self._wanted):
            raise DemoError(f"there is not enough free memory for objects of {self.size} bytes on 3 hosts; try --size")
        count = min(self._wanted, fitting)
        if count < self._wanted:
            self.remark = f"{count} hosts instead of {self._wanted}, because there is no memory for more"
        try:
            self._cluster = self._stack.enter_context(Cluster(count, self.rate))
            addresses = [host.address for host in self._cluster.hosts]
        except ClusterUnavailableError as error:
            count = min(count, LOOPBACK_HOSTS)
            self.remark = f"no emulated hosts here, so {count} on loopback, at no fixed rate: {error}"
            self.rate = None
            addresses = [f"127.0.0.{index + 1}" for index in range(count)]
        self.machines = [Machine(index, address) for index, address in enumerate(addresses)]

    def _start_directory(self) -> None:
        process = self._runtime(self.machines[0], "directory")
        processes.tell(process, directory_task(self._token.encode(), self.machines[0].address))
        child = processes.await_ready("directory", process)
        self._directory = child.report["address"]

    def start(self, machines: Sequence[Machine]) -> None:
        """Start agents and workers, and wait until all of them are ready."""
        starting = [self._runtime(machine, "agent") for machine in machines]
        memory = max(256 << 20, _ROOM * self.size)
        for machine, process in zip(machines, starting, strict=True):
            rate = self.rate or LOOPBACK_RATE
            processes.tell(process, agent_task(self._directory, self._token.encode(), memory, rate, machine.address))
        for machine, process in zip(machines, starting, strict=True):
            machine.agent = processes.await_ready("agent", process)
            machine.node = f"n{machine.agent.report['agent']}"
            machine.worker = self._worker(machine)
        self.await_all("start", machines)

    def _runtime(self, machine: Machine, role: str) -> subprocess.Popen[bytes]:
        """Like `processes.start`, on that host."""
        return self._popen(machine, ["hoplite_ucx.runtime", role, str(os.getpid()), "tied"], os.environ)

    def _worker(self, machine: Machine) -> subprocess.Popen[bytes]:
        assert machine.agent is not None
        names = {ADDRESS: self._directory, AGENT: machine.agent.report["agent"], TOKEN: self._token}
        return self._popen(machine, ["hoplite_ucx.bench.demo.worker"], {**os.environ, **names})

    def _popen(self, machine: Machine, module: list[str], environment: Any) -> subprocess.Popen[bytes]:
        name, *arguments = module
        command = [*processes.module(name), *arguments]
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        if self._cluster is not None:
            process = self._cluster.hosts[machine.index].popen(command, env=environment, **options)
        else:
            process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
        self._stack.callback(_end, process)
        return process

    # --- what workers say --------------------------------------------------------------------------------------

    def reports(self, seconds: float) -> Iterator[tuple[Machine, dict[str, Any]]]:
        """What the workers report next; waits at most this long for the first report."""
        talking = {
            machine.worker.stdout: machine
            for machine in self.machines
            if machine.worker is not None and machine.worker.stdout is not None
        }
        for pipe in select.select(list(talking), [], [], max(0.0, seconds))[0]:
            machine = talking[pipe]
            if machine.worker is None:
                continue  # it was killed because of what another one said
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                raise DemoError(f"the worker of host {machine.index} ended by itself; see its messages above")
            *lines, machine.pending = (machine.pending + data).split(b"\n")
            for line in lines:
                yield machine, json.loads(line)

    def await_all(
        self, do: str, machines: Iterable[Machine], seconds: float = _START_SECONDS
    ) -> dict[int, dict[str, Any]]:
        """Wait until each of these workers has done something, and return their answers."""
        waiting = {machine.index for machine in machines}
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + seconds
        while waiting:
            if time.monotonic() > deadline:
                raise DemoError(f"hosts {sorted(waiting)} did not {do} within {seconds:g} s")
            for machine, report in self.reports(deadline - time.monotonic()):
                if report.get("failed") == do:
                    raise DemoError(f"host {machine.index} could not {do}: {report['why']}")
                if report.get("done") == do:
                    waiting.discard(machine.index)
                    answers[machine.index] = report
        return answers


def _fitting(size: int) -> int:
    """As many hosts as the memory that this machine can spare takes."""
    with open("/proc/meminfo") as table:
        kibibytes = next(int(line.split()[1]) for line in table if line.startswith("MemAvailable:"))
    return (kibibytes << 10) // (_USED * size + _PROCESSES)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing in it is worth a clean shutdown."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
