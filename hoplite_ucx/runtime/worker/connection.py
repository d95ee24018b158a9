"""A worker's connection to its agent: blocking, for one thread at a time, with every wait bounded.

A call has a moment at which its caller gives up, whatever it waits for: the greeting, sending, or the reply. An agent
that misses this moment is late, which raises `GetTimeoutError`: it may be busy, or stopped for a while. A caller
without such a moment learns within twice `quiet` whether the agent still answers. An agent that is gone, or does not
answer a ping, raises `ClosedError`. The connection cannot be used after any of these.
"""

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.local.remedies import start_again
from hoplite_ucx.runtime.settings import ProcessSettings
from hoplite_ucx.transports import shm

_USUAL = ProcessSettings()
HURRY = 0.75
"""As `quiet`, for a caller that asks once (`timeout=0`): an agent that answers a ping may take longer for the rest."""
_LOOK_EVERY = 0.25
_QUEUE_SECONDS = 0.25
_RECEIVE = 64 << 10  # more would be mapped and unmapped by every call
_FD = struct.Struct("i")
_TIMEVAL = struct.Struct("ll")
_ROOM_FOR_FDS = socket.CMSG_SPACE(64 * _FD.size)
# As plain numbers: the "&" of enumerations takes longer than the system call.
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_CTRUNC)
_DONTWAIT = int(socket.MSG_DONTWAIT)

PING = 0
"""The call number of pings; calls count from one."""


