"""A live cluster whose directory says how long its events took, with all that observes them. As a program, it is that
directory's process.

An event's time is that of the machine, of its observers, and of sending what follows; heartbeats do not count, since
they come whether anything is placed or not. It is processor time: on a machine that emulates many hosts, the clock
would also count for how long others were in the way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from time import thread_time
from types import MappingProxyType
from typing import Any

from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.places import Place

__all__ = ["EVENT_SECONDS", "TimedCluster"]

EVENT_SECONDS = "event_seconds"


class TimedCluster(LiveCluster):
    def _launch(
        self, host: Place, role: str, links: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        if role != "directory":
            return super()._launch(host, role, links)
        command = host.module("hoplite_ucx.bench.measures.timed_directory")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        directory = host.popen(command, env={**os.environ, **links}, **pipes)
        self._services.append((host, directory))
        return directory


# --- the directory's process ------------------------------------------------------------------------------------


def _main() -> int:
    parent = os.getppid()  # now: loading takes its time
    from hoplite_ucx.protocol.events import DirectoryEvent, FromNode, Tick
    from hoplite_ucx.protocol.messages import Heartbeat
    from hoplite_ucx.runtime.directory.server import DirectoryServer
    from hoplite_ucx.runtime.launch.processes import Served, run
    from hoplite_ucx.runtime.settings import load, of_directory

    class TimedServer(DirectoryServer):
        seconds = 0.0

        def dispatch(self, event: DirectoryEvent) -> None:
            began = thread_time()
            super().dispatch(event)
            took = thread_time() - began
            routine = type(event) is Tick or (type(event) is FromNode and type(event.message) is Heartbeat)
            self.seconds += 0.0 if routine else took

        def status(self) -> dict[str, Any]:
            return {**super().status(), EVENT_SECONDS: self.seconds}

    async def serve(task: dict[str, Any]) -> Served:
        settings = of_directory(load().for_directory())
        server = TimedServer(task["cluster"], bytes.fromhex(task["token"]), settings.cluster)
        address = await server.start(task["host"], task["port"])
        report = {"address": address, "cluster": task["cluster"], "metrics": server.serve_metrics(settings.metrics)}
        return Served(report, server.close)

    return run(serve, parent, tied_to_thread=False)


if __name__ == "__main__":
    sys.exit(_main())
