"""Asynchronous SGD with a parameter server."""

# Ray's annotations do not tell that @ray.remote adds `options` to a class.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import time
from typing import Any

import ray

import hoplite_ucx.ray as hoplite
from hoplite_ucx.bench.apps.bounds import half
from hoplite_ucx.bench.apps.job import Job, end, tell
from hoplite_ucx.bench.apps.pieces.learning import Note, Sum, Updates, add, computed, work_of
from hoplite_ucx.bench.apps.pieces.places import pids_of, places
from hoplite_ucx.bench.apps.pieces.rounds import Rounds, learnt
from hoplite_ucx.bench.apps.pieces.vectors import Vector


@ray.remote
class Server:
    def __init__(self, job: Job) -> None:
        self.updates = Updates(job)

    def parameters(self) -> Vector:
        return self.updates.parameters

    def step(self, workers: list[int], *gradients: Vector) -> Vector:
        return self.updates.take(add(gradients), workers)

    def sums(self) -> list[Sum]:
        return self.updates.sums


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Worker:
    def __init__(self, job: Job, number: int) -> None:
        self.work = work_of(job, number)

    @ray.method(num_returns=2)
    def gradient(self, parameters: Vector) -> tuple[Vector, Note]:
        return computed(self.work, parameters)


def main(job: Job) -> None:
    hoplite.init(
        memory=job.memory,
        rate=job.rate,
        address=job.address,
        _node_ip_address=job.nodes[0],
        logging_level="warning",
    )
    first, *others = places(job.nodes)
    server = Server.options(**first).remote(job)
    workers = [Worker.options(**place).remote(job, number) for number, place in enumerate(others)]
    pids = pids_of(workers)
    running: dict[Any, tuple[int, Any]] = {}

    def begin(each: int, parameters: Any) -> None:
        gradient, note = workers[each].gradient.remote(parameters)
        running[gradient] = each, note

    parameters = server.parameters.remote()
    for each in range(len(workers)):
        begin(each, parameters)
    ray.wait(list(running), num_returns=len(running), fetch_local=False)

    rounds = Rounds(job, pids[-1])
    for number in rounds:
        began = time.monotonic()
        total = hoplite.reduce(list(running), count=half(len(job.nodes)))
        ready = total.contributors
        chosen, notes = zip(*(running.pop(ref) for ref in ready), strict=True)
        parameters = server.step.remote(list(chosen), total.ref)
        for each in chosen:
            begin(each, parameters)
        ray.wait([parameters], fetch_local=False)
        seconds = time.monotonic() - began
        tell(learnt(number, began, seconds, chosen, ray.get(list(notes)), rounds))
    tell({"sums": ray.get(server.sums.remote())})


if __name__ == "__main__":
    main(Job.from_command_line())
    end()
