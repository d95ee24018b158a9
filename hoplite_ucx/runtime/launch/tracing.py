"""Collects a trace of a whole cluster: from its directory and every agent, for as long as it is wanted.

Records are taken every second, so that those of a process that dies are there until then. How far each clock is ahead
of this process's is measured by round trips, before and after: the quickest one counts, and its half is the error. A
node that joins meanwhile is traced from then on; one that cannot be reached is named in the trace, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.launch.cluster import Attachment
from hoplite_ucx.runtime.launch.inspection import token_towards
from hoplite_ucx.runtime.settings import load
from hoplite_ucx.runtime.shell.directory_status import ask_status
from hoplite_ucx.runtime.shell.tracers import (
    Answer,
    Begin,
    Begun,
    Clock,
    ClockIs,
    Question,
    Records,
    Take,
    decode_answer,
    encode,
)
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.tracing.document import Offset, TracedProcess, check_writable, document, write
from hoplite_ucx.tracing.records import Span
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, connect
from hoplite_ucx.transports.wire.tls import open_tls

__all__ = ["LONGEST", "ClusterTrace", "TraceReport", "trace_of"]

LONGEST = 3600.0
"""Seconds: a trace that nobody ends does so by itself."""
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_BETWEEN = 1.0
_ROUND_TRIPS = 8
_MOST_TAKES = 64
"""Answers in a row that say that there is more."""

_A = TypeVar("_A", ClockIs, Begun, Records)


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was written."""

    path: Path
    spans: int
    processes: list[TracedProcess]
    seconds: float

    @property
    def lost(self) -> dict[str, str]:
        """Processes that could not be traced to the end, and why."""
        return {process.name: process.note for process in self.processes if process.note}


