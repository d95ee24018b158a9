"""Small objects asked for at a real directory: what users get is what they would get through their agents."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from hoplite_ucx.errors import ClosedError, GetTimeoutError, HopliteError, ObjectDeletedError
from hoplite_ucx.protocol import lookups
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.lookups import Absent, Answer, Found, decode_answer
from hoplite_ucx.runtime.directory import lookup_sessions
from hoplite_ucx.runtime.directory.server import DirectoryServer
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.shell.directory_status import STATUS
from hoplite_ucx.runtime.worker import direct_lookup
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import new_ref
from hoplite_ucx.transports.errors import HandshakeError, WrongTokenError
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, Peer, client, run_blocking
from tests.tools.live import TOKEN, Host, Live, live_cluster
from tests.tools.loopback import own_address
from tests.tools.waiting import HANG, eventually

SMALL = np.arange(100)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that a busy machine holds up is asked all the same; one test is about one that does not answer."""
    monkeypatch.setattr(direct_lookup, "_PATIENCE", HANG)
    monkeypatch.setattr(direct_lookup, "_CONNECT_SECONDS", HANG)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_cluster(2) as cluster:
        yield cluster


def connect(host: Host, putter: Host) -> None:
    """Get small objects until this host's worker has a session with the directory."""

    def connected() -> bool:
        ref = putter.put(SMALL)
        assert np.array_equal(host.get(ref), SMALL)
        return host.client.reader.connected

    eventually(connected)


