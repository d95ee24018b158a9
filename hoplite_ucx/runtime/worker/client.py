"""The worker's client: calls on the caller's own thread, values on mapped memory, and the release of that memory.

Calls go to the host's agent; only a get of a single object first asks the directory, which may have it (see
`direct_lookup`). Every thread has its own connection to the agent, and so has every event loop (see `loop_calls`).
Every request carries the mappings that are gone (see `releases`); while no call is made, one more connection in the
background reports them. The agent uses that connection to say which of this process's old mappings will not be used
again; its end tells the agent that this process is gone. A child made by fork has none of this: its copies of the
sockets are closed, and it must call `init` again.
"""

import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import ClosedError, Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.objects.kernels import Bytes
from hoplite_ucx.runtime.objects.values import Encoded
from hoplite_ucx.runtime.worker import device_mapping
from hoplite_ucx.runtime.worker.calls import Steps
from hoplite_ucx.runtime.worker.checks import no_memory
from hoplite_ucx.runtime.worker.connection import Connection, over
from hoplite_ucx.runtime.worker.direct_lookup import Reader
from hoplite_ucx.runtime.worker.refs import name_of
from hoplite_ucx.runtime.worker.releases import Releases
from hoplite_ucx.transports import shm
from hoplite_ucx.transports.wire.handshake import Identity

_TO_ANSWER = 1.0
LONGEST_POLL = 300.0
"""A get that asks once does not wait for a producer; an existing object is fetched within this time."""
_DIRECTORY_SECONDS = 5.0
_PING_SECONDS = 5.0
_MANY_RELEASES = 64
"""With this many, the agent is asked to confirm them; fewer wait for the reply to the next call."""
AT_ONCE = 128
"""Gets of one call that are open at the same time, and so may wait in the agent for a client that reads slowly."""


R = TypeVar("R")
T = TypeVar("T")


