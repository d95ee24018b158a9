"""The directory's side of viewers: what happens is noted while one of them looks, and for a moment longer.

A viewer asks, and is answered when there is something to tell, at most ten times a second. The first answer is a whole
picture, for which all records are looked at: a few at a time, so that no event waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from hoplite_ucx.protocol import Directory
from hoplite_ucx.protocol.events import DirectoryEffect, DirectoryEvent
from hoplite_ucx.protocol.messages import malformed
from hoplite_ucx.protocol.watching import Known, Looked, Told, Watching, members_of, picture_of
from hoplite_ucx.runtime.shell.looks import DirectoryLook, answer, asked
from hoplite_ucx.runtime.shell.observers import Observers
from hoplite_ucx.runtime.shell.refused_connections import tell_malformed
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.transports.wire.session import Session

_log = logging.getLogger("hoplite.directory")

_BETWEEN = 0.1
"""Seconds between two answers to one viewer."""
_QUIET = 1.0
"""After so long a viewer is answered though nothing has happened: the clock and the members are news, too."""
_LEASE = 3.0
"""Without a question for so long, nobody looks."""
_SLICE = 1000
"""Records that are looked at in one turn of the loop."""
_NUMBERS_PER_LOG_BITS = 32
MOST = 16
"""Viewers at a time; each may serve any number of browsers."""


class Viewers:
    def __init__(
        self,
        observers: Observers[DirectoryEvent, DirectoryEffect],
        machine: Callable[[], Directory],
        uptime: Callable[[], float],
    ) -> None:
        self._observers = observers
        self._machine = machine
        self._uptime = uptime
        self._watching: Watching | None = None
        self._logs = 0
        self._answers: dict[Session, asyncio.Task[None] | None] = {}  # the last of each viewer
        self._answered: dict[Session, float] = {}
        self._news = asyncio.Event()
        self._looked = 0.0
        self._end: asyncio.TimerHandle | None = None

    @property
    def looking(self) -> bool:
        return self._watching is not None

    def accept(self, session: Session) -> None:
        if len(self._answers) >= MOST:
            session.abort()
            return
        self._answers[session] = None
        session.on_frame = lambda frame: self._asked(session, frame)
        session.on_closed = lambda _: self._closed(session)

    def _asked(self, session: Session, frame: bytes) -> None:
        question, running = asked(frame), self._answers[session]
        if not isinstance(question, DirectoryLook) or (running is not None and not running.done()):
            tell_malformed(
                malformed("this is not a viewer's question, or it came before the answer"), session.peer.address
            )
            session.close()
            return
        self._looked = now()
        if self._watching is None:
            self._begin()
        self._answers[session] = asyncio.get_running_loop().create_task(self._carry_out(session, question))

    def _closed(self, session: Session) -> None:
        self._answered.pop(session, None)
        task = self._answers.pop(session, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for session in list(self._answers):
            session.close()
            self._closed(session)
        self._stop()

    # --- as an observer ------------------------------------------------------------------------------------------

    def handled(self, event: DirectoryEvent, effects: list[DirectoryEffect], _: float, __: float) -> None:
        watching = self._watching
        if watching is None:
            return
        before = watching.number
        try:
            watching.handled(event, effects)
        except Exception:  # this observes no more, until the next question, which gets a fresh picture
            self._watching = None
            raise
        if watching.number != before or watching.changed():
            self._news.set()

    def replaced(self, _: float) -> None:
        """There is another machine: what was told of the last one is over."""
        self._watching = None

    # --- who looks -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._observers.remove(self)  # if the last machine was observed
        self._logs += 1
        self._watching = Watching(self._machine(), self._logs << _NUMBERS_PER_LOG_BITS)
        self._observers.add(self)
        self._news.set()
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(_LEASE, self._look_around)

    def _look_around(self) -> None:
        """Stop when nobody has asked for a while."""
        self._end = None
        left = self._looked + _LEASE - now()
        if left <= 0:
            self._stop()
        else:
            self._end = asyncio.get_running_loop().call_later(left, self._look_around)

    def _stop(self) -> None:
        self._watching = None
        self._observers.remove(self)
        if self._end is not None:
            self._end.cancel()
            self._end = None

    async def _carry_out(self, session: Session, question: DirectoryLook) -> None:
        try:
            await self._answer(session, question)
        except Exception:  # to look changes nothing: the viewer comes again
            _log.exception("a viewer could not be answered")
            session.close()

    async def _answer(self, session: Session, question: DirectoryLook) -> None:
        await asyncio.sleep(self._answered.get(session, 0.0) + _BETWEEN - now())
        if not (question.describe or question.stories):
            await self._wait_for_news(question)
        self._looked = self._answered[session] = now()
        machine = self._machine()
        told, number = self._told(question)
        fresh = told is None
        if told is None:
            told = await self._picture()
        looked = Looked(
            machine.incarnation,
            machine.cluster,
            now(),
            self._uptime(),
            number,
            fresh,
            machine.known_objects(),
            members_of(machine),
            told,
            machine.incidents(),
            [_known(machine, ref) for ref in question.describe],
            [(ref, machine.story(ref)) for ref in question.stories],
        )
        session.send(answer(looked))

    async def _wait_for_news(self, question: DirectoryLook) -> None:
        """Until there is something to tell, or nothing has happened for a while. The log is read afterwards: something
        may happen in the very turn of the loop in which the wait is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_QUIET):
                while self._told(question)[0] == []:
                    self._news.clear()
                    await self._news.wait()
                    await asyncio.sleep(_BETWEEN / 2)  # what belongs together comes together

    def _told(self, question: DirectoryLook) -> tuple[list[Told] | None, int]:
        """What was told after the question's number, and the number of the last of it; None if it is not kept."""
        if self._watching is None:
            self._begin()
        assert self._watching is not None
        same = question.incarnation == self._machine().incarnation
        told = self._watching.since(question.number) if same else None
        return (list(told) if told is not None else None), self._watching.number

    async def _picture(self) -> list[Told]:
        """What changes meanwhile is told after it."""
        machine = self._machine()
        records = iter(machine.all_records())
        told: list[Told] = []
        while some := list(islice(records, _SLICE)):
            told += picture_of(machine, some)
            await asyncio.sleep(0)
        return told


def _known(machine: Directory, ref: bytes) -> Known:
    found = machine.describe(ref)
    return Known(ref, found.state.value, found.size, found.layout, found.copies, found.creator, found.age)
