"""Reinforcement learning: actors roll out, a learner learns from whose rollouts are ready first."""

# Ray's annotations do not tell that @ray.remote adds `options` to a class.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import time
from typing import Any

import ray

import hoplite_ucx.ray as hoplite
from hoplite_ucx.bench.apps.bounds import half
from hoplite_ucx.bench.apps.job import Job, end, tell
from hoplite_ucx.bench.apps.pieces.cart_pole import Rollout
from hoplite_ucx.bench.apps.pieces.learning import Note
from hoplite_ucx.bench.apps.pieces.places import pids_of, places
from hoplite_ucx.bench.apps.pieces.playing import Learning, Playing
from hoplite_ucx.bench.apps.pieces.rounds import Rounds, learnt
from hoplite_ucx.bench.apps.pieces.vectors import Vector


@ray.remote
class Learner:
    def __init__(self, job: Job) -> None:
        self.learning = Learning(job)

    def parameters(self) -> Vector:
        return self.learning.parameters

    def learn(self, *rollouts: Rollout) -> Vector:
        return self.learning.learn(rollouts)


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Actor:
    def __init__(self, job: Job, number: int) -> None:
        self.playing = Playing(job, number)

    @ray.method(num_returns=2)
    def roll_out(self, parameters: Vector) -> tuple[Rollout, Note]:
        return self.playing.roll_out(parameters)


def main(job: Job) -> None:
    hoplite.init(
        memory=job.memory,
        rate=job.rate,
        address=job.address,
        _node_ip_address=job.nodes[0],
        logging_level="warning",
    )
    first, *others = places(job.nodes)
    learner = Learner.options(**first).remote(job)
    actors = [Actor.options(**place).remote(job, number) for number, place in enumerate(others)]
    pids = pids_of(actors)
    running: dict[Any, tuple[int, Any]] = {}

    def begin(each: int, parameters: Any) -> None:
        rollout, note = actors[each].roll_out.remote(parameters)
        running[rollout] = each, note

    parameters = learner.parameters.remote()
    for each in range(len(actors)):
        begin(each, parameters)
    ray.wait(list(running), num_returns=len(running), fetch_local=False)

    rounds = Rounds(job, pids[-1])
    for number in rounds:
        began = time.monotonic()
        ready, _ = ray.wait(list(running), num_returns=half(len(job.nodes)), fetch_local=False)
        chosen, notes = zip(*(running.pop(ref) for ref in ready), strict=True)
        parameters = learner.learn.remote(*ready)
        for each in chosen:
            begin(each, parameters)
        ray.wait([parameters], fetch_local=False)
        seconds = time.monotonic() - began
        tell(learnt(number, began, seconds, chosen, ray.get(list(notes)), rounds))


if __name__ == "__main__":
    main(Job.from_command_line())
    end()
