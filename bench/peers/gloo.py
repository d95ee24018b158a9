"""Gloo through torch.distributed: a process on every host, collectives on CPU tensors, with its own choices.

Arguments: the cells, this rank, how many there are, and the address of rank 0.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from hoplite_ucx.bench.harness.contents import Array
from hoplite_ucx.bench.peers.rounds import run_ranks

_PORT = 29511


class Gloo:
    def __init__(self, rank: int, count: int, address: str) -> None:
        self.rank, self.count = rank, count
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        dist.init_process_group(
            "gloo", init_method=f"tcp://{address}:{_PORT}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
        )

    def latest(self, moment: float) -> float:
        tensor = torch.tensor([moment], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor[0])

    def broadcast(self, array: Array) -> Array:
        dist.broadcast(torch.from_numpy(array), 0)
        return array

    def reduce(self, mine: Array, _result: Array) -> Array:
        dist.reduce(torch.from_numpy(mine), 0)
        return mine

    def allreduce(self, mine: Array, _result: Array) -> Array:
        dist.all_reduce(torch.from_numpy(mine))
        return mine

    def gather(self, mine: Array, parts: Array | None) -> None:
        dist.gather(torch.from_numpy(mine), None if parts is None else list(torch.from_numpy(parts)), 0)

    def there_and_back(self, array: Array) -> None:
        tensor = torch.from_numpy(array)
        if self.rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        elif self.rank == 1:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)


if __name__ == "__main__":
    run_ranks(Gloo(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]), {"torch": torch.__version__})
    dist.destroy_process_group()
