"""The host that runs: every check, registration, rails, kills and throughput, and what UCX really used for them.

A link without an RDMA lane is never called RDMA, whatever was requested: the report names the lanes, and says in
`not_tried_on_hardware` what it therefore does not show.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hoplite_ucx.bench.hardware.gpu_host import gpus_here
from hoplite_ucx.bench.hardware.gpus import measure_gpus
from hoplite_ucx.bench.hardware.gpus import not_tried as gpus_not_tried
from hoplite_ucx.bench.hardware.remote_host import (
    HardwareEndpoint,
    Peer,
    RemoteProcess,
    connected,
    perftest_command,
    ucx_environment,
)
from hoplite_ucx.bench.hardware.ucx_py_checks import ucx_py_report
from hoplite_ucx.transports.buffers import Memory
from hoplite_ucx.transports.configuration import load
from hoplite_ucx.transports.detection import detect
from hoplite_ucx.transports.interface import Fault
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker, tools
from hoplite_ucx.transports.testing.conformance.tools import Receiving, next_key, wait_until
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["not_tried", "passed", "run"]

_GRANULES = (64 << 10, 1 << 20, 4 << 20)
_REPEAT = 5
_PERFTEST_SECONDS = 60
_MEASURE_SECONDS = 4.0
_LEAST_MESSAGES = 10
_ME, _THEM = 2, 9
_SEED = 1
_RDMA = ("rc", "dc", "ud", "srd")


def run(
    address: str,
    port: int,
    token: bytes,
    *,
    here: str | None,
    size: int,
    long: int,
    only: str = "",
    links: bool = True,
    gpus: bool = True,
) -> dict[str, Any]:
    """`long` is the size of a transfer that does not end before its process is killed. Links are checked, and GPUs
    where both hosts have some, unless one of them is not wanted."""
    report: dict[str, Any] = {"checks": [], "gpus": None}
    with connected(address, port, token, here) as peer:
        if links:
            report |= _run_links(peer, address, size, long, only)
        if gpus and gpus_here() and peer.ask("gpus"):
            report["gpus"] = measure_gpus(peer, address, here or peer.here, size=size, only=only)
    return report | {"not_tried_on_hardware": [*not_tried(report.get("lanes", [])), *gpus_not_tried(report["gpus"])]}


def passed(report: dict[str, Any]) -> bool:
    tests = report["gpus"]["tests"].values() if report["gpus"] is not None else ()
    checks = [*report["checks"], *report.get("ucx_py", {}).get("checks", [])]
    return all(check["passed"] for check in checks) and all(each.get("passed", True) for each in tests)


def _run_links(peer: Peer, address: str, size: int, long: int, only: str) -> dict[str, Any]:
    settings = load().ucx
    machines = {"here": dataclasses.asdict(detect()), "there": peer.ask("machine")}
    checks = [_check(peer, check) for check in CHECKS if only in check.__name__]
    throughput = [_throughput(peer, settings, size, granule) for granule in _GRANULES]
    return {
        "settings": settings.agreed() | {"net_devices": settings.net_devices},
        "machines": machines,
        "lanes": throughput[-1]["lanes"],
        "checks": checks,
        "kills": _kills(peer, long),
        "registration": _registration(peer, size),
        "throughput": throughput,
        "rails": _rails(peer, settings, size),
        "ucx_perftest": _perftest(peer, address, throughput[-1]["bytes_per_second"]),
        "ucx_py": ucx_py_report(only),
    }


# --- checks -----------------------------------------------------------------------------------------------------


def _check(peer: Peer, check: Callable[[Maker], None]) -> dict[str, Any]:
    """The other process of a check is on the other host; a check that needs none runs on this one alone."""
    began = time.monotonic()
    asked: list[int] = []

    def process(_make: Maker, node: int) -> RemoteProcess:
        asked.append(node)
        return RemoteProcess(peer, node)

    failure = ""
    try:
        with tools.other_processes(process):
            check(HardwareEndpoint)
    except Exception as error:  # whatever it is belongs into the report
        failure = f"{type(error).__name__}: {error}"
    return {
        "check": check.__name__.removeprefix("check_"),
        "hosts": 2 if asked else 1,
        "passed": not failure,
        "failure": failure,
        "seconds": round(time.monotonic() - began, 3),
    }


def _kills(peer: Peer, size: int) -> dict[str, float]:
    """Seconds until the receiver knows: of a kill by itself; of a stop, until a cancelled stream has let go."""

    def begun(end: HardwareEndpoint, process: RemoteProcess) -> Receiving:
        key = next_key()
        process.serve(end.node, key, 1, size, granule=1 << 20)
        incoming = Receiving(end, process.node, process.address, key, size, granule=1 << 20)
        wait_until(lambda: incoming.memory.watermark() > 0, "the stream runs")
        return incoming

    with HardwareEndpoint(_ME) as end:
        with RemoteProcess(peer, _THEM) as process:
            incoming = begun(end, process)
            began = time.monotonic()
            process.kill()
            _, fault = incoming.wait()
            killed = time.monotonic() - began if fault is Fault.BROKEN else 0.0
        with RemoteProcess(peer, _THEM + 1) as process:
            incoming = begun(end, process)
            process.stop()
            time.sleep(0.2)
            began = time.monotonic()
            incoming.cancel()
            incoming.wait()
            cancelled = time.monotonic() - began
    return {"kill_noticed_seconds": killed, "stopped_cancelled_seconds": cancelled}


# --- measurements -----------------------------------------------------------------------------------------------


class _Link:
    """A link from a process on the other host, over these devices of this host."""

    def __init__(self, peer: Peer, settings: UcxSettings, stack: ExitStack) -> None:
        self._end = stack.enter_context(HardwareEndpoint(_ME, settings=settings))
        self._process = stack.enter_context(RemoteProcess(peer, _THEM))

    def seconds(self, size: int, granule: int, memory: Memory) -> float:
        """How long an object takes, without the comparison of every byte that follows."""
        key = next_key()
        self._process.serve(self._end.node, key, _SEED, size, granule=granule)
        began = time.perf_counter()
        stream = Receiving(
            self._end, self._process.node, self._process.address, key, size, granule=granule, memory=memory
        )
        stream.wait()
        took = time.perf_counter() - began
        stream.complete(_SEED)
        return took

    def lanes(self) -> list[str]:
        return sorted({lane for lanes in self._end.transport.lanes().values() for lane in lanes})


def _throughput(peer: Peer, settings: UcxSettings, size: int, granule: int) -> dict[str, Any]:
    """The median of several objects into memory that was used before."""
    with ExitStack() as stack:
        link = _Link(peer, settings, stack)
        array = bytearray(size)
        link.seconds(size, granule, Memory(array))
        seconds = statistics.median(link.seconds(size, granule, Memory(array)) for _ in range(_REPEAT))
        return {
            "granule": granule,
            "bytes_per_second": round(size / seconds),
            "lanes": link.lanes(),
            "net_devices": settings.net_devices,
        }


def _registration(peer: Peer, size: int) -> dict[str, float]:
    """The first object into fresh memory, and the next into the same: on RDMA the difference is pages and their
    registration, elsewhere pages alone."""
    with ExitStack() as stack:
        link = _Link(peer, load().ucx, stack)
        link.seconds(1 << 20, 1 << 20, Memory(bytearray(1 << 20)))  # the link is open
        array = bytearray(size)
        return {
            "first_seconds": link.seconds(size, 1 << 20, Memory(array)),
            "again_seconds": link.seconds(size, 1 << 20, Memory(array)),
        }


def _rails(peer: Peer, settings: UcxSettings, size: int) -> list[dict[str, Any]]:
    """Each device of the settings alone, and all together; nothing if there is only one. One that does not reach the
    other host is told as such."""
    if len(settings.net_devices) < 2:
        return []
    measured: list[dict[str, Any]] = []
    for devices in (*((device,) for device in settings.net_devices), settings.net_devices):
        try:
            measured.append(_throughput(peer, replace(settings, net_devices=devices), size, 4 << 20))
        except AssertionError as error:
            measured.append({"net_devices": devices, "failure": str(error)})
    return measured


def perftest_messages(bytes_per_second: float) -> int:
    """How many messages of 1 MiB take a few seconds on a link as fast as this: a fixed number takes minutes on some."""
    return max(_LEAST_MESSAGES, round(_MEASURE_SECONDS * bytes_per_second / (1 << 20)))


def _perftest(peer: Peer, address: str, bytes_per_second: float) -> dict[str, Any]:
    """UCX's own figure for messages of 1 MiB under the same settings, where both hosts have the tool."""
    messages = perftest_messages(bytes_per_second)
    counts = ("-n", str(messages), "-w", str(max(1, messages // 20)))
    command = perftest_command(address, "-t", "tag_bw", "-s", str(1 << 20), *counts, "-f")
    if command is None or not peer.ask("perftest"):
        return {"missing": "ucx_perftest is not on both hosts"}
    time.sleep(1)  # it says nothing when it is ready
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PERFTEST_SECONDS, env=ucx_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return {"missing": f"ucx_perftest was not done after {_PERFTEST_SECONDS} s"}
    last = next((line for line in reversed(done.stdout.splitlines()) if re.match(r"\s*(Final:)?\s*\d", line)), "")
    return {"status": done.returncode, "last_line": last.strip(), "error": done.stderr.strip()[-500:]}


def not_tried(lanes: list[str]) -> list[str]:
    rails = {lane.partition("/")[2] for lane in lanes if lane.startswith(_RDMA)}  # one may have several lanes
    missing = [] if rails else [f"RDMA: these links used {', '.join(lanes) or 'nothing'}"]
    if len(rails) < 2:
        missing.append("several RDMA rails")
    return missing
