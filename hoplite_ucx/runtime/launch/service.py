"""Directory and agent as a service of a host: what `hoplite start` runs.

A directory that crashed is started again on its port (see `lasting_directory`). An agent that crashed took its objects
with it: then the service ends, and says so.
"""

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.runtime.host.addresses import host_towards, measured_rate
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task
from hoplite_ucx.runtime.launch.lasting_directory import LastingDirectory
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.launch.view_port import PORT, ViewPort, key_for, page_address
from hoplite_ucx.runtime.local.socket_names import agents, socket_name
from hoplite_ucx.runtime.settings import HostSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """Without an address of a directory, this host is the head and runs the directory, at `host` and `port`."""

    token: bytes = field(repr=False)
    memory: int
    address: str | None = None
    host: str | None = None
    port: int = 0
    settings: HostSettings = field(default_factory=HostSettings)
    variables: Mapping[str, str] = field(default_factory=dict)
    """For the processes, over those of this one."""
    view: bool = False
    """Whether a head has a live view, on its `host`, at `view_port`, or without one at the usual port or any."""
    view_port: int | None = None


class Service:
    def __init__(self, plan: ServicePlan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._directory: LastingDirectory | None = None
        if plan.address is None:
            self._directory = LastingDirectory(
                plan.token, plan.host or "127.0.0.1", plan.port, tell, plan.variables, plan.settings
            )
        self._agent: Child | None = None
        self._tell = tell
        self._view: ViewPort | None = None

    @property
    def address(self) -> str:
        """Of the directory."""
        return self._plan.address or (self._directory.address if self._directory is not None else "")

    def start(self) -> None:
        """Returns when everything is ready; raises a typed error if something does not become so."""
        plan = self._plan
        try:
            if self._directory is not None:
                self._directory.start()
            host = plan.host if plan.host is not None else reachable_host(self.address)
            rate = plan.settings.links.rate or measured_rate(host)
            task = agent_task(self.address, plan.token, plan.memory, rate, plan.host, plan.settings)
            self._agent = processes.spawn(
                "agent", task, tied_to_thread=True, variables=plan.variables, settings=plan.settings.processes
            )
            if plan.view and self._directory is not None:
                self._open_view(plan.host or "127.0.0.1")
        except BaseException:
            self.stop()
            raise

    def _open_view(self, host: str) -> None:
        """The cluster is there without it: one that cannot be had is told of, and that is all."""
        try:
            self._view = ViewPort(host, self._plan.view_port, self._tell, self._plan.variables)
        except OSError as error:
            where = f"{host}:{self._plan.view_port or PORT}"
            self._tell(f"no live view at {where}: {error.strerror}; choose another port with --view-port")

    @property
    def view(self) -> str | None:
        """The address of the page, with its key."""
        if self._view is None:
            return None
        return page_address(self._view.address, key_for(self._plan.token, self.agent["cluster"]))

    @property
    def agent(self) -> dict[str, str]:
        assert self._agent is not None
        return self._agent.report

    @property
    def metrics(self) -> dict[str, str]:
        """Where each process serves them, if it does."""
        children = {"agent": self._agent, "directory": self._directory.child if self._directory is not None else None}
        found = {role: child.report["metrics"] for role, child in children.items() if child is not None}
        return {role: url for role, url in found.items() if url}

    def other_agents(self) -> list[str]:
        """Of this cluster and this user, on this host."""
        cluster = socket_name(self.agent["cluster"], "")
        found = [name.removeprefix(cluster) for name in agents() if name.startswith(cluster)]
        return [agent for agent in found if agent != self.agent["agent"]]

    def watch(self, seconds: float) -> None:
        """Watch the processes for that long. Raises a typed error if the agent has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._await_end(min(left, 0.5))
            if self._agent is None or not self._agent.running():
                detail = "this host's agent has exited, and its objects are lost"
                raise Failure(FailureKind.CLOSED, detail, "see its messages above, then start it again").exception()
            if self._directory is not None and not self._directory.running():
                self._directory.restart()
            if self._view is not None:
                self._view.look(self.address, self._plan.token)

    def stop(self, hand_over: float = 0.0) -> None:
        """With `hand_over`, other agents have so many seconds to take over the objects that only this one holds."""
        agent, self._agent = self._agent, None
        view, self._view = self._view, None
        try:
            if view is not None:
                view.close()
            if agent is not None:
                agent.stop(hand_over)
        finally:
            if self._directory is not None:
                self._directory.stop()

    def _await_end(self, seconds: float) -> None:
        """A child's output ends with it. The view's may also have a visitor."""
        children = (self._agent, self._directory.child if self._directory is not None else None)
        outputs = [child.process.stdout for child in children if child is not None]
        watched = [output.fileno() for output in outputs if output is not None]
        if self._view is not None:
            watched.append(self._view.waits_for())
        select.select(watched, [], [], seconds)


def reachable_host(address: str) -> str:
    """The address of this host as the directory sees it. Raises a typed error if the directory's is none."""
    try:
        return host_towards(address)
    except (ValueError, OSError) as error:
        failure = Failure(FailureKind.INVALID, f"{address!r} cannot be reached: {error}", "correct the address")
        raise failure.exception() from error
