"""The agent's side of its workers: sessions on a Unix socket, their calls, and the memory they hold.

A worker is one process with a session per thread that calls, and one in the background. When a session ends, its open
calls are cancelled; when the background session ends, the worker is gone, and its pins are released, but the memory is
not recycled: a process that closed its client may still read its arrays.

Descriptors are passed on plain sockets, so sessions do not use the loop's transports, only its readiness.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    ContributorsAre,
    ContributorsCall,
    DeleteCall,
    DeleteDone,
    DescribeCall,
    DescriptionsAre,
    GetCall,
    Got,
    NodeEvent,
    PutCall,
    PutDone,
    PutFinished,
    PutReady,
    ReduceCall,
    ReduceDone,
    Unpin,
    UserCall,
    WaitCall,
    Waited,
    refs_in,
)
from hoplite_ucx.protocol.ids import CallId, StreamId, Version
from hoplite_ucx.protocol.node.memory import Holding
from hoplite_ucx.protocol.node.succession import asked_again
from hoplite_ucx.runtime.agent.object_names import Names
from hoplite_ucx.runtime.agent.store import Backing, Segment, Store
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.local.remedies import delete_left
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.transports import shm
from hoplite_ucx.transports.descriptors import lifted
from hoplite_ucx.transports.wire.session import Together

_RECEIVE = 64 << 10  # more would be mapped and unmapped by every call
_MAX_UNSENT = 64 << 20
_ACCEPT_PAUSE = 0.05
_DELETED_AT_ONCE = 1000


@dataclass(slots=True, eq=False)
class Worker:
    """One process that uses this node."""

    identity: bytes
    sessions: set["WorkerSession"] = field(default_factory=set)
    background: "WorkerSession | None" = None
    pins: dict[CallId, "_Pin"] = field(default_factory=dict)
    owned: dict[bytes, None] = field(default_factory=dict)
    """The refs that are to be deleted when it is gone."""


@dataclass(slots=True, eq=False)
class _Pin:
    """Memory that a worker was given to look at, and on which session."""

    backing: Backing
    session: "WorkerSession"


@dataclass(slots=True, eq=False)
class _Call:
    session: "WorkerSession"
    number: int
    data: bytes | None = None
    """A small put's bytes that are over the inline limit: they go into its segment when there is one."""
    by_hand: bool = False
    """A put whose user fills the memory, and may look at it for as long as the process lives."""
    segment: Segment | None = None
    """What a put's worker is filling."""
    answered: bool = False
    event: UserCall | None = None
    """What was asked of the machine."""
    asked_again: bool = False
    devices: tuple[bytes, ...] = ()
    """Those whose memory the caller can use, the one that it wants first."""


