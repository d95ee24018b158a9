"""Where the processes of a measurement run: an emulated host of this machine, or another machine.

A `Place` is all that the live cluster, its rounds and the bare sockets know of either. What differs is here: how a
process is started, which Python runs there and where its files are, whose clock moments are on, and how the processor
time of a process is known. `LocalPlace` is what all places on this machine have in common; `ssh` has the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hoplite_ucx.runtime.launch import processes

__all__ = ["Clock", "LocalPlace", "Place", "processor_seconds"]


@dataclass(frozen=True)
class Clock:
    """How far the monotonic clock of a place is ahead of this machine's, in seconds, and how wrong that may be."""

    ahead: float = 0.0
    error: float = 0.0


class Place(Protocol):
    @property
    def name(self) -> str:
        """Its name for people."""

    @property
    def address(self) -> str:
        """Where its processes listen, and where others reach them."""

    @property
    def python(self) -> Sequence[str]:
        """The beginning of a command line that runs Python there."""

    def module(self, name: str) -> Sequence[str]:
        """The beginning of a command line that runs a module of this package there."""

    @property
    def folder(self) -> str:
        """Where the files of `hoplite_ucx.bench` are there."""

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process there. When its standard input ends, so must the process, by itself."""

    def clock(self) -> Clock:
        """As it is now; clocks drift."""

    def processor(self, process: subprocess.Popen[Any]) -> float:
        """The processor time that a process which was started here has taken so far."""


class LocalPlace:
    """A place that shares this machine's files, clock and processes."""

    python: Sequence[str] = (sys.executable,)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    def module(self, name: str) -> Sequence[str]:
        return processes.module(name)

    def clock(self) -> Clock:
        return Clock()

    def processor(self, process: subprocess.Popen[Any]) -> float:
        return processor_seconds(process.pid)


def processor_seconds(pid: int) -> float:
    """What a process has taken so far, by its own clock in the kernel: unlike /proc, in nanoseconds."""
    return time.clock_gettime(~pid << 3 | 2)
