"""Calls on an event loop: one for each waiting task, without a thread for any of them.

A loop watches its connections to the agent. One carries up to `AT_ONCE` open calls, which bounds what waits in the
agent for a loop that reads slowly; more calls use more connections, which are closed when they are idle. Cancelling a
task ends its call. As with a `Connection` of a thread, every wait ends: an agent that misses a caller's time limit is
late, for that caller alone; one that does not answer a ping raises `ClosedError` for every open call there.

Only the loop's own thread uses this.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, TypeAlias, TypeVar

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.worker.calls import PutRun, Question, Steps, put_small
from hoplite_ucx.runtime.worker.client import AT_ONCE, LONGEST_POLL, Client
from hoplite_ucx.runtime.worker.connection import HURRY, PING, Connection, late
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool

R = TypeVar("R")
Got: TypeAlias = tuple[memoryview, bytes]
"""The memory of an object, and its layout."""
_Answer: TypeAlias = tuple[wire.Reply, memoryview]
"""What the agent said, and the memory that came with it."""

_NO_MEMORY = memoryview(b"")
_MOMENT = 0.05
_threads = DaemonPool(4, "hoplite-work")


async def in_thread(work: Callable[[], R]) -> R:
    """For work that takes a moment, and never waits for other calls of this program.

    Only the caller gets the result: a future would pass it on while its thread still refers to it, and memory that the
    caller drops would be freed a moment later.
    """
    made: list[R] = []
    await asyncio.wrap_future(_threads.submit(lambda: made.append(work())))
    return made.pop()


class LoopCalls:
    """The calls of one loop with one client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sessions: set[_Session] = set()
        self._opening: asyncio.Task[None] | None = None

    async def carry_out(self, steps: Steps[R]) -> R:
        """Run these steps: ask their questions one after the other."""
        try:
            question = next(steps)
            while True:
                reply, _ = await self._ask(question)
                question = steps.send(reply)
        except StopIteration as end:
            result: R = end.value
            return result

    async def get_one(self, ref: bytes, timeout: float | None) -> Got:
        return await self._get_within(ref, LONGEST_POLL if timeout == 0 else timeout, once=timeout == 0)

    async def _get_within(self, ref: bytes, limit: float | None, *, once: bool) -> Got:
        asking = Question(lambda call, left: wire.GetRequest(call, ref, left, once), limit, once)
        reply, memory = await self._ask(asking)
        assert isinstance(reply, wire.Value)
        return memory, reply.layout

    async def get(self, refs: Sequence[bytes], timeout: float | None) -> list[Got]:
        """In order. Many are fetched at the same time, within a bound; if one fails, the others are cancelled."""
        once = timeout == 0
        found: dict[int, Got] = {}

        async def fetch(place: int, left: float | None) -> None:
            found[place] = await self._get_within(refs[place], left, once=once)

        await _many_at_once(fetch, len(refs), LONGEST_POLL if once else timeout)
        return [found[place] for place in range(len(refs))]

    async def put_small(self, puts: PutRun, timeout: float | None, *, fresh: bool) -> None:
        """Put objects that go to the agent by copy, many at the same time. If one fails, any of the others may have
        been put."""

        async def put(place: int, left: float | None) -> None:
            ref, encoded = puts[place]
            self.client.reader.is_near(ref)
            await self.carry_out(put_small(ref, encoded, left, fresh=fresh))

        await _many_at_once(put, len(puts), timeout)

    def drop(self) -> None:
        """After the loop's end."""
        for session in self._sessions:
            session.connection.close()

    async def _ask(self, question: Question) -> _Answer:
        deadline = inf if question.timeout is None else time.monotonic() + question.timeout + self.client.grace
        opened_by = time.monotonic() + self.client.grace if question.hurried else deadline
        while (session := self._with_room()) is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
            await self._opened(self._opening, opened_by)
        return await session.ask(question, deadline)

    async def _opened(self, opening: "asyncio.Task[None]", deadline: float) -> None:
        while not opening.done():
            is_late = time.monotonic() >= deadline
            await asyncio.wait([opening], timeout=max(_MOMENT, _until(deadline, self.client.greeting.quiet)))
            if is_late and not opening.done():  # the loop itself may have been held up, but not twice
                raise late()
        try:
            opening.result()
        except HopliteError as error:
            raise error.failure.exception() from None

    async def _open(self) -> None:
        """Open a connection for all callers that wait for one: an agent that does not answer delays them all only
        once."""
        try:
            connection = await in_thread(self.client.connect_watched)
            self._sessions.add(_Session(self.client, connection, self._idle))
        finally:
            self._opening = None

    def _with_room(self) -> "_Session | None":
        self._sessions = {session for session in self._sessions if not session.connection.broken}
        return next((session for session in self._sessions if session.has_room()), None)

    def _idle(self, session: "_Session") -> None:
        if len(self._sessions) > 1:
            self._sessions.discard(session)
            session.close()


async def _many_at_once(
    work: Callable[[int, float | None], Coroutine[Any, Any, None]], count: int, timeout: float | None
) -> None:
    """Each has its place, and the time that is left when it starts. If one fails, the others are cancelled."""
    ends = None if timeout is None else time.monotonic() + timeout
    places = iter(range(count))

    async def work_on() -> None:
        for place in places:
            await work(place, None if ends is None else max(0.0, ends - time.monotonic()))

    working = [asyncio.ensure_future(work_on()) for _ in range(min(count, AT_ONCE))]
    try:
        await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()


