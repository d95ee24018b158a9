"""TLS for every connection between hosts, if the configuration names certificates.

The token is proven first, and under that proof both sides say whether they use TLS. Then both show a certificate of the
cluster's own authority. The name in it does not matter: a process with the token and a certificate of the authority
belongs to the cluster. The server sends one byte when it has accepted its client, since a refused client would not know
otherwise.

The event loop does a session's TLS. A link's threads use its socket with calls that end within a bound and with flags
that Python's TLS sockets refuse; `LinkSocket` is a TLS socket that accepts them. UCX does not support TLS, and is not
used with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from hoplite_ucx.transports.configuration import ConfigurationError, TlsFiles
from hoplite_ucx.transports.errors import WrongTlsError
from hoplite_ucx.transports.wire.private_files import PrivateFileError, read_private

__all__ = ["WELCOME", "LinkSocket", "Tls", "open_tls", "tls_failure"]

WELCOME = b"\1"
"""What a server says once it has accepted its client's certificate."""

_RECORD = 16 << 10  # the most that one TLS record carries
_CALL_SECONDS = 0.1  # as for links without TLS: a thread notices a cancelled stream within this time


def open_tls(files: TlsFiles | None) -> Tls | None:
    """TLS with these files; None means without. Raises a `ConfigurationError`."""
    return None if files is None else Tls(files)


