"""`ci/rdma`: the RDMA tests in a guest with Soft-RoCE. Software RDMA, real verbs; says nothing of cards or of speed."""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.rdma.fetching import Cache, LackingError
from tests.rdma.guests import Plan, Result, run_in_qemu, run_in_user_mode

_SECONDS = {"quick": 600, "default": 3600, "live": 2400}
_DISK = {"quick": 1 << 30, "default": 1 << 30, "live": 4 << 30}
_MEMORY = 3 << 30


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="ci/rdma", description="The RDMA tests, in a guest with software RDMA. Prints a JSON report."
    )
    parser.add_argument("--quick", action="store_true", help="doctor, 100 rises, stream checks, one kill")
    parser.add_argument(
        "--live", action="store_true", help="also live clusters, faults and failover, in a user-mode kernel"
    )
    parser.add_argument("--only", default="", help="tests whose names fit this expression of pytest -k")
    parser.add_argument("--seconds", type=float, help="how long the tests of one guest may take")
    parser.add_argument("--fetch", action="store_true", help="fetch and build what is missing, and run nothing")
    parser.add_argument("--report", type=Path, help="also write the report here")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    try:
        return _run(given)
    except LackingError as lacking:
        sys.stderr.write(f"ci/rdma: {lacking}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("ci/rdma: interrupted; nothing is left running\n")
        return 130


def _run(given: argparse.Namespace) -> int:
    began = time.monotonic()
    cache = Cache(_cache_place(), _say)
    tiers = (["quick"] if given.quick else [] if given.only and given.live else ["default"]) + ["live"] * given.live
    _check_room(cache.place, tiers)
    if given.fetch:
        for make in (cache.qemu, cache.kernel, cache.ucx, *((cache.user_mode_kernel,) if given.live else ())):
            make()
        _say(f"{cache.fetched / 1e6:.0f} MB came over the network, in {time.monotonic() - began:.0f} s")
        return 0
    _compile()
    results: dict[str, Result] = {}
    for tier in tiers:
        with tempfile.TemporaryDirectory(prefix="hoplite-rdma-") as folder:
            plan = Plan(tier, Path.cwd(), Path(folder), given.seconds or _SECONDS[tier], given.only)
            run = run_in_user_mode if tier == "live" else run_in_qemu
            results[tier] = run(cache, plan, _say)
            if not results[tier].passed:
                _show_log(plan, results[tier])
    report = {
        "what": "software RDMA (Soft-RoCE), real verbs; says nothing about cards, or about speed",
        "passed": all(result.passed for result in results.values()),
        "seconds": round(time.monotonic() - began, 1),
        "fetched_megabytes": round(cache.fetched / 1e6, 1),
        "guests": {tier: dataclasses.asdict(result) for tier, result in results.items()},
    }
    text = json.dumps(report, indent=2) + "\n"
    sys.stdout.write(text)
    if given.report is not None:
        given.report.write_text(text)
    counts = {tier: sum(test["outcome"] == "passed" for test in result.tests) for tier, result in results.items()}
    for tier, result in results.items():
        failed = len(result.tests) - counts[tier]
        _say(f"{tier}: {counts[tier]} passed, {failed} not{f'; {result.failure}' if result.failure else ''}")
    return 0 if report["passed"] else 1


def _compile() -> None:
    """A guest writes nothing here, and each of its processes would compile every module again, in software."""
    for folder in ("hoplite_ucx", "transports", "gpu", "bench", "tests/rdma", "tests/tools"):
        compileall.compile_dir(folder, quiet=2)


def _cache_place() -> Path:
    given = os.environ.get("HOPLITE_RDMA_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "hoplite-ucx" / "rdma"


def _check_room(place: Path, tiers: list[str]) -> None:
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise LackingError(f"{existing} cannot be written to: set HOPLITE_RDMA_CACHE to a folder of yours")
    wanted = max(_DISK[tier] for tier in tiers)
    if (free := shutil.disk_usage(existing).free) < wanted:
        raise LackingError(f"only {free >> 20} MiB are free at {existing}, and {wanted >> 20} are needed")
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    if available < _MEMORY:
        raise LackingError(f"only {available >> 20} MiB of memory are available, and a guest takes {_MEMORY >> 20}")


def _show_log(plan: Plan, result: Result) -> None:
    """What a person needs to see why."""
    names = ["console"] if result.boot_seconds is None else ["pytest.log", "device.log"]
    for path in (plan.folder / name for name in names):
        if path.exists():
            lines = path.read_text(errors="replace").splitlines()[-60:]
            sys.stderr.write("".join(f"    {line}\n" for line in lines))


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
