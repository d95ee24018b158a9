"""The view's process: `run_module.py hoplite_ucx.view view PARENT tied|free`, see `runtime.launch.processes`.

It serves on a socket that it inherits, and ends by itself when nobody has looked for a while: whoever holds the socket
starts it again. Without one, it listens at a port of its own, and stays.
"""

import asyncio
import math
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from hoplite_ucx.runtime.launch.processes import Served, run
from hoplite_ucx.runtime.launch.view_port import listen
from hoplite_ucx.view.serving import View, open_view

_IDLE = 120.0
_LOOK = 5.0


async def _serve(task: dict[str, Any]) -> Served:
    sock = socket.socket(fileno=task["fd"]) if "fd" in task else listen(task["host"], task["port"])
    view = await open_view(task["directory"], bytes.fromhex(task["token"]), sock, task["host"])
    ending = asyncio.get_running_loop().create_task(_end_when_idle(view, _IDLE if "fd" in task else math.inf))

    async def stop() -> None:
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending
        await view.close()

    return Served({"address": view.address, "cluster": view.cluster}, stop)


async def _end_when_idle(view: View, seconds: float) -> None:
    while view.server.idle() < seconds:
        await asyncio.sleep(_LOOK)
    signal.raise_signal(signal.SIGTERM)  # a regular shutdown


if __name__ == "__main__":
    _, _, named, tie = sys.argv
    parent = os.getppid() if named == "any" else int(named)
    sys.exit(run(_serve, parent, tied_to_thread=tie == "tied"))