class Tls:
    """A process's certificate, key and authority, checked against each other before any connection."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        self.server = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.server.num_tickets = 0  # sessions are not resumed
        self._try()

    def _context(self, role: int) -> ssl.SSLContext:
        context = ssl.SSLContext(role)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.sslsocket_class = LinkSocket
        files = self._files
        try:
            read_private(files.key)
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except PrivateFileError as error:
            raise self._wrong("key", error.problem, error.remedy) from error
        except ssl.SSLError as error:
            problem = f"it and tls.key must be a matching pair in PEM form without a password: {_reason(error)}"
            raise self._wrong("certificate", problem, "create both again, as a pair") from error
        except OSError as error:
            raise self._wrong("certificate", f"cannot be read: {error}", "correct the path") from error
        try:
            context.load_verify_locations(files.ca)
        except ssl.SSLError as error:
            problem = f"is not a certificate in PEM form: {_reason(error)}"
            raise self._wrong("ca", problem, "name the authority's certificate") from error
        except OSError as error:
            raise self._wrong("ca", f"cannot be read: {error}", "correct the path") from error
        return context

    def _try(self) -> None:
        """Do a TLS handshake with ourselves: what every peer would refuse is refused here, with the reason."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [
            self.client.wrap_bio(to_client, to_server),
            self.server.wrap_bio(to_server, to_client, server_side=True),
        ]
        try:
            for _ in range(3):
                for side in sides:
                    with suppress(ssl.SSLWantReadError):
                        side.do_handshake()
        except ssl.SSLError as error:
            problem = f"is not accepted by tls.ca: {_reason(error)}"
            raise self._wrong(
                "certificate", problem, "have that authority sign a new one, for server and client use"
            ) from error

    def _wrong(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(self._files.place, f"tls.{key}", problem, remedy)

    # --- links -------------------------------------------------------------------------------------------------

    def wrap(self, sock: socket.socket, *, server_side: bool) -> LinkSocket:
        """The same connection, before its TLS handshake. The old object cannot be used any more."""
        context = self.server if server_side else self.client
        sock.setblocking(False)
        wrapped = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        assert isinstance(wrapped, LinkSocket)
        return wrapped


class LinkSocket(ssl.SSLSocket):
    """Takes the calls of a link's threads, and answers as the kernel does for a socket with time limits.

    The connection itself never blocks. `_guard` is held only while OpenSSL works, since it must not read and write at
    the same time. A write that the kernel did not take must be repeated with the same bytes first; links do that, as a
    frame that was begun is always finished.
    """

    def __new__(cls, *_: Any, **__: Any) -> LinkSocket:
        made: LinkSocket = super().__new__(cls)
        made._guard = threading.Lock()
        return made

    _guard: threading.Lock
    _sslobj: object | None

    async def accept_client(self, address: str, seconds: float) -> None:
        """The server's side of the handshake."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                while (wanted := self._shake()) is not None:
                    ready = asyncio.Event()
                    add, remove = (
                        (loop.add_reader, loop.remove_reader)
                        if wanted == select.POLLIN
                        else (loop.add_writer, loop.remove_writer)
                    )
                    add(self.fileno(), ready.set)
                    try:
                        await ready.wait()
                    finally:
                        remove(self.fileno())
            self.send(WELCOME)
        except TimeoutError:
            raise WrongTlsError("the TLS handshake took too long", address, "see the other side's log") from None
        except OSError as error:
            raise tls_failure(error, address) from error

    def greet_server(self, address: str, seconds: float) -> None:
        """The client's side of the handshake, on a thread."""
        deadline = time.monotonic() + seconds
        try:
            while (wanted := self._shake()) is not None:
                self._await(wanted, deadline)
            while True:
                try:
                    said = self.recv(1)
                    break
                except BlockingIOError:
                    self._await(select.POLLIN, deadline)
        except TimeoutError:
            raise WrongTlsError("the TLS handshake took too long", address, "see the other side's log") from None
        except OSError as error:
            raise tls_failure(error, address) from error
        if said != WELCOME:
            raise WrongTlsError("the peer did not accept the TLS connection", address, "see the other side's log")

    def _shake(self) -> int | None:
        """Continue the handshake; returns what to wait for, or None when it is complete."""
        try:
            self.do_handshake()
        except ssl.SSLWantReadError:
            return select.POLLIN
        except ssl.SSLWantWriteError:
            return select.POLLOUT
        return None

    def _await(self, wanted: int, deadline: float) -> None:
        if not self._ready(wanted, max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError

    def _ready(self, wanted: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.fileno(), wanted)
        return bool(poll.poll(seconds * 1000))

    # --- what links call ---------------------------------------------------------------------------------------

    def setblocking(self, _flag: bool) -> None:
        """It never blocks; calls end in time by themselves."""
        super().setblocking(False)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        if nbytes:
            view = view[:nbytes]
        got = 0
        while got < len(view):
            try:
                with self._guard:
                    count = cast(int, self.read(len(view) - got, view[got:]))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                if (got and not flags & socket.MSG_WAITALL) or not self._may_go_on(want, flags):
                    break
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return got  # the end; without TLS one cannot tell a cut from a close either
            if not count:
                return got
            got += count
            if not flags & socket.MSG_WAITALL:
                break
        if not got and len(view):
            raise BlockingIOError
        return got

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        if self._sslobj is None:  # asked in the making of a connection that has ended already: the handshake says so
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        buffer = bytearray(buflen)
        return bytes(buffer[: self.recv_into(buffer, 0, flags)])

    def send(self, data: Any, flags: int = 0) -> int:
        return self.sendmsg((data,), (), flags)

    def sendmsg(self, buffers: Iterable[Any], _beside: Any = (), flags: int = 0, _to: Any = None) -> int:  # type: ignore[override]
        sent = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while view:
                try:
                    with self._guard:
                        count = self.write(view[:_RECORD])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                    if sent:
                        return sent
                    if not self._may_go_on(want, flags):
                        raise BlockingIOError from None
                    continue
                view = view[count:]
                sent += count
        return sent

    def _may_go_on(self, want: ssl.SSLError, flags: int) -> bool:
        """Wait for the kernel as long as a call may; False if it is not ready then."""
        wanted = select.POLLIN if isinstance(want, ssl.SSLWantReadError) else select.POLLOUT
        return not flags & socket.MSG_DONTWAIT and self._ready(wanted, _CALL_SECONDS)

    def shutdown(self, how: int) -> None:
        """Only the connection: another thread may be using its TLS."""
        socket.socket.shutdown(self, how)


def tls_failure(error: OSError, address: str) -> WrongTlsError:
    """Why the TLS handshake failed, as far as this side knows."""
    remedy = "give both hosts certificates of one authority that are valid now"
    if isinstance(error, ssl.SSLCertVerificationError):
        return WrongTlsError(f"the peer's certificate is not accepted: {error.verify_message}", address, remedy)
    if isinstance(error, ssl.SSLError):
        return WrongTlsError(f"no TLS connection: {_reason(error)}", address, remedy)
    return WrongTlsError(f"the connection ended during the TLS handshake: {error}", address, remedy)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()


def _no_password() -> str:
    """Refuse a key with a password, instead of asking for it at a terminal that nobody watches."""
    return ""
