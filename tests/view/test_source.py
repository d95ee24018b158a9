"""What asks the cluster: a directory that goes and comes back, agents that do not answer, and clocks."""

import asyncio
import math
import socket

import pytest

from hoplite_ucx.protocol.ids import label, node_id
from hoplite_ucx.protocol.messages import PROTOCOL, Join, encode
from hoplite_ucx.protocol.watching import Looked
from hoplite_ucx.runtime.directory.server import DirectoryServer
from hoplite_ucx.transports.errors import WrongTokenError
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import connect
from hoplite_ucx.view import source
from hoplite_ucx.view.picture import Picture
from hoplite_ucx.view.source import Clock, Source
from tests.tools.waiting import HANG

CLUSTER, TOKEN = "c", b"a token for tests"
NODE = node_id(1)


async def becomes(picture: Picture, connected: bool) -> None:
    async with asyncio.timeout(HANG):
        while picture.cluster.get("connected") is not connected:
            await asyncio.sleep(0.01)


def test_a_directory_that_is_restarted_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_AGAIN", 0.05)

    async def run() -> None:
        server = DirectoryServer(CLUSTER, TOKEN)
        address = await server.start("127.0.0.1", 0)
        picture = Picture()
        asking = Source(address, TOKEN, picture)
        assert await asking.find() == CLUSTER
        asking.start()
        await becomes(picture, True)
        first = picture.cluster["incarnation"]
        await server.close()
        await becomes(picture, False)
        other = DirectoryServer(CLUSTER, TOKEN)
        await other.start(*parse_address(address), successor=True)
        await becomes(picture, True)
        assert picture.cluster["incarnation"] > first
        await asking.close()
        await other.close()

    asyncio.run(run())


def test_an_agent_that_does_not_answer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_AGAIN", 0.05)

    async def run() -> None:
        server = DirectoryServer(CLUSTER, TOKEN)
        address = await server.start("127.0.0.1", 0)
        mute = socket.create_server(("127.0.0.1", 0))
        port = mute.getsockname()[1]
        session = await connect(address, Identity(1, TOKEN, CLUSTER.encode()), Kind.CONTROL, lambda _: None)
        session.send(encode(Join(PROTOCOL, CLUSTER, 0, NODE, "h", f"127.0.0.1:{port}", 1e9, 1e9, 8, 8)))
        picture = Picture()
        asking = Source(address, TOKEN, picture)
        asking.start()
        async with asyncio.timeout(HANG):
            while label(NODE) not in picture.hosts():
                await asyncio.sleep(0.01)
        host = picture.show(("host", label(NODE)))
        assert isinstance(host, dict)
        assert "memory" not in host
        await asking.close()
        session.close()
        mute.close()
        await server.close()

    asyncio.run(run())


def test_an_answer_that_cannot_be_shown_does_not_end_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_AGAIN", 0.05)

    class Forgetful(Picture):
        failed = False

        def looked(self, answer: Looked) -> None:
            if not self.failed:
                self.failed = True
                raise KeyError("a host that is not known")
            super().looked(answer)

    async def run() -> None:
        server = DirectoryServer(CLUSTER, TOKEN)
        picture = Forgetful()
        asking = Source(await server.start("127.0.0.1", 0), TOKEN, picture)
        asking.start()
        await becomes(picture, True)
        assert picture.failed
        await asking.close()
        await server.close()

    asyncio.run(run())


def test_a_wrong_token_is_an_error_at_once() -> None:
    async def run() -> None:
        server = DirectoryServer(CLUSTER, TOKEN)
        address = await server.start("127.0.0.1", 0)
        with pytest.raises(WrongTokenError):
            await Source(address, b"another token", Picture()).find()
        await server.close()

    asyncio.run(run())


def test_a_clock_is_read_by_the_shortest_exchange() -> None:
    clock = Clock()
    assert clock.delay == math.inf
    clock.note(10.0, 12.0, 1.0)
    assert (clock.offset, clock.delay) == (10.0, 1.0)
    clock.note(20.0, 20.2, 10.0)
    assert clock.offset == pytest.approx(10.1)
    clock.note(30.0, 35.0, 0.0)
    assert clock.offset == pytest.approx(10.1)


def test_clocks_that_cannot_be_told_apart_are_one() -> None:
    clock = Clock()
    clock.note(10.0, 10.2, 10.15)
    assert clock.offset == 0.0
