"""Sessions on real sockets: frames in order, bounds, and how they end."""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from hoplite_ucx.transports.errors import (
    ConnectionLostError,
    HandshakeError,
    OverloadError,
    RefusedError,
    TransportError,
    UnreachableError,
    ViolationError,
    WrongTokenError,
)
from hoplite_ucx.transports.wire import session as sessions
from hoplite_ucx.transports.wire.addresses import parse_address, socket_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, Peer, client, run_blocking
from hoplite_ucx.transports.wire.session import Listener, Session, Together, connect, probe
from tests.tools.waiting import HANG

TOKEN = b"a token"
MANY = 50


class End:
    """One end of a session, and what happened there."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.frames: list[bytes] = []
        self.closes: list[TransportError | None] = []
        self.happened = asyncio.Event()

    def made(self, session: Session) -> None:
        self.session = session
        session.on_frame = self.on_frame
        session.on_closed = self.on_closed
        self.happened.set()

    def on_frame(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.happened.set()

    def on_closed(self, error: TransportError | None) -> None:
        self.closes.append(error)
        self.happened.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG):
            while not condition():
                self.happened.clear()
                await self.happened.wait()


class Server:
    def __init__(self) -> None:
        self.end = End()
        self.refused: list[TransportError] = []
        self.address = ""


@asynccontextmanager
async def serving(max_frame: int = sessions.MAX_FRAME):  # type: ignore[no-untyped-def]
    server = Server()
    handlers = {Kind.PEER: server.end.made, Kind.CONTROL: server.end.made}
    listener = Listener(Identity(1, TOKEN), handlers, on_refused=server.refused.append, max_frame=max_frame)
    server.address = await listener.start("127.0.0.1")
    try:
        yield server
    finally:
        await listener.close()
        if server.end.session is not None:
            server.end.session.abort()
        await asyncio.sleep(0)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(work, HANG))

    return run


def test_frames_keep_their_order_both_ways(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving() as server:
            end = End()
            session = await connect(server.address, Identity(2, TOKEN), Kind.PEER, end.made, expect=1)
            frames = [bytes([n % 256]) * size for n, size in enumerate([0, 1, 3, 4, 5, 70_000, 1 << 20, 0, 10] * 20)]
            for frame in frames:
                session.send(frame)
            await server.end.until(lambda: len(server.end.frames) == len(frames))
            assert server.end.frames == frames
            assert server.end.session.peer.node == 2
            for frame in reversed(frames):
                server.end.session.send(frame)
            await end.until(lambda: len(end.frames) == len(frames))
            assert end.frames == frames[::-1]
            session.send(b"last")
            session.close()
            await server.end.until(lambda: server.end.closes)
            assert server.end.frames[-1] == b"last"
            assert isinstance(server.end.closes[0], ConnectionLostError)
            await end.until(lambda: end.closes)
            assert end.closes == [None]
            session.send(b"into the void")
            session.close()

    run(work())


def test_what_nobody_waits_for_goes_with_the_next_frame_or_after_a_moment(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with serving() as server:
            mine = End()
            session = await connect(server.address, Identity(2, TOKEN), Kind.PEER, mine.made)
            session.send_later(b"first")
            session.send_later(b"second")
            session.send(b"third")
            await server.end.until(lambda: len(server.end.frames) == 3)
            session.send_later(b"alone")
            await server.end.until(lambda: len(server.end.frames) == 4)
            for number in range(200):
                session.send_later(b"%d" % number)
            session.close()
            session.send_later(b"too late")
            await server.end.until(lambda: server.end.closes)
            many = [b"%d" % number for number in range(200)]
            assert server.end.frames == [b"first", b"second", b"third", b"alone", *many]

    run(scenario())


class Written(asyncio.Transport):
    """Keeps every write apart."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.writes.append(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


def recorded() -> tuple[Session, Written]:
    session, transport = Session(Peer("peer", 1, Kind.CONTROL, b"", b""), lambda _: None), Written()
    session.connection_made(transport)
    return session, transport


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)


