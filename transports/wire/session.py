"""Sessions: authenticated connections that carry messages, and the one port on which a process is reached.

A session is an asyncio protocol (made for uvloop): frames of bounded length, opaque here, in the order they were sent.
It ends with one call of `on_closed`: with None if this side closed it, else with an error that names the peer. The
protocol above judges liveness; a session only notices what the kernel notices (an end, a reset). Everything here runs
on the loop's thread.

A `Listener` authenticates every connection before it passes it on: sessions as `Session`, links as a blocking socket
for the transport's threads. A connection that fails the handshake, or is too slow in it, is closed, and the reason is
reported. The number of connections in the handshake is bounded. When it is reached, the slowest connection of the host
that has the most of them is dropped: a host that opens connections and sends nothing hurts itself, and hardly others.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from struct import Struct
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from hoplite_ucx.transports.descriptors import lifted
from hoplite_ucx.transports.errors import (
    ConnectionLostError,
    OverloadError,
    TransportError,
    UnreachableError,
    ViolationError,
)
from hoplite_ucx.transports.link_timers import HANDSHAKE_SECONDS
from hoplite_ucx.transports.wire.addresses import check_token, connect_failure, parse_address, socket_address, tune
from hoplite_ucx.transports.wire.handshake import (
    Identity,
    Kind,
    Peer,
    client,
    closed_early,
    knock,
    server,
    too_slow,
)
from hoplite_ucx.transports.wire.tls import WELCOME, Tls, tls_failure

__all__ = ["MAX_FRAME", "Listener", "Session", "Together", "connect", "probe"]

MAX_FRAME = 64 << 20
CONNECT_SECONDS = 2.0
# What may wait for a peer that does not read; a frame of the largest size always fits.
MAX_UNSENT = 2 * MAX_FRAME
# Frames that are not urgent are collected for this long.
LATER_SECONDS = 0.002
# Frames that may wait for others to be sent with.
_MOST = 64
# Messages that are handled before what follows from them is sent.
_A_TURN = 8
# How long what was sent before a close may take to leave.
FLUSH_SECONDS = 1.0
# Connections that may be in the handshake at once; others wait in the kernel's queue.
MAX_HANDSHAKES = 256
# When there are that many, one that has taken this long is dropped. An honest one takes a few round
# trips, or longer on a very busy host.
SLOW_SECONDS = 1.0

_LENGTH = Struct("<I")
# Larger frames are handed to the transport as they are instead of copied behind their length.
_COPY_LIMIT = 64 << 10

_T = TypeVar("_T")


def _ignore_frame(frame: bytes) -> None:
    pass


def _ignore_close(error: TransportError | None) -> None:
    pass


class _Turn(threading.local):
    """The sessions of this thread's loop that have something to send when its turn ends; None outside of turns."""

    waiting: dict[Session, None] | None = None


_turn = _Turn()


class Together:
    """What sessions send within the block goes when it ends, in one piece for each: every write costs a system call,
    and wakes its receiver. A block that handles many messages says `handled` after each, so that the first ones to be
    answered do not wait for the last."""

    __slots__ = ("_handled", "_outermost")

    def __enter__(self) -> Self:
        self._handled = 0
        self._outermost = _turn.waiting is None
        if self._outermost:
            _turn.waiting = {}
        return self

    def handled(self) -> None:
        self._handled += 1
        if self._outermost and not self._handled % _A_TURN:
            waiting, _turn.waiting = _turn.waiting, {}
            _flush(waiting)

    def __exit__(self, *_: object) -> None:
        if self._outermost:
            waiting, _turn.waiting = _turn.waiting, None
            _flush(waiting)


def _flush(sessions: Iterable[Session] | None) -> None:
    for session in sessions or ():
        session.flush()


