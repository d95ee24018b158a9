"""The conformance kit over ucx-py (`ucp`), on a host that has it, with both ends of the links in one process.

It runs in a process of its own: a process has one UCX, and that of `ci/hardware` is ucxx's where both are installed.
Checks that kill or stop another process are left out, since that process would use ucxx.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

from hoplite_ucx.transports.configuration import load
from hoplite_ucx.transports.interface import LinkLost
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker, tools
from hoplite_ucx.transports.testing.conformance.tools import OtherProcess
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.ucx_py import UcxPyLibrary

__all__ = ["check_here", "ucx_py_report"]

_SECONDS = 1800


class _OtherProcessError(Exception):
    """The check needs one."""


class _UcxPyEndpoint(UcxEndpoint):
    """Uses UCX as this host's configuration says."""

    def __init__(self, node: int, token: bytes = b"", *, on_lost: LinkLost | None = None) -> None:
        self.settings = load().ucx
        super().__init__(node, token, on_lost=on_lost)


def ucx_py_report(only: str = "") -> dict[str, Any]:
    """What became of the checks, or why there are none."""
    if find_spec("ucp") is None:
        return {"not_run": "ucx-py (ucp) is not installed on this host"}
    command = [sys.executable, "-m", __name__, only]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        return {"checks": json.loads(done.stdout)}
    except subprocess.TimeoutExpired:
        return {"not_run": f"the checks over ucx-py took longer than {_SECONDS} s"}
    except ValueError:
        return {"not_run": f"the checks over ucx-py ended with {done.returncode}: {done.stderr.strip()[-500:]}"}


def check_here(only: str = "") -> list[dict[str, Any]]:
    """In this process, whose UCX is ucx-py's from now on."""
    library.load = UcxPyLibrary  # type: ignore[assignment]
    found = []
    for check in CHECKS:
        if only not in check.__name__:
            continue
        began, failure = time.monotonic(), ""
        try:
            with tools.other_processes(_refuse):
                check(_UcxPyEndpoint)
        except _OtherProcessError:
            continue
        except Exception as error:  # whatever it is belongs into the report
            failure = f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - began, 3)
        name = check.__name__.removeprefix("check_")
        found.append({"check": name, "passed": not failure, "failure": failure, "seconds": seconds})
    return found


def _refuse(_make: Maker, _node: int) -> OtherProcess:
    raise _OtherProcessError


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check_here(*sys.argv[1:])))
