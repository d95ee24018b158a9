"""The cluster of the campaign: machines with an agent and a worker each, and a directory on a separate host.

    with FaultCluster(4, rate, memory) as cluster:
        cluster.kill_agent(2)
        cluster.restore(time.monotonic() + 20)

Each process can be killed, stopped, cut off and started again; `restore` repairs everything, and waits until the
directory counts exactly these machines. The directory's host has no agent, so a fault of a machine never hits the
directory. What agents and the directory write to standard error is kept, because they should write nothing. All waits
are bounded, and all processes end with the block; see `bench.hosts.namespace_keeper`.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import time
from dataclasses import dataclass
from typing import IO

from hoplite_ucx.bench.faults.worker_proxy import Peer
from hoplite_ucx.bench.harness.live_cluster import launch
from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts.all_or_nothing import Opened
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task, directory_task
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.launch.tokens import TOKEN
from hoplite_ucx.transports.wire.addresses import parse_address

__all__ = ["FaultCluster", "Machine"]

_START_SECONDS = 30.0
_LOOK_AGAIN = 0.02


@dataclass(eq=False)
class Machine:
    """A host with its agent and its worker, either of which may be dead."""

    host: Host
    agent: Child | None = None
    worker: Peer | None = None
    stopped: bool = False

    @property
    def index(self) -> int:
        return self.host.index

    @property
    def node(self) -> str:
        """What other nodes call its agent, in its first life."""
        assert self.agent is not None
        return f"n{self.agent.report['agent']}"

    @property
    def peer(self) -> Peer:
        assert self.worker is not None
        return self.worker


class FaultCluster(Opened):
    """`rate` is that of every host, in bytes per second; `memory` the limit of every store."""

    def __init__(self, machines: int, rate: float, memory: int) -> None:
        self.rate = rate
        self.memory = memory
        self.restarts = 0
        """How often the directory was started again."""
        self._count = machines
        self._token = secrets.token_hex(16).encode()
        self._cluster = Cluster(machines + 1, rate)
        self._directory: Child | None = None
        self._address = ""
        self._cluster_id = ""
        self._altered: set[int] = set()
        self._said: IO[bytes] | None = None
        self._read = 0
        self.machines: list[Machine] = []

    # --- its life ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        try:
            self._cluster.__enter__()
            self.machines = [Machine(host) for host in self._cluster.hosts[: self._count]]
            self._start_directory()
            self._revive(self.machines)
            self.restore(time.monotonic() + _START_SECONDS)
        except HopliteError as error:
            raise PeerError(f"the cluster did not start: {error}") from error

    def close(self) -> None:
        for machine in self.machines:
            self._end_worker(machine)
            self._end_agent(machine)
        self.kill_directory()
        self._cluster.close()
        if self._said is not None:
            self._said.close()
            self._said = None

    def left(self) -> list[str]:
        """What is still there of it, after it was closed."""
        left = [f"process {pid}" for pid, mark in namespace_keeper.marked().items() if mark == self._cluster.mark]
        return left + ([f"cluster {self._cluster.name}"] if self._cluster.name in namespace_keeper.names() else [])

    @property
    def head(self) -> Host:
        return self._cluster.hosts[self._count]

    @property
    def address(self) -> str:
        return self._address

    def pids(self) -> dict[str, int]:
        """Every process that lives, by its role and place."""
        found = {} if self._directory is None else {"directory": self._directory.process.pid}
        for machine in self.machines:
            if machine.agent is not None:
                found[f"agent {machine.index}"] = machine.agent.process.pid
            if machine.worker is not None:
                found[f"worker {machine.index}"] = machine.worker.pid
        return found

    def new_words(self) -> str:
        """What agents and the directory have said on standard error since the last look."""
        assert self._said is not None
        end = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), end - self._read, self._read)
        self._read = end
        return said.decode(errors="replace")

    # --- breaking things ---------------------------------------------------------------------------------------

    def kill_agent(self, index: int) -> None:
        """With -9; returns when it is gone."""
        self._end_agent(self.machines[index])

    def signal_agent(self, index: int, number: signal.Signals) -> None:
        """Returns at once, so that the moment is known."""
        agent = self.machines[index].agent
        assert agent is not None
        agent.process.send_signal(number)

    def kill_worker(self, index: int) -> None:
        self._end_worker(self.machines[index])

    def stop_agent(self, index: int) -> None:
        self.machines[index].stopped = True
        self.signal_agent(index, signal.SIGSTOP)

    def resume_agent(self, index: int) -> None:
        machine = self.machines[index]
        if machine.stopped and machine.agent is not None:
            self.signal_agent(index, signal.SIGCONT)
        machine.stopped = False

    def kill_directory(self) -> None:
        if self._directory is not None:
            _end(self._directory)
            self._directory = None

    def start_directory_again(self) -> None:
        """On its port, as the successor of the one that died."""
        if self._directory is None:
            self._start_directory()
            self.restarts += 1

    def cut(self, host: Host, way: str) -> None:
        self._altered.add(host.index)
        self._cluster.cut(host.index, way)  # type: ignore[arg-type]

    def slow_down(self, host: Host, factor: float) -> None:
        self._altered.add(host.index)
        self._cluster.set_rate(host.index, self.rate / factor)

    def heal_links(self) -> None:
        for index in self._altered:
            self._cluster.set_rate(index, self.rate)
        self._altered.clear()

    # --- making them whole -------------------------------------------------------------------------------------

    def restore(self, deadline: float) -> None:
        """Everything runs and everybody is known; raises a `PeerError` if that does not come about in time."""
        self.heal_links()
        for machine in self.machines:
            self.resume_agent(machine.index)
        self.start_directory_again()
        self._revive([m for m in self.machines if m.agent is None or m.worker is None or m.worker.gone])
        while (missing := self._missing()) is not None:
            if time.monotonic() > deadline:
                raise PeerError(f"the cluster did not become whole again: {missing}")
            time.sleep(_LOOK_AGAIN)

    def revive(self, index: int) -> None:
        """Start what is dead on a machine; its store is empty then."""
        self._revive([self.machines[index]])

    def _revive(self, machines: list[Machine]) -> None:
        starting = {}
        for machine in machines:
            if machine.agent is None:
                self._end_worker(machine)  # it belongs to the agent that is gone
                starting[machine.index] = launch(machine.host, "agent", stderr=self._said)
        for machine in machines:
            if machine.index in starting:
                process = starting[machine.index]
                task = agent_task(self._address, self._token, self.memory, self.rate, machine.host.address)
                processes.tell(process, task)
        for machine in machines:
            if machine.index in starting:
                machine.agent = processes.await_ready("agent", starting[machine.index])
                machine.stopped = False
            if machine.worker is None or machine.worker.gone:
                self._end_worker(machine)
                machine.worker = self.new_worker(machine.index)
        deadline = time.monotonic() + _START_SECONDS
        for machine in machines:
            answer = machine.peer.ready(deadline) if machine.worker is not None else None
            if answer is not None and answer.done is None:
                raise PeerError(f"the worker on host {machine.index} did not start: {answer}")

    def new_worker(self, index: int) -> Peer:
        """One more worker on a machine; the caller waits until it is ready, and closes it."""
        environment = {**os.environ, TOKEN: self._token.decode()}
        return Peer(self.machines[index].host, self._address, environment)

    def _start_directory(self) -> None:
        port = parse_address(self._address)[1] if self._address else 0
        process = launch(self.head, "directory", stderr=self._said)
        successor = bool(self._address)
        named = self._cluster_id or None
        task = directory_task(self._token, self.head.address, port, cluster=named, successor=successor)
        processes.tell(process, task)
        self._directory = processes.await_ready("directory", process)
        self._address = self._directory.report["address"]
        self._cluster_id = self._directory.report["cluster"]

    def _missing(self) -> str | None:
        """Why the cluster is not whole, as its directory and its agents see it."""
        answer = self.machines[0].peer.ask("cluster", patience=6.0)
        if answer.done is None:
            return f"the directory does not answer: {answer}"
        known = [node["address"] for node in answer.done["nodes"] if node["connected"] and not node["suspect"]]
        others = [node["node"] for node in answer.done["nodes"] if not node["connected"] or node["suspect"]]
        wanted = [machine.agent.report["address"] for machine in self.machines if machine.agent is not None]
        if sorted(known) != sorted(wanted) or others:
            return f"the directory counts {known} and doubts {others}, and there are {wanted}"
        for machine in self.machines:
            look = machine.peer.ask("look", patience=6.0)
            if look.done is None or not look.done["connected"]:
                return f"the agent of host {machine.index} is not connected: {look}"
        return None

    def _end_agent(self, machine: Machine) -> None:
        if machine.agent is not None:
            _end(machine.agent)
            machine.agent = None
            machine.stopped = False

    def _end_worker(self, machine: Machine) -> None:
        if machine.worker is not None:
            machine.worker.close()
            machine.worker = None


def _end(child: Child) -> None:
    child.process.kill()
    with child.process:  # closes its pipes and waits for it
        pass
