"""How a process finds its cluster: an embedded one on loopback, or the agent of its host.

An embedded cluster is a directory and an agent as child processes, with a random token. Processes that this one starts
can find it through the environment, and it ends with this process.
"""

import hmac
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from typing import Any

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.host.addresses import LOOPBACK_RATE, resolved
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.launch.tokens import TOKEN, TOKEN_FILE
from hoplite_ucx.runtime.local import remedies
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.local.agent_poll import AgentPoll
from hoplite_ucx.runtime.local.socket_names import agents, socket_name
from hoplite_ucx.runtime.settings import HostSettings, ProcessSettings
from hoplite_ucx.runtime.worker.client import Client

ADDRESS = "HOPLITE_ADDRESS"
AGENT = "HOPLITE_AGENT"

_FIND_SECONDS = 2.0
_GREETING_SECONDS = 5.0
"""For all agents of this host together."""
_LOOK_SECONDS = 0.05
_PATIENCE = 3.0
"""An embedded directory is never restarted: after this long without it, the agent ends, and calls fail."""
_INIT_AGAIN = "call shutdown() and init() again; the objects put before are lost"


@dataclass(slots=True)
class Attachment:
    """A cluster that was started or found, as one process uses it."""

    client: Client
    children: list[Child] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """The variables through which the processes that this one starts can find a cluster of its own."""
    hidden: dict[str, str | None] = field(default_factory=dict)
    """What they were before they were set."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """With which the processes of a cluster of its own were started: they name its settings."""

    def export(self) -> None:
        """Set those variables until the end."""
        self.hidden = {name: os.environ.get(name) for name in self.names}
        os.environ.update(self.names)

    def close(self) -> None:
        """Do each step, even if another is interrupted: leftovers would stay until the process ends, and the next
        `init` would find them."""
        with ExitStack() as steps:  # the last first
            steps.callback(self._hide)
            for child in self.children:
                steps.callback(child.stop)
            steps.callback(self.client.close)

    def _hide(self) -> None:
        for name, value in self.hidden.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def start_embedded(
    memory: int, token: bytes | None, variables: Mapping[str, str], settings: ProcessSettings
) -> Attachment:
    """Start a cluster on loopback for this process and those that learn its address. The variables are for its
    processes."""
    secret = token or os.urandom(16).hex().encode()
    tied = threading.current_thread() is threading.main_thread()
    # It loads while the directory starts.
    agent_process = processes.start("agent", tied_to_thread=tied, variables=variables)
    children = []
    try:
        task = directory_task(secret)
        directory = processes.spawn("directory", task, tied_to_thread=tied, variables=variables, settings=settings)
        children.append(directory)
        address = directory.report["address"]
        task = agent_task(address, secret, memory, LOOPBACK_RATE, "127.0.0.1")
        processes.tell(agent_process, {**task, "patience": _PATIENCE}, settings)
        children.append(processes.await_ready("agent", agent_process, settings))
        report = children[1].report
        client = Client(socket_name(report["cluster"], report["agent"]), _INIT_AGAIN)
    except BaseException:
        processes.abandon(agent_process)
        for child in children:
            child.stop()
        raise
    names = {ADDRESS: address, AGENT: report["agent"], TOKEN: os.fsdecode(secret), TOKEN_FILE: ""}
    return Attachment(client, children, names, variables=variables)


def directory_task(
    token: bytes,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    cluster: str | None = None,
    successor: bool = False,
    settings: HostSettings | None = None,
) -> dict[str, Any]:
    """A successor takes the place of a directory of the same cluster that has ended, and has the same settings whatever
    their file says by then. Without settings, the process reads its own."""
    return {
        **({} if settings is None else {"settings": settings.for_directory()}),
        "cluster": cluster or os.urandom(8).hex(),
        "token": token.hex(),
        "host": host,
        "port": port,
        "successor": successor,
    }


def agent_task(
    directory: str,
    token: bytes,
    memory: int,
    rate: float,
    host: str | None = None,
    settings: HostSettings | None = None,
) -> dict[str, Any]:
    return {
        **_arguments(settings),
        "directory": directory,
        "token": token.hex(),
        "memory": memory,
        "rate": rate,
        "host": host,
    }


def _arguments(settings: HostSettings | None) -> dict[str, Any]:
    """The process reads the file and the variables itself, but it does not have these."""
    return {} if settings is None else {"arguments": [astuple(argument) for argument in settings.arguments]}


def join(
    address: str,
    agent: str | None,
    token: bytes | None = None,
    *,
    seconds: float = _FIND_SECONDS,
    cluster: str | None = None,
) -> Attachment:
    """Find this host's agent of the cluster at that address; it may start within this many seconds. A token must be the
    cluster's own, if one is given, and so must a cluster's id."""
    try:
        wanted = resolved(address)
    except (ValueError, OSError) as error:
        raise _invalid(f"{address!r} cannot be a directory's address: {error}", "correct the address") from error
    began = time.monotonic()
    elsewhere: set[str] = set()
    with AgentPoll() as call:
        while True:
            waited = time.monotonic() - began
            call.ask(name for name in agents() if agent is None or name.endswith(f"-{agent}"))
            greetings = call.hear(_LOOK_SECONDS)
            found = [name for name, greeting in greetings.items() if _belongs(greeting, wanted)]
            if found:
                name = _only([*found, *_same_cluster(found, call.silent)], address)
                _check_cluster(greetings[name], cluster, address)
                _check_token(greetings[name], token, address)
                return Attachment(Client(name))
            elsewhere.update(other.directory for other in greetings.values() if isinstance(other, wire.Greeting))
            if waited >= (max(seconds, _GREETING_SECONDS) if call.silent else seconds):
                raise _no_agent(address, agent, call.silent, elsewhere)


def _belongs(greeting: wire.Reply, wanted: str) -> bool:
    assert isinstance(greeting, wire.Greeting)
    try:
        return resolved(greeting.directory) == wanted
    except (ValueError, OSError):
        return False


def _check_cluster(greeting: wire.Reply, cluster: str | None, address: str) -> None:
    assert isinstance(greeting, wire.Greeting)
    if cluster is not None and greeting.cluster != cluster:
        detail = f"cluster {cluster} has ended: {address} now serves {greeting.cluster}"
        raise Failure(
            FailureKind.CLOSED, detail, "leave it and join the new one; the objects put before are lost"
        ).exception()


def _check_token(greeting: wire.Reply, token: bytes | None, address: str) -> None:
    """An agent accepts its own user without a token: if one is given, it says which cluster is meant."""
    assert isinstance(greeting, wire.Greeting)
    if token is not None and not hmac.compare_digest(wire.token_mark(token, greeting.cluster), greeting.token_mark):
        detail = f"this is not the token of the cluster at {address}"
        raise _invalid(detail, "give the token that the cluster was started with, or leave it out")


def _same_cluster(found: list[str], silent: list[str]) -> list[str]:
    """Of the agents that have not answered yet: a socket's name contains its cluster."""
    clusters = {name.rpartition("-")[0] for name in found}
    return [name for name in silent if name.rpartition("-")[0] in clusters]


def _only(found: list[str], address: str) -> str:
    if len(found) > 1:
        detail = f"this host has several agents of {address}: {_names(found)}"
        raise _invalid(detail, f"name one, with agent= in a program, --agent in a command, or {AGENT}")
    return found[0]


def _names(sockets: list[str]) -> str:
    return ", ".join(name.rsplit("-", 1)[-1] for name in sockets)


def _no_agent(address: str, agent: str | None, silent: list[str], elsewhere: set[str]) -> HopliteError:
    if silent:
        detail = f"{_names(silent)} may be the agent of {address} here, but does not answer"
        return Failure(FailureKind.CLOSED, detail, "check whether it is stopped or overloaded").exception()
    which = f"no agent {agent}" if agent else "no agent"
    detail = f"{which} of the cluster at {address} runs on this host under this user"
    if elsewhere:
        detail += f" (agents here belong to {', '.join(sorted(elsewhere))})"
    return Failure(FailureKind.CLOSED, detail, remedies.join(address)).exception()


def _invalid(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.INVALID, detail, remedy).exception()
