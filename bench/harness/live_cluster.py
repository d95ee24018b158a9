"""A live cluster on emulated hosts or on machines: a directory, an agent on every host, and workers that take commands.

    with Cluster(8, rate) as cluster, LiveCluster(cluster.hosts, rate) as live:
        live.ask(0, "put", ref=live.new_ref(), size=1 << 20, seed=3)

The directory runs on host 0, beside that host's agent, and shares its shaped link. Workers get their steps over
pipes; see `worker` for what they can do. Everything here is bounded in time, and ends with the block or the cluster.
Times in steps and in answers are on this machine's clock, whatever clock a host has.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hoplite_ucx.bench.harness.timing import Round
from hoplite_ucx.bench.hosts.all_or_nothing import Opened
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.places import Clock, Place
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task, directory_task
from hoplite_ucx.runtime.settings import ProcessSettings

__all__ = ["NOTICE", "LiveCluster", "Steps", "launch"]

NOTICE = 0.03
"""The time between announcing the start and the start, on this machine: all workers must be waiting for it."""

Steps = Mapping[int, dict[str, Any]]
"""What each worker is to do, by its rank: the step's name under "do", and its arguments."""

_MEMORY = 2 << 30
_UNSHAPED = 1.25e9
_PATIENCE = 150.0
_START_SECONDS = 45.0  # all start at the same time, and perhaps on few processors or far away


class LiveCluster(Opened):
    """`memory` limits the store of every host, or of each. `workers` says on which host each worker is; one on every
    host, in order, if it is not given. `links` is the configuration of the links of every host's agent, or of each, as
    variables over this process's own; the directory has those of the first. A host that is given several times has
    several agents."""

    def __init__(
        self,
        hosts: Sequence[Place],
        rate: float | None,
        *,
        memory: int | Sequence[int] = _MEMORY,
        workers: Sequence[int] | None = None,
        links: Mapping[str, str] | Sequence[Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self._hosts = hosts
        self._rate = _UNSHAPED if rate is None else rate
        self._memory = [memory] * len(hosts) if isinstance(memory, int) else memory
        self._places = list(range(len(hosts))) if workers is None else workers
        self._links = [links] * len(hosts) if isinstance(links, Mapping) else links
        self._clocks = [Clock() for _ in hosts]
        self._services: list[tuple[Place, subprocess.Popen[bytes]]] = []
        self._workers: list[LineProcess] = []
        self.token = secrets.token_hex(16).encode()
        self.address = ""
        """Of the directory."""

    # --- its life ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        token = self.token
        # All at once, since what takes time is loading; each then waits for its task.
        directory = self._launch(self._hosts[0], "directory", self._links[0])
        agents = [self._launch(host, "agent", links) for host, links in zip(self._hosts, self._links, strict=True)]
        processes.tell(directory, directory_task(token, self._hosts[0].address))
        address = self.address = _report("directory", self._hosts[0], directory)["address"]
        for host, agent, memory in zip(self._hosts, agents, self._memory, strict=True):
            processes.tell(agent, agent_task(address, token, memory, self._rate, host.address))
        names = [_report("agent", host, agent)["agent"] for host, agent in zip(self._hosts, agents, strict=True)]
        for rank, place in enumerate(self._places):
            host = self._hosts[place]
            command = [*host.module("hoplite_ucx.bench.harness.worker"), address, names[place]]
            self._workers.append(LineProcess(host, command, f"worker {rank} on {host.name}"))
        for rank in range(len(self._workers)):
            self._answer(rank, time.monotonic() + _PATIENCE)

    def _launch(
        self, host: Place, role: str, links: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        service = launch(host, role, env={**os.environ, **links})
        self._services.append((host, service))
        return service

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        for _, service in self._services:
            service.kill()
        for worker in self._workers:
            worker.close()
        for _, service in self._services:
            with service:  # closes its pipes and waits for it
                pass
        self._workers, self._services = [], []

    # --- steps -------------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> range:
        return range(len(self._workers))

    @staticmethod
    def new_ref() -> str:
        return secrets.token_hex(16)

    def ask(self, rank: int, do: str, **arguments: Any) -> Any:
        """One step of one worker; returns its result."""
        return self.together({rank: {"do": do, **arguments}})[rank]

    def tell(self, rank: int, do: str, **arguments: Any) -> None:
        """Let a worker do a step while others are asked; `answer` waits for it."""
        self._tell(rank, {"do": do, **arguments})

    def answer(self, rank: int) -> Any:
        """The result of the step that a worker was given."""
        return self._answer(rank, time.monotonic() + _PATIENCE)

    def together(self, steps: Steps, patience: float = _PATIENCE) -> dict[int, Any]:
        """A step of several workers at the same time; returns when all are done."""
        deadline = time.monotonic() + patience
        for rank, step in steps.items():
            self._tell(rank, step)
        return {rank: self._answer(rank, deadline) for rank in steps}

    def at_once(self, steps: Steps) -> Round:
        """Timed steps that begin at one moment, until the last is done."""
        return self.timed(steps)[0]

    def timed(self, steps: Steps) -> tuple[Round, dict[int, Any]]:
        """The same, with every worker's result."""
        notice = self.synchronise()
        before = self.services_processor()
        at = time.monotonic() + notice
        told = self.together({rank: {**step, "at": at} for rank, step in steps.items()})
        used = self.services_processor() - before + sum(each["processor"] for each in told.values())
        return Round(max(each["done"] for each in told.values()) - at, used), told

    def synchronise(self) -> float:
        """Read the clocks of all hosts. Returns how long before a start they must learn of it."""
        self._clocks = [host.clock() for host in self._hosts]
        # An answer takes twice a clock's error, and a step goes half of that way; twice that is for good measure.
        return NOTICE + 2 * max(clock.error for clock in self._clocks)

    def _tell(self, rank: int, step: dict[str, Any]) -> None:
        if "at" in step:
            step = {**step, "at": step["at"] + self._ahead(rank)}
        self._workers[rank].tell(json.dumps(step))

    def _answer(self, rank: int, deadline: float) -> Any:
        worker = self._workers[rank]
        answer = json.loads(worker.line(deadline))
        if "error" in answer:
            raise PeerError(f"{worker.name}: {answer['error']}")
        done = answer["done"]
        if isinstance(done, dict):
            done |= {moment: done[moment] - self._ahead(rank) for moment in ("began", "done") if moment in done}
        return done

    def _ahead(self, rank: int) -> float:
        return self._clocks[self._places[rank]].ahead

    # --- what its processes use --------------------------------------------------------------------------------

    @property
    def pids(self) -> dict[str, int]:
        """Every process by its role and place; on other machines, what reaches it."""
        directory, *agents = (service for _, service in self._services)
        return {
            "directory": directory.pid,
            **{f"agent {place}": agent.pid for place, agent in enumerate(agents)},
            **{f"worker {rank}": worker.pid for rank, worker in enumerate(self._workers)},
        }

    def directory_processor(self) -> float:
        """The processor time that the directory has taken so far."""
        host, directory = self._services[0]
        return host.processor(directory)

    def services_processor(self) -> float:
        """The processor time that directory and agents have taken so far."""
        return sum(host.processor(service) for host, service in self._services)


def launch(host: Place, role: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a directory or an agent in a host, which then waits for its task: see `runtime.processes`."""
    command = [*host.module("hoplite_ucx.runtime"), role, "any", "free"]
    return host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def _report(role: str, host: Place, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a service says when it is ready."""
    try:
        return processes.await_ready(role, process, ProcessSettings(start=_START_SECONDS)).report
    except HopliteError as error:
        raise PeerError(f"{host.name}: {error}") from error
