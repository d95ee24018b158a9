"""A worker's way to the directory, against one that does what a test wants: it is a value, or the agent is asked."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.lookups import Absent, Answer, Found, encode, encode_incarnation
from hoplite_ucx.runtime.local.worker_messages import DirectoryAt
from hoplite_ucx.runtime.worker import direct_lookup as readers
from hoplite_ucx.runtime.worker.direct_lookup import Reader
from hoplite_ucx.runtime.worker.refs import ref_of_large
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.addresses import socket_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, run_blocking, server
from tests.tools.waiting import HANG, eventually

TOKEN = b"a token"
ME = Identity(7, b"", b"cluster")
R, OTHER = bytes(16), bytes([1]) * 16
FOUND = Found(Version(R, 5, 1), b"layout", b"abc")

NEVER = 10 * HANG


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories here are threads, which a busy machine may hold up: a limit is short where a test is about it."""
    monkeypatch.setattr(readers, "_PATIENCE", NEVER)
    monkeypatch.setattr(readers, "_CONNECT_SECONDS", NEVER)
    monkeypatch.setattr(readers, "_PAUSE", NEVER)


Conduct = Callable[[socket.socket, bytes], None]
"""What a directory does when it is asked for a ref."""


def framed(answer: Answer) -> bytes:
    frame = encode(answer)
    return struct.pack("<I", len(frame)) + frame


def says(data: bytes) -> Conduct:
    return lambda sock, _: sock.sendall(data)


def says_nothing(_: socket.socket, __: bytes) -> None:
    pass


GIVES_IT = says(framed(FOUND))


