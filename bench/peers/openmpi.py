"""Open MPI through mpi4py: a process on every host, collectives on numpy buffers. mpirun says which algorithms.

Arguments: the cells.
"""

from __future__ import annotations

import mpi4py
import numpy as np
from mpi4py import MPI

from hoplite_ucx.bench.harness.contents import Array
from hoplite_ucx.bench.peers.rounds import run_ranks


class OpenMpi:
    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank, self.count = self._world.rank, self._world.size

    def latest(self, moment: float) -> float:
        latest = np.array([moment])
        self._world.Allreduce(MPI.IN_PLACE, latest, MPI.MAX)
        return float(latest[0])

    def broadcast(self, array: Array) -> Array:
        self._world.Bcast(array, 0)
        return array

    def reduce(self, mine: Array, result: Array) -> Array:
        self._world.Reduce(mine, result, MPI.SUM, 0)
        return result

    def allreduce(self, mine: Array, result: Array) -> Array:
        self._world.Allreduce(mine, result, MPI.SUM)
        return result

    def gather(self, mine: Array, parts: Array | None) -> None:
        self._world.Gather(mine, parts, 0)

    def there_and_back(self, array: Array) -> None:
        if self.rank == 0:
            self._world.Send(array, 1)
            self._world.Recv(array, 1)
        elif self.rank == 1:
            self._world.Recv(array, 0)
            self._world.Send(array, 0)


if __name__ == "__main__":
    library = MPI.Get_library_version().split(",")[0].removeprefix("Open MPI v")
    run_ranks(OpenMpi(), {"openmpi": library, "mpi4py": mpi4py.__version__})
