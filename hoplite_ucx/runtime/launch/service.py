"""Directory and agent as a service of a host: what `hoplite start` runs.

A directory that crashed is started again on its port, under the same cluster id and with a higher incarnation, after a
pause that doubles up to a bound; nodes come back to it by themselves. An agent that crashed took its objects with it:
then the service ends, and says so.
"""

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.host.addresses import host_towards, measured_rate
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task, directory_task
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.local.socket_names import agents, socket_name
from hoplite_ucx.transports.wire.addresses import parse_address

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_STEADY = 10.0
"""A directory that ran this long was well: the next pause is short again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """Without an address of a directory, this host is the head and runs one, at `host` and `port`."""

    token: bytes = field(repr=False)
    memory: int
    address: str | None = None
    host: str | None = None
    port: int = 0
    rate: float | None = None


class Service:
    def __init__(self, plan: ServicePlan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._cluster = os.urandom(8).hex()
        self._directory: Child | None = None
        self._agent: Child | None = None
        self._pause = _FIRST_PAUSE
        self._directory_since = 0.0
        self.address = plan.address or ""

    def start(self) -> None:
        """Returns when everything is ready; raises a typed error if something does not become so."""
        plan = self._plan
        try:
            if plan.address is None:
                self._start_directory(plan.port)
            host = plan.host if plan.host is not None else _host_towards(self.address)
            rate = plan.rate or measured_rate(host)
            task = agent_task(self.address, plan.token, plan.memory, rate, plan.host)
            self._agent = processes.spawn("agent", task, tied_to_thread=True)
        except BaseException:
            self.stop()
            raise

    @property
    def agent(self) -> dict[str, str]:
        assert self._agent is not None
        return self._agent.report

    def other_agents(self) -> list[str]:
        """Of this cluster and this user, on this host."""
        cluster = socket_name(self.agent["cluster"], "")
        found = [name.removeprefix(cluster) for name in agents() if name.startswith(cluster)]
        return [agent for agent in found if agent != self.agent["agent"]]

    def watch(self, seconds: float) -> None:
        """Look after the processes for that long. Raises a typed error if the agent has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._await_end(min(left, 0.5))
            if self._agent is None or not self._agent.running():
                detail = "this host's agent has exited, and its objects are lost"
                raise Failure(FailureKind.CLOSED, detail, "see its messages above, then start it again").exception()
            if self._plan.address is None and (self._directory is None or not self._directory.running()):
                self._restart_directory()

    def stop(self) -> None:
        for child in (self._agent, self._directory):
            if child is not None:
                child.stop()
        self._agent = self._directory = None

    def _await_end(self, seconds: float) -> None:
        """A child's output ends with it."""
        outputs = [child.process.stdout for child in (self._agent, self._directory) if child is not None]
        select.select([output for output in outputs if output is not None], [], [], seconds)

    def _start_directory(self, port: int) -> None:
        host = self._plan.host or "127.0.0.1"
        again = self._directory_since > 0
        task = directory_task(self._plan.token, host, port, cluster=self._cluster, successor=again)
        self._directory = processes.spawn("directory", task, tied_to_thread=True)
        self._directory_since = time.monotonic()
        self.address = self._directory.report["address"]

    def _restart_directory(self) -> None:
        if time.monotonic() - self._directory_since >= _STEADY:
            self._pause = _FIRST_PAUSE
        ended, self._directory = self._directory, None
        if ended is not None:
            self._tell(f"the directory exited with status {ended.process.returncode}; it restarts in {self._pause:g} s")
            ended.stop()
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        try:
            self._start_directory(parse_address(self.address)[1])
            self._tell(f"the directory runs again at {self.address}")
        except HopliteError as error:
            self._tell(str(error))


def _host_towards(address: str) -> str:
    try:
        return host_towards(address)
    except (ValueError, OSError) as error:
        failure = Failure(FailureKind.INVALID, f"{address!r} cannot be reached: {error}", "correct the address")
        raise failure.exception() from error