class Session(asyncio.Protocol):
    """One session. Its owner sets `on_frame` and `on_closed` before the first frame can come."""

    def __init__(self, peer: Peer, made: Callable[[Session], None], max_frame: int = MAX_FRAME) -> None:
        self.peer = peer
        self.on_frame: Callable[[bytes], None] = _ignore_frame
        self.on_closed: Callable[[TransportError | None], None] = _ignore_close
        self._made = made
        self._max_frame = max_frame
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._needed = _LENGTH.size  # bytes of `_rest` before there is anything to do
        self._unwritten: list[bytes] = []  # frames with their lengths, until the turn ends or the timer fires
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        self._error: TransportError | None = None

    @property
    def open(self) -> bool:
        return self._open

    def send(self, frame: bytes) -> None:
        """Send a frame; a closed session sends nothing, as if the connection had just broken."""
        if not self._open or self._transport is None:
            return
        if len(frame) > self._max_frame:
            raise ValueError(f"a frame of {len(frame)} bytes is longer than {self._max_frame}")
        self._unwritten += (_LENGTH.pack(len(frame)), frame)
        if _turn.waiting is None or len(frame) > _COPY_LIMIT or len(self._unwritten) >= 2 * _MOST:
            self.flush()
        else:
            _turn.waiting[self] = None

    def send_later(self, frame: bytes) -> None:
        """Send a frame that is not urgent: soon, together with others, and before the next urgent one."""
        if not self._open:
            return
        self._unwritten += (_LENGTH.pack(len(frame)), frame)
        if len(self._unwritten) >= 2 * _MOST:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATER_SECONDS, self._flush_in_time)

    def flush(self) -> None:
        """Send the delayed frames."""
        if not self._unwritten or self._transport is None or not self._open:
            return
        frames, self._unwritten = self._unwritten, []
        if sum(map(len, frames)) <= _COPY_LIMIT:
            self._transport.write(b"".join(frames))
        else:
            self._transport.writelines(frames)
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self._fail(
                OverloadError(
                    f"the peer does not read: {MAX_UNSENT >> 20} MiB wait for it",
                    self.peer.address,
                    "check whether the process there is stopped or overloaded",
                )
            )

    def _flush_in_time(self) -> None:
        self._timer = None
        self.flush()

    def close(self) -> None:
        """Close after sending everything queued; deliver no more frames."""
        if self._open and self._transport is not None:
            self.flush()
            self._open = False
            self._transport.close()
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._open = False
            self._transport.abort()

    def _fail(self, error: TransportError) -> None:
        self._error = error
        self.abort()

    # --- what asyncio calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses
        self._open = True
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = bytes(self._rest), bytearray()
        with Together() as turn:
            self._deliver(data, turn)

    def _deliver(self, data: bytes, turn: Together) -> None:
        """Hand out every whole frame in the data, and keep the rest."""
        at, end = 0, len(data)
        while self._open:
            if end - at < _LENGTH.size:
                self._needed = _LENGTH.size
                break
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self._max_frame:
                self._fail(
                    ViolationError(
                        f"a frame of {length} bytes is longer than {self._max_frame}",
                        self.peer.address,
                        "install the same release on all hosts",
                    )
                )
                return
            frame_end = at + _LENGTH.size + length
            if frame_end > end:
                self._needed = _LENGTH.size + length
                break
            self.on_frame(data[at + _LENGTH.size : frame_end])
            turn.handled()
            at = frame_end
        if at < end:
            self._rest += data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._open:
            self._open = False
            reason = f"the connection broke: {exc}" if exc else "the peer closed the connection"
            self._error = ConnectionLostError(reason, self.peer.address, "check whether the process there still runs")
        self._transport = None
        self._rest.clear()
        self._unwritten.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.on_closed(self._error)


async def connect(
    address: str,
    me: Identity,
    kind: Kind,
    made: Callable[[Session], None],
    *,
    expect: int | None = None,
    seconds: float = CONNECT_SECONDS,
    max_frame: int = MAX_FRAME,
) -> Session:
    """Open a session; `made` is called with it before the first frame. Raises a `TransportError`."""
    try:
        async with asyncio.timeout(seconds):
            sock = await _dial(address)
    except OSError as error:
        raise connect_failure(error, address, seconds) from error
    try:
        peer = await _run(client(me, kind, address, expect), sock, address, HANDSHAKE_SECONDS)
        session = Session(peer, made, max_frame)
        if me.tls is None:
            await asyncio.get_running_loop().create_connection(lambda: session, sock=sock)
        else:
            await _begin_secured(session, sock, me.tls)
    except BaseException:
        sock.close()
        raise
    return session


