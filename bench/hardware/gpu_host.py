"""What each of the two hosts tells of its GPUs, and does for a measurement of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hoplite_ucx.gpu import driver as cuda

__all__ = ["TEST_SECONDS", "gpus_here", "link_end_command", "nccl_command", "nccl_missing", "run_tests"]

TEST_SECONDS = 3600.0
_TESTS = Path("tests/gpu/device")
_NONE_SELECTED = 5  # of pytest


def gpus_here() -> list[str]:
    """The names of this host's GPUs."""
    if cuda.unavailable() is not None:
        return []
    driver = cuda.load()
    return [driver.name(number) for number in range(driver.count)]


def run_tests(only: str = "") -> dict[str, Any]:
    """The tests marked gpu, on this host; from a checkout, where they are."""
    if not _TESTS.is_dir():
        return {"missing": f"{_TESTS} is not here: run it in a checkout"}
    selected = ["-k", only] if only else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *selected, str(_TESTS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"passed": False, "summary": f"not done after {TEST_SECONDS:g} s", "failed": []}
    lines = done.stdout.splitlines()
    return {
        "passed": done.returncode == 0 or bool(only and done.returncode == _NONE_SELECTED),
        "summary": lines[-1] if lines else done.stderr[-500:],
        "failed": [line for line in lines if line.startswith(("FAILED", "ERROR"))],
    }


def nccl_missing(backend: str = "nccl") -> str | None:
    """Why this host cannot take part; None if it can."""
    try:
        import torch
        import torch.distributed as distributed
    except ImportError:
        return "torch is not installed on both hosts"
    if backend == "nccl" and not (torch.cuda.is_available() and distributed.is_nccl_available()):
        return f"torch {torch.__version__} has no CUDA, or no NCCL, on both hosts"
    return None


def link_end_command(way: str, host: str, end: str, settings: str) -> list[str]:
    return [sys.executable, "-m", "hoplite_ucx.bench.measures.link_end", way, host, end, settings]


def nccl_command(rank: int, address: str, size: int, backend: str) -> list[str]:
    return [sys.executable, "-m", "hoplite_ucx.bench.hardware.nccl", str(rank), address, str(size), backend]
