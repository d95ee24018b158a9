"""Actors that are members of a collective group."""

import os
from typing import Any

import numpy as np
import ray


@ray.remote(num_cpus=0)
class Member:
    """Of a collective group."""

    def begin(self, size: int, rank: int) -> None:
        from ray.util import collective  # where CuPy has no NCCL, it warns

        self.rank, self.size, self.collective = rank, size, collective

    def join(self, size: int, rank: int, group: str) -> None:
        self.begin(size, rank)
        self.collective.init_collective_group(size, rank, backend="HOPLITE", group_name=group)
        self.watch(group)

    def watch(self, group: str) -> None:
        """Note the names of all objects of the group, those of other members too."""
        handle = self.collective.get_group_handle(group)
        named = self.named = {handle._presence(rank).binary for rank in range(handle.world_size)}
        ref_of = handle._ref

        def ref(*what: object) -> Any:
            made = ref_of(*what)
            named.add(made.binary)
            return made

        handle._ref = ref

    def names(self) -> set[bytes]:
        """Of the objects of the group that was joined last."""
        return self.named

    def leave(self, group: str) -> None:
        self.collective.destroy_collective_group(group)

    def all_operations(self, group: str, like: str, count: int) -> dict[str, Any]:
        import torch

        def full(value: float, length: int = count) -> Any:
            array = np.full(length, value, np.float32)
            return torch.from_numpy(array) if like == "torch" else array

        def one(array: Any) -> float:
            assert (np.asarray(array) == np.asarray(array)[0]).all()
            return float(array[0])

        mine = float(self.rank + 1)
        out: dict[str, Any] = {}
        for op in self.collective.types.ReduceOp:
            array = full(mine)
            self.collective.allreduce(array, group, op)
            out[f"allreduce {op.name}"] = one(array)
        array = full(mine)
        self.collective.broadcast(array, 1, group)
        out["broadcast"] = one(array)
        array = full(mine)
        self.collective.reduce(array, self.size - 1, group)
        out["reduce"] = one(array)
        gathered = [full(0) for _ in range(self.size)]
        self.collective.allgather(gathered, full(mine), group)
        out["allgather"] = [one(each) for each in gathered]
        part = full(0)
        self.collective.reducescatter(part, [full(mine + each) for each in range(self.size)], group)
        out["reducescatter"] = one(part)
        array = full(mine)
        if self.rank == 0:
            self.collective.send(array, 1, group)
        elif self.rank == 1:
            self.collective.recv(array, 0, group)
        out["recv"] = one(array)
        self.collective.barrier(group)
        return out

    def allreduce(self, group: str) -> float:
        array = np.ones(10, np.float32)
        self.collective.allreduce(array, group)
        return float(array[0])

    def broadcasts(self, group: str, count: int, size: int) -> None:
        for _ in range(count):
            self.collective.broadcast(np.ones(size, np.float32), 0, group)

    def send(self, group: str, count: int) -> None:
        for _ in range(count):
            self.collective.send(np.ones(10, np.float32), 1, group)

    def die(self) -> None:
        os._exit(1)
