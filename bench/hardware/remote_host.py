"""The serving host: it starts, stops and kills an endpoint's process for the host that runs the checks.

One connection at a time, proven by the cluster's token both ways, then a JSON object a line each way. It does nothing
but what `Process` of the conformance suite does on one host, tells what the machine has, runs the tests of its GPUs,
and starts ends of measurements: `link_end`, `ucx_perftest`, NCCL. Everything started for a connection ends with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

from hoplite_ucx.bench.hardware.gpu_host import gpus_here, link_end_command, nccl_command, nccl_missing, run_tests
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError, ThisHost
from hoplite_ucx.bench.measures import link_end
from hoplite_ucx.transports.configuration import load
from hoplite_ucx.transports.detection import detect
from hoplite_ucx.transports.errors import ConnectionLostError, TransportError
from hoplite_ucx.transports.interface import LinkLost, StreamKey
from hoplite_ucx.transports.testing.conformance.tools import Process
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.wire.addresses import check_token
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking, server

__all__ = ["HardwareEndpoint", "Peer", "RemoteProcess", "connected", "perftest_command", "serve", "ucx_environment"]

HOST = "HOPLITE_HARDWARE_HOST"
"""The address that endpoints of this host listen on; their processes inherit it."""

_ANSWER_SECONDS = 70.0
_LONGEST_LINE = 1 << 20


class HardwareEndpoint(UcxEndpoint):
    """Uses UCX as this host's configuration says, by default."""

    def __init__(
        self,
        node: int,
        token: bytes | None = None,
        *,
        on_lost: LinkLost | None = None,
        settings: UcxSettings | None = None,
    ) -> None:
        self.settings = settings or load().ucx
        own = os.environ["HOPLITE_TOKEN"].encode() if token is None else token
        super().__init__(node, own, os.environ[HOST], on_lost)


# --- the host that serves ---------------------------------------------------------------------------------------


def serve(address: str, port: int, token: bytes) -> None:
    """Until it is ended."""
    check_token(token, address)
    os.environ[HOST] = address
    with socket.create_server((address, port)) as listening:
        sys.stderr.write(f"ready on {address}:{port}; now, on the other host: ci/hardware run {address} {port}\n")
        while True:
            sock, (who, _) = listening.accept()
            with sock:
                try:
                    run_blocking(server(Identity(1, token), (Kind.CONTROL,), who), sock, who)
                    sock.settimeout(None)
                    _answer_all(sock)
                except (OSError, TransportError) as error:
                    sys.stderr.write(f"{who}: {error}\n")


def _answer_all(sock: socket.socket) -> None:
    with contextlib.ExitStack() as stack, sock.makefile("rwb") as lines:
        processes: dict[int, Process] = {}
        ends = _Ends(stack)
        while line := lines.readline(_LONGEST_LINE):
            try:
                answer = {"done": _do(json.loads(line), processes, stack, ends)}
            except (AssertionError, KeyError, OSError, PeerError, TypeError, ValueError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            lines.write(json.dumps(answer).encode() + b"\n")
            lines.flush()


def _do(step: dict[str, Any], processes: dict[int, Process], stack: contextlib.ExitStack, ends: _Ends) -> Any:
    match step.pop("do"):
        case "gpus":
            return gpus_here()
        case "gpu_tests":
            return run_tests(step["only"])
        case "end" | "end_tell" | "end_line" | "end_over" as what:
            return getattr(ends, what)(**step)
        case "nccl_missing":
            return nccl_missing(step["backend"])
        case "nccl":
            stack.callback(subprocess.Popen(nccl_command(1, **step), stdout=subprocess.DEVNULL).kill)
            return None
        case "machine":
            return dataclasses.asdict(detect())
        case "start":
            process = stack.enter_context(Process(HardwareEndpoint, step["node"]))
            processes[step["node"]] = process
            return process.address
        case "perftest":
            return _start_perftest(stack)
        case "serve" | "receive" | "stop" | "resume" | "kill" as what:
            getattr(processes[step.pop("node")], what)(**step)
            return None
        case other:
            raise ValueError(f"{other!r} is not a step")


class _Ends:
    """An end of a measurement on this host, for the end on the other: see `measures.link_end`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._process: LineProcess | None = None

    def end(self, way: str, settings: str) -> Any:
        if way not in link_end.WAYS:
            raise ValueError(f"{way!r} is not a way")
        self._process = LineProcess(ThisHost(), link_end_command(way, os.environ[HOST], "serve", settings), way)
        self._stack.callback(self._process.close)
        return self.end_line()

    def end_tell(self, line: str) -> None:
        self._there().tell(line)

    def end_line(self) -> Any:
        told = json.loads(self._there().line(time.monotonic() + link_end.SECONDS))
        if "error" in told:
            raise ValueError(told["error"])
        return told

    def end_over(self) -> None:
        self._there().close()

    def _there(self) -> LineProcess:
        if self._process is None:
            raise ValueError("there is no end")
        return self._process


def _start_perftest(stack: contextlib.ExitStack) -> bool:
    command = perftest_command()
    if command is None:
        return False
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ucx_environment())
    stack.callback(process.kill)
    return True


def perftest_command(*arguments: str) -> list[str] | None:
    found = shutil.which("ucx_perftest")
    return None if found is None else [found, *arguments]


def ucx_environment() -> dict[str, str]:
    """Our settings, for UCX's own tools."""
    return {**os.environ, **{f"UCX_{name}": value for name, value in load().ucx.for_ucx().items()}}


# --- the host that runs -----------------------------------------------------------------------------------------


class Peer:
    """The connection to the host that serves."""

    def __init__(self, address: str, port: int, token: bytes) -> None:
        self._name = f"{address}:{port}"
        self._sock = socket.create_connection((address, port), timeout=5)
        run_blocking(client(Identity(2, token), Kind.CONTROL, self._name), self._sock, self._name)
        self.here: str = self._sock.getsockname()[0]
        self._lines = self._sock.makefile("rwb")

    def ask(self, do: str, *, within: float = _ANSWER_SECONDS, **arguments: Any) -> Any:
        self._sock.settimeout(within)
        self._lines.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._lines.flush()
        line = self._lines.readline(_LONGEST_LINE)
        if not line:
            raise ConnectionLostError("the serving host hung up", self._name, "see its output")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"on {self._name}: {answer['error']}")
        return answer["done"]

    def close(self) -> None:
        self._lines.close()
        self._sock.close()


class RemoteProcess:
    """An endpoint's process on the other host, as the checks know it."""

    def __init__(self, peer: Peer, node: int) -> None:
        self.node = node
        self._peer = peer
        self.address: str = peer.ask("start", node=node)

    def serve(self, receiver: int, key: StreamKey, seed: int, size: int, *, offset: int = 0, granule: int) -> None:
        self._ask("serve", receiver=receiver, key=key, seed=seed, size=size, offset=offset, granule=granule)

    def receive(self, sender: int, address: str, key: StreamKey, size: int, *, granule: int) -> None:
        self._ask("receive", sender=sender, address=address, key=key, size=size, granule=granule)

    def stop(self) -> None:
        self._ask("stop")

    def resume(self) -> None:
        self._ask("resume")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, what: str, **arguments: Any) -> None:
        self._peer.ask(what, node=self.node, **arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def connected(address: str, port: int, token: bytes, here: str | None) -> Iterator[Peer]:
    peer = Peer(address, port, token)
    try:
        os.environ[HOST] = here or peer.here
        yield peer
    finally:
        peer.close()