class _Session:
    def __init__(self, client: Client, connection: Connection, on_idle: Callable[["_Session"], None]) -> None:
        self._client = client
        self.connection = connection
        self._on_idle = on_idle
        self._fd = connection.fileno()
        self._calls: dict[int, asyncio.Future[_Answer]] = {}
        self._unsent = bytearray()
        self._heard = time.monotonic()
        self._pinged: float | None = None
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    def has_room(self) -> bool:
        return len(self._calls) < AT_ONCE

    async def ask(self, question: Question, deadline: float) -> _Answer:
        call = self.connection.next_call()
        answer = self._calls[call] = asyncio.get_running_loop().create_future()
        try:
            request = question.request(call, self._client.left_until(None if deadline == inf else deadline))
            self._send(self._client.with_releases(self.connection, call, request))
            # It is asked just now, and has the grace whenever that is.
            deadline = max(deadline, time.monotonic() + self._client.grace)
            return await self._await(answer, deadline, HURRY if question.hurried else self.connection.quiet)
        finally:
            del self._calls[call]
            if answer.done():
                answer.exception()  # seen, also if the caller was cancelled at the same time
            if not self.connection.broken:
                if not answer.done():
                    self._send(wire.frame(wire.Cancel(call)))
                if not self._calls:
                    self._on_idle(self)

    def close(self) -> None:
        """Also if the connection has closed itself."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        loop.remove_writer(self._fd)
        self.connection.close()

    async def _await(self, answer: "asyncio.Future[_Answer]", deadline: float, patience: float) -> _Answer:
        while not answer.done():
            await asyncio.wait([answer], timeout=_until(deadline, patience))
            # If the loop was held up, what came meanwhile is yet to be read.
            while not answer.done() and self._read():
                pass
            if not answer.done():
                self._be_patient(patience)
            if not answer.done() and time.monotonic() >= deadline:
                raise late()
        return answer.result()

    def _be_patient(self, patience: float) -> None:
        """Nothing has arrived for a while: ping the agent. Only an agent that was asked can be silent: for a caller in
        a hurry it is late, and in the end for all."""
        now = time.monotonic()
        if self._pinged is not None and now - self._pinged >= self.connection.quiet:
            self._fail(self.connection.silent())
        elif self._pinged is not None and now - self._pinged >= patience:
            raise late()
        elif self._pinged is None and now - self._heard >= patience:
            self._pinged = now
            self._send(wire.frame(wire.Ping(PING)))

    def _fail(self, error: HopliteError) -> None:
        """Every open call ends."""
        self.close()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(error.failure.exception())

    def _send(self, frames: bytes) -> None:
        waits = bool(self._unsent)
        self._unsent += frames
        if not waits and not self._flushed():
            asyncio.get_running_loop().add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        if self._flushed():
            asyncio.get_running_loop().remove_writer(self._fd)

    def _flushed(self) -> bool:
        """Whether nothing is left to send."""
        try:
            while self._unsent and (sent := self.connection.send_some(self._unsent)):
                del self._unsent[:sent]
        except HopliteError as error:
            self._unsent.clear()
            self._fail(error)
        return not self._unsent

    def _readable(self) -> None:
        """uvloop reports a broken connection only once, so it is read to the end."""
        self._read()
        if self.connection.has_error():
            while self._read():
                pass

    def _read(self) -> bool:
        """Whether something had arrived; there may be more."""
        try:
            replies = self.connection.read_ready()
        except HopliteError as error:
            self._fail(error)
            return False
        if replies is None:
            return False
        self._heard = time.monotonic()
        self._pinged = None
        for reply in replies:
            self._settle(reply)
        return True

    def _settle(self, reply: wire.Reply) -> None:
        """Every reply passes through here, in order, so that each finds its own descriptor."""
        number = self._client.number_of(self.connection, reply)
        answer = None if number is None else self._calls.get(number)
        if answer is None or answer.done():
            self._client.discard(self.connection, reply)
        elif isinstance(reply, wire.Refused):
            answer.set_exception(reply.failure.exception())
        else:
            try:
                answer.set_result((reply, self._memory(reply)))
            except HopliteError as error:
                answer.set_exception(error)

    def _memory(self, reply: wire.Reply) -> memoryview:
        return self._client.open_value(self.connection, reply) if isinstance(reply, wire.Value) else _NO_MEMORY


def _until(deadline: float, patience: float) -> float:
    """How long to wait before checking a silent agent again."""
    return max(0.0, min(patience, deadline - time.monotonic()))


_of_loops: dict[tuple[asyncio.AbstractEventLoop, Client], LoopCalls] = {}


def of_this_loop(client: Client) -> LoopCalls:
    """The calls of the running loop with this client. Leftovers of ended loops and clients are dropped."""
    for loop, other in [key for key in list(_of_loops) if key[0].is_closed() or key[1].closed]:
        left = _of_loops.pop((loop, other), None)
        if left is not None and loop.is_closed():  # else the loop itself sees its connections end
            left.drop()
    key = (asyncio.get_running_loop(), client)
    calls = _of_loops.get(key)
    if calls is None:
        calls = _of_loops[key] = LoopCalls(client)
    return calls
