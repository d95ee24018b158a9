"""The directory's side of readers: workers that ask for small objects themselves (see `worker.direct_lookup`).

A reader sends a question, reads the answer, and may ask again; anything else ends its session. So it has no queues: a
question is answered on the socket as soon as it is read, without another turn of the loop, and what the socket does not
take at once is all that can wait for a reader. Their number is bounded.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from struct import Struct

from hoplite_ucx.protocol.ids import REF_BYTES
from hoplite_ucx.protocol.lookups import QUESTION, Answer, encode
from hoplite_ucx.runtime.shell.logs import about
from hoplite_ucx.transports.wire.handshake import Peer

_log = logging.getLogger("hoplite.directory")

MAX_READERS = 4096
"""More are refused, and ask their agents."""

_LENGTH = Struct("<I")
_QUESTION_BYTES = len(QUESTION) + REF_BYTES


class Readers:
    def __init__(self, look: Callable[[bytes], Answer]) -> None:
        self._look = look
        self._sessions: set[_Session] = set()
        self.answered = 0
        """Questions so far."""

    def __len__(self) -> int:
        return len(self._sessions)

    def accept(self, sock: socket.socket, _: Peer) -> None:
        if len(self._sessions) >= MAX_READERS:
            sock.close()
        else:
            self._sessions.add(_Session(sock, self._answer, self._sessions.discard))

    def _answer(self, ref: bytes) -> Answer:
        self.answered += 1
        return self._look(ref)

    def close(self) -> None:
        for session in list(self._sessions):
            session.close()


class _Session:
    def __init__(
        self, sock: socket.socket, look: Callable[[bytes], Answer], on_closed: Callable[["_Session"], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._look = look
        self._on_closed = on_closed
        self._begun = b""  # of a question
        self._unsent = memoryview(b"")  # of the answer
        self._loop.add_reader(sock, self._readable)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._on_closed(self)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_QUESTION_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or self._unsent:  # its end, or it asks before it has read
            self.close()
            return
        question = self._begun + data
        if len(question) == _QUESTION_BYTES and question.startswith(QUESTION):
            self._begun = b""
            self._answer(question[len(QUESTION) :])
        elif QUESTION.startswith(question[: len(QUESTION)]) and len(question) < _QUESTION_BYTES:
            self._begun = question
            if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # the loop (libuv) tells of that only once
                self.close()
        else:
            self.close()

    def _answer(self, ref: bytes) -> None:
        try:
            answer = encode(self._look(ref))
        except Exception:  # to look changes nothing: the reader asks its agent instead
            _log.exception("the lookup of %s failed", ref.hex(), extra=about(ref))
            self.close()
            return
        frame = _LENGTH.pack(len(answer)) + answer
        try:
            sent = self._sock.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(frame):
            self._unsent = memoryview(frame)[sent:]
            self._loop.add_writer(self._sock, self._writable)

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock)
