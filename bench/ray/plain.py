"""A plain Ray job: the rounds of collectives that `bench peers` times, and calls with small arrays."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray

from hoplite_ucx.bench.peers.ray import Rounds

__all__ = ["Plain"]

_WARM_UP = 20


class Plain(Rounds):
    """The rounds that `bench peers` times, and calls with small arrays."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(addresses)
        self._task = ray.remote(num_cpus=0)(_same).options(scheduling_strategy=self.places[-1])

    def small(self, kind: str, size: int, count: int, warm_up: bool) -> list[float]:
        """How long each of these calls took."""
        call = getattr(self, f"_small_{kind}")
        array = np.zeros(size // 4, np.float32)
        for _ in range(_WARM_UP if warm_up else 0):
            call(array)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            call(array)
            took.append(time.perf_counter() - began)
        return took

    def _small_call(self, array: Any) -> None:
        """An argument and a result by value, of an actor on another node."""
        ray.get(self._holders[-1].same.remote(array))

    def _small_put(self, array: Any) -> None:
        ray.get(ray.put(array))

    def _small_task(self, array: Any) -> None:
        ray.get(self._task.remote(array))


def _same(array: Any) -> Any:
    return array