class Client:
    def __init__(self, name: str, remedy: str | None = None) -> None:
        """The name is that of the agent's socket; the remedy is for the error when the agent is gone."""
        self._name = name
        self._identity = os.urandom(16)
        self._pid = os.getpid()
        self._local = threading.local()
        self._connections = _Alive[Connection]()
        self._watched = _Alive[Connection]()
        """Those that event loops watch, and close themselves."""
        self._lock = threading.Lock()
        self._closed = False
        self._mine: dict[int, Bytes] = {}
        """Memory that this process filled and may fill again, by its number."""
        self._releases = Releases()
        self._asked_about: Mapping[int, int] | None = None
        """The releases that the agent was asked about in the background."""
        self._background = Connection(name, self._identity, background=True, remedy=remedy)
        self.greeting = self._background.greeting
        self.grace = self.greeting.suspicion + _TO_ANSWER
        """How much later than the caller's time limit the agent's word may come: at the limit it asks the directory
        what it knows, and waits for the answer until it suspects the directory."""
        me = Identity(int.from_bytes(self._identity[:8]), b"", self.greeting.cluster.encode())
        self.reader = Reader(me, self.directory_at)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Views that outlive this object still write to it: after a close, the number could belong to the user's file.
        weakref.finalize(self, os.close, self._wake).atexit = False
        self._janitor = threading.Thread(target=self._run_janitor, name="hoplite-janitor", daemon=True)
        self._janitor.start()
        _clients.add(self)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with ExitStack() as steps:  # each step is done, the last first, even if another is interrupted
            steps.callback(self._mine.clear)
            steps.callback(self._background.close)
            steps.callback(self._end_connections)
            if os.getpid() == self._pid:
                steps.callback(self.reader.close)
                steps.callback(self._end_janitor)

    def _end_connections(self) -> None:
        connections = self._connections.all()
        for connection in [*connections, *self._watched.all()]:
            connection.end()
        for connection in connections:
            if not connection.in_use:  # else its user notices the end, and closes it
                connection.close()

    def _end_janitor(self) -> None:
        self._poke()
        if threading.current_thread() is not self._janitor:  # which may run a finalizer of the user's
            self._janitor.join(2.0)

    @property
    def closed(self) -> bool:
        return self._closed

    def give_up_at(self, timeout: float | None) -> float | None:
        """The moment at which a call with this time limit ends, whatever the agent does."""
        return None if timeout is None else time.monotonic() + timeout + self.grace

    def left_until(self, deadline: float | None) -> float | None:
        """Of a caller's time, what the agent may still take."""
        return None if deadline is None else max(0.0, deadline - self.grace - time.monotonic())

    # --- calls -------------------------------------------------------------------------------------------------

    def put(self, ref: bytes, encoded: Encoded, timeout: float | None, *, fresh: bool = False) -> bool:
        """Returns whether the ref already had an object, which stays. A `fresh` ref was made for this put."""
        deadline = self.give_up_at(timeout)
        connection = self._connection(deadline)
        self.reader.is_near(ref)
        call = connection.next_call()
        small = encoded.size <= self.greeting.small_limit
        data = encoded.to_bytes() if small else None
        device = b"" if small else encoded.placement()
        with _Calls(connection, {call}):
            left = self.left_until(deadline)
            name = "" if small else name_of(ref)
            request = wire.PutRequest(call, ref, encoded.size, encoded.layout, data, left, fresh, False, device, name)
            connection.send_frames(self.with_releases(connection, call, request), deadline)
            if not small:
                memory = self._space(connection, call, deadline)
                for watermark in encoded.copy_into(memory):
                    connection.send(wire.PutProgress(call, watermark), deadline)
                del memory  # a device's is unmapped with it
                connection.send(wire.PutEnd(call), deadline)
            reply = self._reply(connection, {call}, deadline)
        assert isinstance(reply, wire.Stored)
        return reply.existing

    def put_small(self, puts: Sequence[tuple[bytes, Encoded]], timeout: float | None, *, fresh: bool) -> None:
        """Put objects that go to the agent by copy, many at the same time. If one fails, any of the others may have
        been put."""
        for ref, _ in puts:
            self.reader.is_near(ref)
        self._ask_many([partial(_small_put, ref, encoded, fresh) for ref, encoded in puts], timeout)

    def begin_put(self, ref: bytes, size: int, layout: bytes, timeout: float | None) -> "OpenPut":
        """Memory to fill by hand, for an object that is too large to be sent by copy."""
        allowance = Allowance(timeout, self.grace)
        with allowance.spend() as deadline:
            connection = self._connect(self._connections, deadline)
            connection.in_use = True
            self.reader.is_near(ref)
            call = connection.next_call()
            try:
                left = self.left_until(deadline)
                request = wire.PutRequest(call, ref, size, layout, None, left, by_hand=True, name=name_of(ref))
                connection.send_frames(self.with_releases(connection, call, request), deadline)
                space = self._reply(connection, {call}, deadline)
                assert isinstance(space, wire.Space)
                workspace = self._workspace(connection, space)
            except BaseException:
                connection.close()
                raise
        give_up = partial(self._release, space.pin, self._releases.forks)
        return OpenPut(self, connection, call, workspace, size, allowance, give_up)

    def get(self, refs: Sequence[bytes], timeout: float | None) -> list[tuple[memoryview, bytes]]:
        """The memory and layout of every object, in order. Many are fetched at the same time, within a bound."""
        if len(refs) == 1:
            return [self.get_one(refs[0], timeout)]
        once = timeout == 0
        found: dict[int, tuple[memoryview, bytes]] = {}

        def take(place: int, reply: wire.Reply, connection: Connection) -> None:
            assert isinstance(reply, wire.Value)
            found[place] = (self.open_value(connection, reply), reply.layout)

        limit = LONGEST_POLL if once else timeout
        self._ask_many([partial(_single_get, ref, once) for ref in refs], limit, take, hurried=once)
        return [found[index] for index in range(len(refs))]

    def get_one(self, ref: bytes, timeout: float | None) -> tuple[memoryview, bytes]:
        began = time.monotonic()
        once = timeout == 0
        connection = self._connection(None if timeout is None else began + timeout + self.grace)
        limit = LONGEST_POLL if once else timeout
        with _Calls(connection, set()):  # it reads: nobody else may, and if it is interrupted, nobody after it
            result = connection.take_result(ref)
        if result is not None:
            return memoryview(result.data), result.layout
        if (found := self.reader.look(ref, limit)) is not None:
            return memoryview(found.data), found.layout
        left = None if limit is None else max(0.0, limit - (time.monotonic() - began))
        deadline = None if limit is None else began + limit + self.grace
        call = connection.next_call()
        with _Calls(connection, {call}):  # until its descriptor is taken: the next get must not find it
            request = wire.GetRequest(call, ref, left, once)
            connection.send_frames(self.with_releases(connection, call, request), deadline)
            reply = self._reply(connection, {call}, deadline, hurried=once)
            assert isinstance(reply, wire.Value)
            memory = self.open_value(connection, reply)
        self.reader.agent_gave(ref, large=reply.size > self.greeting.inline_limit)
        return memory, reply.layout

    def carry_out(self, steps: Steps[R]) -> R:
        """Run these steps: ask their questions one after the other."""
        try:
            question = next(steps)
            while True:
                question = steps.send(self._ask(question.request, question.timeout))
        except StopIteration as end:
            result: R = end.value
            return result

    def status(self, timeout: float = 5.0, *, history: bool = False) -> dict[str, Any]:
        reply = self._ask(lambda call, _: wire.StatusRequest(call, history), timeout)
        assert isinstance(reply, wire.Report)
        return reply.status

    def unused_for(self, seconds: float, timeout: float = 5.0) -> tuple[bytes, ...]:
        """The refs of objects that nobody on this host has used for so long, or some of them."""
        reply = self._ask(lambda call, _: wire.IdleRequest(call, seconds), timeout)
        assert isinstance(reply, wire.References)
        return reply.refs

    def is_answered(self) -> bool:
        """Whether the agent answers. For a stopped one it raises `GetTimeoutError`."""
        try:
            self._ask(lambda call, _: wire.Ping(call), _PING_SECONDS)
        except ClosedError:
            self.check_open()
            return False
        return True

    # --- connections -------------------------------------------------------------------------------------------

    def directory_at(self) -> wire.DirectoryAt:
        reply = self._ask(lambda call, _: wire.DirectoryRequest(call), _DIRECTORY_SECONDS)
        assert isinstance(reply, wire.DirectoryAt)
        return reply

    def _connection(self, deadline: float | None) -> Connection:
        """This thread's connection; another one for a call in the middle of a call, as signal handlers and finalizers
        make them: the two would read each other's replies."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.broken or self._closed or self._pid != os.getpid():
            connection = self._local.connection = self._connect(self._connections, deadline)
        elif connection.in_use:
            connection = self._connect(self._connections, deadline)
        return connection

    def connect_watched(self) -> Connection:
        """A connection for an event loop, which alone reads, writes and closes it, and knows its waiting calls."""
        return self._connect(self._watched)

    def _connect(self, among: "_Alive[Connection]", deadline: float | None = None) -> Connection:
        self.check_open()
        remedy, quiet = self._background.remedy, self.greeting.quiet
        try:
            connection = Connection(
                self._name, self._identity, background=False, deadline=deadline, remedy=remedy, quiet=quiet
            )
        except HopliteError:
            self.check_open()  # meanwhile: it is not the agent's fault
            raise
        among.add(connection)
        if self._closed:  # meanwhile
            connection.end()
        return connection

    def check_open(self) -> None:
        if self._closed:
            raise over()
        if self._pid != os.getpid():
            raise forked()

    def _ask(self, make: Callable[[int, float | None], wire.Request], timeout: float | None) -> wire.Reply:
        deadline = self.give_up_at(timeout)
        connection = self._connection(deadline)
        call = connection.next_call()
        with _Calls(connection, {call}):
            request = make(call, self.left_until(deadline))
            connection.send_frames(self.with_releases(connection, call, request), deadline)
            return self._reply(connection, {call}, deadline)

    def _ask_many(
        self,
        requests: Sequence[Callable[[int, float | None], wire.Request]],
        timeout: float | None,
        take: Callable[[int, wire.Reply, Connection], None] = lambda *_: None,
        *,
        hurried: bool = False,
    ) -> None:
        """Ask all of these, many at the same time, within a bound. Requests are built when they are sent, from the
        number of the call and the remaining time; `take` gets the index of the question, and the reply."""
        ends = None if timeout is None else time.monotonic() + timeout
        deadline = None if ends is None else ends + self.grace
        connection = self._connection(self.give_up_at(0.0) if hurried else deadline)
        places: dict[int, int] = {}
        pending: set[int] = set()
        with _Calls(connection, pending):
            while pending or len(places) < len(requests):
                while len(places) < len(requests) and len(pending) < AT_ONCE:
                    left = None if ends is None else max(0.0, ends - time.monotonic())
                    call = connection.next_call()
                    request = requests[len(places)](call, left)
                    connection.send_frames(self.with_releases(connection, call, request), deadline)
                    places[call] = len(places)
                    pending.add(call)
                reply = self._reply(connection, pending, deadline, hurried=hurried)
                assert isinstance(reply, wire.Value | wire.Stored)
                pending.discard(reply.call)
                take(places[reply.call], reply, connection)

    def _reply(
        self, connection: Connection, calls: set[int], deadline: float | None, *, hurried: bool = False
    ) -> wire.Reply:
        """The next reply to one of these calls. Replies to abandoned calls are dropped."""
        while True:
            reply = connection.receive(deadline, hurried=hurried)
            number = self.number_of(connection, reply)
            if number not in calls:
                self.discard(connection, reply)
            elif isinstance(reply, wire.Refused):
                calls.discard(reply.call)
                connection.refused = reply.failure
                raise reply.failure.exception()
            else:
                return reply

    def number_of(self, connection: Connection, reply: wire.Reply) -> int | None:
        """The call that a reply is about. The reply shows that the agent has read everything sent before that call's
        request; call this once for every reply."""
        number = getattr(reply, "call", None)
        if connection.carried is not None and number is not None and number >= connection.carried[0]:
            self._releases.heard(connection.carried[1])
            connection.carried = None
        return number

    def discard(self, connection: Connection, reply: wire.Reply) -> None:
        if isinstance(reply, wire.Value) and reply.pin:
            os.close(connection.take_fd())
            self._release(reply.pin, self._releases.forks)
        elif isinstance(reply, wire.Space) and not reply.known:
            os.close(connection.take_fd())

    # --- memory ------------------------------------------------------------------------------------------------

    def _space(self, connection: Connection, call: int, deadline: float | None) -> memoryview | Window:
        """The memory for a put's bytes."""
        space = self._reply(connection, {call}, deadline)
        assert isinstance(space, wire.Space)
        if not space.known:
            fd = connection.take_fd()
            try:
                if space.device:
                    return device_mapping.map_to_fill(fd, space)
                self._mine[space.backing] = shm.map_writable(fd, space.capacity)
            except OSError as error:
                raise no_memory(error) from error
            finally:
                os.close(fd)
        return self._mine[space.backing].data

    def _workspace(self, connection: Connection, space: wire.Space) -> shm.Workspace:
        fd = connection.take_fd()
        try:
            array = self._mine.pop(space.backing) if space.known else shm.map_writable(fd, space.capacity)
        except OSError as error:
            os.close(fd)
            raise no_memory(error) from error
        return shm.Workspace(fd, array)

    def get_on_device(
        self, ref: bytes, timeout: float | None, devices: tuple[bytes, ...]
    ) -> tuple[memoryview | Window, bytes]:
        """The memory and layout of an object. `devices` are those that this process can use, the one that it wants
        first: the memory is on one of them if the object is there or has yet to come, else it is the host's."""
        once = timeout == 0
        limit = LONGEST_POLL if once else timeout
        deadline = self.give_up_at(limit)
        connection = self._connection(deadline)
        call = connection.next_call()
        with _Calls(connection, {call}):
            request = wire.GetRequest(call, ref, limit, once, devices)
            connection.send_frames(self.with_releases(connection, call, request), deadline)
            reply = self._reply(connection, {call}, deadline, hurried=once)
            assert isinstance(reply, wire.Value)
            if not reply.device:
                return self.open_value(connection, reply), reply.layout
            forks = self._releases.forks
            fd = connection.take_fd()
            try:
                unmapped = device_mapping.Unmapped(self._unmapped)
                self._releases.hold(reply.pin, forks, unmapped)
                return device_mapping.map_to_read(fd, reply, unmapped), reply.layout
            finally:
                os.close(fd)

    def open_value(self, connection: Connection, value: wire.Value) -> memoryview:
        """The memory of an object that was got. Call it in the order of the replies, since their descriptors come in
        that order."""
        if value.data is not None:
            return memoryview(value.data)
        forks = self._releases.forks
        fd = connection.take_fd()
        try:
            memory = shm.map_read_only(fd, value.capacity, self._unmapped)
            self._releases.hold(value.pin, forks, memory.obj)
            return memory[: value.size]
        except BaseException as error:
            self._release(value.pin, forks)
            if isinstance(error, OSError):
                raise no_memory(error) from error
            raise
        finally:
            os.close(fd)

    def _unmapped(self) -> None:
        """A mapping is gone, wherever its last view died: the next call or another thread reports it to the agent."""
        if os.getpid() == self._pid and not self._closed:
            self._poke()

    def _release(self, pin: int, forks: int) -> None:
        """The same for memory that was never mapped, and for drafts."""
        if os.getpid() == self._pid and not self._closed:
            self._releases.add(pin, forks)
            self._poke()

    def with_releases(self, connection: Connection, call: int, request: wire.Request) -> bytes:
        """A call's request as it is sent: the call may need memory that was released before it."""
        pins = self._releases.unheard()
        if not pins:
            return wire.frame(request)
        gone_before = connection.carried[1] if connection.carried is not None else {}
        new = {pin: forks for pin, forks in pins.items() if pin not in gone_before}
        if not new:
            return wire.frame(request)
        frames = wire.frame(self._releases.message(new)) + wire.frame(request)
        connection.carried = (call, pins)
        return frames

    def _poke(self) -> None:
        with suppress(OSError):
            os.eventfd_write(self._wake, 1)

    # --- in the background -------------------------------------------------------------------------------------

    def _run_janitor(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._background, select.POLLIN)
        try:
            while not self._closed:
                ready = {fd for fd, _ in poll.poll()}
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    self._tell_releases()
                if self._background.fileno() in ready:
                    for reply in self._background.read_ready() or ():
                        self._hear(reply)
        except HopliteError:
            self.reader.close()  # the agent is gone; the next call raises

    def _hear(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.Forget):
            self._mine.pop(reply.backing, None)
        elif isinstance(reply, wire.Doubtful):  # a closed connection is not read any more: keep what came from it
            for pin in reply.pins:
                if not self._releases.holds(pin):
                    self._releases.add(pin, self._releases.forks)
            self._tell_releases()
        elif isinstance(reply, wire.Done) and self._asked_about is not None:
            self._releases.heard(self._asked_about)
            self._asked_about = None
            self._tell_releases()  # there may be as many again

    def _tell_releases(self) -> None:
        pins = self._releases.untold()
        if pins:
            self._background.send(self._releases.message(pins))
        unheard = self._releases.unheard()
        if len(unheard) >= _MANY_RELEASES and self._asked_about is None:
            self._asked_about = unheard
            self._background.send(wire.Ping(self._background.next_call()))

    # --- forks -------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        self._releases.forks += 1

    def after_fork_in_child(self) -> None:
        for connection in [*self._connections.all(), *self._watched.all(), self._background]:
            with suppress(OSError):
                connection.close()
        self.reader.after_fork_in_child()