def test_what_is_sent_together_is_one_write() -> None:
    session, transport = recorded()
    other, to_other = recorded()
    with Together():
        session.send(b"first")
        with Together():
            other.send(b"other")
            session.send(b"second")
        assert not transport.writes + to_other.writes, "an inner block ends nothing"
    assert transport.writes == [framed(b"first", b"second")]
    assert to_other.writes == [framed(b"other")]
    session.send(b"alone")
    assert transport.writes[1:] == [framed(b"alone")]


def test_answers_to_frames_that_came_together_are_one_write() -> None:
    session, transport = recorded()
    session.on_frame = lambda frame: session.send(frame + b"!")
    session.data_received(framed(b"first", b"second", b"third")[:-2])
    assert transport.writes == [framed(b"first!", b"second!")]
    session.data_received(b"rd")
    assert transport.writes[1:] == [framed(b"third!")]


def test_the_first_of_many_answers_does_not_wait_for_the_last() -> None:
    session, transport = recorded()
    at_the_last: list[int] = []

    def answer(frame: bytes) -> None:
        if frame == b"last":
            at_the_last.append(len(transport.writes))
        session.send(frame)

    session.on_frame = answer
    session.data_received(framed(*[b"one of many"] * 20, b"last"))
    assert at_the_last == [2]
    assert b"".join(transport.writes) == framed(*[b"one of many"] * 20, b"last")
    assert len(transport.writes) == 3


