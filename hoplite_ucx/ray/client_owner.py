"""The owner of a job whose program is a Ray Client: an actor. Everything ends with it, and it ends with the job."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from hoplite_ucx.ray import owners, reductions
from hoplite_ucx.ray.node_agent import REDUCE
from hoplite_ucx.ray.session import session
from hoplite_ucx.ray.values import store


class ClientOwner:
    """A threaded actor, which makes calls for the program."""

    def __init__(self, wanted: owners.Settings) -> None:
        self._first = np.zeros(wanted.threshold if wanted.arrays else 0, np.uint8)
        owners.start(wanted)

    def first(self) -> Any:
        """An array that travels through hoplite."""
        return self._first

    def status(self) -> dict[str, Any]:
        return owners.owner().status()

    def put(self, value: object) -> list[Any]:
        return [ray.put(store(value, session()))]

    @ray.method(concurrency_group=REDUCE)
    def reduce(self, refs: list[Any], op: str, count: int, everywhere: bool) -> tuple[Any, list[int]]:
        return reductions.reduce(refs, op, count, everywhere, session())

    def close(self) -> None:
        owners.shutdown()
