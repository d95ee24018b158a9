"""Asks this user's agents on this host, all at the same time, so that a stopped one does not delay the others.

Each is asked once: for its greeting, its status, or its directory's address. A process of another user under an agent's
name is not asked.
"""

import os
import select
import socket
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.transports import shm

_RECEIVE = 64 << 10


_ANSWERS: dict[type, type[wire.Reply]] = {
    type(None): wire.Greeting,
    wire.StatusRequest: wire.Report,
    wire.DirectoryRequest: wire.DirectoryAt,
}


class _Asked:
    """An agent that has not answered yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames = wire.Frames()


class AgentPoll:
    def __init__(self, question: wire.StatusRequest | wire.DirectoryRequest | None = None) -> None:
        """Without a question, agents answer with their greeting."""
        hello = wire.frame(wire.Hello(wire.WIRE, os.urandom(16), background=False))
        self._says = hello if question is None else hello + wire.frame(question)
        self._awaited = _ANSWERS[type(question)]
        self._done: set[str] = set()
        """Those that answered or ended, by the names of their sockets."""
        self._asked: dict[str, _Asked] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self.silent:
            self._end(name)

    @property
    def silent(self) -> list[str]:
        """The agents that were asked and have not answered."""
        return list(self._asked)

    def ask(self, names: Iterable[str]) -> None:
        """Ask the agents that were not asked before. It does not wait: an agent whose queue is full is asked later."""
        for name in names:
            if name not in self._done and name not in self._asked:
                with suppress(OSError):  # no room, or it has just ended
                    self._ask(name)

    def _ask(self, name: str) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(os.fsencode(name))
            if shm.peer_uid(sock) == os.getuid() and sock.send(self._says) == len(self._says):
                self._asked[name] = _Asked(sock)
        finally:
            if name not in self._asked:
                sock.close()

    def hear(self, seconds: float) -> dict[str, wire.Reply]:
        """Read the answers that have arrived; waits that long for the first. An answer that has arrived counts, however
        late."""
        poll = select.poll()
        names = {asked.sock.fileno(): name for name, asked in self._asked.items()}
        for fd in names:
            poll.register(fd, select.POLLIN)
        answers = {names[fd]: self._read(names[fd]) for fd, _ in poll.poll(1e3 * max(0.0, seconds))}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def _read(self, name: str) -> wire.Reply | None:
        asked = self._asked[name]
        try:
            data = asked.sock.recv(_RECEIVE)
            replies = [wire.decode_reply(frame) for frame in asked.frames.feed(data)]
        except (OSError, HopliteError):
            data, replies = b"", []
        answer = next((reply for reply in replies if isinstance(reply, self._awaited)), None)
        if answer is not None or not data:
            self._end(name)
        return answer

    def _end(self, name: str) -> None:
        self._done.add(name)
        self._asked.pop(name).sock.close()
