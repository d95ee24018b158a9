"""What runs here and in a cluster, for people: asked of this host's agents, and of a directory."""

import asyncio
import os
import time
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from hoplite_ucx.protocol.errors import Failure, FailureKind, GetTimeoutError, HopliteError
from hoplite_ucx.runtime import wire
from hoplite_ucx.runtime.connection import Connection, agents
from hoplite_ucx.runtime.directory import STATUS
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.handshake import Identity, Kind
from hoplite_ucx.transports.session import Session, connect
from hoplite_ucx.transports.tls import open_tls

_SECONDS = 5.0


class LocalAgents(NamedTuple):
    status: list[dict[str, Any]]
    silent: list[str]
    """Those that did not answer, by their names."""


def local_agents() -> LocalAgents:
    """Every agent that this user runs on this host."""
    found = LocalAgents([], [])
    for name in agents():
        with suppress(HopliteError):  # it has just ended
            try:
                found.status.append(_status_of(name))
            except GetTimeoutError:
                found.silent.append(name.rsplit("-", 1)[-1])
    return found


def _status_of(name: str) -> dict[str, Any]:
    deadline = time.monotonic() + _SECONDS
    connection = Connection(name, os.urandom(16), background=False, deadline=deadline)
    try:
        connection.send(wire.StatusRequest(1), deadline)
        reply = connection.receive(deadline)
    finally:
        connection.close()
    assert isinstance(reply, wire.Report)
    return reply.status


def directory_status(address: str, token: bytes) -> dict[str, Any]:
    """Ask a directory; raises a typed error if it is not there, or does not know the token."""
    try:
        return asyncio.run(_ask(address, token))
    except TransportError as error:
        raise Failure(FailureKind.CLOSED, error.detail, error.remedy, None, error.peer).exception() from error
    except TimeoutError:
        detail = f"the directory did not answer within {_SECONDS:g} s"
        raise Failure(FailureKind.CLOSED, detail, "look whether it is overloaded", None, address).exception() from None
    except ValueError as error:
        raise Failure(FailureKind.INVALID, str(error), "correct the address").exception() from error


async def _ask(address: str, token: bytes) -> dict[str, Any]:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def made(session: Session) -> None:
        session.on_frame = lambda frame: None if answer.done() else answer.set_result(frame)

        def on_closed(error: TransportError | None) -> None:
            if error is not None and not answer.done():
                answer.set_exception(error)

        session.on_closed = on_closed

    me = Identity(int.from_bytes(os.urandom(7)), token, tls=open_tls())
    session = await connect(address, me, Kind.CONTROL, made)
    try:
        session.send(STATUS)
        async with asyncio.timeout(_SECONDS):
            return msgspec.msgpack.decode(await answer, type=dict[str, Any])
    finally:
        session.abort()
