"""How fast UCX links are on loopback, beside a bare loop on the same UCX and beside bare sockets, in one run.

The bare loop posts receives and sends of the same chunks on a worker of its own, four ahead (more of small ones), and
does nothing else: what a link needs above it is ours. Every run has two fresh processes, since UCX does not survive a
fork; runs are interleaved, and medians compared. `python -m hoplite_ucx.transports.throughput --ucx tcp` comes here.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hoplite_ucx.transports import throughput
from hoplite_ucx.transports.interface import Fault, Priority
from hoplite_ucx.transports.throughput import Cycling
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["MODES", "measure"]

_BUFFER = 64 << 20
_SECONDS = 60.0
_KEY = (1, 1)
_AHEAD_PIECES = 4
_AHEAD_BYTES = 4 << 20

MODES = ("socket", "link-tcp", "bare-ucx", "link-ucx")


def measure(tls: str, size: int, granule: int, runs: int) -> dict[str, object]:
    """One line of results: rates, and the ratios that matter. The load tells how busy the machine was."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    used: dict[str, list[float]] = {mode: [] for mode in MODES}
    lanes: list[str] = []
    for _ in range(runs):
        for mode in MODES:
            result = _run(mode, tls, size, granule)
            seconds[mode].append(result["seconds"])
            used[mode].append(result["processor"])
            lanes = result.get("lanes", lanes)
    median = {mode: statistics.median(times) for mode, times in seconds.items()}
    work = {mode: statistics.median(times) for mode, times in used.items()}
    return {
        "what": f"ucx {tls}",
        "granule": granule,
        **{f"{mode.replace('-', '_')}_bytes_per_second": round(size / median[mode]) for mode in MODES},
        "ratio": round(median["bare-ucx"] / median["link-ucx"], 3),
        "processor_ratio": round(work["bare-ucx"] / work["link-ucx"], 3),
        "ratio_to_socket": round(median["socket"] / median["link-ucx"], 3),
        "ratio_to_tcp": round(median["link-tcp"] / median["link-ucx"], 3),
        "lanes": lanes,
        "load": round(os.getloadavg()[0], 1),
    }


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hoplite_ucx.transports.ucx.throughput", *map(str, arguments)]


def _run(mode: str, tls: str, size: int, granule: int) -> dict[str, Any]:
    command = _command(mode, tls, size, granule)
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * _SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{mode} failed: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- one run, in processes of its own ------------------------------------------------------------------------------


def _pull_link(tls: str, size: int, granule: int, address: str) -> tuple[float, list[str]]:
    done = threading.Event()
    faults: list[Fault | None] = []

    def closed(_watermark: int, fault: Fault | None) -> None:
        faults.append(fault)
        done.set()

    with _endpoint(tls, 2) as end:
        end.transport.start()
        began = time.perf_counter()
        end.transport.receive(1, address, _KEY, Cycling(size), offset=0, size=size, granule=granule, on_closed=closed)
        if not done.wait(_SECONDS) or faults != [None]:
            raise RuntimeError(f"the stream ended with {faults or 'nothing'}")
        seconds = time.perf_counter() - began
        lanes = [lane for link in end.transport.lanes().values() for lane in link]
        return seconds, sorted({f"{lane.transport}/{lane.device}" for lane in lanes})


def _serve_link(tls: str, size: int, granule: int) -> None:
    with _endpoint(tls, 1) as end:
        end.transport.serve(
            2,
            _KEY,
            Cycling(size, size),
            offset=0,
            size=size,
            granule=granule,
            priority=Priority.OWN,
            on_closed=lambda: None,
        )
        _say(end.address)
        sys.stdin.read()


def _endpoint(tls: str, node: int) -> UcxEndpoint:
    class Endpoint(UcxEndpoint):
        settings = UcxSettings(tls=tuple(tls.split(",")))

    return Endpoint(node)


