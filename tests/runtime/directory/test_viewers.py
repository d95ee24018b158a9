"""Viewers at a real directory in this process: what they are told, and that nothing is noted when nobody looks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from hoplite_ucx.protocol.events import FromNode
from hoplite_ucx.protocol.ids import node_id
from hoplite_ucx.protocol.messages import PROTOCOL, Completed, Join, Put, encode
from hoplite_ucx.protocol.watching import Arrived, Begun, Looked
from hoplite_ucx.runtime.directory import viewers
from hoplite_ucx.runtime.directory.server import DirectoryServer
from hoplite_ucx.runtime.shell.looks import AgentLook, DirectoryLook, asking
from hoplite_ucx.transports.errors import HandshakeError, TransportError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, connect
from tests.tools.waiting import HANG

CLUSTER, TOKEN, REF = "c", b"a token for tests", b"r" * 16
NODE = node_id(1)
JOIN = Join(PROTOCOL, CLUSTER, 0, NODE, "host", "127.0.0.1:1", 1e9, 1e9, 8, 8)
PUT = Put(1, REF, 1 << 20, b"layout")


class Peer:
    """A session whose frames are read one by one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        session.on_frame = self.frames.put_nowait
        session.on_closed = lambda _: self.frames.put_nowait(None)

    @classmethod
    async def to(cls, address: str, kind: Kind, number: int = 9) -> "Peer":
        found: list[Peer] = []
        me = Identity(number, TOKEN, CLUSTER.encode())
        await connect(address, me, kind, lambda session: found.append(cls(session)), seconds=HANG)
        return found[0]

    async def read(self) -> bytes | None:
        return await asyncio.wait_for(self.frames.get(), HANG)

    async def look(self, question: DirectoryLook) -> Looked:
        self.session.send(asking(question))
        frame = await self.read()
        assert frame is not None
        return msgspec.msgpack.decode(frame, type=Looked)


def with_directory(steps: Callable[[DirectoryServer, str], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        server = DirectoryServer(CLUSTER, TOKEN)
        address = await server.start("127.0.0.1", 0)
        try:
            await steps(server, address)
        finally:
            await server.close()

    asyncio.run(run())


def test_the_first_answer_is_a_picture_and_the_next_ones_are_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_QUIET", "_LEASE"):  # this process may be held up
        monkeypatch.setattr(viewers, patience, HANG)

    async def steps(server: DirectoryServer, address: str) -> None:
        node = await Peer.to(address, Kind.CONTROL, 1)
        node.session.send(encode(JOIN))
        viewer = await Peer.to(address, Kind.VIEWER)
        first = await viewer.look(DirectoryLook())
        assert first.fresh
        assert first.cluster == CLUSTER
        node.session.send(encode(PUT))
        second = await viewer.look(DirectoryLook(first.incarnation, first.number))
        assert not second.fresh
        assert [(type(each), each.ref) for each in second.told] == [(Begun, REF)]
        [version] = [record.broadcast.version for record in server.machine.records.values() if record.broadcast]
        node.session.send(encode(Completed(version)))
        third = await viewer.look(DirectoryLook(second.incarnation, second.number, (REF,), (REF,)))
        if not third.told:  # a question with refs is answered at once
            third = await viewer.look(DirectoryLook(third.incarnation, third.number, (REF,), (REF,)))
        assert [type(each) for each in third.told] == [Arrived]
        assert third.known[0].size == 1 << 20
        assert third.stories[0][0] == REF
        again = await viewer.look(DirectoryLook(third.incarnation + 1, third.number))
        assert again.fresh

    with_directory(steps)


def test_a_question_is_answered_though_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "_QUIET", 0.05)

    async def steps(_: DirectoryServer, address: str) -> None:
        viewer = await Peer.to(address, Kind.VIEWER)
        first = await viewer.look(DirectoryLook())
        second = await viewer.look(DirectoryLook(first.incarnation, first.number))
        assert second.told == []
        assert not second.fresh

    with_directory(steps)


def test_what_happens_as_the_wait_for_it_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(server: DirectoryServer, address: str) -> None:
        node = await Peer.to(address, Kind.CONTROL, 1)
        node.session.send(encode(JOIN))
        viewer = await Peer.to(address, Kind.VIEWER)
        first = await viewer.look(DirectoryLook())

        async def over_as_it_happens() -> bool:
            """As on a busy machine: one turn of the loop has both, the event and the end of the wait."""
            server.dispatch(FromNode(NODE, PUT))
            raise TimeoutError

        with monkeypatch.context() as busy:
            busy.setattr(server._viewers._news, "wait", over_as_it_happens)
            second = await viewer.look(DirectoryLook(first.incarnation, first.number))
        assert [type(each) for each in second.told] == [Begun]
        third = await viewer.look(DirectoryLook(second.incarnation, second.number, (REF,)))
        assert third.told == []  # once

    with_directory(steps)


def test_nothing_is_noted_when_nobody_has_looked_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "_LEASE", 0.05)

    async def steps(server: DirectoryServer, address: str) -> None:
        machine = server.machine
        assert server._driver.machine is machine
        viewer = await Peer.to(address, Kind.VIEWER)
        await viewer.look(DirectoryLook())
        async with asyncio.timeout(HANG):
            while server._viewers.looking:
                await asyncio.sleep(0.01)
        assert server._driver.machine is machine  # nothing stands between
        later = await viewer.look(DirectoryLook(machine.incarnation, 10**9))
        assert later.fresh

    with_directory(steps)


