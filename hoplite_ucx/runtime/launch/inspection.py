"""What runs on this host and in a cluster, for people: asks this host's agents, and a directory."""

import asyncio
import os
import time
from contextlib import suppress
from typing import Any, NamedTuple

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.runtime.host.addresses import resolved
from hoplite_ucx.runtime.launch.tokens import given_token, read_token
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.local.agent_poll import AgentPoll
from hoplite_ucx.runtime.local.socket_names import agents, socket_name
from hoplite_ucx.runtime.settings import HostSettings, load
from hoplite_ucx.runtime.shell.directory_status import ask_status
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.handshake import Identity
from hoplite_ucx.transports.wire.tls import open_tls

_SECONDS = 5.0
_TOKEN_SECONDS = 1.0
"""Agents that run have answered long before. Those that are stopped belong to other clusters, most likely."""


class LocalAgents(NamedTuple):
    status: list[dict[str, Any]]
    silent: list[str]
    """Those that did not answer, by their names."""


def local_agents(cluster: str | None = None) -> LocalAgents:
    """Every agent that this user runs on this host, or those of one cluster."""
    ours = "" if cluster is None else socket_name(cluster, "")
    found: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + _SECONDS
    with AgentPoll(wire.StatusRequest(1)) as call:
        call.ask(name for name in agents() if name.startswith(ours))
        left = _SECONDS
        while call.silent and left > 0:
            left = deadline - time.monotonic()
            for name, reply in call.hear(left).items():
                assert isinstance(reply, wire.Report)
                found[name] = reply.status
        silent = [name.rpartition("-")[2] for name in sorted(call.silent)]
    return LocalAgents([found[name] for name in sorted(found)], silent)


def token_towards(address: str) -> bytes:
    """The token of the cluster there: the given one, or the one that an agent of this user here knows (which may be
    that of a program's own cluster), or the user's own; empty if there is none."""
    if token := given_token():
        return token
    with suppress(ValueError, OSError), AgentPoll(wire.DirectoryRequest(1)) as call:
        wanted = resolved(address)
        call.ask(agents())
        deadline = time.monotonic() + _TOKEN_SECONDS
        left = _TOKEN_SECONDS
        while call.silent and left > 0:
            left = deadline - time.monotonic()
            for reply in call.hear(left).values():
                assert isinstance(reply, wire.DirectoryAt)
                if reply.address is not None and resolved(reply.address) == wanted:
                    return reply.token
    return read_token()


def directory_status(address: str, token: bytes, settings: HostSettings | None = None) -> dict[str, Any]:
    """Ask a directory; raises a typed error if it does not run, or has another token. The settings, by default those
    of this process, name the certificates for TLS."""
    try:
        return asyncio.run(_ask(address, token, settings))
    except TransportError as error:
        raise Failure(FailureKind.CLOSED, error.detail, error.remedy, None, error.peer).exception() from error
    except TimeoutError:
        detail = f"the directory did not answer within {_SECONDS:g} s"
        raise Failure(FailureKind.CLOSED, detail, "check whether it is overloaded", None, address).exception() from None
    except ConfigurationError as error:
        raise Failure(FailureKind.INVALID, error.detail, error.remedy).exception() from error
    except ValueError as error:
        raise Failure(FailureKind.INVALID, str(error), "correct the address").exception() from error


async def _ask(address: str, token: bytes, settings: HostSettings | None) -> dict[str, Any]:
    tls = open_tls((settings or load()).links.certificates)
    me = Identity(int.from_bytes(os.urandom(7)), token, tls=tls)
    return await ask_status(address, me, _SECONDS)