class _Bare:
    """A worker, and requests that are waited for in order."""

    def __init__(self, tls: str, chunk: int) -> None:
        self.ucx = library.load()
        self.worker = self.ucx.worker(self.ucx.context(UcxSettings(tls=tuple(tls.split(","))).for_ucx()))
        self.ahead = max(_AHEAD_PIECES, _AHEAD_BYTES // chunk)
        self.requests: deque[library.Request] = deque()
        self._epoll = select.epoll()
        self._epoll.register(self.worker.epoll_file_descriptor, select.EPOLLIN)
        self._memory = memoryview(bytearray(_BUFFER))

    def connect(self, sock: socket.socket) -> library.Endpoint:
        mine = self.worker.address.tobytes()
        sock.sendall(len(mine).to_bytes(4, "little") + mine)
        length = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "little")
        return self.ucx.endpoint(self.worker, sock.recv(length, socket.MSG_WAITALL))

    def window(self, at: int, length: int) -> Any:
        return self.ucx.array(self._memory[at % _BUFFER : at % _BUFFER + length])

    def wait(self) -> None:
        request = self.requests.popleft()
        deadline = time.monotonic() + _SECONDS
        while not request.completed:
            self.worker.progress()
            if not request.completed and self.worker.arm():
                self._epoll.poll(1)
            if time.monotonic() > deadline:
                raise TimeoutError("the bare loop stands still")
        request.check_error()


def _pull_bare(tls: str, size: int, chunk: int, address: str) -> tuple[float, list[str]]:
    bare = _Bare(tls, chunk)
    with socket.create_connection(("127.0.0.1", int(address))) as sock:
        endpoint = bare.connect(sock)
        began = time.perf_counter()
        posted = 0
        for _ in range(0, size, chunk):
            while posted < size and len(bare.requests) < bare.ahead:
                length = min(chunk, size - posted)
                window, tag = bare.window(posted, length), bare.ucx.tag(posted // chunk)
                bare.requests.append(bare.worker.tag_recv(window, tag, bare.ucx.whole_tag))
                posted += length
            bare.wait()
        seconds = time.perf_counter() - began
        return seconds, [f"{lane.transport}/{lane.device}" for lane in bare.ucx.lanes(endpoint)]


def _serve_bare(tls: str, size: int, chunk: int) -> None:
    bare = _Bare(tls, chunk)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _say(str(listening.getsockname()[1]))
        sock, _ = listening.accept()
    with sock:
        endpoint = bare.connect(sock)
        for at in range(0, size, chunk):
            window = bare.window(at, min(chunk, size - at))
            bare.requests.append(endpoint.tag_send(window, bare.ucx.tag(at // chunk)))
            bare.worker.progress()
            if len(bare.requests) >= bare.ahead:
                bare.wait()
        while bare.requests:
            bare.wait()
        sys.stdin.read()


def _pull(serve: str, pull: Callable[..., tuple[float, list[str]]], *arguments: Any) -> dict[str, Any]:
    command = _command(serve, *arguments)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as source:
        assert source.stdin is not None
        assert source.stdout is not None
        address = source.stdout.readline().strip()
        seconds, lanes = pull(*arguments, address)
        source.stdin.close()
        source.wait(_SECONDS)
    return {"seconds": seconds, "lanes": lanes}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """One role of one run; `measure` starts it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("tls")
    parser.add_argument("size", type=int)
    parser.add_argument("granule", type=int)
    given = parser.parse_args()
    arguments = (given.tls, given.size, given.granule)
    runs: dict[str, Callable[[], dict[str, Any] | None]] = {
        "socket": lambda: {"seconds": throughput.bare(given.size, given.granule)},
        "link-tcp": lambda: {"seconds": throughput.link(given.size, given.granule)},
        "bare-ucx": lambda: _pull("serve-bare", _pull_bare, *arguments),
        "link-ucx": lambda: _pull("serve-link", _pull_link, *arguments),
        "serve-bare": lambda: _serve_bare(*arguments),
        "serve-link": lambda: _serve_link(*arguments),
    }
    result = runs[given.mode]()
    if result is not None:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        result["processor"] = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        _say(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # the bare loops close nothing


if __name__ == "__main__":
    main()
