"""Runs on a machine that is reached through ssh, beside the processes of a measurement, and makes sure that they end.

    python -m hoplite_ucx.bench.hosts.ssh_guard MARK SILENCE

It first tells about the machine and the software there, as a line of JSON, and then answers a line with a line: what
its clock says, how much processor time a process has taken. An empty line only says that the driver lives. When its
standard input ends, or nothing came for SILENCE seconds (the driver's machine or the network is gone, which no
connection tells), it kills every process of its user whose environment has the mark, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import IO, Any

from hoplite_ucx.bench.harness import machine_facts
from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts.places import processor_seconds

__all__ = ["VARIABLE"]

# Every process that is started on another machine has it in its environment: the run's mark, a slash, its number.
VARIABLE = "HOPLITE_BENCH_PROCESS"

_PATIENCE = 5.0


def main(mark: str, silence: float) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's business
    try:
        # Without a buffer, so that waiting for a line and reading it agree on what has come.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as asked:
            _say(_introduction())
            while line := _line(asked, silence):
                if line.strip():
                    _say(_answer(mark, json.loads(line)))
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second signal must not prevent this
        _kill_all(mark)


def _introduction() -> dict[str, Any]:
    return {
        "versions": machine_facts.versions(),
        "machine": machine_facts.facts(),
        "memory_available": machine_facts.memory_available(),
        "folder": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        # The address by which the driver came here.
        "address": os.environ.get("SSH_CONNECTION", "").split()[2:3],
    }


def _answer(mark: str, asked: dict[str, Any]) -> float:
    if asked["what"] == "clock":
        return time.monotonic()
    taken = 0.0
    for pid in _bearers(f"{mark}/{asked['process']}"):
        with contextlib.suppress(OSError):  # it has just ended
            taken += processor_seconds(pid)
    return taken


def _line(asked: IO[bytes], silence: float) -> bytes:
    """The next line; nothing at the end, or when there was silence, in the middle of a line too."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([asked], [], [], silence)[0] or not (piece := asked.read(1)):
            return b""
        line += piece
    return line


def _say(told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _bearers(mark: str) -> list[int]:
    """The processes whose mark is this one, or begins with it and a slash."""
    return [pid for pid, value in namespace_keeper.marked(VARIABLE).items() if f"{value}/".startswith(f"{mark}/")]


def _kill_all(mark: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (left := set(_bearers(mark)) - {os.getpid()}) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
