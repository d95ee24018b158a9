"""The agent's side of viewers: processes with the token that ask what goes on here. Each question has one answer, so
that nothing is done while nobody asks, and nothing piles up for a viewer that does not read.
"""

import logging
from collections.abc import Callable
from typing import Any

from hoplite_ucx.protocol.messages import malformed
from hoplite_ucx.runtime.shell.looks import AgentLook, answer, asked
from hoplite_ucx.runtime.shell.refused_connections import tell_malformed
from hoplite_ucx.transports.wire.session import Session

_log = logging.getLogger("hoplite.agent")

MOST = 64


class Viewers:
    def __init__(self, report: Callable[[AgentLook], dict[str, Any]]) -> None:
        self._report = report
        self._sessions: set[Session] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def accept(self, session: Session) -> None:
        if len(self._sessions) >= MOST:
            session.abort()
            return
        self._sessions.add(session)
        session.on_frame = lambda frame: self._asked(session, frame)
        session.on_closed = lambda _: self._sessions.discard(session)

    def close(self) -> None:
        for session in list(self._sessions):
            session.close()

    def _asked(self, session: Session, frame: bytes) -> None:
        question = asked(frame)
        if not isinstance(question, AgentLook):
            tell_malformed(malformed("this is not a viewer's question to an agent"), session.peer.address)
            session.close()
            return
        try:
            found = self._report(question)
        except Exception:  # to look changes nothing: the viewer comes again
            _log.exception("a viewer could not be answered")
            session.close()
            return
        session.send(answer(found))