@pytest.mark.parametrize("frame", [b"", b"\xc1", asking(AgentLook()), encode(JOIN)])
def test_what_is_not_a_question_ends_the_session(frame: bytes) -> None:
    async def steps(_: DirectoryServer, address: str) -> None:
        viewer = await Peer.to(address, Kind.VIEWER)
        viewer.session.send(frame)
        assert await viewer.read() is None

    with_directory(steps)


def test_a_question_before_the_answer_ends_the_session_and_no_other() -> None:
    async def steps(_: DirectoryServer, address: str) -> None:
        rude, patient = await Peer.to(address, Kind.VIEWER), await Peer.to(address, Kind.VIEWER)
        for _ in range(2):
            rude.session.send(asking(DirectoryLook()))
        assert await rude.read() is None
        assert (await patient.look(DirectoryLook())).fresh

    with_directory(steps)


def test_there_are_no_more_viewers_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST", 1)

    async def steps(_: DirectoryServer, address: str) -> None:
        first = await Peer.to(address, Kind.VIEWER)
        assert (await first.look(DirectoryLook())).fresh
        second = await Peer.to(address, Kind.VIEWER)
        second.session.send(asking(DirectoryLook()))
        assert await second.read() is None
        first.session.close()
        async with asyncio.timeout(HANG):
            while True:  # until the directory has noticed
                third = await Peer.to(address, Kind.VIEWER)
                third.session.send(asking(DirectoryLook()))
                if await third.read() is not None:
                    break

    with_directory(steps)


def test_a_viewer_must_have_the_token() -> None:
    async def steps(_: DirectoryServer, address: str) -> None:
        stranger = Identity(9, b"another token", CLUSTER.encode())
        with pytest.raises((HandshakeError, TransportError)):
            await connect(address, stranger, Kind.VIEWER, lambda _: None, seconds=HANG)

    with_directory(steps)


def test_an_observer_that_fails_costs_viewers_a_fresh_picture_and_the_cluster_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(server: DirectoryServer, address: str) -> None:
        node = await Peer.to(address, Kind.CONTROL, 1)
        node.session.send(encode(JOIN))
        assert await node.read() is not None
        viewer = await Peer.to(address, Kind.VIEWER)
        first = await viewer.look(DirectoryLook())
        with monkeypatch.context() as broken:

            def fail(*_: object) -> None:
                raise RuntimeError("a bug")

            broken.setattr(viewers.Watching, "handled", fail)
            node.session.send(encode(PUT))
            assert await node.read() is not None  # it is accepted all the same
        assert (await viewer.look(DirectoryLook(first.incarnation, first.number))).fresh
        assert "a bug" in caplog.text

    with_directory(steps)