async def _begin_secured(session: Session, sock: socket.socket, tls: Tls) -> None:
    """The client's end of a session over TLS."""
    loop = asyncio.get_running_loop()
    welcome = _AwaitWelcome(session)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await loop.create_connection(lambda: welcome, sock=sock, ssl=tls.client, server_hostname="")
            await welcome.came
    except TimeoutError:
        raise too_slow(session.peer.address, HANDSHAKE_SECONDS) from None
    except OSError as error:
        raise tls_failure(error, session.peer.address) from error
    finally:
        if not session.open:
            welcome.abort()


class _AwaitWelcome(asyncio.Protocol):
    """A client's end of a TLS session until the server has accepted its certificate; then the session takes over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._transport: asyncio.Transport | None = None
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self.came.done():
            return
        self.came.set_result(None)
        self._transport.set_protocol(self._session)
        self._session.connection_made(self._transport)
        if len(data) > len(WELCOME):
            self._session.data_received(data[len(WELCOME) :])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.came.done():
            self.came.set_exception(exc if isinstance(exc, OSError) else ConnectionResetError("the peer closed it"))


class _SayWelcome(asyncio.Protocol):
    """A server's end of a TLS session: the TLS handshake is over when the connection is made."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(WELCOME)
        transport.set_protocol(self._session)
        self._session.connection_made(transport)


async def probe(address: str, seconds: float = CONNECT_SECONDS) -> bool | None:
    """Whether a hoplite process lives there: True if it answers, False if its port refuses, None without an answer."""
    try:
        async with asyncio.timeout(seconds):
            with await _dial(address) as sock:
                await _run(knock(address), sock, address, seconds)
    except ConnectionRefusedError:
        return False
    except (OSError, TransportError):
        return None
    return True


async def _dial(address: str) -> socket.socket:
    """A connection to the first of the host's addresses that accepts one."""
    loop = asyncio.get_running_loop()
    host, port = parse_address(address)
    failure = OSError(f"{host} has no address")
    for family, _, _, _, name in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = lifted(socket.socket(family, socket.SOCK_STREAM))
        try:
            sock.setblocking(False)
            tune(sock)
            await loop.sock_connect(sock, name)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


