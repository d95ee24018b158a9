"""Connections that are turned away are logged where people look, with their address, and not without limit."""

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.runtime.shell import refused_connections
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.addresses import parse_address, socket_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, server
from hoplite_ucx.transports.wire.session import Listener, Session, connect, probe
from tests.runtime.launch.test_service import service

GARBAGE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("port", ["address", "agent_address"])
def test_garbage_is_logged_on_the_terminal_of_the_service(port: str) -> None:
    with (
        service("--head", "--port", "0") as (head, report),
        socket.create_connection(parse_address(report[port])) as stranger,
    ):
        stranger.sendall(GARBAGE)
        address = socket_address(stranger.getsockname())
        assert head.stderr is not None
        line = head.stderr.readline()
    assert "a connection was refused: the other side does not speak hoplite's protocol" in line
    assert address in line


def test_a_node_that_makes_no_sense_is_logged() -> None:
    async def talk(address: str) -> None:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def made(session: Session) -> None:
            session.on_closed = lambda _: closed.set_result(None)
            session.send(b"\xc0")

        await connect(address, Identity(7, b"a token"), Kind.CONTROL, made)
        await closed

    with service("--head", "--port", "0") as (head, report):
        asyncio.run(talk(report["address"]))
        assert head.stderr is not None
        assert "a connection was refused: " in head.stderr.readline()


def refused_by_a_listener(visit: Callable[[str], None]) -> list[TransportError]:
    """What a listener says of one visit."""
    heard: list[TransportError] = []

    async def work() -> None:
        done = asyncio.Event()

        def on_refused(error: TransportError) -> None:
            heard.append(error)
            done.set()

        listener = Listener(Identity(1, b"t"), {Kind.CONTROL: lambda _: None}, on_refused=on_refused)
        address = await listener.start("127.0.0.1")
        await asyncio.to_thread(visit, address)
        await done.wait()
        await listener.close()

    asyncio.run(work())
    return heard


def say(data: bytes) -> Callable[[str], None]:
    def visit(address: str) -> None:
        with socket.create_connection(parse_address(address)) as stranger:
            stranger.sendall(data)

    return visit


def test_what_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but a visit that only looks whether somebody is there."""
    for visit, logged in (
        (say(GARBAGE), True),
        (say(b"short"), True),
        (say(b""), False),
        (lambda address: asyncio.run(_probe(address)), False),
    ):
        monkeypatch.setattr(refused_connections, "_refusals", refused_connections._Refusals())
        caplog.clear()
        (error,) = refused_by_a_listener(visit)
        with caplog.at_level(logging.WARNING, "hoplite"):
            refused_connections.tell_refused(error)
        assert bool(caplog.records) == logged, error


async def _probe(address: str) -> None:
    assert await probe(address)


def test_who_does_not_speak_the_protocol_need_not_say_much() -> None:
    steps = server(Identity(1, b"t"), [Kind.CONTROL], "somewhere")
    assert next(steps) == 8


def test_a_flood_is_logged_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    told = refused_connections._Refusals()
    failure = TransportError("it is garbage", "127.0.0.1:9", "do nothing")
    with caplog.at_level(logging.WARNING, "hoplite"):
        for moment in range(1000):
            told.tell(failure, moment / 200)
        assert len(caplog.records) == 5
        told.tell(failure, 11.0)
    assert [record.getMessage() for record in caplog.records][5] == "995 more connections were refused"


def test_malformed_frames_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_connections, "_refusals", refused_connections._Refusals())
    with caplog.at_level(logging.WARNING, "hoplite"):
        refused_connections.tell_malformed(Failure(FailureKind.INVALID, "it makes no sense", "update"), "127.0.0.1:9")
    assert "it makes no sense (peer 127.0.0.1:9)" in caplog.text
