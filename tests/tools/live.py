"""A cluster of real processes on loopback, and hosts of it as tests use them: one client per agent."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task, directory_task
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.local.socket_names import socket_name
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.settings import HostSettings, ProcessSettings, load
from hoplite_ucx.runtime.worker import calls
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref
from hoplite_ucx.transports.wire.addresses import parse_address
from tests.tools.waiting import HANG

TOKEN = b"a token for tests"
RATE = 2e9
SECONDS = HANG


@dataclass(slots=True)
class Host:
    """One agent, and a worker of it in this process."""

    agent: Child
    client: Client

    @property
    def name(self) -> str:
        return socket_name(self.agent.report["cluster"], self.agent.report["agent"])

    def put(self, value: object, ref: ObjectRef | None = None, timeout: float | None = SECONDS) -> ObjectRef:
        name = ref or new_ref()
        self.client.put(name.binary, values.encode(value), timeout, fresh=ref is None)
        return name

    def get(self, ref: ObjectRef, timeout: float | None = SECONDS) -> Any:
        ((memory, layout),) = self.client.get([ref.binary], timeout)
        return values.decode(memory, layout)

    def reduce(
        self,
        refs: list[ObjectRef],
        op: Operation = Operation.SUM,
        count: int | None = None,
        *,
        ref: ObjectRef | None = None,
        everywhere: bool = False,
    ) -> ObjectRef:
        is_near = self.client.reader.is_near
        asking = calls.reduce(refs, op.value, count, ref, SECONDS, everywhere=everywhere, is_near=is_near)
        return self.client.carry_out(asking)

    def contributors(self, ref: ObjectRef) -> list[ObjectRef]:
        return self.client.carry_out(calls.contributors(ref, SECONDS))

    def wait(
        self, refs: list[ObjectRef], count: int = 1, timeout: float = SECONDS
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        return self.client.carry_out(calls.wait(refs, count, timeout))

    def delete(self, *refs: ObjectRef) -> None:
        self.client.carry_out(calls.delete(refs, SECONDS))

    def status(self) -> dict[str, Any]:
        return self.client.status()

    def kill(self) -> None:
        """The agent dies at once."""
        self.agent.process.kill()
        self.agent.process.wait()


@dataclass(slots=True)
class Live:
    directory: Child
    hosts: list[Host]

    def kill_directory(self) -> None:
        self.directory.process.kill()
        self.directory.stop()

    def restart_directory(self) -> None:
        """At the same address: the cluster must be one with its own (see `own_address`)."""
        host, port = parse_address(self.address)
        task = directory_task(TOKEN, host, port, cluster=self.directory.report["cluster"], successor=True)
        self.directory = spawn("directory", task)

    @property
    def address(self) -> str:
        return str(self.directory.report["address"])

    def add_host(self, memory: int = 1 << 30) -> Host:
        task = agent_task(self.address, TOKEN, memory, RATE, "127.0.0.1")
        agent = spawn("agent", task)
        host = Host(agent, Client(socket_name(agent.report["cluster"], agent.report["agent"])))
        self.hosts.append(host)
        return host


def spawn(role: str, task: dict[str, Any]) -> Child:
    process = processes.start(role, tied_to_thread=True)
    processes.tell(process, task)
    return processes.await_ready(role, process, ProcessSettings(start=HANG))


def patient() -> HostSettings:
    """For tests in which no host is silent on purpose: those that a busy machine holds up are not suspected, so that
    every stream comes in one piece from its first sender. Who is killed is dead at once all the same."""
    usual = load()
    cluster = msgspec.structs.replace(usual.cluster, suspicion=HANG / 3, lease=HANG)
    return dataclasses.replace(usual, cluster=cluster)


@contextlib.contextmanager
def live_cluster(
    count: int, memory: int = 1 << 30, host: str = "127.0.0.1", settings: HostSettings | None = None
) -> Iterator[Live]:
    """`host` is where the directory listens. The settings are those of the cluster."""
    starting = [processes.start("agent", tied_to_thread=True) for _ in range(count)]
    live = Live(spawn("directory", directory_task(TOKEN, host, settings=settings)), [])
    try:
        for process in starting:
            processes.tell(process, agent_task(live.address, TOKEN, memory, RATE, "127.0.0.1"))
        for process in starting:
            agent = processes.await_ready("agent", process, ProcessSettings(start=HANG))
            live.hosts.append(Host(agent, Client(socket_name(agent.report["cluster"], agent.report["agent"]))))
        yield live
    finally:
        for host in live.hosts:
            host.client.close()
        for host in live.hosts:
            host.agent.stop()
        live.directory.stop()
        for process in starting:
            if process.poll() is None:
                processes.abandon(process)