class Listener:
    """The port of a process. `sessions`, `on_link` and `sockets` say which kinds of connections it takes, and who gets
    them; the last as sockets that do not block, as they are: there must be none under TLS."""

    def __init__(
        self,
        me: Identity,
        sessions: dict[Kind, Callable[[Session], None]],
        on_link: Callable[[socket.socket, Peer], None] | None = None,
        *,
        sockets: Mapping[Kind, Callable[[socket.socket, Peer], None]] = MappingProxyType({}),
        on_refused: Callable[[TransportError], None] | None = None,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self.identity = me
        """Who this process says it is to those who connect from now on."""
        self._sessions = sessions
        self._on_link = on_link
        self._on_refused = on_refused
        self._max_frame = max_frame
        self._sockets = sockets
        self._kinds = {*sessions, *sockets} | ({Kind.BULK} if on_link is not None else set())
        self._sock: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwelcomed: set[socket.socket] = set()  # whose task has not begun: cancelled now, it would not close them
        self._handshakes: dict[asyncio.Task[None], tuple[str, float]] = {}  # from where and since when, oldest first

    async def start(self, host: str, port: int = 0) -> str:
        """Listen, and return the address. Raises where other hosts can connect, if there is no token to prove."""
        loop = asyncio.get_running_loop()
        family, _, _, _, name = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        check_token(self.identity.token, str(name[0]))
        self._sock = sock = lifted(socket.socket(family, socket.SOCK_STREAM))
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(name)
            sock.listen(1024)
        except OSError:
            sock.close()
            raise
        self._spawn(self._accept(sock))
        return socket_address(sock.getsockname())

    async def close(self) -> None:
        """Accept no more connections; sessions and links that were passed on continue."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._unwelcomed:
            sock.close()
        if self._sock is not None:
            self._sock.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                # Not `sock_accept`: a connection that comes as this is cancelled would be left open.
                accepted, name = listening.accept()
            except BlockingIOError:
                await _readable(listening)
                continue
            except OSError:  # out of descriptors, or the connection is gone already
                await asyncio.sleep(0.05)
                continue
            address, sock = socket_address(name), lifted(accepted)
            self._unwelcomed.add(sock)
            task = self._spawn(self._welcome(sock, address))
            self._handshakes[task] = parse_address(address)[0], loop.time()
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))

    async def _make_room(self) -> None:
        while len(self._handshakes) >= MAX_HANDSHAKES:
            busiest, _ = Counter(host for host, _ in self._handshakes.values()).most_common(1)[0]
            slowest, since = next((task, since) for task, (host, since) in self._handshakes.items() if host == busiest)
            wait = since + SLOW_SECONDS - asyncio.get_running_loop().time()
            if wait > 0:
                await asyncio.wait(self._handshakes, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            else:
                del self._handshakes[slowest]
                slowest.cancel()
                self._refuse(
                    UnreachableError(
                        "a slow handshake was dropped to make room for others",
                        busiest,
                        "check what connects from there so often",
                    )
                )

    async def _welcome(self, sock: socket.socket, address: str) -> None:
        self._unwelcomed.discard(sock)
        try:
            sock.setblocking(False)
            tune(sock)
            peer = await _run(server(self.identity, self._kinds, address), sock, address, HANDSHAKE_SECONDS)
            if peer.kind is Kind.BULK and self._on_link is not None:
                if self.identity.tls is not None:
                    sock = secured = self.identity.tls.wrap(sock, server_side=True)
                    await secured.accept_client(address, HANDSHAKE_SECONDS)
                sock.setblocking(True)
                self._on_link(sock, peer)
            elif peer.kind in self._sockets:
                self._sockets[peer.kind](sock, peer)
            else:
                session = Session(peer, self._sessions[peer.kind], self._max_frame)
                await self._begin_session(session, sock)
        except (TransportError, OSError) as error:
            sock.close()
            lost = ConnectionLostError(f"the connection broke: {error}", address, "no action is needed on this host")
            self._refuse(error if isinstance(error, TransportError) else lost)
        except BaseException:
            sock.close()
            raise

    async def _begin_session(self, session: Session, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if self.identity.tls is None:
            await loop.connect_accepted_socket(lambda: session, sock)
            return
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await loop.connect_accepted_socket(lambda: _SayWelcome(session), sock, ssl=self.identity.tls.server)
        except TimeoutError:
            raise too_slow(session.peer.address, HANDSHAKE_SECONDS) from None
        except OSError as error:
            raise tls_failure(error, session.peer.address) from error

    def _refuse(self, error: TransportError) -> None:
        if self._on_refused is not None:
            self._on_refused(error)


async def _run(steps: Generator[bytes | int, bytes, _T], sock: socket.socket, address: str, seconds: float) -> _T:
    """Drive a handshake on a socket that does not block."""
    loop = asyncio.get_running_loop()
    answer: bytes | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                step = steps.send(answer) if answer is not None else next(steps)
                if isinstance(step, bytes):
                    await loop.sock_sendall(sock, step)
                    answer = b""
                else:
                    answer = b""
                    while len(answer) < step:
                        if not (piece := await loop.sock_recv(sock, step - len(answer))):
                            raise closed_early(address, answer)
                        answer += piece
    except StopIteration as done:
        outcome: _T = done.value
        return outcome
    except TimeoutError:
        raise too_slow(address, seconds) from None
    except OSError as error:
        raise ConnectionLostError(
            f"the connection broke during the handshake: {error}", address, "try again"
        ) from error
    finally:
        steps.close()