def test_little_waits_for_the_end_of_a_turn(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        session, transport = recorded()
        with Together():
            session.send_later(b"patient")
            session.send(large := bytes(100_000))
            assert transport.writes == [framed(b"patient", large)]
            for _ in range(100):
                session.send(b"one of many")
            assert len(transport.writes) == 2
            session.close()
            assert sum(map(len, transport.writes[1:])) == 100 * len(framed(b"one of many"))
            assert transport.closed
            session.send(b"too late")
        assert b"too late" not in transport.writes[-1]

    run(scenario())


def test_a_turn_that_fails_sends_what_was_said() -> None:
    session, transport = recorded()

    def fail(frame: bytes) -> None:
        session.send(frame)
        raise ZeroDivisionError

    session.on_frame = fail
    with pytest.raises(ZeroDivisionError):
        session.data_received(framed(b"asked"))
    assert transport.writes == [framed(b"asked")]
    session.send(b"on")
    assert transport.writes[1:] == [framed(b"on")]


def test_a_session_closed_by_a_handler_delivers_nothing_more(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving() as server:
            session = await connect(server.address, Identity(2, TOKEN), Kind.PEER, End().made)
            seen: list[bytes] = []

            def on_frame(frame: bytes) -> None:
                seen.append(frame)
                server.end.session.close()

            await server.end.until(lambda: server.end.session)
            server.end.session.on_frame = on_frame
            session._transport.write(b"\1\0\0\0a\1\0\0\0b")  # type: ignore[union-attr]
            await server.end.until(lambda: server.end.closes)
            assert seen == [b"a"]

    run(work())


def test_a_frame_that_is_too_long_ends_the_session(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving(max_frame=1000) as server:
            end = End()
            session = await connect(server.address, Identity(2, TOKEN), Kind.PEER, end.made)
            session.send(b"x" * 1000)
            session.send(b"x" * 1001)
            await server.end.until(lambda: server.end.closes)
            assert isinstance(server.end.closes[0], ViolationError)
            assert "1001" in str(server.end.closes[0])
            await end.until(lambda: end.closes)
            assert isinstance(end.closes[0], ConnectionLostError)
            small = await connect(server.address, Identity(2, TOKEN), Kind.PEER, End().made, max_frame=10)
            with pytest.raises(ValueError, match="longer"):
                small.send(b"x" * 11)
            small.abort()

    run(work())


def test_a_peer_that_does_not_read_is_given_up(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_UNSENT", 8 << 20)

    async def work() -> None:
        async with serving() as server:
            end = End()
            session = await connect(server.address, Identity(2, TOKEN), Kind.PEER, end.made)
            await server.end.until(lambda: server.end.session)
            server.end.session._transport.pause_reading()
            async with asyncio.timeout(HANG):
                while session.open:
                    session.send(b"x" * (1 << 20))
                    await asyncio.sleep(0)
            await end.until(lambda: end.closes)
            assert isinstance(end.closes[0], OverloadError)

    run(work())


def test_who_is_refused_is_told_why(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving() as server:
            with pytest.raises(WrongTokenError, match="HOPLITE_TOKEN"):
                await connect(server.address, Identity(2, b"wrong"), Kind.PEER, End().made)
            with pytest.raises(HandshakeError, match="does not accept connections for bulk"):
                await connect(server.address, Identity(2, TOKEN), Kind.BULK, End().made)
            assert isinstance(server.refused[0], WrongTokenError)

    run(work())


def test_who_is_there_answers(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving() as server:
            assert await probe(server.address) is True

    run(work())


def answer_like_a_stranger(sock: socket.socket) -> None:
    """Every connection, until the socket is shut down."""
    while True:
        try:
            connection = sock.accept()[0]
        except OSError:
            return
        with suppress(OSError), connection:
            connection.sendall(bytes(64))
            connection.recv(64)


def test_a_port_alone_is_no_answer(run: Callable[..., None]) -> None:
    """The kernel takes connections for a process that is stopped, or dying; so may a stranger."""

    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            address = socket_address(sock.getsockname())
            assert await probe(address, 0.1) is None
            stranger = asyncio.get_running_loop().run_in_executor(None, answer_like_a_stranger, sock)
            assert await probe(address) is None
            sock.shutdown(socket.SHUT_RDWR)
            await stranger

    run(work())


@pytest.mark.parametrize("turns", range(6))
def test_a_listener_that_closes_as_a_connection_comes_leaves_no_socket_open(
    run: Callable[..., None], turns: int
) -> None:
    """Whichever turn of the loop it is; a socket left open is a warning, and warnings fail tests."""

    async def work() -> None:
        async with serving() as server:
            with socket.create_connection(parse_address(server.address)):
                for _ in range(turns):
                    await asyncio.sleep(0)

    run(work())
    gc.collect()


def test_nobody_there(run: Callable[..., None]) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            address = socket_address(sock.getsockname())
        assert await probe(address) is False
        with pytest.raises(RefusedError, match=address):
            await connect(address, Identity(2, TOKEN), Kind.PEER, End().made)

    run(work())


def test_a_server_that_says_nothing(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            address = socket_address(sock.getsockname())
            with pytest.raises(UnreachableError, match="handshake"):
                await connect(address, Identity(2, TOKEN), Kind.PEER, End().made)

    run(work())


def test_garbage_and_silence_are_refused_while_others_are_served(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving() as server:
            where = parse_address(server.address)
            silent = [await asyncio.open_connection(*where) for _ in range(10)]
            _, noisy = await asyncio.open_connection(*where)
            noisy.write(b"\xff" * 10_000)
            session = await connect(server.address, Identity(2, TOKEN), Kind.CONTROL, End().made)
            session.send(b"hello")
            await server.end.until(lambda: server.end.frames)
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
            noisy.close()
            async with asyncio.timeout(HANG):
                while len(server.refused) < 11:
                    await asyncio.sleep(0.01)
            assert all(error.remedy for error in server.refused)
            session.abort()

    run(work())


def test_a_reset_is_noticed(run: Callable[..., None]) -> None:
    async def work() -> None:
        async with serving() as server:
            loop = asyncio.get_running_loop()

            def connect_and_reset() -> None:
                with socket.create_connection(parse_address(server.address)) as sock:
                    run_blocking(client(Identity(2, TOKEN), Kind.PEER, server.address), sock, server.address)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

            await loop.run_in_executor(None, connect_and_reset)
            await server.end.until(lambda: server.end.closes)
            assert isinstance(server.end.closes[0], ConnectionLostError)

    run(work())


def test_many_at_once(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of all of them are on one loop."""
    monkeypatch.setattr(sessions, "HANDSHAKE_SECONDS", HANG)

    async def work() -> None:
        async with serving() as server:
            opened = [
                connect(server.address, Identity(n, TOKEN), Kind.PEER, End().made, seconds=HANG) for n in range(MANY)
            ]
            made = await asyncio.gather(*opened)
            assert not server.refused
            for session in made:
                session.close()
            await server.end.until(lambda: len(server.end.closes) == MANY)

    run(work())