class FakeDirectory:
    def __init__(self, conduct: Conduct) -> None:
        self.conduct = conduct
        self.asked: list[bytes] = []
        self.sessions = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = socket_address(self._listening.getsockname())
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def at(self, **changes: object) -> DirectoryAt:
        return DirectoryAt(**{"call": 1, "address": self.address, "token": TOKEN, "incarnation": 5, **changes})  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self._open.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        me = Identity(0, TOKEN, b"cluster", encode_incarnation(5))
        with contextlib.suppress(OSError, TransportError):
            run_blocking(server(me, {Kind.READER}, "test"), sock, "test")
            self.sessions += 1
            while length := sock.recv(4):
                ref = sock.recv(struct.unpack("<I", length)[0])
                self.asked.append(ref)
                self.conduct(sock, ref)

    def close(self) -> None:
        for sock in [self._listening, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(HANG)


@contextlib.contextmanager
def fake(conduct: Conduct = GIVES_IT) -> Iterator[tuple[FakeDirectory, Reader]]:
    directory = FakeDirectory(conduct)
    reader = Reader(ME, directory.at)
    try:
        yield directory, reader
    finally:
        reader.close()
        directory.close()


def connect(reader: Reader) -> None:
    assert reader.look(R, None) is None, "nobody waits while it connects"
    eventually(lambda: reader.connected)


def wait_for_thread(reader: Reader) -> None:
    eventually(lambda: reader._thread is None)


def test_a_small_object_comes() -> None:
    with fake() as (directory, reader):
        connect(reader)
        assert reader.look(R, None) == reader.look(R, 1.0) == FOUND
        assert (directory.asked, directory.sessions) == ([R, R], 1)


def test_what_is_not_there_ends_nothing() -> None:
    with fake(says(framed(Absent(R)))) as (directory, reader):
        connect(reader)
        assert reader.look(R, None) is None
        directory.conduct = GIVES_IT
        assert reader.look(R, None) == FOUND
        assert directory.sessions == 1


def test_what_is_near_is_not_asked_for_and_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MOST_NEAR", 2)
    with fake() as (directory, reader):
        connect(reader)
        reader.is_near(R)
        assert reader.look(R, None) is None
        assert directory.asked == []
        for number in range(2, 5):
            reader.is_near(bytes([number]) * 16)
        assert len(reader._near) == 2
        assert reader.look(R, None) == FOUND


def test_who_gets_large_objects_asks_again_after_a_small_one() -> None:
    with fake() as (directory, reader):
        connect(reader)
        reader.agent_gave(OTHER, large=True)
        assert reader.look(R, None) == FOUND, "one may be chance, and this one begins a new row"
        for _ in range(2):
            reader.agent_gave(OTHER, large=True)
        assert reader.look(R, None) is None
        assert directory.asked == [R]
        reader.agent_gave(R, large=False)
        assert reader.look(R, None) == FOUND


def test_a_ref_that_was_made_for_a_large_object_is_not_asked_for() -> None:
    with fake() as (directory, reader):
        connect(reader)
        assert reader.look(ref_of_large().binary, None) is None
        assert not directory.asked
        assert reader.look(R, None) == FOUND
        assert directory.asked == [R]


def test_who_has_no_time_does_not_ask() -> None:
    with fake() as (directory, reader):
        connect(reader)
        assert reader.look(R, 0.0) is None
        assert directory.asked == []


@pytest.mark.parametrize(
    "conduct",
    [
        says(framed(Found(Version(OTHER, 5, 1), b"", b"abc"))),
        says(framed(Absent(OTHER))),
        says(struct.pack("<I", 5) + b"\xc1nope"),
        says(struct.pack("<I", (4 << 20) + 1)),
        says(framed(FOUND) + b"more"),
        says(framed(FOUND)[:9]),
        lambda sock, _: sock.shutdown(socket.SHUT_RDWR),
        says_nothing,
    ],
    ids=[
        "another ref",
        "nothing of another ref",
        "garbage",
        "too long",
        "too much",
        "half of it",
        "its end",
        "silence",
    ],
)
def test_whatever_is_odd_ends_the_session_and_is_not_tried_again_at_once(
    conduct: Conduct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_PATIENCE", 0.25)
    with fake(conduct) as (directory, reader):
        connect(reader)
        assert reader.look(R, None) is None
        assert not reader.connected
        for _ in range(20):
            assert reader.look(R, None) is None
        wait_for_thread(reader)
        eventually(lambda: directory.asked)
        assert (len(directory.asked), directory.sessions) == (1, 1)


def test_it_comes_back_after_a_pause_that_grows_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_PAUSE", 0.05)
    with fake(says(b"\xff" * 9)) as (directory, reader):
        connect(reader)
        assert reader.look(R, None) is None
        assert reader._pause == pytest.approx(0.1)
        directory.conduct = GIVES_IT
        eventually(lambda: reader.look(R, None) == FOUND)
        assert reader._pause == pytest.approx(0.05)


def test_the_users_time_limit_holds() -> None:
    with fake(says_nothing) as (_, reader):
        connect(reader)
        assert reader.look(R, 0.02) is None


def test_a_thread_that_finds_the_session_in_use_does_not_wait() -> None:
    may_answer = threading.Event()

    def answers_later(sock: socket.socket, ref: bytes) -> None:
        may_answer.wait(HANG)
        GIVES_IT(sock, ref)

    with fake(answers_later) as (directory, reader):
        connect(reader)
        first = threading.Thread(target=reader.look, args=(R, None))
        first.start()
        eventually(lambda: directory.asked == [R])
        assert reader.look(OTHER, None) is None
        assert first.is_alive()
        may_answer.set()
        first.join(HANG)
        assert directory.asked == [R]


def test_an_open_question_ends_with_the_reader() -> None:
    with fake(says_nothing) as (directory, reader):
        connect(reader)
        asking = threading.Thread(target=reader.look, args=(R, None))
        asking.start()
        eventually(lambda: directory.asked == [R])
        reader.close()
        asking.join(HANG)
        assert not asking.is_alive()
        assert not reader.connected
        assert reader.look(R, None) is None
        assert reader._thread is None, "it does not connect any more"


@pytest.mark.parametrize(
    "changes",
    [{"address": None}, {"token": b"another"}, {"incarnation": 6}, {"address": "127.0.0.1:1"}, {"address": "nonsense"}],
    ids=["not to be used", "wrong token", "replaced", "nobody", "no address"],
)
def test_no_session_where_none_is_to_be(changes: dict[str, object]) -> None:
    directory = FakeDirectory(GIVES_IT)
    reader = Reader(ME, lambda: directory.at(**changes))
    try:
        assert reader.look(R, None) is None
        wait_for_thread(reader)
        assert not reader.connected
        assert reader.look(R, None) is None
        assert reader._thread is None
    finally:
        reader.close()
        directory.close()


def test_an_agent_that_is_gone() -> None:
    def gone() -> DirectoryAt:
        raise Failure(FailureKind.CLOSED, "the agent is gone", "start it").exception()

    reader = Reader(ME, gone)
    assert reader.look(R, None) is None
    wait_for_thread(reader)
    assert not reader.connected


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(DirectoryAt(1, "127.0.0.1:1", b"secret", 5))
