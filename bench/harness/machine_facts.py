"""What a figure was taken on: processors, kernel, Python, memory, and the versions of what was measured."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import hoplite_ucx
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = [
    "MEMORY_SHARE",
    "check_memory",
    "check_memory_of",
    "facts",
    "memory_available",
    "memory_needed",
    "versions",
]

MEMORY_SHARE = 0.7
"""The share of the available memory that a measurement may use."""

_PROCESSES = 200 << 20  # what the processes of one host take before the first object, of us or of any peer


def facts() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _processor() -> str | None:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as table:
        for line in table:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


@functools.cache
def _commit() -> str | None:
    """Of the checkout that this runs from, with a mark if its files were changed; None for an installed package."""

    def git(*words: str) -> str:
        command = ["git", "-C", os.path.dirname(__file__), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = git("rev-parse", "--short", "HEAD")
        # The figures themselves may be written into the checkout.
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)docs/figures")
        return f"{commit}, changed" if changed else commit
    return None


def versions() -> dict[str, str]:
    return {"hoplite": hoplite_ucx.__version__, "numpy": np.__version__}


def memory_available() -> int:
    with open("/proc/meminfo") as table:
        (line,) = (line for line in table if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


def memory_needed(operation: str, hosts: int, size: int) -> int:
    """About the most that a round has at one time, on all hosts together."""
    return sum(memory_needed_on(host, operation, hosts, size) for host in range(hosts))


def memory_needed_on(host: int, operation: str, hosts: int, size: int) -> int:
    """On one host: an object, its copy in a store, scratch and a result; host 0 of a gather has all objects, in a store
    and in a user's hands."""
    objects = 4 + (2 * hosts if operation == "gather" and host == 0 else 0)
    return objects * size + _PROCESSES


def check_memory(operation: str, hosts: int, size: int) -> None:
    _check(f"{operation} of {size} bytes", memory_needed(operation, hosts, size), memory_available(), f"{hosts} hosts")


def check_memory_of(machines: Mapping[str, int], operation: str, size: int) -> None:
    """The same of machines that have memory of their own: how much is available, by their names."""
    for host, (name, there) in enumerate(machines.items()):
        _check(f"{operation} of {size} bytes", memory_needed_on(host, operation, len(machines), size), there, name)


def _check(what: str, needed: int, there: int, where: str) -> None:
    if needed > MEMORY_SHARE * there:
        raise PeerError(
            f"{what} takes about {needed >> 20} MiB of memory on {where}; "
            f"{there >> 20} MiB are available, of which {MEMORY_SHARE:.0%} may be used"
        )
