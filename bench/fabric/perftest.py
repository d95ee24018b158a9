"""What the network itself can do between two machines, by perftest's `ib_write_bw`: RDMA links are compared with it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from hoplite_ucx.bench.hosts.places import Place

__all__ = ["bandwidth", "figure_of", "tool_on"]

_TOOL = "ib_write_bw"
_PORT = 18515
_SIZE = 1 << 20
_SECONDS, _MARGIN = 5, 1
"""Of the seconds, the margin at either end does not count; perftest's own is 2 s."""
_PATIENCE = 60.0
_AGAIN = 0.5
_FIGURES = re.compile(rf"^\s*{_SIZE}\s+(\d+)\s+[\d.]+\s+([\d.]+)", re.MULTILINE)


def tool_on(place: Place, name: str = _TOOL) -> bool:
    """Whether a command is installed there."""
    return _output(place, ["sh", "-c", f"command -v {name}"])[0] == 0


def bandwidth(server: Place, client: Place, devices: Sequence[str]) -> float | str:
    """Bytes per second from the client's device to the server's, or why there is no figure."""
    missing = [place.name for place in (server, client) if not tool_on(place)]
    if missing:
        return f"{_TOOL} (perftest) is not installed on {', '.join(missing)}"
    common = ["-F", "--report_gbits", "-s", str(_SIZE), "-D", str(_SECONDS), "-f", str(_MARGIN), "-p", str(_PORT)]
    there, here = ([_TOOL, *common, *_device(device)] for device in devices)
    serving = server.popen(there, **_QUIET)
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            status, said = _output(client, [*here, server.address])
            if (figure := figure_of(said)) is not None:
                return figure
            if serving.poll() is not None or time.monotonic() > end:
                return (
                    f"{_TOOL} failed with {status}: {' / '.join(said.strip().splitlines()[-2:]) or 'it said nothing'}"
                )
            time.sleep(_AGAIN)  # the server was not there yet
    finally:
        serving.kill()
        serving.wait()


def figure_of(said: str) -> float | None:
    """Bytes per second, from what the tool printed. Where it cannot tell how fast the processor's clock is, its average
    is 0, and its messages count."""
    if (found := _FIGURES.search(said)) is None:
        return None
    messages, gigabits = int(found[1]), float(found[2])
    return (gigabits * 1e9 / 8 or messages * _SIZE / (_SECONDS - 2 * _MARGIN)) or None


def _device(name: str) -> list[str]:
    device, _, port = name.partition(":")
    return ["-d", device, *(["-i", port] if port else [])]


_QUIET: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


def _output(place: Place, command: Sequence[str]) -> tuple[int, str]:
    """How it ended, and all that it said; it is killed when it takes too long."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with place.popen(command, **pipes) as process:
        try:
            said, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        with contextlib.suppress(OSError):
            process.kill()
    return process.returncode, said.decode(errors="replace")
