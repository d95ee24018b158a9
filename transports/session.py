"""Sessions: authenticated connections that carry messages, and the one port on which a process is reached.

A session is an asyncio protocol (made for uvloop): frames of bounded length, opaque here, in the order they were sent.
It ends in `on_closed`, once: with None if this side closed it, else with an error that names the peer. Liveness is for
the protocol above; a session only notices what the kernel notices (an end, a reset). All this is for the loop's thread.

A `Listener` proves every connection before it hands it on: sessions as `Session`, links as a blocking socket for
the transport's threads. A connection that fails the handshake, or is too slow in it, is closed, and the reason told.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from struct import Struct
from typing import Any, cast

from hoplite_ucx.transports.addresses import connect_failure, parse_address, socket_address, tune
from hoplite_ucx.transports.descriptors import lifted
from hoplite_ucx.transports.errors import ConnectionLostError, OverloadError, TransportError, ViolationError
from hoplite_ucx.transports.handshake import (
    HANDSHAKE_SECONDS,
    Identity,
    Kind,
    Peer,
    Steps,
    client,
    closed_early,
    server,
    too_slow,
)

__all__ = ["MAX_FRAME", "Listener", "Session", "connect", "probe"]

MAX_FRAME = 64 << 20
CONNECT_SECONDS = 2.0
# What may wait for a peer that does not read; a frame of the largest size always fits.
MAX_UNSENT = 2 * MAX_FRAME
# How long what was sent before a close may take to leave.
FLUSH_SECONDS = 1.0
# Connections that may be in the handshake at once; others wait in the kernel's queue.
MAX_HANDSHAKES = 256

_LENGTH = Struct("<I")
# Larger frames are handed to the transport as they are instead of copied behind their length.
_COPY_LIMIT = 64 << 10


def _ignore_frame(frame: bytes) -> None:
    pass


def _ignore_close(error: TransportError | None) -> None:
    pass


class Session(asyncio.Protocol):
    """One session. Whoever opens or accepts it sets `on_frame` and `on_closed` before the first frame can come."""

    def __init__(self, peer: Peer, made: Callable[[Session], None], max_frame: int = MAX_FRAME) -> None:
        self.peer = peer
        self.on_frame: Callable[[bytes], None] = _ignore_frame
        self.on_closed: Callable[[TransportError | None], None] = _ignore_close
        self._made = made
        self._max_frame = max_frame
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._needed = _LENGTH.size  # bytes of `_rest` before there is anything to do
        self._open = False
        self._error: TransportError | None = None

    @property
    def open(self) -> bool:
        return self._open

    def send(self, frame: bytes) -> None:
        """Send a frame; of a session that is closed, nothing is sent, as if the connection had just broken."""
        if not self._open or self._transport is None:
            return
        if len(frame) > self._max_frame:
            raise ValueError(f"a frame of {len(frame)} bytes is longer than {self._max_frame}")
        if len(frame) <= _COPY_LIMIT:
            self._transport.write(_LENGTH.pack(len(frame)) + frame)
        else:
            self._transport.writelines((_LENGTH.pack(len(frame)), frame))
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self._fail(
                OverloadError(
                    f"the peer does not read: {MAX_UNSENT >> 20} MiB wait for it",
                    self.peer.address,
                    "check whether the process there is stopped or overloaded",
                )
            )

    def close(self) -> None:
        """Close after what was sent before; no frame is delivered any more."""
        if self._open and self._transport is not None:
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are none by class
        self._open = True
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if not self._rest:
            self._deliver(data)
        else:
            self._rest += data
            if len(self._rest) >= self._needed:
                whole, self._rest = bytes(self._rest), bytearray()
                self._deliver(whole)

    def _deliver(self, data: bytes) -> None:
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
            at = frame_end
        self._rest += data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._open:
            self._open = False
            reason = f"the connection broke: {exc}" if exc else "the peer closed the connection"
            self._error = ConnectionLostError(reason, self.peer.address, "check whether the process there still runs")
        self._transport = None
        self._rest.clear()
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
        peer = await _run(client(me, kind, address, expect), sock, address)
        loop = asyncio.get_running_loop()
        _, session = await loop.create_connection(lambda: Session(peer, made, max_frame), sock=sock)
    except BaseException:
        sock.close()
        raise
    return session


async def probe(address: str, seconds: float = CONNECT_SECONDS) -> bool | None:
    """Does anybody listen there? True if the port takes a connection, False if it refuses, None without an answer."""
    try:
        async with asyncio.timeout(seconds):
            (await _dial(address)).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


async def _dial(address: str) -> socket.socket:
    """A connection to the first of the host's addresses that takes one."""
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


class Listener:
    """The port of a process. `sessions` and `on_link` say which kinds of connections it takes, and who gets them."""

    def __init__(
        self,
        me: Identity,
        sessions: dict[Kind, Callable[[Session], None]],
        on_link: Callable[[socket.socket, Peer], None] | None = None,
        *,
        on_refused: Callable[[TransportError], None] | None = None,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self._me = me
        self._sessions = sessions
        self._on_link = on_link
        self._on_refused = on_refused
        self._max_frame = max_frame
        self._kinds = {*sessions} | ({Kind.BULK} if on_link is not None else set())
        self._sock: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_HANDSHAKES)

    async def start(self, host: str, port: int = 0) -> str:
        """Listen, and return the address. `check_token` tells whether one may listen there at all."""
        loop = asyncio.get_running_loop()
        family, _, _, _, name = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
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
        """Take no more connections; sessions and links that were handed on go on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sock is not None:
            self._sock.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                sock, name = await loop.sock_accept(listening)
            except OSError:  # out of descriptors, or the connection is gone already
                self._room.release()
                await asyncio.sleep(0.05)
                continue
            self._spawn(self._welcome(lifted(sock), socket_address(name)))

    async def _welcome(self, sock: socket.socket, address: str) -> None:
        try:
            sock.setblocking(False)
            tune(sock)
            peer = await _run(server(self._me, self._kinds, address), sock, address)
            if peer.kind is Kind.BULK and self._on_link is not None:
                sock.setblocking(True)
                self._on_link(sock, peer)
            else:
                made = self._sessions[peer.kind]
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: Session(peer, made, self._max_frame), sock)
        except (TransportError, OSError) as error:
            sock.close()
            if self._on_refused is not None:
                lost = ConnectionLostError(f"the connection broke: {error}", address, "nothing is to be done here")
                self._on_refused(error if isinstance(error, TransportError) else lost)
        except BaseException:
            sock.close()
            raise
        finally:
            self._room.release()


async def _run(steps: Steps, sock: socket.socket, address: str, seconds: float = HANDSHAKE_SECONDS) -> Peer:
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
                            raise closed_early(address)
                        answer += piece
    except StopIteration as done:
        peer: Peer = done.value
        return peer
    except TimeoutError:
        raise too_slow(address, seconds) from None
    except OSError as error:
        raise ConnectionLostError(f"the connection broke in the handshake: {error}", address, "try again") from error
    finally:
        steps.close()