class Workers:
    """All workers of a node. It turns requests into events, and answers into replies."""

    def __init__(
        self,
        dispatch: Callable[[NodeEvent], None],
        greeting: Callable[[], wire.Greeting],
        status: Callable[[bool], dict[str, Any]],
        directory_at: Callable[[int], wire.DirectoryAt],
        unused_for: Callable[[float], tuple[bytes, ...]],
        copy_of: Callable[[bytes], Holding | None],
    ) -> None:
        self._dispatch = dispatch
        self._greeting = greeting
        self._status = status
        self._directory_at = directory_at
        self._unused_for = unused_for
        self._copy_of = copy_of
        self.store: Store
        self.inline_limit = 0
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._workers: dict[bytes, Worker] = {}
        self._calls: dict[CallId, _Call] = {}
        self._next_call = 0
        self._unclaimed: dict[CallId, DeleteCall] = {}  # deletes that no worker waits for, until they are answered
        self._wanted: dict[bytes, tuple[CallId, bytes]] = {}
        """The first open get of each ref that wants it on a device."""
        self._results: dict[WorkerSession, Version] = {}
        """What each session was given last with the answer to a reduce, and may return from a get."""
        self._evicting = False
        self.names = Names()
        self.perform: dict[type, Callable[[Any], None]] = {
            PutReady: self._put_ready,
            PutDone: lambda done: self._reply(done.call, lambda n: wire.Stored(n, done.existing)),
            Got: self._got,
            Waited: lambda waited: self._reply(waited.call, lambda n: wire.Ready(n, waited.ready, waited.rest)),
            DeleteDone: lambda done: self._reply(done.call, wire.Done),
            ReduceDone: self._reduce_done,
            ContributorsAre: lambda are: self._reply(are.call, lambda n: wire.References(n, are.refs)),
            DescriptionsAre: lambda are: self._reply(are.call, lambda n: wire.Descriptions(n, are.descriptions)),
            CallFailed: self._failed,
        }

    def listen(self, name: str) -> None:
        self._listening = listening = lifted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.setblocking(False)
        listening.bind(name)
        listening.listen(1024)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
        for worker in list(self._workers.values()):
            for session in list(worker.sessions):
                session.close()

    def positions(self) -> dict[StreamId | CallId, int]:
        """How far every put has come."""
        return {call: entry.segment.watermark() for call, entry in self._calls.items() if entry.segment is not None}

    def forget(self, identity: bytes, backing: int) -> None:
        """Tell a worker that memory it once filled does not belong to it any more."""
        worker = self._workers.get(identity)
        if worker is not None and worker.background is not None:
            worker.background.send(wire.Forget(backing))

    def __len__(self) -> int:
        """The programs that use this node, and not who only asks for its status."""
        return sum(worker.background is not None for worker in self._workers.values())

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    def open_questions(self) -> list[UserCall]:
        """What the machine was asked and has not answered."""
        return [call.event for call in self._calls.values() if call.event is not None and not call.answered]

    # --- sessions ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            connection, _ = self._listening.accept()
        except OSError:  # gone again, or out of descriptors: then it stays ready, and would be asked without a pause
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_ACCEPT_PAUSE, self._accept_again)
            return
        if shm.peer_uid(connection) != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        WorkerSession(self._loop, lifted(connection), self)

    def _accept_again(self) -> None:
        if self._listening is not None and self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def hello(self, session: "WorkerSession", hello: wire.Hello) -> None:
        if hello.wire != wire.WIRE:
            detail = f"the worker speaks version {hello.wire}, and the agent speaks {wire.WIRE}"
            session.send(
                wire.Refused(
                    0, Failure(FailureKind.INVALID, detail, "install the same release of hoplite-ucx for both")
                )
            )
            session.close()
            return
        worker = self._workers.setdefault(hello.worker, Worker(hello.worker))
        worker.sessions.add(session)
        session.worker = worker
        if hello.background:
            worker.background = session
        session.send(self._greeting())

    def session_closed(self, session: "WorkerSession") -> None:
        worker = session.worker
        if worker is None:
            return
        worker.sessions.discard(session)
        self._results.pop(session, None)
        for call, entry in [(call, entry) for call, entry in self._calls.items() if entry.session is session]:
            del self._calls[call]
            self._want_no_more(call, entry)
            if entry.segment is not None and entry.segment.backing is not None:
                entry.segment.backing.tainted = True
            self._dispatch(CancelCall(call))
        if worker.background is session:
            worker.background = None
            for call, pin in worker.pins.items():
                pin.backing.tainted = True
                self._dispatch(CancelCall(call))
            worker.pins.clear()
            self.store.worker_left(worker.identity)
            self._delete_owned(worker)
        elif worker.background is not None and session.left:
            given = tuple(call for call, pin in worker.pins.items() if pin.session is session)
            if given:  # of which the last may never have been read
                worker.background.send(wire.Doubtful(given))
        if not worker.sessions:
            self._workers.pop(worker.identity, None)

    def _delete_owned(self, worker: Worker) -> None:
        """No caller waits for it; while the directory is gone, the node asks again with its next session."""
        refs = tuple(worker.owned)
        worker.owned.clear()
        for start in range(0, len(refs), _DELETED_AT_ONCE):
            self._next_call += 1
            delete = DeleteCall(self._next_call, refs[start : start + _DELETED_AT_ONCE], _deadline(None))
            self._unclaimed[delete.call] = delete
            self._dispatch(delete)

    # --- requests ----------------------------------------------------------------------------------------------

    def request(self, session: "WorkerSession", request: wire.Request) -> None:
        match request:
            case wire.GetRequest(number, ref, timeout, once, devices):
                call = self._begin(session, number)
                if devices:
                    self._calls[call].devices = devices
                    self._wanted.setdefault(ref, (call, devices[0]))
                self._ask(GetCall(call, ref, _deadline(timeout), once))
            case wire.PutRequest():
                self._put(session, request)
            case wire.PutProgress(number, watermark):
                if (segment := self._filling(session, number)) is not None:
                    segment.raise_watermark(min(watermark, segment.size))
            case wire.PutEnd(number):
                self._put_end(session, number)
            case wire.WaitRequest(number, refs, count, timeout):
                self._ask(WaitCall(self._begin(session, number), refs, count, _deadline(timeout)))
            case wire.DeleteRequest(number, refs, timeout):
                if session.worker is not None and session.worker.owned:
                    for ref in refs:
                        session.worker.owned.pop(ref, None)
                self._ask(DeleteCall(self._begin(session, number), refs, _deadline(timeout)))
            case wire.OwnRequest(number, refs):
                if session.worker is not None:
                    session.worker.owned |= dict.fromkeys(refs)
                session.send(wire.Done(number))
            case wire.ReduceRequest(number, target, sources, op, count, timeout, everywhere, name):
                if name:
                    self.names.note(target, name)
                call = self._begin(session, number)
                self._ask(ReduceCall(call, target, sources, op, count, _deadline(timeout), everywhere))
            case wire.ContributorsRequest(number, ref, timeout):
                self._ask(ContributorsCall(self._begin(session, number), ref, _deadline(timeout)))
            case wire.DescribeRequest(number, refs, timeout):
                self._ask(DescribeCall(self._begin(session, number), refs, _deadline(timeout)))
            case wire.Cancel(number):
                self._cancel(session, number)
            case wire.StatusRequest(number, history):
                session.send(wire.Report(number, self._status(history)))
            case wire.IdleRequest(number, seconds):
                session.send(wire.References(number, self._unused_for(seconds)))
            case wire.DirectoryRequest(number):
                session.send(self._directory_at(number))
            case wire.Ping(number):
                session.send(wire.Done(number))
            case wire.Released(pins):
                self._released(session, pins)
            case wire.Hello():
                session.close()  # said twice

    def _begin(
        self, session: "WorkerSession", number: int, data: bytes | None = None, *, by_hand: bool = False
    ) -> CallId:
        self._next_call += 1
        self._calls[self._next_call] = _Call(session, number, data, by_hand)
        session.calls[number] = self._next_call
        return self._next_call

    def _ask(self, event: UserCall) -> None:
        self._calls[event.call].event = event
        self._dispatch(event)

    def _put(self, session: "WorkerSession", put: wire.PutRequest) -> None:
        inline = put.data is not None and put.size <= self.inline_limit
        if (put.data is None) != (put.size > self.store.small) or (put.data is not None and len(put.data) != put.size):
            detail = f"{len(put.data or b'')} bytes came with a put of {put.size}"
            session.send(wire.Refused(put.call, Failure(FailureKind.INVALID, detail, "correct the call", put.ref)))
            return
        call = self._begin(session, put.call, put.data, by_hand=put.by_hand)
        if put.device:
            self._calls[call].devices = (put.device,)
        if put.name:
            self.names.note(put.ref, put.name)
        data = put.data if inline else None
        self._ask(PutCall(call, put.ref, put.size, put.layout, data, _deadline(put.timeout), put.fresh))

    def _put_ready(self, ready: PutReady) -> None:
        entry = self._calls.get(ready.call)
        if entry is None or entry.session.worker is None:
            return  # its caller is gone, and the cancellation is on its way
        segment = self.store[ready.segment]
        if entry.data is not None:
            segment.adopt(entry.data)
            entry.data = None
            self._dispatch(PutFinished(ready.call))
            return
        if entry.devices and self._space_on_device(ready.call, entry, segment, entry.session.worker.identity):
            return
        try:
            backing, known = self.store.back_for(segment, entry.session.worker.identity)
        except OSError as error:
            self._give_up(ready.call, entry, error)
            return
        entry.segment = segment
        assert backing.shared is not None
        space = wire.Space(entry.number, backing.number, backing.capacity, known, ready.call)
        entry.session.send(space, None if known and not entry.by_hand else backing.shared.fd)

    def _space_on_device(self, call: CallId, entry: _Call, segment: Segment, worker: bytes) -> bool:
        """Give the caller memory of its device, if there is some; if not, it gets memory of the host."""
        (uuid,) = entry.devices
        number = self.store.devices.number(uuid)
        backing = None if number is None else self.store.back_on(segment, number, worker)
        if backing is None:
            if number is not None:
                self._make_room(number)
            return False
        entry.segment = segment
        assert backing.shared is not None
        entry.session.send(
            wire.Space(entry.number, backing.number, backing.capacity, False, call, uuid), backing.shared.fd
        )
        return True

    def _make_room(self, device: int) -> None:
        """Move an object that nobody looks at to the host, for the next who wants memory of the device. One at a
        time."""
        segment = None if self._evicting else self.store.evictable(device)
        if segment is None:
            return
        if segment.twin is not None:
            self.store.evict(segment)
            return

        def copied(copying: Future[None]) -> None:
            self._evicting = False
            with suppress(CudaError, OSError):  # the device is lost, which the store has noted
                if self.store.keep_twin(segment, copying):
                    self.store.evict(segment)

        self._evicting = self._twin(segment, copied)

    def _twin(self, segment: Segment, copied: Callable[[Future[None]], None]) -> bool:
        """Have a copy made on the host; `copied` is called on the loop. False if the host has no memory for it."""
        try:
            copying = self.store.twin(segment)
        except OSError:
            return False

        def tell(done: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(copied, done)

        copying.add_done_callback(tell)
        return True

    def wanted_on(self, ref: bytes) -> int | None:
        """The device on which a get waits for this object."""
        wanted = self._wanted.get(ref)
        return None if wanted is None else self.store.devices.number(wanted[1])

    def _give_up(self, call: CallId, entry: _Call, error: OSError) -> None:
        """The system has no memory or descriptor left."""
        del self._calls[call]
        failure = Failure(
            FailureKind.STORE_FULL, f"the agent could not allocate memory: {error}", "delete objects, or raise limits"
        )
        entry.session.send(wire.Refused(entry.number, failure))
        self._dispatch(CancelCall(call))

    def _filling(self, session: "WorkerSession", number: int) -> Segment | None:
        call = session.calls.get(number)
        entry = self._calls.get(call) if call is not None else None
        return entry.segment if entry is not None else None

    def _put_end(self, session: "WorkerSession", number: int) -> None:
        call = session.calls.get(number)
        segment = self._filling(session, number)
        if call is None or segment is None:
            return
        entry = self._calls[call]
        self.store.seal(segment)
        if entry.by_hand and segment.backing is not None:
            segment.backing.tainted = True
        segment.raise_watermark(segment.size)
        entry.segment = None
        self._dispatch(PutFinished(call))
        self._forget_if_over(call, entry)

    def _cancel(self, session: "WorkerSession", number: int) -> None:
        call = session.calls.pop(number, None)
        entry = self._calls.pop(call, None) if call is not None else None
        if call is not None and entry is not None:
            self._want_no_more(call, entry)
            if entry.segment is not None and entry.segment.backing is not None:
                entry.segment.backing.tainted = True
            self._dispatch(CancelCall(call))

    def _released(self, session: "WorkerSession", pins: tuple[tuple[int, bool], ...]) -> None:
        worker = session.worker
        for call, shared in pins:
            pin = worker.pins.pop(call, None) if worker is not None else None
            entry = self._calls.get(call)
            if pin is not None:
                pin.backing.mapped -= 1
                pin.backing.tainted = pin.backing.tainted or shared
                self._dispatch(Unpin(call))
            elif entry is not None and entry.session.worker is worker:
                self._cancel(entry.session, entry.number)

    # --- answers -----------------------------------------------------------------------------------------------

    def _end(self, call: CallId) -> _Call | None:
        """The call is answered. One whose worker still writes is remembered until that ends."""
        entry = self._calls.get(call)
        if entry is not None:
            entry.answered = True
            self._forget_if_over(call, entry)
        return entry

    def _forget_if_over(self, call: CallId, entry: _Call) -> None:
        if entry.answered and entry.segment is None:
            self._calls.pop(call, None)
            entry.session.calls.pop(entry.number, None)
            self._want_no_more(call, entry)

    def _want_no_more(self, call: CallId, entry: _Call) -> None:
        if entry.devices:
            self._wanted = {ref: wanted for ref, wanted in self._wanted.items() if wanted[0] != call}

    def _reply(self, call: CallId, make: Callable[[int], wire.Reply]) -> None:
        entry = self._end(call)
        if entry is not None:
            entry.session.send(make(entry.number))
        else:
            self._unclaimed.pop(call, None)

    def _reduce_done(self, done: ReduceDone) -> None:
        """Answered after what came together with the directory's answer: often that is the result."""
        self._loop.call_soon(self._reduced, done.call)

    def _reduced(self, call: CallId) -> None:
        entry = self._calls.get(call)
        asked = entry.event if entry is not None else None
        copy = self._copy_of(asked.target) if isinstance(asked, ReduceCall) else None
        small = copy is not None and copy.size <= self.inline_limit
        memory = self.store[copy.segment].memory if copy is not None and small else None
        if entry is None or copy is None or copy.version is None or not isinstance(memory, memoryview):
            self._reply(call, wire.Done)
            return
        ref, layout, data = copy.ref, copy.layout, bytes(memory)
        self._results[entry.session] = copy.version
        self._reply(call, lambda number: wire.Result(number, ref, layout, data))

    def dropped(self, version: Version) -> None:
        """The version is over, or its copy here: sessions that were given it do not return it from now on."""
        for session in [session for session, given in self._results.items() if given == version]:
            self._results.pop(session, None)  # sending to one may close others
            session.send(wire.Outdated(version.ref))

    def _failed(self, failed: CallFailed) -> None:
        failure = failed.failure
        if failure.kind is FailureKind.STORE_FULL:
            failure = replace(failure, remedy=f"{failure.remedy}; {delete_left(self._greeting())}")
        self._reply(failed.call, lambda number: wire.Refused(number, failure))

    def fail(self, call: CallId, failure: Failure) -> None:
        """The agent cannot carry a call out: its caller gets the error, and the machine forgets it."""
        self._reply(call, lambda number: wire.Refused(number, failure))
        self._dispatch(CancelCall(call))

    def machine_raised(self, event: NodeEvent, failure: Failure) -> list[UserCall]:
        """The machine that knew these calls is gone. Returns the calls to repeat with the next one; the others have
        failed. Memory that a worker still writes has no owner any more."""
        again = [delete for delete in self._unclaimed.values() if asked_again(delete, event)]
        self._unclaimed.clear()
        repeated: list[UserCall] = []
        for call, entry in list(self._calls.items()):
            if call not in self._calls:
                continue  # with its session, which could not be told of another one
            asked = entry.event
            if asked is not None and not (entry.answered or entry.asked_again) and asked_again(asked, event):
                entry.asked_again = True
                repeated.append(asked)
                continue
            if entry.segment is not None and entry.segment.backing is not None:
                entry.segment.backing.tainted = True
            self._calls.pop(call, None)
            entry.session.calls.pop(entry.number, None)
            self._want_no_more(call, entry)
            if not entry.answered:
                ref = next(iter(refs_in(asked)), None) if asked is not None else None
                entry.session.send(wire.Refused(entry.number, replace(failure, ref=ref)))
        return [*again, *(asked for asked in repeated if asked.call in self._calls)]

    def pins(self) -> frozenset[CallId]:
        """The gets whose memory workers have."""
        return frozenset(call for worker in self._workers.values() for call in worker.pins)

    def _got(self, got: Got) -> None:
        """The call is over only when its answer is made: an earlier failure can still be reported."""
        entry = self._calls.get(got.call)
        worker = entry.session.worker if entry is not None else None
        if entry is None or worker is None or worker.background is None:
            detail = "the worker has no background session with the agent"
            self._not_given(got, Failure(FailureKind.CLOSED, detail, "call init() again", got.version.ref))
            return
        if got.segment is None:
            self._reply(got.call, lambda number: wire.Value(number, got.layout, got.size, got.data))
            return
        segment = self.store[got.segment]
        backing, device = segment.backing, b""
        if backing is not None and backing.device is not None:
            device = self.store.devices.uuid(backing.device)
            if device not in entry.devices:
                backing, device = segment.twin, b""
                if backing is None:
                    self._give_on_host(got, segment)
                    return
        if backing is not None and backing.shared is not None:
            self._end(got.call)
            backing.mapped += 1
            worker.pins[got.call] = _Pin(backing, entry.session)
            value = wire.Value(entry.number, got.layout, got.size, None, got.call, backing.capacity, device)
            entry.session.send(value, backing.shared.fd)
        elif backing is not None and segment.size > self.store.small:
            detail = "the agent has no file descriptor left to share this object"
            remedy = "raise RLIMIT_NOFILE for the agent"
            self._not_given(got, Failure(FailureKind.STORE_FULL, detail, remedy, got.version.ref))
        else:
            assert isinstance(segment.memory, memoryview)
            data = bytes(segment.memory)
            self._reply(got.call, lambda number: wire.Value(number, got.layout, got.size, data))
            self._dispatch(Unpin(got.call))

    def _give_on_host(self, got: Got, segment: Segment) -> None:
        """The caller cannot map the device that the object is on: it gets a copy in memory of the host."""

        def copied(copying: Future[None]) -> None:
            try:
                kept = self.store.keep_twin(segment, copying)
            except (CudaError, OSError) as error:
                detail = f"this host's copy is on a GPU that cannot be read: {error}"
                self._not_given(got, Failure(FailureKind.LOST, detail, "put it again", got.version.ref))
                return
            if kept:  # else it was freed meanwhile, with its call
                self._got(got)

        if not self._twin(segment, copied):
            detail = "the agent has no memory for a copy of this object, which is on a GPU"
            self._not_given(got, Failure(FailureKind.STORE_FULL, detail, "delete objects", got.version.ref))

    def _not_given(self, got: Got, failure: Failure) -> None:
        self._reply(got.call, lambda number: wire.Refused(number, failure))
        if got.segment is not None:
            self._dispatch(Unpin(got.call))


class WorkerSession:
    """One connection of a worker. Reads and writes when the socket is ready; never blocks the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: socket.socket, workers: Workers) -> None:
        self._loop = loop
        self._connection = connection
        self._workers = workers
        self._frames = wire.Frames()
        self._out: deque[tuple[memoryview, int | None]] = deque()
        self._unsent = 0
        self._closed = False
        self.left = False
        """The worker closed it, and reads nothing more of what was sent."""
        self.worker: Worker | None = None
        self.calls: dict[int, CallId] = {}
        loop.add_reader(connection, self._readable)

    def send(self, reply: wire.Reply, fd: int | None = None) -> None:
        if self._closed:
            return
        data = wire.frame(reply)
        if fd is None and not self._out and self._sent_whole(data):
            return
        self._out.append((memoryview(data), fd))
        self._unsent += len(data)
        if len(self._out) == 1:
            self._flush()
        if self._unsent > _MAX_UNSENT:
            self.close()  # it does not read

    def _sent_whole(self, data: bytes) -> bool:
        """What nearly always happens: all of it goes at once. A beginning that went is not to go again."""
        try:
            sent = self._connection.send(data)
        except OSError:
            return False  # trying again tells which
        if sent < len(data):
            self._out.append((memoryview(data)[sent:], None))
            self._unsent += len(data) - sent
            self._loop.add_writer(self._connection, self._writable)
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()
            self._workers.session_closed(self)

    def _flush(self) -> None:
        try:
            while self._out:
                data, fd = self._out[0]
                # The descriptor goes with the first byte, and only once.
                if fd is not None:
                    sent = socket.send_fds(self._connection, [data], [fd])
                else:
                    sent = self._connection.send(data)
                self._unsent -= sent
                if sent == len(data):
                    self._out.popleft()
                else:
                    self._out[0] = (data[sent:], None)
        except BlockingIOError:
            self._loop.add_writer(self._connection, self._writable)
        except OSError:
            self.left = True
            self.close()

    def _writable(self) -> None:
        self._loop.remove_writer(self._connection)
        self._flush()

    def _readable(self) -> None:
        """Of a worker that left replies unread the loop (libuv) tells once, and then of nothing more: so it is heard to
        the end."""
        self._read()
        if not self._closed and self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            while not self._closed:
                self._read()

    def _read(self) -> None:
        try:
            data = self._connection.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.left = True
            self.close()
            return
        try:
            with Together() as turn:
                for frame in self._frames.feed(data):
                    self._take(wire.decode_request(frame))
                    if self._closed:
                        return
                    turn.handled()
        except HopliteError:
            self.close()  # a frame that cannot be read: nothing after it can be

    def _take(self, request: wire.Request) -> None:
        if self.worker is not None:
            self._workers.request(self, request)
        elif isinstance(request, wire.Hello):
            self._workers.hello(self, request)
        else:
            self.close()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else now() + timeout
