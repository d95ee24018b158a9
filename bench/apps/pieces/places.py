"""Where actors run, one per node, told by the nodes' addresses; and in which processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["pids_of", "places"]

_PATIENCE = 120.0


def places(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """The options that put an actor on each of these nodes, once all of them are there."""
    deadline = time.monotonic() + _PATIENCE
    while len(found := {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}) < len(
        addresses
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(found)} of {len(addresses)} Ray nodes came up within {_PATIENCE:g} s")
        time.sleep(0.2)
    return [
        {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(found[address], soft=False)}
        for address in addresses
    ]


def pids_of(actors: Sequence[Any]) -> list[int]:
    """The processes of actors, once all of them are up."""
    asked = [actor.__ray_call__.remote(_pid) for actor in actors]
    up, late = ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE)
    if late:
        raise TimeoutError(f"only {len(up)} of {len(asked)} workers came up within {_PATIENCE:g} s")
    found: list[int] = ray.get(asked)
    return found


def _pid(_: object) -> int:
    return os.getpid()