class Allowance:
    """The time that the agent may take for all steps of one put; the time that the user takes in between does not
    count."""

    def __init__(self, seconds: float | None, grace: float) -> None:
        self.left = seconds
        self._grace = grace

    @contextmanager
    def spend(self) -> Iterator[float | None]:
        """While the agent is waited for: the moment at which to give up."""
        began = time.monotonic()
        try:
            yield None if self.left is None else began + self.left + self._grace
        finally:
            if self.left is not None:
                self.left = max(0.0, self.left - (time.monotonic() - began))


class OpenPut:
    """A put that the user fills by hand, on its own connection. Bytes that were reported to the agent cannot be changed
    through views that the user still has: their pages are made private first."""

    def __init__(
        self,
        client: Client,
        connection: Connection,
        call: int,
        workspace: shm.Workspace,
        size: int,
        allowance: Allowance,
        give_up: Callable[[], None],
    ) -> None:
        """`give_up` reports the release to the agent before the next call, which may need the memory."""
        self._client = client
        self._connection = connection
        self._call = call
        self._workspace: shm.Workspace | None = workspace
        self._size = size
        self._allowance = allowance
        self._give_up = give_up
        self.memory = workspace.array.data[:size]

    @property
    def left(self) -> float | None:
        """Of the time that the agent may take."""
        return self._allowance.left

    def advance(self, watermark: int) -> None:
        """Bytes of an incomplete page are reported later."""
        final = min(self._settle(watermark), self._size)
        with self._allowance.spend() as deadline:
            self._connection.send(wire.PutProgress(self._call, final), deadline)

    def finish(self) -> bool:
        try:
            self._settle(self._size)
            with self._allowance.spend() as deadline:
                self._connection.send(wire.PutEnd(self._call), deadline)
                reply = self._client._reply(self._connection, {self._call}, deadline)
        finally:
            self._close()
        assert isinstance(reply, wire.Stored)
        return reply.existing

    def abort(self) -> None:
        """Nothing was put. The memory stays with its user, but not in the store."""
        self._close()
        self._give_up()

    def _close(self) -> None:
        self._connection.close()
        self._workspace = None  # and with it the descriptor

    def _settle(self, watermark: int) -> int:
        self._client.check_open()
        workspace = self._workspace
        if workspace is None:
            raise closed("this put has ended", "create another draft")
        try:
            return workspace.settle(len(workspace.array) if watermark == self._size else watermark)
        except OSError as error:
            raise no_memory(error) from error


