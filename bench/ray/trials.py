"""Faults and many rounds: each a job with `hoplite_ucx.ray`, after which nothing of it may be left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.ray.cases import Case
from hoplite_ucx.bench.ray.jobs import Job, ray_cluster
from hoplite_ucx.bench.ray.nodes import RayNodes

__all__ = ["fault_outcomes", "many_rounds"]

_VICTIM = 1
_GONE_SECONDS = 30.0
_CASE_SECONDS = 500.0
_ROUND_SECONDS = 5.0
_OURS = ("hoplite_ucx.runtime", "hoplite-", "ray::NodeAgent", "ray::Head", "ray::Worker")


def fault_outcomes(cases: Sequence[Case], *, nodes: int, size: int, rate: float) -> Iterator[dict[str, Any]]:
    """One after the other in one Ray cluster; a node that was killed comes again."""
    with ray_cluster(nodes, rate, size) as (started, memory):
        for case in cases:
            with ExitStack() as stack:
                plan = {"rate": rate, "memory": memory, "size": size, "case": case.value}
                try:
                    outcome = Job(started, "faults", plan, stack).report("case", seconds=_CASE_SECONDS)
                except PeerError as error:
                    outcome = {"case": case.value, "right": False, "why": str(error)[-3000:]}
            _, left = _gone(started)
            if left:
                outcome = {**outcome, "right": False, "why": f"left behind: {', '.join(left)}"}
            yield outcome
            if case.kills_node:
                started.start_again(started.hosts[_VICTIM])


def many_rounds(rounds: int, *, nodes: int, size: int, rate: float) -> Iterator[dict[str, Any]]:
    """Three looks, and what is left after the driver was killed with -9."""
    with ray_cluster(nodes, rate, size) as (started, memory), ExitStack() as stack:
        plan = {"rate": rate, "memory": memory, "size": size, "rounds": rounds}
        job = Job(started, "endurance", plan, stack)
        while "round" in (look := job.report("round", "ready", seconds=_CASE_SECONDS + _ROUND_SECONDS * rounds)):
            yield look
        job.process.kill()
        seconds, left = _gone(started)
        yield {"killed": "the driver", "seconds": seconds, "left": left}


def _gone(nodes: RayNodes) -> tuple[float, list[str]]:
    """How long it took until nothing of ours ran any more; what still does, if it took too long."""
    began = time.monotonic()
    while True:
        left = [name for name in nodes.processes().values() if any(part in name for part in _OURS)]
        seconds = time.monotonic() - began
        if not left or seconds > _GONE_SECONDS:
            return seconds, left
        time.sleep(0.2)
