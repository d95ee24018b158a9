"""A live cluster whose reduce trees all have one degree, to hold the directory's own choice against.

The product has no such setting: here a directory of the same kind as any other builds its reductions with a fixed
number of terms a slot, 1 for a chain, as many as there are hosts for a star. As a program, it is that directory's
process; its argument is the degree.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.places import Place

__all__ = ["FixedDegreeCluster"]


class FixedDegreeCluster(LiveCluster):
    def __init__(self, hosts: Sequence[Place], rate: float, degree: int) -> None:
        super().__init__(hosts, rate)
        self._degree = degree

    def _launch(
        self, host: Place, role: str, links: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[bytes]:
        if role != "directory":
            return super()._launch(host, role, links)
        command = [*host.module("hoplite_ucx.bench.paper.fixed_degree"), str(self._degree)]
        directory = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._services.append((host, directory))
        return directory


# --- the directory's process ------------------------------------------------------------------------------------


def _main(degree: int) -> int:
    parent = os.getppid()  # now: loading takes its time
    from hoplite_ucx.runtime.directory.server import DirectoryServer
    from hoplite_ucx.runtime.launch.processes import Served, run
    from hoplite_ucx.simulate.static import reducing_directory

    class FixedDegreeServer(DirectoryServer):
        directory_machine = reducing_directory(degree)

    async def serve(task: dict[str, Any]) -> Served:
        server = FixedDegreeServer(task["cluster"], bytes.fromhex(task["token"]))
        address = await server.start(task["host"], task["port"])
        return Served({"address": address, "cluster": task["cluster"]}, server.close)

    return run(serve, parent, tied_to_thread=False)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