class _Calls:
    """While calls are open. If the agent refuses one, the others are cancelled. After any other error, also one that a
    signal handler raised, the state of the conversation is unknown, and the connection is closed."""

    def __init__(self, connection: Connection, calls: set[int]) -> None:
        self._connection = connection
        self._calls = calls

    def __enter__(self) -> None:
        self._connection.in_use = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and not self._connection.broken:
            self._end(error)
        self._connection.in_use = False

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, HopliteError) or error.failure is not self._connection.refused:
            self._connection.close()
            return
        with suppress(HopliteError):
            for call in self._calls:
                self._connection.send(wire.Cancel(call), time.monotonic() + _TO_ANSWER)


def _small_put(ref: bytes, encoded: Encoded, fresh: bool, call: int, timeout: float | None) -> wire.Request:
    return wire.PutRequest(call, ref, encoded.size, encoded.layout, encoded.to_bytes(), timeout, fresh)


def _single_get(ref: bytes, once: bool, call: int, timeout: float | None) -> wire.Request:
    return wire.GetRequest(call, ref, timeout, once)


def closed(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.CLOSED, detail, remedy).exception()


def forked() -> HopliteError:
    detail = "this process was forked from one that uses hoplite, and cannot use its connections"
    return closed(detail, "call init() or connect() in the child, or start it with the 'spawn' method")


class _Alive(Generic[T]):
    """Those of these objects that still exist. Any thread may add one while another iterates, which Python's own weak
    set does not allow."""

    def __init__(self) -> None:
        self._by_id: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> None:
        self._by_id[id(thing)] = thing

    def discard(self, thing: T) -> None:
        self._by_id.pop(id(thing), None)

    def all(self) -> list[T]:
        found = [reference() for reference in self._by_id.valuerefs()]  # copied in a single step
        return [thing for thing in found if thing is not None]


_clients = _Alive[Client]()


def _before_fork() -> None:
    for client in _clients.all():
        client.before_fork()


def _after_fork_in_child() -> None:
    for client in _clients.all():
        client.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
