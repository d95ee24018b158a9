"""The side of a process that is traced: sessions that have its machine recorded, and take the records.

Each tracer has a recorder of its own, from its first question until its session ends or the time that it named is
over; without tracers nothing is recorded. Their number is bounded, and so is each recorder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from hoplite_ucx.protocol.driver import Effect, Event
from hoplite_ucx.protocol.messages import malformed
from hoplite_ucx.runtime.shell.observers import Observer, Observers
from hoplite_ucx.runtime.shell.refused_connections import tell_malformed
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.tracing.records import Taken
from hoplite_ucx.transports.wire.session import Session

__all__ = ["Begin", "Begun", "Clock", "ClockIs", "Take", "Tracers", "decode_answer", "encode"]

MOST = 4
"""Tracers at a time; further ones are refused."""
_LONGEST = 7200.0


class _Question(Struct, frozen=True, array_like=True, tag=True):
    pass


class Clock(_Question, frozen=True):
    """What time is it there?"""


class Begin(_Question, frozen=True):
    """Record from now on, for so many seconds at most."""

    seconds: Annotated[float, Meta(ge=0, le=_LONGEST)]


class Take(_Question, frozen=True):
    """Give what was recorded since the last time."""


class ClockIs(Struct, frozen=True, array_like=True, tag=True):
    now: float


class Begun(Struct, frozen=True, array_like=True, tag=True):
    """False if there are too many tracers."""

    begun: bool


class Records(Struct, frozen=True, array_like=True, tag=True):
    taken: Taken


_Observed = TypeVar("_Observed", contravariant=True)

Question: TypeAlias = Clock | Begin | Take
Answer: TypeAlias = ClockIs | Begun | Records

_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
encode: Callable[[Question | Answer], bytes] = msgspec.msgpack.Encoder().encode


def decode_answer(frame: bytes) -> Answer:
    """Raises a `msgspec.DecodeError`."""
    return _answers.decode(frame)


class Recorder(Observer[_Observed, Effect], Protocol[_Observed, Effect]):
    def take(self, now: float) -> Taken: ...


class Tracers(Generic[Event, Effect]):
    def __init__(self, observers: Observers[Event, Effect], recorder: Callable[[], Recorder[Event, Effect]]) -> None:
        self._observers = observers
        self._recorder = recorder
        self._sessions: set[Session] = set()
        self._recording: dict[Session, Recorder[Event, Effect]] = {}

    def accept(self, session: Session) -> None:
        if len(self._sessions) >= 2 * MOST:
            session.abort()
            return
        self._sessions.add(session)
        session.on_frame = lambda frame: self._on_frame(session, frame)
        session.on_closed = lambda _: self._closed(session)

    def close(self) -> None:
        for session in list(self._sessions):
            session.close()

    def _on_frame(self, session: Session, frame: bytes) -> None:
        try:
            question = _questions.decode(frame)
        except msgspec.DecodeError as error:
            tell_malformed(malformed(str(error)), session.peer.address)
            session.abort()
            return
        match question:
            case Clock():
                session.send(encode(ClockIs(now())))
            case Begin(seconds):
                session.send(encode(Begun(self._begin(session, seconds))))
            case Take():
                recorder = self._recording.get(session)
                taken = recorder.take(now()) if recorder is not None else Taken([], [], 0, more=False)
                session.send(encode(Records(taken)))

    def _begin(self, session: Session, seconds: float) -> bool:
        if session not in self._recording:
            if len(self._recording) >= MOST:
                return False
            recorder = self._recording[session] = self._recorder()
            self._observers.add(recorder)
            asyncio.get_running_loop().call_later(seconds, self._stop, session)
        return True

    def _stop(self, session: Session) -> None:
        """Record nothing more; what was recorded stays until it is taken or the session ends."""
        if (recorder := self._recording.get(session)) is not None:
            self._observers.remove(recorder)

    def _closed(self, session: Session) -> None:
        self._stop(session)
        self._recording.pop(session, None)
        self._sessions.discard(session)
