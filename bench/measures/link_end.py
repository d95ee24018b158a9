"""One end of one way to move bytes, for `links`: a link of a transport, or the bare way that it is compared with.

    driver: {"do": "pull", "size": 536870912, "frame": 1048576}          peer: {"done": 0.21, "used": 0.3}

Each way has two ends, processes of their own that stay for all rounds, so that what is timed is neither a start nor a
connection. The pulling end has the clock: from asking for the first byte until the last one is there, in all ways
alike. Streams cycle through buffers that were touched before, and what they carry does not matter. An *echo* is a round
trip of a small message; over a link, of a small rise of a source each way, as a relay has it, since links carry
streams and no messages. Arguments: the way, this end's address, the end (`serve` or `pull`), and settings of UCX.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import socket
import statistics
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from hoplite_ucx.bench.measures.loopback import BUFFER, Cycling
from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.copies import copy
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.transports import shm
from hoplite_ucx.transports.buffers import Memory, MemorySink
from hoplite_ucx.transports.interface import Bytes, Fault, Priority, Stream
from hoplite_ucx.transports.tcp import TcpTransport
from hoplite_ucx.transports.testing.endpoint import ListeningEndpoint
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.transport import UcxTransport
from hoplite_ucx.transports.wire.handshake import Identity

WAYS = ("socket", "tcp", "bare-ucx", "ucx", "memcpy", "shm", "tcp-gpu", "ucx-gpu", "gpu-copy", "gpu-peers")
SECONDS = 60.0
"""No stream and no echo takes longer."""

ECHO = 1024
ECHOES = 200
_MORE_ECHOES = 20  # before those that are timed
# The bare loop over UCX keeps as much in progress as was fastest: see docs/transports.md.
_AHEAD_PIECES = 4
_AHEAD_BYTES = 4 << 20
_CLOSED = "the other end closed"
_STANDS_STILL = "the bare loop over UCX stands still"
_HAS_ALL = b"."


class Way(ABC):
    """One end. `meet` brings the two together; then both take part in each stream, and in each echo if it has them."""

    address = ""
    number = 0
    """Of the stream or echo: both ends have the same ones, since both take part in all."""

    @abstractmethod
    def meet(self, address: str) -> None: ...

    @abstractmethod
    def serve(self, size: int, frame: int) -> None: ...

    @abstractmethod
    def pull(self, size: int, frame: int) -> float:
        """The seconds that it took."""

    def lanes(self) -> list[str]:
        """What UCX really uses, where it is UCX."""
        return []

    def path(self) -> str:
        """How memory of a GPU went; empty for memory of the host."""
        return ""


class EchoingWay(Way):
    """Through a network, or what looks like one: memory has no echo."""

    @abstractmethod
    def answer(self) -> None:
        """Send every echo back."""

    @abstractmethod
    def echo(self) -> float:
        """The seconds of a round trip, as a median."""


# --- bare sockets -----------------------------------------------------------------------------------------------


class Sockets(EchoingWay):
    """`sendall` and `recv_into` of one frame after the other; a byte asks for the stream."""

    def __init__(self, host: str, serving: bool) -> None:
        self._buffer = memoryview(bytearray(BUFFER))
        self._listening: socket.socket | None = None
        if serving:
            self._listening = socket.create_server((host, 0))
            self._listening.settimeout(SECONDS)
            self.address = f"{host}:{self._listening.getsockname()[1]}"

    def meet(self, address: str) -> None:
        if self._listening is not None:
            with self._listening:
                self.sock, _ = self._listening.accept()
        else:
            host, _, port = address.rpartition(":")
            self.sock = socket.create_connection((host, int(port)), SECONDS)
        self.sock.settimeout(None)  # a timeout would add a poll to every call; the driver bounds the whole
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self, size: int, frame: int) -> None:
        self._receive(1)
        for at in range(0, size, frame):
            self.sock.sendall(self._window(at, min(frame, size - at)))

    def pull(self, size: int, frame: int) -> float:
        began = time.perf_counter()
        self.sock.sendall(b"?")
        for at in range(0, size, frame):
            window = self._window(at, min(frame, size - at))
            if self.sock.recv_into(window, 0, socket.MSG_WAITALL) != window.nbytes:
                raise ConnectionError(_CLOSED)
        return time.perf_counter() - began

    def answer(self) -> None:
        for _ in range(_MORE_ECHOES + ECHOES):
            self.sock.sendall(self._receive(ECHO))

    def echo(self) -> float:
        message = bytes(ECHO)

        def once() -> None:
            self.sock.sendall(message)
            self._receive(ECHO)

        return _median(once)

    def _receive(self, count: int) -> bytes:
        data = self.sock.recv(count, socket.MSG_WAITALL)
        if len(data) != count:
            raise ConnectionError(_CLOSED)
        return data

    def _window(self, at: int, length: int) -> memoryview:
        return self._buffer[at % BUFFER : at % BUFFER + length]


def _median(once: Callable[[], None]) -> float:
    taken = []
    for _ in range(_MORE_ECHOES + ECHOES):
        began = time.perf_counter()
        once()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[_MORE_ECHOES:])


# --- the bare loop over UCX -------------------------------------------------------------------------------------


class BareUcx(Sockets):
    """One worker and one endpoint; messages of a frame each, some of them under way, waited for in order.

    The two ends meet over a socket, which asks for a stream as well.
    """

    def __init__(self, host: str, serving: bool, settings: UcxSettings) -> None:
        super().__init__(host, serving)
        self._ucx = library.load()
        self._worker = self._ucx.worker(self._ucx.context(settings.for_ucx()))
        self._requests: deque[library.Request] = deque()
        self._epoll = select.epoll()
        self._epoll.register(self._worker.epoll_file_descriptor, select.EPOLLIN)

    def meet(self, address: str) -> None:
        super().meet(address)
        mine = self._worker.address.tobytes()
        self.sock.sendall(len(mine).to_bytes(4, "little") + mine)
        theirs = self._receive(int.from_bytes(self._receive(4), "little"))
        self._endpoint = self._ucx.endpoint(self._worker, theirs)

    def serve(self, size: int, frame: int) -> None:
        self._receive(1)
        ahead = _ahead(frame)
        for at in range(0, size, frame):
            self._send(self._window(at, min(frame, size - at)), self.number << 32 | at // frame)
            if len(self._requests) >= ahead:
                self._wait()
        self._until_the_other_has_all()

    def pull(self, size: int, frame: int) -> float:
        ahead = _ahead(frame)
        began = time.perf_counter()
        self.sock.sendall(b"?")
        for at in range(0, size, frame):
            self._post(self._window(at, min(frame, size - at)), self.number << 32 | at // frame)
            if len(self._requests) >= ahead:
                self._wait()
        self._wait_for_all()
        taken = time.perf_counter() - began
        self.sock.sendall(_HAS_ALL)
        return taken

    def answer(self) -> None:
        self._many_echoes(first=False)
        self._until_the_other_has_all()

    def echo(self) -> float:
        seconds = self._many_echoes(first=True)
        self.sock.sendall(_HAS_ALL)
        return seconds

    def lanes(self) -> list[str]:
        return [f"{lane.transport}/{lane.device}" for lane in self._ucx.lanes(self._endpoint)]

    def _many_echoes(self, *, first: bool) -> float:
        sent, got = memoryview(bytearray(ECHO)), memoryview(bytearray(ECHO))
        tag = self.number << 32

        def once() -> None:
            self._post(got, tag)
            if first:
                self._send(sent, tag)
                self._wait_for_all()
            else:
                self._wait()
                self._send(sent, tag)

        seconds = _median(once)
        self._wait_for_all()
        return seconds

    def _send(self, window: memoryview, tag: int) -> None:
        self._requests.append(self._endpoint.tag_send(self._ucx.array(window), self._ucx.tag(tag)))
        self._worker.progress()

    def _post(self, window: memoryview, tag: int) -> None:
        array = self._ucx.array(window)
        self._requests.append(self._worker.tag_recv(array, self._ucx.tag(tag), self._ucx.whole_tag))

    def _wait(self) -> None:
        request = self._requests.popleft()
        deadline = time.monotonic() + SECONDS
        while not request.completed:
            self._worker.progress()
            if not request.completed and self._worker.arm():
                self._epoll.poll(1)
            if time.monotonic() > deadline:
                raise TimeoutError(_STANDS_STILL)
        request.check_error()

    def _wait_for_all(self) -> None:
        while self._requests:
            self._wait()

    def _until_the_other_has_all(self) -> None:
        """A send is complete when UCX has copied it, and what the kernel did not take then goes out only here."""
        self._wait_for_all()
        deadline = time.monotonic() + SECONDS
        while not select.select([self.sock], [], [], 0)[0]:
            self._worker.progress()
            if self._worker.arm():
                select.select([self.sock, self._worker.epoll_file_descriptor], [], [], 1)
            if time.monotonic() > deadline:
                raise TimeoutError(_STANDS_STILL)
        self._receive(len(_HAS_ALL))


def _ahead(frame: int) -> int:
    return max(_AHEAD_PIECES, _AHEAD_BYTES // frame)


# --- links ------------------------------------------------------------------------------------------------------


class Link(EchoingWay):
    """A link of a transport; a stream of one frame at a time."""

    def __init__(
        self, host: str, serving: bool, transport: Callable[[Identity], Any], buffer: Bytes | None = None
    ) -> None:
        """Streams are of this buffer, which may be a GPU's; echoes are always of the host's."""
        self._me, self._peer = (1, 2) if serving else (2, 1)
        me = Identity(self._me, b"measured")
        self._transport = transport(me)
        self._endpoint: ListeningEndpoint[Any] = ListeningEndpoint(me, self._transport, host)
        self.address = self._endpoint.address
        self._buffer = memoryview(bytearray(BUFFER)) if buffer is None else buffer
        self._there = ""

    def meet(self, address: str) -> None:
        self._there = address

    def serve(self, size: int, frame: int) -> None:
        over = self._send(Cycling(size, size, self._buffer), size, frame, (self._peer, self.number))
        _await(over, "a served stream")

    def pull(self, size: int, frame: int) -> float:
        sink = Cycling(size, view=self._buffer)
        began = time.perf_counter()
        over = self._receive(sink, size, frame, (self._me, self.number))
        _await(over, "a stream")
        return time.perf_counter() - began

    def answer(self) -> None:
        size = (_MORE_ECHOES + ECHOES) * ECHO
        memory = Memory(memoryview(bytearray(size)))
        served = self._send(memory, size, ECHO, (self._peer, self.number))
        pulled = self._receive(MemorySink(memory, size), size, ECHO, (self._me, self.number))
        _await(pulled, "the echoes")
        _await(served, "the echoes")

    def echo(self) -> float:
        """Each arrival sends the next, on whatever thread it comes, as in a relay."""
        size = (_MORE_ECHOES + ECHOES) * ECHO
        out, back = Memory(memoryview(bytearray(size))), Memory(memoryview(bytearray(size)))
        moments: list[float] = []

        def returned() -> None:
            if back.watermark() >= out.watermark():
                moments.append(time.perf_counter())
                out.rise(min(out.watermark() + ECHO, size))

        back.subscribe(returned)
        served = self._send(out, size, ECHO, (self._peer, self.number))
        pulled = self._receive(MemorySink(back, size), size, ECHO, (self._me, self.number))
        out.rise(ECHO)
        _await(pulled, "the echoes")
        _await(served, "the echoes")
        taken = [after - before for before, after in itertools.pairwise(moments)]
        return statistics.median(taken[_MORE_ECHOES - 1 :])

    def lanes(self) -> list[str]:
        return sorted({lane for lanes in self._transport.lanes().values() for lane in lanes})

    def path(self) -> str:
        if not isinstance(self._buffer, Window):
            return ""
        direct = any(link.takes_devices for link in self._transport.links())
        return "direct" if direct else "staged"

    def _send(self, source: Any, size: int, frame: int, key: tuple[int, int]) -> threading.Event:
        over = threading.Event()
        self._transport.serve(self._peer, Stream(key, 0, size, frame), source, over.set, priority=Priority.OWN)
        return over

    def _receive(self, sink: Any, size: int, frame: int, key: tuple[int, int]) -> threading.Event:
        over = threading.Event()

        def closed(watermark: int, fault: Fault | None) -> None:
            if fault is None and watermark == size:
                over.set()

        self._transport.receive(self._peer, self._there, Stream(key, 0, size, frame), sink, closed)
        return over


def _await(over: threading.Event, what: str) -> None:
    if not over.wait(SECONDS):
        raise TimeoutError(f"{what} broke, or did not end in time")


# --- memory within a host ---------------------------------------------------------------------------------------


class Copies(Way):
    """Frames copied from memory to memory: private memory, or a segment that other processes map."""

    def __init__(self, shared: bool) -> None:
        self._from = memoryview(bytearray(b"x") * BUFFER)
        if shared:
            segment = shm.create(BUFFER)
            shm.prefault(segment)
            self._to = segment.array.data
        else:
            self._to = memoryview(bytearray(b"y") * BUFFER)

    def meet(self, address: str) -> None:
        pass

    def serve(self, size: int, frame: int) -> None:
        pass

    def pull(self, size: int, frame: int) -> float:
        began = time.perf_counter()
        for at in range(0, size, frame):
            start, length = at % BUFFER, min(frame, size - at)
            self._to[start : start + length] = self._from[start : start + length]
        return time.perf_counter() - began


# --- memory of GPUs ---------------------------------------------------------------------------------------------


def on_gpu(device: int = 0) -> Window:
    """A buffer on a GPU, as stores have them."""
    memory = segments.create(BUFFER, device)
    window = memory.window()
    memory.close()  # the window keeps it
    return window


class GpuCopies(Way):
    """Frames copied by a GPU within its memory, or from the first to the last GPU of the host."""

    def __init__(self, to_peer: bool) -> None:
        last = cuda.load().count - 1
        if to_peer and not last:
            raise RuntimeError("there is only one GPU")
        self._from, self._to = on_gpu(), on_gpu(last if to_peer else 0)

    def meet(self, address: str) -> None:
        pass

    def serve(self, size: int, frame: int) -> None:
        pass

    def pull(self, size: int, frame: int) -> float:
        began = time.perf_counter()
        for at in range(0, size, frame):
            start, length = at % BUFFER, min(frame, size - at)
            copy(self._to[start : start + length], self._from[start : start + length])
        return time.perf_counter() - began


# --- the process ------------------------------------------------------------------------------------------------


def make(way: str, host: str, serving: bool, settings: UcxSettings) -> Way:
    made: dict[str, Callable[[], Way]] = {
        "socket": lambda: Sockets(host, serving),
        "tcp": lambda: Link(host, serving, TcpTransport),
        "bare-ucx": lambda: BareUcx(host, serving, settings),
        "ucx": lambda: Link(host, serving, lambda me: _started(UcxTransport(me, None, settings))),
        "memcpy": lambda: Copies(shared=False),
        "shm": lambda: Copies(shared=True),
        "tcp-gpu": lambda: Link(host, serving, TcpTransport, on_gpu()),
        "ucx-gpu": lambda: Link(host, serving, lambda me: _started(UcxTransport(me, None, settings)), on_gpu()),
        "gpu-copy": lambda: GpuCopies(to_peer=False),
        "gpu-peers": lambda: GpuCopies(to_peer=True),
    }
    return made[way]()


def _started(transport: UcxTransport) -> UcxTransport:
    transport.start()
    return transport


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    way_name, host, end, settings = sys.argv[1:5]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # UCX writes its warnings to standard output

    def say(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        way = make(way_name, host, end == "serve", msgspec.json.decode(settings, type=UcxSettings))
        say(done=way.address)
        for line in sys.stdin:
            order = json.loads(line)
            before = _processor()
            way.number += 1
            done = getattr(way, order.pop("do"))(**order)
            say(done=done, used=_processor() - before)
    except Exception as error:
        say(error=f"{way_name} of {settings}: {error}")
    os._exit(0)  # the bare loops close nothing, and the driver is gone


if __name__ == "__main__":
    main()
