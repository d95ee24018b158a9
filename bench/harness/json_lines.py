"""How the programs of a measurement report: one JSON object per line on standard output, among lines of others."""

from __future__ import annotations

import json
import sys
from typing import Any

from hoplite_ucx.bench.hosts.line_process import LineProcess

__all__ = ["say", "told"]


def say(**report: Any) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def told(process: LineProcess, deadline: float, *expected: str) -> dict[str, Any]:
    """The next report with one of these names, before a moment of the monotonic clock. Other lines are skipped."""
    while True:
        line = process.line(deadline)
        if line.startswith("{"):
            report: dict[str, Any] = json.loads(line)
            if report.keys() & set(expected):
                return report
