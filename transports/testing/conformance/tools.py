"""What the checks share: endpoints here and in other processes, watched streams, bytes that show their position.

Every wait here is bounded, and ends in an `AssertionError` that says what did not happen.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

from hoplite_ucx.transports.buffers import Memory, MemorySink
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.interface import (
    CLOSE_SECONDS,
    Fault,
    LinkLost,
    Priority,
    Sink,
    Source,
    Stream,
    StreamKey,
    Transport,
)

__all__ = [
    "CLOSE_WAIT",
    "WAIT_SECONDS",
    "Endpoint",
    "GatedSink",
    "Maker",
    "OtherProcess",
    "Process",
    "Receiving",
    "Serving",
    "endpoints",
    "filled",
    "is_filled",
    "next_key",
    "other_processes",
    "pattern",
    "start_process",
    "wait_until",
]

_TIMES = float(os.environ.get("HOPLITE_CHECKS_SLOWER", "1"))
"""How many times slower than usual this machine is: set where it is emulated in software."""
WAIT_SECONDS = 60.0 * _TIMES
"""Only what hangs takes so long."""
CLOSE_WAIT = 20 * CLOSE_SECONDS * _TIMES
"""Cancelled streams close in time; this process may not get the processor in time to see it."""


class Endpoint(Protocol):
    """One node with links of the transport that is checked."""

    node: int
    address: str
    refused: list[TransportError]

    @property
    def transport(self) -> Transport: ...

    def close(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Maker(Protocol):
    """Makes endpoints. It is a class or function of a module, so that other processes find it by its name."""

    __module__: str
    __qualname__: str

    def __call__(self, node: int, token: bytes = b"", *, on_lost: LinkLost | None = None) -> Endpoint: ...


_open: list[Endpoint] = []


@contextmanager
def endpoints(make: Maker, *nodes: int) -> Iterator[list[Endpoint]]:
    made: list[Endpoint] = []
    try:
        for node in nodes:
            made.append(make(node))
            _open.append(made[-1])
        yield made
    finally:
        ended = [endpoint.close() for endpoint in made]
        for endpoint in made:
            _open.remove(endpoint)
    assert all(ended), "a thread of an endpoint did not end"


def _report(*more: Endpoint) -> str:
    """What all endpoints have, and where threads are: whoever reads that something did not happen asks for it next."""
    lines = []
    for endpoint in dict.fromkeys((*_open, *more)):
        transport = endpoint.transport
        lines += [f"node {endpoint.node:x}: {link}" for link in transport.links()]
        for name, positions in (("receives", transport.receive_positions()), ("serves", transport.serve_positions())):
            lines.append(f"node {endpoint.node:x} {name} {positions}")
        lines += [f"node {endpoint.node:x} refused {error}" for error in endpoint.refused]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for thread, frame in sys._current_frames().items():
        place = traceback.extract_stack(frame)[-1]
        lines.append(f"{names.get(thread, thread)} at {place.filename}:{place.lineno}, {place.name}: {place.line}")
    return "\n".join(lines)


_keys = iter(range(1, sys.maxsize))


def next_key() -> StreamKey:
    return (os.getpid(), next(_keys))


def wait_until(condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{_report()}"
        time.sleep(0.002)


# Not a multiple of any granule or page, so that bytes in a wrong place differ.
_PERIOD = 1_000_003


@functools.lru_cache(maxsize=64)
def _period(seed: int) -> bytes:
    return random.Random(seed).randbytes(_PERIOD)


def pattern(seed: int, start: int, end: int) -> bytes:
    """Bytes that differ by seed and by place."""
    first = start % _PERIOD
    return (_period(seed) * ((end - start) // _PERIOD + 2))[first : first + end - start]


def filled(seed: int, size: int, watermark: int | None = None) -> Memory:
    """Make it before anybody connects: a large one keeps this process's other threads out, on a busy machine for longer
    than a handshake may take."""
    return Memory(bytearray(pattern(seed, 0, size)), size if watermark is None else watermark)


def is_filled(memory: Memory, seed: int, start: int, end: int) -> bool:
    return memory.view[start:end] == pattern(seed, start, end)


class GatedSink(MemorySink):
    """Takes bytes only as far as it is opened, and notes what came in which order."""

    def __init__(self, memory: Memory, size: int, limit: int) -> None:
        super().__init__(memory, size)
        self._limit = limit
        self._grown: Callable[[], None] = lambda: None
        self.ends: list[int] = []
        self.arrived = self._arrived

    def _arrived(self, watermark: int) -> None:
        assert watermark <= self._limit, f"bytes up to {watermark} beyond the limit {self._limit}"
        self.ends.append(watermark)
        self._memory.rise(watermark)

    def limit(self) -> int:
        return self._limit

    def subscribe(self, grown: Callable[[], None]) -> None:
        self._grown = grown

    def open_to(self, limit: int) -> None:
        self._limit = limit
        self._grown()


def _unclosed(key: StreamKey, position: int, seconds: float, endpoint: Endpoint) -> str:
    return f"stream {key} did not close within {seconds:g} s, at {position}\n{_report(endpoint)}"


class Receiving:
    """A receiving stream, watched."""

    def __init__(
        self,
        endpoint: Endpoint,
        sender: int,
        address: str,
        key: StreamKey,
        size: int,
        *,
        offset: int = 0,
        granule: int = 64 << 10,
        memory: Memory | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.key = key
        self.size = size
        self.offset = offset
        self.memory = memory or Memory(bytearray(size), offset)
        self.closes: list[tuple[int, Fault | None]] = []
        self._endpoint = endpoint
        self._closed = threading.Event()
        stream = Stream(key, offset, size, granule)
        endpoint.transport.receive(sender, address, stream, sink or MemorySink(self.memory, size), self._on_closed)

    def _on_closed(self, watermark: int, fault: Fault | None) -> None:
        self.closes.append((watermark, fault))
        self._closed.set()

    @property
    def position(self) -> int:
        return self._endpoint.transport.receive_positions().get(self.key, -1)

    def cancel(self) -> None:
        self._endpoint.transport.cancel_receive(self.key)

    def wait(self, seconds: float = WAIT_SECONDS) -> tuple[int, Fault | None]:
        assert self._closed.wait(seconds), _unclosed(self.key, self.position, seconds, self._endpoint)
        assert len(self.closes) == 1, f"closed {len(self.closes)} times"
        return self.closes[0]

    def complete(self, seed: int, seconds: float = WAIT_SECONDS) -> None:
        assert self.wait(seconds) == (self.size, None), self.closes
        assert is_filled(self.memory, seed, self.offset, self.size), "wrong bytes"


class Serving:
    """A sending stream, watched."""

    def __init__(
        self,
        endpoint: Endpoint,
        receiver: int,
        key: StreamKey,
        source: Source,
        size: int,
        *,
        offset: int = 0,
        granule: int = 64 << 10,
        priority: Priority = Priority.OWN,
        rank: int = 0,
    ) -> None:
        self.key = key
        self.closes = 0
        self._endpoint = endpoint
        self._closed = threading.Event()
        stream = Stream(key, offset, size, granule)
        endpoint.transport.serve(receiver, stream, source, self._on_closed, priority=priority, rank=rank)

    def _on_closed(self) -> None:
        self.closes += 1
        self._closed.set()

    @property
    def position(self) -> int:
        return self._endpoint.transport.serve_positions().get(self.key, -1)

    def cancel(self) -> None:
        self._endpoint.transport.cancel_serve(self.key)

    def closed_within(self, seconds: float) -> bool:
        return self._closed.wait(seconds)

    def wait(self, seconds: float = WAIT_SECONDS) -> None:
        assert self._closed.wait(seconds), _unclosed(self.key, self.position, seconds, self._endpoint)
        assert self.closes == 1, f"closed {self.closes} times"


class Process:
    """An endpoint in a process of its own, which can be stopped and killed."""

    def __init__(self, make: Maker, node: int) -> None:
        self.node = node
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from hoplite_ucx.transports.testing.conformance.tools import run_process; run_process()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address: str = self._tell(make=f"{make.__module__}:{make.__qualname__}", node=node)

    def serve(self, receiver: int, key: StreamKey, seed: int, size: int, *, offset: int = 0, granule: int) -> None:
        self._tell(serve=key, peer=receiver, seed=seed, size=size, offset=offset, granule=granule)

    def receive(self, sender: int, address: str, key: StreamKey, size: int, *, granule: int) -> None:
        self._tell(receive=key, peer=sender, address=address, size=size, granule=granule)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _tell(self, **command: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the other process is gone"
        return str(json.loads(answer))


class OtherProcess(Protocol):
    """An endpoint in a process of its own, here or on another host."""

    @property
    def node(self) -> int: ...

    @property
    def address(self) -> str: ...

    def serve(self, receiver: int, key: StreamKey, seed: int, size: int, *, offset: int = 0, granule: int) -> None: ...

    def receive(self, sender: int, address: str, key: StreamKey, size: int, *, granule: int) -> None: ...

    def stop(self) -> None: ...

    def resume(self) -> None: ...

    def kill(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


_starters: list[Callable[[Maker, int], OtherProcess]] = [Process]


def start_process(make: Maker, node: int) -> OtherProcess:
    return _starters[-1](make, node)


@contextmanager
def other_processes(start: Callable[[Maker, int], OtherProcess]) -> Iterator[None]:
    """Checks within the block start their other processes so: on another host, for example."""
    _starters.append(start)
    try:
        yield
    finally:
        _starters.pop()


def run_process() -> None:
    """The other process: obeys commands until its standard input ends."""
    begun = json.loads(sys.stdin.readline())
    module, _, name = begun["make"].partition(":")
    make: Maker = getattr(importlib.import_module(module), name)
    with make(begun["node"]) as endpoint:
        _answer(endpoint.address)
        kept: list[object] = []
        for line in sys.stdin:
            command = json.loads(line)
            peer, size, granule = command["peer"], command["size"], command["granule"]
            if "serve" in command:
                source = filled(command["seed"], size)
                key = tuple(command["serve"])
                kept.append(Serving(endpoint, peer, key, source, size, offset=command["offset"], granule=granule))
            else:
                key = tuple(command["receive"])
                kept.append(Receiving(endpoint, peer, command["address"], key, size, granule=granule))
            _answer("done")


def _answer(text: str) -> None:
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


def steps(seed: int, start: int, end: int, most: int) -> Iterator[int]:
    """Rising positions from `start` to `end`, in random steps."""
    draw = random.Random(seed)
    while start < end:
        start = min(start + draw.randint(1, most), end)
        yield start
