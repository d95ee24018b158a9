"""How fast links are on loopback, beside bare sockets in the same run: `python -m hoplite_ucx.bench.measures.loopback`.

One stream from process to process, and the same through a relay. The bare loop is `sendall` and `recv_into` of the same
chunks; the bare relay receives a chunk and sends it on. Streams cycle through a small buffer, so that no memory is
paged in while the clock runs (what they carry does not matter here). Runs are interleaved, and medians compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.transports.interface import Bytes, Fault, Priority, Stream
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint

BUFFER = 64 << 20
_SECONDS = 60.0
_KEY = (1, 1)


class Cycling:
    """Source and sink of any size on a small buffer, of the host or of a GPU."""

    def __init__(self, size: int, watermark: int = 0, view: Bytes | None = None) -> None:
        self._view = memoryview(bytearray(BUFFER)) if view is None else view
        self.device = self._view.device if isinstance(self._view, Window) else None
        self._size = size
        self._watermark = watermark
        self._risen: Callable[[], None] | None = None

    def window(self, offset: int, length: int) -> Bytes:
        start = offset % BUFFER
        return self._view[start : start + length]

    def arrived(self, end: int) -> None:
        self._watermark = end
        if self._risen is not None:
            self._risen()

    def watermark(self) -> int:
        return self._watermark

    def limit(self) -> int:
        return self._size

    def end(self) -> int:
        return self._watermark

    def subscribe(self, _: Callable[[], None]) -> None:
        pass

    def unsubscribe(self, _: Callable[[], None]) -> None:
        self._risen = None

    def relay(self) -> Relayed:
        return Relayed(self)


class Relayed:
    """What arrives in a sink, as the source of the next stream."""

    def __init__(self, sink: Cycling) -> None:
        self._sink = sink
        self.device = sink.device
        self.window = sink.window
        self.watermark = sink.watermark
        self.unsubscribe = sink.unsubscribe

    def subscribe(self, risen: Callable[[], None]) -> None:
        self._sink._risen = risen


@contextmanager
def child(work: Callable[[int, int], None]) -> Iterator[tuple[int, int]]:
    """Run work(read, write) in a forked process, connected by two pipes; it ends with the block."""
    to_child, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(to_child[1])
            os.close(to_parent[0])
            work(to_child[0], to_parent[1])
        finally:
            os._exit(0)
    os.close(to_child[0])
    os.close(to_parent[1])
    try:
        yield to_parent[0], to_child[1]
    finally:
        os.close(to_child[1])
        os.close(to_parent[0])
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)


def _source(size: int, granule: int, read: int, write: int) -> None:
    with TcpEndpoint(1) as end:
        stream = Stream(_KEY, 0, size, granule)
        end.transport.serve(2, stream, Cycling(size, size), lambda: None, priority=Priority.OWN)
        os.write(write, end.address.encode())
        os.read(read, 1)


def _relay(upstream: str, size: int, granule: int, read: int, write: int) -> None:
    with TcpEndpoint(2) as end:
        stream, sink = Stream(_KEY, 0, size, granule), Cycling(size)
        end.transport.serve(3, stream, sink.relay(), lambda: None, priority=Priority.RELAYED)
        os.write(write, end.address.encode())
        os.read(read, 1)
        end.transport.receive(1, upstream, stream, sink, lambda *_: None)
        os.read(read, 1)


def _pull(node: int, sender: int, address: str, size: int, granule: int) -> float:
    done = threading.Event()
    faults: list[Fault | None] = []

    def closed(_watermark: int, fault: Fault | None) -> None:
        faults.append(fault)
        done.set()

    with TcpEndpoint(node) as end:
        began = time.perf_counter()
        end.transport.receive(sender, address, Stream(_KEY, 0, size, granule), Cycling(size), closed)
        if not done.wait(_SECONDS) or faults != [None]:
            raise RuntimeError(f"the stream ended with {faults or 'nothing'}")
        return time.perf_counter() - began


def link(size: int, granule: int) -> float:
    with child(partial(_source, size, granule)) as (read, _):
        return _pull(2, 1, os.read(read, 100).decode(), size, granule)


def link_relay(size: int, granule: int) -> float:
    with child(partial(_source, size, granule)) as (source, _):
        upstream = os.read(source, 100).decode()
        with child(partial(_relay, upstream, size, granule)) as (relay, go):
            address = os.read(relay, 100).decode()
            os.write(go, b"g")
            return _pull(3, 2, address, size, granule)


def _bare_source(size: int, chunk: int, read: int, write: int) -> None:
    view = memoryview(bytearray(BUFFER))
    with _listen(write) as listening, listening.accept()[0] as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, size, chunk):
            sock.sendall(view[at % BUFFER : at % BUFFER + min(chunk, size - at)])
        os.read(read, 1)


def _bare_relay(upstream: int, size: int, chunk: int, read: int, write: int) -> None:
    view = memoryview(bytearray(BUFFER))
    with _listen(write) as listening, listening.accept()[0] as down:
        down.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with socket.create_connection(("127.0.0.1", upstream)) as up:
            for at in range(0, size, chunk):
                window = view[at % BUFFER : at % BUFFER + min(chunk, size - at)]
                up.recv_into(window, 0, socket.MSG_WAITALL)
                down.sendall(window)
        os.read(read, 1)


def _listen(write: int) -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0))
    os.write(write, str(listening.getsockname()[1]).encode())
    return listening


def _bare_pull(port: int, size: int, chunk: int) -> float:
    view = memoryview(bytearray(BUFFER))
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for at in range(0, size, chunk):
            sock.recv_into(view[at % BUFFER : at % BUFFER + min(chunk, size - at)], 0, socket.MSG_WAITALL)
    return time.perf_counter() - began


def bare(size: int, chunk: int) -> float:
    with child(partial(_bare_source, size, chunk)) as (read, _):
        return _bare_pull(int(os.read(read, 100)), size, chunk)


def bare_relay(size: int, chunk: int) -> float:
    with child(partial(_bare_source, size, chunk)) as (source, _):
        upstream = int(os.read(source, 100))
        with child(partial(_bare_relay, upstream, size, chunk)) as (relay, _):
            return _bare_pull(int(os.read(relay, 100)), size, chunk)


def measure(size: int, granule: int, runs: int, *, relay: bool) -> dict[str, object]:
    """The ratio of rates says how fast we are; that of processor times says it on a busy machine, too."""
    ours, theirs = (link_relay, bare_relay) if relay else (link, bare)
    seconds: list[float] = []
    bare_seconds: list[float] = []
    used: list[float] = []
    bare_used: list[float] = []
    for _ in range(runs):
        for run, times, processor in ((theirs, bare_seconds, bare_used), (ours, seconds, used)):
            before = _processor_seconds()
            times.append(run(size, granule))
            processor.append(_processor_seconds() - before)
    return {
        "what": "relay" if relay else "link",
        "granule": granule,
        "bytes_per_second": round(size / statistics.median(seconds)),
        "bare_bytes_per_second": round(size / statistics.median(bare_seconds)),
        "ratio": round(statistics.median(bare_seconds) / statistics.median(seconds), 3),
        "processor_ratio": round(statistics.median(bare_used) / statistics.median(used), 3),
        "spread": [round(min(bare_seconds) / max(seconds), 3), round(max(bare_seconds) / min(seconds), 3)],
    }


def _processor_seconds() -> float:
    """Of this process and of the others, which have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description="links on loopback beside bare sockets")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--granules", type=int, nargs="+", default=[64, 256, 1024], help="KiB")
    options = parser.parse_args()
    for granule in options.granules:
        result = measure(options.mib << 20, granule << 10, options.runs, relay=options.relay)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
