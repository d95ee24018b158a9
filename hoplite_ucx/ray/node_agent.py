"""The agent actor: one on each Ray node that uses hoplite. It owns the node's agent, and does what the owner asks.

The agent's process is a child of this actor's: the kernel ends it with the actor, however that ends. An agent that
crashed is started again, empty, and Ray does the same for the actor. Workers on the node join the new one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import ray

import hoplite_ucx as hoplite
from hoplite_ucx.ray import reductions
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.ray.session import session
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool

_OVER = frozenset("XZ")
_log = logging.getLogger("hoplite.ray")

START_SECONDS = 40.0
REDUCE = "reduce"
"""The threads in which reductions wait for their sources."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_PATIENCE = 60.0
"""The agent ends by itself after so long without a directory."""
_DELETE_SECONDS = 20.0


class NodeAgent:
    """A threaded actor."""

    def __init__(self, address: str, token: str, memory: int | None, rate: float | None) -> None:
        self._address = address
        self._token = token
        self._memory = memory
        self._rate = rate
        self._host = ray.util.get_node_ip_address()
        self._changed = threading.Condition()
        self._agent: hoplite.AgentProcess | None = None
        self._error: Exception | None = None
        self._cluster: hoplite.Cluster | None = None
        self._callers = DaemonPool(16, "hoplite-calls")
        """Each has a connection to the agent. Ray's own threads take turns: every one of them would have one."""
        self._agent = self._start()
        threading.Thread(target=self._keep, name="hoplite-keep", daemon=True).start()

    def where(self) -> tuple[str, str]:
        """The directory's address, and the name of the agent as it is now."""
        agent = self._running()
        return self._address, agent.agent

    def pids(self) -> tuple[int, int]:
        """Of this actor, and of the agent."""
        return os.getpid(), self._running().pid

    def ended(self, pids: list[int]) -> list[int]:
        """Those of these processes of this node that have ended."""
        return [pid for pid in pids if not _runs(pid)]

    def delete(self, names: list[bytes]) -> None:
        refs = [hoplite.ObjectRef(name) for name in names]
        self._callers.submit(lambda: self._joined().delete(refs, timeout=_DELETE_SECONDS)).result()

    def status(self) -> dict[str, Any]:
        """What the agent tells of itself."""

        def ask() -> dict[str, Any]:
            return self._joined()._of.client.status()

        return self._callers.submit(ask).result()

    @ray.method(concurrency_group=REDUCE)
    def reduce(self, refs: list[Any], op: str, count: int, everywhere: bool) -> tuple[Any, list[int]]:
        return reductions.reduce(refs, op, count, everywhere, session())

    # --- the agent ---------------------------------------------------------------------------------------------

    def _start(self) -> hoplite.AgentProcess:
        return hoplite.start_agent(
            self._address, token=self._token, memory=self._memory, rate=self._rate, host=self._host, patience=_PATIENCE
        )

    def _keep(self) -> None:
        """Start another agent whenever one has ended."""
        pause = _FIRST_PAUSE
        agent = self._running()
        while True:
            began = time.monotonic()
            agent.wait()
            with self._changed:
                self._agent = None
            if time.monotonic() - began > _PATIENCE:
                pause = _FIRST_PAUSE
            while self._agent is None:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    agent = self._start()
                except Exception as error:  # of hoplite, or of a system that has no process or descriptor to give
                    _log.warning("%s", error)
                    self._error = error
                    continue
                with self._changed:
                    self._agent, self._error = agent, None
                    self._changed.notify_all()

    def _running(self) -> hoplite.AgentProcess:
        with self._changed:
            if not self._changed.wait_for(lambda: self._agent is not None, START_SECONDS):
                raise self._error or closed("this node's agent does not start", "see the log of the agent actor")
            assert self._agent is not None
            return self._agent

    def _joined(self) -> hoplite.Cluster:
        agent = self._running().agent
        with self._changed:
            cluster = self._cluster
            if cluster is None or cluster.agent != agent:
                if cluster is not None:
                    cluster.close()
                cluster = self._cluster = hoplite.connect(self._address, agent=agent)
            return cluster


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in _OVER