class Connection:
    def __init__(
        self,
        name: str,
        worker: bytes,
        *,
        background: bool,
        deadline: float | None = None,
        remedy: str | None = None,
        quiet: float = _USUAL.quiet,
    ) -> None:
        """The remedy is for the error when the agent is gone; by default, how to start it again. After `quiet` seconds
        without a word the agent is pinged; once it has greeted, after as many as it says."""
        self.remedy = remedy or "check whether it was killed, and start it again"
        self._ended = False
        self.quiet = quiet
        try:
            self._sock = sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise _no_descriptor() from error
        self._frames = wire.Frames()
        self._replies: deque[wire.Reply] = deque()
        self._fds: deque[int] = deque()
        self._next = PING
        self.broken = False
        self.in_use = False
        """A call is open, and its caller will read the next reply."""
        self.refused: Failure | None = None
        """The last that the agent refused: when the caller hears of it, the conversation is in order."""
        self.result: wire.Result | None = None
        """What came with the answer to the last reduce, and is not outdated."""
        self.carried: tuple[int, Mapping[int, int]] | None = None
        """The releases that went before a call's request, and that call: heard when it or a later one is answered."""
        try:
            self._reach(name)
            self.send(wire.Hello(wire.WIRE, worker, background), deadline)
            greeting = self.receive(deadline, asked=True)
        except BaseException:
            sock.close()
            raise
        if isinstance(greeting, wire.Refused):
            sock.close()
            raise greeting.failure.exception()
        if not isinstance(greeting, wire.Greeting):
            sock.close()
            raise self._gone("the agent did not complete the handshake")
        self.greeting = greeting
        self.quiet = greeting.quiet
        self.remedy = remedy or start_again(greeting)

    def fileno(self) -> int:
        return self._sock.fileno()

    def next_call(self) -> int:
        self._next += 1
        return self._next

    def send(self, request: wire.Request, deadline: float | None = None) -> None:
        self.send_frames(wire.frame(request), deadline)

    def send_frames(self, unsent: bytes, deadline: float | None) -> None:
        """All or nothing: if it is interrupted after a part, the connection cannot be used any more."""
        try:
            while unsent := unsent[self.send_some(unsent) :]:
                self._await_room(deadline)
        except BaseException:
            self.close()
            raise

    def send_some(self, data: bytes | bytearray) -> int:
        """Send as much as possible without waiting."""
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.close()
            raise self._gone(f"the agent is gone: {error}") from error

    def receive(self, deadline: float | None, *, asked: bool = False, hurried: bool = False) -> wire.Reply:
        """The next reply. A reply that has arrived counts, however late. Only two checks in a row without any data
        count as silence: this process itself may have been stopped meanwhile. An agent that was `asked` must answer at
        once. A `hurried` caller soon pings the agent."""
        patience = HURRY if hurried else self.quiet
        quiet_since = None
        pinged = time.monotonic() if asked else None
        while not self._replies:
            if self._read():
                quiet_since = pinged = None
                continue
            now = time.monotonic()
            if quiet_since is None:
                quiet_since = now
            elif deadline is not None and now >= deadline:
                self.close()
                raise late()
            elif pinged is not None and now - pinged >= patience:
                self.close()
                raise late() if hurried else self.silent()
            elif pinged is None and now - quiet_since >= patience:  # only an agent that was asked can be silent
                self.send(wire.Ping(PING), deadline)
                pinged = now
        return self._replies.popleft()

    def read_ready(self) -> list[wire.Reply] | None:
        """What has arrived by now, perhaps not a whole reply; None if nothing has. It does not wait."""
        if not self._read(_DONTWAIT):
            return None
        replies = list(self._replies)
        self._replies.clear()
        return replies

    def take_result(self, ref: bytes) -> wire.Result | None:
        """The result of the last reduce, once, if it came with the answer and the agent has sent nothing since: then
        this is as good as asking it. Else it may be outdated, also by what has yet to arrive."""
        if self.result is None or self.result.ref != ref:
            return None
        result, self.result = self.result, None
        return None if self._read(_DONTWAIT) else result

    def has_error(self) -> bool:
        """It broke: there may be more to read, but nothing new will arrive."""
        return not self.broken and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def take_fd(self) -> int:
        return self._fds.popleft()

    def close(self) -> None:
        self.broken = True
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())

    def end(self) -> None:
        """The runtime is shut down. The thread that reads or watches it notices, and closes it."""
        self._ended = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def silent(self) -> HopliteError:
        return self._gone("the agent does not answer")

    def _gone(self, detail: str) -> HopliteError:
        return over() if self._ended else Failure(FailureKind.CLOSED, detail, self.remedy).exception()

    def __del__(self) -> None:
        """A thread that ends leaves its connection behind."""
        with suppress(AttributeError):
            self._sock.close()

    def _reach(self, name: str) -> None:
        try:
            # The kernel keeps this limit: Python's own would cost two more system calls for every message.
            limit = _TIMEVAL.pack(0, int(_LOOK_EVERY * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            _dial(self._sock, name)
            uid = shm.peer_uid(self._sock)
        except OSError as error:
            raise self._gone(f"no agent answers: {error}") from error
        if uid != os.getuid():
            raise self._gone("another user's process answers under this agent's name")

    def _await_room(self, deadline: float | None) -> None:
        """Wait until the agent has read some of what was sent."""
        patience = self.quiet if deadline is None else min(self.quiet, max(0.0, deadline - time.monotonic()))
        room = select.poll()
        room.register(self._sock, select.POLLOUT)
        if not room.poll(1e3 * patience):
            self.close()
            raise self.silent() if patience == self.quiet else late()

    def _read(self, flags: int = 0) -> bool:
        """Read what has arrived; False if nothing came for a moment."""
        try:
            data, beside, came, _ = self._sock.recvmsg(_RECEIVE, _ROOM_FOR_FDS, _CLOEXEC | flags)
        except BlockingIOError:
            return False
        except OSError as error:
            self.close()
            raise self._gone(f"the agent is gone: {error}") from error
        for level, kind, content in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds.extend(_FD.unpack_from(content, at)[0] for at in range(0, len(content), _FD.size))
        if came & _TRUNCATED:
            self.close()
            raise _no_descriptor()
        if not data:
            self.close()
            raise self._gone("the agent is gone")
        try:
            for frame in self._frames.feed(data):
                reply = wire.decode_reply(frame)
                if isinstance(reply, wire.Result):
                    self.result = reply
                if isinstance(reply, wire.Outdated):
                    self._outdated(reply.ref)
                elif not _is_pong(reply):
                    self._replies.append(reply)
        except HopliteError:
            self.close()
            raise
        return True

    def _outdated(self, ref: bytes) -> None:
        if self.result is not None and self.result.ref == ref:
            self.result = None


def _dial(sock: socket.socket, name: str) -> None:
    """Connect; an agent's queue may be full for a moment, but a process that took its name may never empty it."""
    deadline = time.monotonic() + _QUEUE_SECONDS
    sock.setblocking(False)
    while True:
        try:
            sock.connect(os.fsencode(name))
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
    sock.setblocking(True)


def late() -> HopliteError:
    detail = "the agent of this host did not answer in time"
    remedy = "give the call more time, or check whether the agent is overloaded or stopped"
    return Failure(FailureKind.TIMEOUT, detail, remedy).exception()


def over() -> HopliteError:
    return Failure(FailureKind.CLOSED, "the runtime was shut down", "call init() again").exception()


def _no_descriptor() -> HopliteError:
    detail, remedy = "this process has no file descriptor left", "raise RLIMIT_NOFILE, or close files"
    return Failure(FailureKind.STORE_FULL, detail, remedy).exception()


def _is_pong(reply: wire.Reply) -> bool:
    return isinstance(reply, wire.Done) and reply.call == PING
