"""A cluster of real processes that a browser looks at: each agent has an address of loopback of its own, so that trees
are laid as between hosts, and a producer says how far an object is, so that a test decides when something moves."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task, directory_task
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.settings import ProcessSettings
from tests.tools.live import TOKEN, patient, spawn
from tests.tools.waiting import HANG

RATE = 1e6
"""What agents believe of their network cards, in bytes a second. So little that a host which sends an object counts as
busy with it for seconds, however late its heartbeats are: the next receiver stands behind the one before it."""


@dataclass
class WatchedHost:
    agent: Child
    cluster: hoplite.Cluster

    @property
    def node(self) -> str:
        return f"n{self.agent.report['agent']}"

    def kill(self) -> None:
        self.agent.process.kill()
        self.agent.process.wait()


@dataclass
class Watched:
    directory: Child
    hosts: list[WatchedHost]
    _next: int = 2
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.directory.report["address"])

    @property
    def cluster(self) -> str:
        return str(self.directory.report["cluster"])

    def add(self, count: int, memory: int = 512 << 20) -> None:
        starting = [processes.start("agent", tied_to_thread=True) for _ in range(count)]
        for process in starting:
            processes.tell(process, agent_task(self.address, TOKEN, memory, RATE, f"127.0.0.{self._next}"))
            self._next += 1
        for process in starting:
            agent = processes.await_ready("agent", process, ProcessSettings(start=HANG))
            cluster = hoplite.connect(self.address, agent=agent.report["agent"])
            self.hosts.append(WatchedHost(agent, cluster))

    def get(self, host: int, ref: hoplite.ObjectRef) -> threading.Thread:
        """In a thread; a host that is killed meanwhile fails."""

        def run() -> None:
            with contextlib.suppress(hoplite.HopliteError):
                self.hosts[host].cluster.get(ref, timeout=HANG)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def draft(self, host: int, size: int, name: str | None = None) -> hoplite.Draft:
        """Something that is written as far as the test says."""
        ref = hoplite.ref_for(name) if name is not None else None
        draft = self.hosts[host].cluster.create(size // 4, np.float32, ref=ref, timeout=HANG)
        draft.array[:] = host + 1
        return draft

    def close(self) -> None:
        for host in self.hosts:
            host.cluster.close()
        for host in self.hosts:
            host.agent.stop()
        self.directory.stop()


@contextlib.contextmanager
def watched_cluster(count: int) -> Iterator[Watched]:
    watched = Watched(spawn("directory", directory_task(TOKEN, settings=patient())), [])
    try:
        watched.add(count)
        yield watched
    finally:
        watched.close()