class Looks:
    """Counts what a client's reader is asked, and what it finds."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = self.found = 0
        look = host.client.reader.look

        def counted(ref: bytes, timeout: float | None) -> Found | None:
            found = look(ref, timeout)
            self.asked += 1
            self.found += found is not None
            return found

        monkeypatch.setattr(host.client.reader, "look", counted)


def test_a_small_object_of_another_host_comes_from_the_directory(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    putter, getter = live.hosts
    connect(getter, putter)
    looks = Looks(getter, monkeypatch)
    ref = putter.put({"a": SMALL, "b": [SMALL + 1]})
    putter.wait([ref])  # the directory has heard of it before it says so
    value = getter.get(ref)
    assert np.array_equal(value["b"][0], SMALL + 1)
    assert not value["a"].flags.writeable
    assert getter.get(putter.put("text")) == "text"
    assert looks.found >= 1


def test_what_is_large_or_was_put_here_is_not_asked_for_twice(live: Live) -> None:
    putter, getter = live.hosts
    connect(getter, putter)
    large = putter.put(np.zeros(1 << 20))
    getter.get(large)
    own = getter.put(SMALL)
    near = getter.client.reader._near
    assert large.binary in near
    assert own.binary in near
    assert getter.reduce([own]).binary in near
    assert np.array_equal(getter.get(own), SMALL)


def test_a_get_waits_for_what_is_yet_to_come(live: Live) -> None:
    putter, getter = live.hosts
    connect(getter, putter)
    ref = new_ref()
    with pytest.raises(GetTimeoutError):
        getter.get(ref, timeout=0.2)
    putter.put(SMALL, ref)
    assert np.array_equal(getter.get(ref), SMALL)


def test_a_deleted_object_is_deleted_for_everybody_at_once(live: Live) -> None:
    putter, getter = live.hosts
    connect(getter, putter)
    for _ in range(20):
        ref = putter.put(SMALL)
        assert np.array_equal(getter.get(ref), SMALL)
        putter.delete(ref)
        with pytest.raises(ObjectDeletedError):
            getter.get(ref)


def test_a_worker_that_was_shut_down_gets_nothing(live: Live) -> None:
    putter, getter = live.hosts
    ref = putter.put(SMALL)
    worker = Client(getter.name)
    eventually(lambda: worker.get([ref.binary], HANG) and worker.reader.connected)
    worker.close()
    assert not worker.reader.connected
    with pytest.raises(ClosedError):
        worker.get([ref.binary], HANG)


def test_a_forked_child_has_no_session(live: Live) -> None:
    putter, getter = live.hosts
    connect(getter, putter)
    ref = putter.put(SMALL)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            getter.client.get([ref.binary], HANG)
        except ClosedError:
            code = 2 if getter.client.reader.connected else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert getter.client.reader.connected
    assert np.array_equal(getter.get(ref), SMALL)


def test_a_dead_agent_is_not_passed_by() -> None:
    with live_cluster(2) as cluster:
        putter, getter = cluster.hosts
        connect(getter, putter)
        ref = putter.put(SMALL)
        getter.kill()
        eventually(lambda: not getter.client.reader.connected)
        with pytest.raises(ClosedError):
            getter.get(ref)


def test_the_directory_is_killed_and_restarted() -> None:
    with live_cluster(2, host=own_address()) as cluster:
        putter, getter = cluster.hosts
        connect(getter, putter)
        ref = putter.put(SMALL)
        assert np.array_equal(getter.get(ref), SMALL)
        cluster.kill_directory()
        with pytest.raises(HopliteError):
            getter.get(new_ref(), timeout=0.5)
        cluster.restart_directory()
        assert np.array_equal(getter.get(ref), SMALL)
        eventually(lambda: getter.get(ref) is not None and getter.client.reader.connected)
        assert np.array_equal(getter.get(ref), SMALL)


def test_a_directory_that_is_stopped_costs_a_short_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent has the object already, so that it can be got without a directory."""
    with live_cluster(2) as cluster:
        putter, getter = cluster.hosts
        connect(getter, putter)
        ref = getter.put(SMALL)
        worker = Client(getter.name)
        eventually(lambda: worker.get([ref.binary], HANG) and worker.reader.connected)
        asked: list[bytes] = []
        ask = worker.reader._ask

        def counted(sock: socket.socket, about: bytes, limit: float) -> Found | None:
            asked.append(about)
            return ask(sock, about, limit)

        monkeypatch.setattr(worker.reader, "_ask", counted)
        monkeypatch.setattr(direct_lookup, "_PATIENCE", 0.25)
        os.kill(cluster.directory.process.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                worker.get([ref.binary], HANG)
                assert asked == [ref.binary], "it is asked once, and not again before it has answered"
                assert not worker.reader.connected
            with pytest.raises(GetTimeoutError):
                getter.get(new_ref(), timeout=0.1)
        finally:
            os.kill(cluster.directory.process.pid, signal.SIGCONT)
            worker.close()
        assert np.array_equal(getter.get(putter.put(SMALL)), SMALL)


# --- at the directory's port ------------------------------------------------------------------------------------


def reader_session(address: str, token: bytes = TOKEN) -> socket.socket:
    sock = socket.create_connection(parse_address(address), HANG)
    try:
        run_blocking(client(Identity(9, token), Kind.READER, address), sock, address)
    except BaseException:
        sock.close()
        raise
    sock.settimeout(HANG)
    return sock


def say(sock: socket.socket, frame: bytes) -> bytes:
    """What comes back for a frame; nothing, if the session ends."""
    try:
        sock.sendall(len(frame).to_bytes(4, "little") + frame)
        return sock.recv(65536)[4:]
    except ConnectionError:
        return b""


def test_a_reader_must_prove_the_token(live: Live) -> None:
    with pytest.raises(WrongTokenError):
        reader_session(live.address, b"another")


def test_an_agent_takes_no_readers(live: Live) -> None:
    with pytest.raises(HandshakeError, match="reader"):
        reader_session(live.hosts[0].agent.report["address"])


def test_a_reader_can_look_and_nothing_else(live: Live) -> None:
    ref = live.hosts[0].put(SMALL)
    live.hosts[1].get(ref)
    look = ref.binary
    for other in (STATUS, b"", b"\xc1", wire.frame(wire.Ping(1)), look + b"x", bytes(65)):
        with reader_session(live.address) as sock:
            assert isinstance(decode_answer(say(sock, look)), Found)
            assert say(sock, other) == b""


@contextlib.contextmanager
def reader_here(answer: Found) -> Iterator[tuple[lookup_sessions.Readers, socket.socket]]:
    """Both sides are on the running loop, so that nothing is read or sent unless a test lets it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    theirs.setblocking(False)
    them = lookup_sessions.Readers(lambda _: answer)
    them.accept(ours, cast(Peer, None))
    with theirs:
        yield them, theirs
    them.close()


async def answer_to(sock: socket.socket) -> Answer:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
        data += await asyncio.get_running_loop().sock_recv(sock, 1 << 20)
    return decode_answer(data[4:])


def test_a_question_may_come_in_pieces_and_only_one_at_a_time() -> None:
    found = Found(Version(bytes(16), 1, 1), b"", b"abc")
    question = lookups.QUESTION + bytes(16)

    async def work() -> None:
        with reader_here(found) as (them, theirs):
            [session] = them._sessions
            for begin, end in itertools.pairwise((0, 1, 4, 19)):
                theirs.send(question[begin:end])
                while session._begun != question[:end]:
                    await asyncio.sleep(0)
            theirs.send(question[19:])
            assert await answer_to(theirs) == found
            theirs.send(question + question)  # it asks before it has read
            while len(them):
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), HANG))


def test_a_reader_that_does_not_read_gets_the_rest_later_and_may_not_ask_again() -> None:
    found = Found(Version(bytes(16), 1, 1), b"", bytes(1 << 20))  # far more than the socket takes at once
    question = lookups.QUESTION + bytes(16)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        with reader_here(found) as (them, theirs):
            theirs.send(question)
            assert await answer_to(theirs) == found

            theirs.send(question)
            answered = asyncio.Event()
            loop.add_reader(theirs, answered.set)
            await answered.wait()
            loop.remove_reader(theirs)
            assert len(them) == 1
            theirs.send(question)  # while the rest of the answer waits for it to read
            while len(them):
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), HANG))


def test_readers_are_no_members_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_sessions, "MAX_READERS", 2)
    look = bytes(16)

    async def work() -> None:
        server = DirectoryServer("cluster", TOKEN)
        address = await server.start("127.0.0.1", 0)

        def talk() -> None:
            first, second, third = (reader_session(address) for _ in range(3))
            assert isinstance(decode_answer(say(first, look)), Absent)
            assert isinstance(decode_answer(say(second, look)), Absent)
            assert say(third, look) == b"", "one too many"
            first.close()
            eventually(lambda: server.status()["readers"] == 1)
            with reader_session(address) as fourth:
                assert isinstance(decode_answer(say(fourth, look)), Absent)
            for sock in (second, third):
                sock.close()

        await asyncio.get_running_loop().run_in_executor(None, talk)
        assert server.status()["nodes"] == []
        await server.close()

    asyncio.run(work())