@dataclass(slots=True, eq=False)
class _Traced:
    """A process that is traced, and its session as long as it lasts."""

    process: TracedProcess
    session: Session | None = None
    answers: asyncio.Queue[Answer | Exception] = field(default_factory=asyncio.Queue)
    open: list[Span] = field(default_factory=list)

    async def ask(self, question: Question, kind: type[_A]) -> _A:
        if self.session is None:
            raise ConnectionError("its session has ended")
        self.session.send(encode(question))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self.answers.get()
        except TimeoutError:
            if self.answers.empty():
                raise
            answer = self.answers.get_nowait()  # it is here: this process itself was paused
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, kind):
            raise ConnectionError("it sent another answer than it was asked for")
        return answer

    def hang_up(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.abort()


def trace_of(attachment: Attachment, path: str | None) -> ClusterTrace:
    """Of a program's own cluster. Its agent knows the directory and the token, as soon as it has joined."""
    if path is None:
        raise Failure(FailureKind.INVALID, "a trace needs a file", "give its path, as a str or a Path").exception()
    client = attachment.client
    deadline = time.monotonic() + _ANSWER_SECONDS
    while (at := client.directory_at()).address is None and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    address = at.address or client.greeting.directory
    token = at.token if at.address is not None else token_towards(address)
    return ClusterTrace(Path(path), address, token, variables=attachment.variables)


class ClusterTrace:
    """A trace on a thread of its own: `start` returns when the cluster records, `finish` when the file is written."""

    def __init__(
        self,
        path: Path,
        address: str,
        token: bytes,
        seconds: float = LONGEST,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """The variables are those that only the cluster's processes were given: they may name certificates."""
        self._path = path
        self._address = address
        self._token = token
        self._seconds = min(seconds, LONGEST)
        self._variables = variables or {}
        self._directory: _Traced | None = None
        self._nodes: dict[str, _Traced] = {}
        self._traced: list[_Traced] = []
        """All, those whose session has ended too."""
        self._began = 0.0
        self._recording: Future[None] = Future()
        self._written: Future[TraceReport] = Future()
        self._lock = threading.Lock()  # of what follows
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = self._abandoned = False
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="hoplite-trace", daemon=True)

    def start(self) -> None:
        """Raises a typed error if the directory cannot be traced, or the file cannot be written."""
        try:
            check_writable(self._path)
        except OSError as error:
            raise _cannot_write(error) from error
        try:
            self._thread.start()
            self._recording.result()
        except BaseException:  # ctrl-C, too
            self.abandon()
            raise

    def end(self) -> None:
        """Record nothing more, and write the file. Returns at once."""
        self._tell(abandoned=False)

    def abandon(self) -> None:
        """Record nothing more, and write nothing, unless it is being written. Returns at once, whether it has begun or
        not."""
        self._tell(abandoned=True)

    def finish(self) -> TraceReport:
        """End the trace now, and write it. Raises a typed error if that fails."""
        self.end()
        return self._written.result()

    def wait(self, seconds: float | None = None) -> bool:
        """Until the time of the trace is over, or this long: True if it is written."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _tell(self, *, abandoned: bool) -> None:
        with self._lock:
            self._over = True
            self._abandoned = self._abandoned or abandoned
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: it is over
                    self._loop.call_soon_threadsafe(self._hear)

    # --- on its thread -----------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._ended.set()
        if self._abandoned:
            self._collecting.cancel()

    def _run(self) -> None:
        try:
            report = asyncio.run(self._collect())
        except BaseException as error:
            for future in (self._recording, self._written):
                if not future.done():
                    future.set_exception(_typed(error, self._address))
        else:
            self._written.set_result(report)

    async def _collect(self) -> TraceReport:
        task = asyncio.current_task()
        assert task is not None
        self._collecting = task
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._over:  # before it began
                self._hear()
        settings = load(environment={**os.environ, **self._variables})
        self._me = Identity(int.from_bytes(os.urandom(7)), self._token, tls=open_tls(settings.links.certificates))
        try:
            await self._record(self._ended)
        finally:
            for traced in self._traced:
                traced.hang_up()
            await asyncio.sleep(0)  # the loop closes them
        return await asyncio.to_thread(self._write, time.monotonic() - self._began)

    async def _record(self, over: asyncio.Event) -> None:
        self._directory = await self._begin("directory", self._address)
        self._began = time.monotonic()
        await self._look_for_nodes()
        self._recording.set_result(None)
        deadline = self._began + self._seconds
        while (left := deadline - time.monotonic()) > 0 and not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), min(left, _BETWEEN))
            await self._of_all(self._take)
            if not over.is_set():
                await self._look_for_nodes()
        await self._of_all(self._take)
        await self._of_all(self._measure)

    async def _look_for_nodes(self) -> None:
        """Trace those that are not traced yet."""
        try:
            status = await ask_status(self._address, self._me, _ANSWER_SECONDS)
        except (TransportError, OSError, msgspec.DecodeError):
            return  # it is started again: its own session says so
        new = [node for node in status["nodes"] if node["node"] not in self._nodes]
        await asyncio.gather(*(self._try_to_begin(node) for node in new))
        if self._directory is not None and self._directory.session is None:  # another one has taken its place
            with contextlib.suppress(TransportError, OSError):
                self._directory = await self._begin("directory, started again", self._address)

    async def _try_to_begin(self, node: dict[str, Any]) -> None:
        name = f"agent {node['node']} ({node['host']})"
        try:
            self._nodes[node["node"]] = await self._begin(name, node["address"])
        except (TransportError, OSError, ValueError) as error:
            why = f"it could not be traced: {str(error) or 'it did not answer'}"
            self._nodes[node["node"]] = missing = _Traced(TracedProcess(name, note=why))
            self._traced.append(missing)

    async def _begin(self, name: str, address: str) -> _Traced:
        traced = _Traced(TracedProcess(name))

        def made(session: Session) -> None:
            session.on_frame = lambda frame: traced.answers.put_nowait(_decoded(frame))
            session.on_closed = lambda error: traced.answers.put_nowait(error or ConnectionError("it was closed"))

        traced.session = await connect(address, self._me, Kind.TRACER, made)
        try:
            await self._measure(traced)
            if not (await traced.ask(Begin(self._seconds + _ANSWER_SECONDS), Begun)).begun:
                raise ConnectionError("too many others trace it")
        except BaseException:
            traced.hang_up()
            raise
        self._traced.append(traced)
        return traced

    async def _of_all(self, step: Callable[[_Traced], Awaitable[None]]) -> None:
        async def attempt(traced: _Traced) -> None:
            try:
                await step(traced)
            except (TransportError, OSError) as error:
                after = time.monotonic() - self._began
                traced.process.note = f"its session ended after {after:.1f} s: {str(error) or 'it did not answer'}"
                traced.hang_up()

        await asyncio.gather(*(attempt(each) for each in self._traced if each.session is not None))

    async def _take(self, traced: _Traced) -> None:
        for _ in range(_MOST_TAKES):
            taken = (await traced.ask(Take(), Records)).taken
            traced.process.records += taken.records
            traced.process.dropped = taken.dropped
            traced.open = taken.open
            if not taken.more:
                return

    async def _measure(self, traced: _Traced) -> None:
        """The quickest round trip tells most; all of them count, those of an earlier measurement too."""
        best = traced.process.offset
        for _ in range(_ROUND_TRIPS):
            asked = time.monotonic()
            theirs = (await traced.ask(Clock(), ClockIs)).now
            answered = time.monotonic()
            error = (answered - asked) / 2
            quicker = not best.round_trips or error < best.error
            ahead = theirs - (asked + answered) / 2 if quicker else best.seconds
            best = Offset(ahead, min(error, best.error) if best.round_trips else error, best.round_trips + 1)
        traced.process.offset = best

    def _write(self, seconds: float) -> TraceReport:
        for each in self._traced:
            each.process.records += each.open
        processes = [each.process for each in self._traced]
        facts = {"directory": self._address, "seconds": seconds}
        write(self._path, document(processes, facts))
        spans = sum(isinstance(record, Span) for process in processes for record in process.records)
        return TraceReport(self._path, spans, processes, seconds)


def _decoded(frame: bytes) -> Answer | Exception:
    try:
        return decode_answer(frame)
    except msgspec.DecodeError as error:
        return ConnectionError(f"its answer cannot be read: {error}")


def _cannot_write(error: OSError) -> HopliteError:
    return Failure(FailureKind.INVALID, f"the trace cannot be written: {error}", "name another file").exception()


def _typed(error: BaseException, address: str) -> BaseException:
    match error:
        case TransportError():
            return Failure(FailureKind.CLOSED, error.detail, error.remedy, None, error.peer).exception()
        case TimeoutError():
            detail = f"the directory did not answer within {_ANSWER_SECONDS:g} s"
            return Failure(FailureKind.CLOSED, detail, "check whether it is overloaded", None, address).exception()
        case ConfigurationError():
            return Failure(FailureKind.INVALID, error.detail, error.remedy).exception()
        case ConnectionError():
            return Failure(FailureKind.CLOSED, f"the directory: {error}", "try again", None, address).exception()
        case OSError():
            return _cannot_write(error)
        case ValueError():
            return Failure(FailureKind.INVALID, str(error), "correct the address").exception()
    return error
