"""Memory of GPUs between two hosts and within each: tests that passed, and rates by path, beside other tools.

A path is named after what it really was: staged or direct as the links say, with UCX's own lanes. GPUs that a test made
up are called so, and nothing that was measured on them counts as tried on hardware.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from hoplite_ucx.bench.hardware.gpu_host import (
    TEST_SECONDS,
    gpus_here,
    link_end_command,
    nccl_command,
    nccl_missing,
    run_tests,
)
from hoplite_ucx.bench.hardware.remote_host import Peer, perftest_command, ucx_environment
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError, ThisHost
from hoplite_ucx.bench.measures import link_end
from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.transports.configuration import load
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["measure_gpus", "not_tried"]

_BETWEEN = ("tcp", "tcp-gpu", "ucx", "ucx-gpu")
_WITHIN = ("gpu-copy", "gpu-peers")
_FRAME = 4 << 20
_REPEAT = 5
_TOOL_SECONDS = 120
_NCCL_PORT = 7790


def measure_gpus(peer: Peer, address: str, here: str, *, size: int, only: str = "") -> dict[str, Any]:
    """Everything of GPUs, of both hosts."""
    there: list[str] = peer.ask("gpus")
    settings = load().ucx
    return {
        "gpus": {"here": gpus_here(), "there": there},
        "tests": {"here": run_tests(only), "there": peer.ask("gpu_tests", within=TEST_SECONDS, only=only)},
        "between_hosts": [_told(way, partial(_between, peer, way, here, settings, size)) for way in _BETWEEN],
        "within_host": [_told(way, partial(_within, way, size)) for way in _WITHIN],
        "ucx_perftest": _perftest(peer, address),
        "nccl_between_hosts": _nccl(peer, here, size),
        "nccl_within_host": _nccl_tests(size),
    }


def not_tried(report: dict[str, Any] | None) -> list[str]:
    """What a report does not show of GPUs."""
    if report is None:
        return ["device memory: links were checked with host memory"]
    names = [name for names in report["gpus"].values() for name in names]
    made_up = sorted({name for name in names if name.startswith("Made-up")})
    missing = [f"GPUs: these are made up ({', '.join(made_up)})"] if made_up else []
    paths = {each.get("path") for each in report["between_hosts"]}
    if not any(path and path.startswith("direct") for path in paths):
        missing.append("memory of GPUs that goes direct")
    if "gpu-peers" not in {each["way"] for each in report["within_host"] if "bytes_per_second" in each}:
        missing.append("copies between GPUs of a host")
    return missing


def _told(way: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What cannot be measured is told as such: the rest goes on."""
    try:
        return {"way": way, **measure()}
    except (PeerError, AssertionError, OSError) as error:
        return {"way": way, "failure": str(error)[:500]}


class _Ends:
    """Two processes of `link_end`, one on each host."""

    def __init__(self, peer: Peer, way: str, here: str, settings: UcxSettings) -> None:
        told = msgspec.json.encode(settings).decode()
        self._peer = peer
        self._here = LineProcess(ThisHost(), link_end_command(way, here, "pull", told), f"{way}, here")
        address: str = peer.ask("end", way=way, settings=told)["done"]
        mine = self._answer()["done"]
        self.both({"do": "meet", "address": mine}, {"do": "meet", "address": address})

    def both(self, there: dict[str, Any], here: dict[str, Any]) -> Any:
        """The answer of the end here."""
        self._peer.ask("end_tell", line=json.dumps(there))
        self._here.tell(json.dumps(here))
        answer = self._answer()["done"]
        self._peer.ask("end_line")
        return answer

    def close(self) -> None:
        self._here.close()
        self._peer.ask("end_over")

    def _answer(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._here.line(time.monotonic() + link_end.SECONDS + 10))
        if "error" in told:
            raise PeerError(told["error"])
        return told


@contextlib.contextmanager
def _ends(peer: Peer, way: str, here: str, settings: UcxSettings) -> Iterator[_Ends]:
    ends = _Ends(peer, way, here, settings)
    try:
        yield ends
    finally:
        ends.close()


def _between(peer: Peer, way: str, here: str, settings: UcxSettings, size: int) -> dict[str, Any]:
    how = {"size": size, "frame": min(size, _FRAME)}
    with _ends(peer, way, here, settings) as ends:
        seconds = [ends.both({"do": "serve", **how}, {"do": "pull", **how}) for _ in range(_REPEAT + 1)][1:]
        lanes = ends.both({"do": "lanes"}, {"do": "lanes"})
        path = ends.both({"do": "path"}, {"do": "path"})
    return {"bytes_per_second": round(size / statistics.median(seconds)), "path": path, "lanes": lanes}


def _within(way: str, size: int) -> dict[str, Any]:
    """Between the first and the last GPU of this host, or within the first."""
    made = link_end.make(way, "", False, UcxSettings())
    seconds = [made.pull(size, min(size, _FRAME)) for _ in range(_REPEAT + 1)][1:]
    driver = cuda.load()
    path = "peers" if driver.reaches(driver.count - 1, 0) else "through the host"
    return {"bytes_per_second": round(size / statistics.median(seconds)), "path": path if way == "gpu-peers" else ""}


# --- other tools ------------------------------------------------------------------------------------------------


def _perftest(peer: Peer, address: str) -> dict[str, Any]:
    """UCX's own figure for messages of 4 MiB in memory of GPUs."""
    command = perftest_command(address, "-t", "tag_bw", "-s", str(_FRAME), "-n", "500", "-w", "20", "-m", "cuda", "-f")
    if command is None or not peer.ask("perftest"):
        return {"missing": "ucx_perftest is not on both hosts"}
    time.sleep(1)  # it says nothing when it is ready
    return _run(command, ucx_environment())


def _nccl(peer: Peer, here: str, size: int, backend: str = "nccl") -> dict[str, Any]:
    """What NCCL sends from one host to the other, through torch."""
    if (why := peer.ask("nccl_missing", backend=backend) or nccl_missing(backend)) is not None:
        return {"missing": why}
    peer.ask("nccl", address=f"{here}:{_NCCL_PORT}", size=size, backend=backend)
    told = _run(nccl_command(0, f"{here}:{_NCCL_PORT}", size, backend))
    return told | (json.loads(told["last_line"]) if told["status"] == 0 else {})


def _nccl_tests(size: int) -> dict[str, Any]:
    """An allreduce of all GPUs of this host, by NCCL's own tests."""
    found = shutil.which("all_reduce_perf")
    if found is None:
        return {"missing": "all_reduce_perf of nccl-tests is not installed"}
    return _run([found, "-b", str(size), "-e", str(size), "-g", str(len(gpus_here()))])


def _run(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"status": -1, "last_line": "", "error": f"not done after {_TOOL_SECONDS} s"}
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return {"status": done.returncode, "last_line": lines[-1] if lines else "", "error": done.stderr.strip()[-500:]}
