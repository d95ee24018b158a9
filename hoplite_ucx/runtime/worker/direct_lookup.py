"""The short way to small objects: a worker asks the directory itself, in a session that can do nothing else.

The way through the agent crosses the queues of four processes, and these queues are most of the cost of a small get.
The direct lookup is only a hint: `look` returns a small object, or None, and then the worker asks its agent, which
alone decides what the user gets. So it may give up at any doubt, and it does: if another thread uses the session, if
there is none, if the directory does not answer within `_PATIENCE`, after anything odd. It never connects on a caller's
time; a separate thread does that, at the first need and not sooner than a pause after a failure.

One session serves the process. `_lock` is held while a question is open, and callers do not wait for it: a thread that
finds it taken asks its agent. Gets of *near* objects also go to the agent: those that this process put or asked to be
reduced, and large ones, as far as they are remembered. So do gets of refs that `put` made for a large object: they say
so (see `refs`). Of other refs nobody knows. After two large gets in a row, a worker asks its agent first
until a small object comes: the next object is likely large too, and a wrong guess costs one small get the longer way.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from struct import Struct

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.protocol.lookups import MAX_ANSWER, QUESTION, Answer, Found, decode_answer, decode_incarnation
from hoplite_ucx.runtime.local.worker_messages import DirectoryAt
from hoplite_ucx.runtime.worker.refs import is_large
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.addresses import parse_address, tune
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking

_PATIENCE = 0.25
_LEAST = 0.001
"""A caller with less time than this asks its agent at once."""
_CONNECT_SECONDS = 1.0
_PAUSE, _LONGEST_PAUSE = 1.0, 4.0
_MOST_NEAR = 8192
_LARGE_IN_A_ROW = 2
"""After this many large objects the next is assumed to be large."""
_USUAL = 64 << 10
"""Most answers fit into this."""
_LENGTH = Struct("<I")
_TIMEVAL = Struct("ll")


class Reader:
    def __init__(self, me: Identity, directory_at: Callable[[], DirectoryAt]) -> None:
        """`directory_at` asks the agent where the directory is, and for the token, which `me` is without."""
        self._me = me
        self._directory_at = directory_at
        self._near: set[bytes] = set()
        self._near_since: deque[bytes] = deque()
        self._large = 0  # objects in a row
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._limit = 0.0  # what the socket's calls are limited to
        self._memory = memoryview(bytearray(_USUAL))
        self._thread: threading.Thread | None = None
        self._pause = _PAUSE
        self._not_before = 0.0
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._sock is not None

    def look(self, ref: bytes, timeout: float | None) -> Found | None:
        """The object, if it is small and the directory has it; takes no longer than the directory's answer, or a short
        time."""
        limit = _PATIENCE if timeout is None or timeout > _PATIENCE else timeout
        if self._large >= _LARGE_IN_A_ROW or is_large(ref) or ref in self._near or limit < _LEAST:
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._sock is None:
                self._connect_soon()
                return None
            return self._ask(self._sock, ref, limit)
        finally:
            self._lock.release()

    def is_near(self, ref: bytes) -> None:
        """From now on gets of it go to the agent. Without a lock: a signal handler may interrupt it and put."""
        self._near.add(ref)
        self._near_since.append(ref)
        if len(self._near_since) > _MOST_NEAR:
            self._near.discard(self._near_since.popleft())

    def agent_gave(self, ref: bytes, *, large: bool) -> None:
        """What the agent returned, and whether it is larger than what a directory holds."""
        self._large = self._large + 1 if large else 0
        if large:
            self.is_near(ref)

    def close(self) -> None:
        """A question that is open ends at once, and is answered with None."""
        self._closed = True
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self._lock.acquire(timeout=2 * _PATIENCE):
            self._drop()
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """The child closes its copy; a thread that does not exist there may hold its lock."""
        self._closed = True
        self._drop()

    # --- with the lock -----------------------------------------------------------------------------------------

    def _ask(self, sock: socket.socket, ref: bytes, limit: float) -> Found | None:
        try:
            if limit != self._limit:
                self._set_limit(sock, limit)
            sock.sendall(QUESTION + ref)
            answer = self._receive(sock, time.monotonic() + limit)
        except (OSError, HopliteError):
            self._failed()
            return None
        except BaseException:  # the caller is interrupted, and would not read the answer
            self._drop()
            raise
        if (answer.version.ref if isinstance(answer, Found) else answer.ref) != ref:
            self._failed()
            return None
        self._pause = _PAUSE
        if isinstance(answer, Found):
            self._large = 0
            return answer
        return None

    def _set_limit(self, sock: socket.socket, limit: float) -> None:
        """The kernel keeps it: Python's own would cost more system calls for every question."""
        timeval = _TIMEVAL.pack(*divmod(int(limit * 1e6), 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._limit = limit

    def _receive(self, sock: socket.socket, deadline: float) -> Answer:
        """The one frame that comes next; an OSError if it does not come in time."""
        memory = self._memory
        count = sock.recv_into(memory)
        if count > _LENGTH.size and _LENGTH.unpack_from(memory)[0] == count - _LENGTH.size:
            return decode_answer(memory[_LENGTH.size : count])
        return _receive_rest(sock, bytes(memory[:count]), deadline)

    def _failed(self) -> None:
        self._drop()
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _drop(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    # --- connecting --------------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._closed or self._thread is not None or time.monotonic() < self._not_before:
            return
        self._thread = threading.Thread(target=self._connect, name="hoplite-reader", daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        sock = None
        with suppress(OSError, ValueError, HopliteError, TransportError):
            sock = _dial(self._directory_at(), self._me)
        with self._lock:
            self._thread = None
            self._sock, self._limit = sock, 0.0
            if sock is None:
                self._failed()
            elif self._closed:
                self._drop()


def _dial(directory: DirectoryAt, me: Identity) -> socket.socket | None:
    """An authenticated session with the directory that the agent has joined, or a later one; None if there must be
    none: workers have no certificate."""
    if directory.address is None or directory.tls:
        return None
    sock = socket.create_connection(parse_address(directory.address), timeout=_CONNECT_SECONDS)
    try:
        tune(sock)
        steps = client(replace(me, token=directory.token), Kind.READER, directory.address)
        peer = run_blocking(steps, sock, directory.address)
        if decode_incarnation(peer.info) < directory.incarnation:
            sock.close()
            return None
    except BaseException:
        sock.close()
        raise
    return sock


def _receive_rest(sock: socket.socket, data: bytes, deadline: float) -> Answer:
    """An answer that arrives in pieces, the first of which is here."""
    while not _is_whole(data):
        piece = sock.recv(_USUAL)
        if not piece or time.monotonic() >= deadline:
            raise TimeoutError("the directory did not answer in time")
        data += piece
    return decode_answer(data[_LENGTH.size :])


def _is_whole(data: bytes) -> bool:
    if not data:
        raise ConnectionResetError("the directory closed the session")
    if len(data) < _LENGTH.size:
        return False
    length: int = _LENGTH.unpack_from(data)[0]
    if length > MAX_ANSWER or len(data) > _LENGTH.size + length:
        raise ConnectionAbortedError("this is not a directory's answer")
    return len(data) == _LENGTH.size + length
