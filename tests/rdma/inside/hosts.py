"""Hosts in network namespaces of a guest: each with a TCP network, and RDMA networks that can be broken alone.

The kernel's RDMA namespaces are shared, so every host sees every device: each is told its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

__all__ = ["HOPLITE", "Host", "Worker", "cluster", "networks", "sh"]

HOPLITE = str(Path(sys.executable).with_name("hoplite"))
WORKER = str(Path(__file__).with_name("worker.py"))
_ANSWER_SECONDS = 120.0
_START = "120s"
"""A guest of a busy machine is slow."""


def sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True, capture_output=True)


@dataclass
class Host:
    """`number` from 1; `rails` is how many RDMA networks it has. Network 9 is that of TCP."""

    number: int
    rails: int
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"h{self.number}"

    @property
    def address(self) -> str:
        return f"198.18.9.{self.number}"

    @property
    def log(self) -> Path:
        return Path(f"/dev/shm/{self.name}.log")

    def link(self, rail: int) -> str:
        """Its network interface in an RDMA network, from 1."""
        return f"{self.name}r{rail}"

    def devices(self) -> str:
        return ",".join(f"rx{self.number}{rail}:1" for rail in range(1, self.rails + 1))

    def _networks(self) -> list[tuple[int, str]]:
        return [(9, f"{self.name}t"), *((rail, self.link(rail)) for rail in range(1, self.rails + 1))]

    def take_down(self) -> None:
        """Its interfaces go with their other ends: the namespace itself lives as long as a process in it."""
        for _, name in self._networks():
            subprocess.run(["ip", "link", "del", f"s{name}"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def set_up(self) -> None:
        sh(f"ip netns add {self.name}; ip -n {self.name} link set lo up")
        for network, name in self._networks():
            sh(f"ip link add {name} type veth peer name s{name}")
            sh(f"ip link set s{name} master net{network}; ip link set s{name} up; ip link set {name} netns {self.name}")
            sh(f"ip -n {self.name} addr add 198.18.{network}.{self.number}/24 dev {name}")
            sh(f"ip -n {self.name} link set {name} up")
            if network != 9:
                sh(f"ip netns exec {self.name} rdma link add rx{self.number}{network} type rxe netdev {name}")

    def popen(self, command: list[str], **more: Any) -> subprocess.Popen[str]:
        devices = {"HOPLITE_UCX_NET_DEVICES": self.devices()} if self.rails else {"HOPLITE_LINKS_TRANSPORT": "tcp"}
        env = {
            **os.environ,
            "HOPLITE_TOKEN": "a token for tests",
            "HOPLITE_PROCESSES_START": _START,
            **devices,
            **self.variables,
        }
        command = ["ip", "netns", "exec", self.name, *command]
        return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)

    def links(self) -> list[dict[str, Any]]:
        with self.popen([HOPLITE, "links", "--json"]) as process:
            (agent,) = json.loads(process.communicate(timeout=_ANSWER_SECONDS)[0])["agents"]
        return list(agent["links"])

    def packets(self, rail: int) -> int:
        """How many its device of an RDMA network has received."""
        return int(Path(f"/sys/class/infiniband/rx{self.number}{rail}/ports/1/hw_counters/rcvd_pkts").read_text())

    def lanes(self, side: str = "receiving") -> set[str]:
        return {lane for link in self.links() if link["side"] == side for lane in link.get("lanes", [])}


class Worker:
    """A program on a host (see `worker.py`): one JSON object a line, each way."""

    def __init__(self, host: Host, directory: str) -> None:
        self._process = host.popen([sys.executable, WORKER, directory])
        self.hear()

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(_line(self._process.stdout, "a worker"))

    def ask(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.hear()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Running:
    hosts: list[Host]
    workers: list[Worker]
    services: list[subprocess.Popen[str]]
    """Each host's `hoplite start`."""

    def agent(self, index: int) -> int:
        """The process id of a host's agent, which its service started."""
        service, found = self.services[index].pid, []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == service and b"\0agent\0" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        (agent,) = found
        return agent


@contextlib.contextmanager
def networks(*rails: int, **variables: str) -> Iterator[list[Host]]:
    """A host for each number, which is how many RDMA networks it has. Nothing runs on them."""
    hosts = [Host(number, count, variables) for number, count in enumerate(rails, 1)]
    with contextlib.ExitStack() as stack:
        for network in (*range(1, max(rails) + 1), 9):
            sh(f"ip link add net{network} type bridge; ip link set net{network} up")
            stack.callback(sh, f"ip link del net{network}")
        for host in hosts:
            stack.callback(host.take_down)
            host.set_up()
        yield hosts


@contextlib.contextmanager
def cluster(*rails: int, **variables: str) -> Iterator[Running]:
    """A live cluster on such hosts."""
    with networks(*rails, **variables) as hosts, contextlib.ExitStack() as stack:
        directory = f"{hosts[0].address}:7777"
        services = []
        for host in hosts:
            role = ["--head"] if host is hosts[0] else ["--address", directory]
            services.append(_started(host, role, stack))
        workers = []
        for host in hosts:
            workers.append(Worker(host, directory))
            stack.callback(workers[-1].close)
        yield Running(hosts, workers, services)


def _started(host: Host, role: list[str], stack: contextlib.ExitStack) -> subprocess.Popen[str]:
    """Its part of the cluster, ready."""
    command = [HOPLITE, "start", *role, "--host", host.address, "--json", "--memory", "200MiB"]
    with host.log.open("w") as log:
        service = host.popen(command, stderr=log)
    stack.callback(service.wait)
    stack.callback(service.kill)
    assert service.stdout is not None
    _line(service.stdout, f"the agent of {host.name}", host.log)
    return service


def _line(stream: IO[str], who: str, log: Path | None = None) -> str:
    ready, _, _ = select.select([stream], [], [], _ANSWER_SECONDS)
    assert ready, f"{who} said nothing for {_ANSWER_SECONDS:g} s"
    line = stream.readline()
    assert line, f"{who} ended: {log.read_text(errors='replace')[-1500:] if log is not None else ''}"
    return line
