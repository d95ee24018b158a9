"""The two sides of IMPALA's pattern: who plays with some parameters, and who learns from what they played."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch

from hoplite_ucx.bench.apps.job import Job
from hoplite_ucx.bench.apps.pieces import cart_pole
from hoplite_ucx.bench.apps.pieces.cart_pole import Rollout, score_of
from hoplite_ucx.bench.apps.pieces.learning import Note, Updates
from hoplite_ucx.bench.apps.pieces.vectors import Vector, gradient_of, set_parameters

__all__ = ["Learning", "Playing"]

_STEPS = 200


class Playing:
    """With a timer in the accelerator's place, it plays once, for real, and sends that rollout in every round."""

    def __init__(self, job: Job, number: int) -> None:
        torch.set_num_threads(1)
        self._policy = cart_pole.build(job.size)
        self._environment = cart_pole.Environment(1000 * job.seed + number)
        self._compute = None if job.compute is None else job.compute * (1 + 0.02 * number)
        self._played: Rollout | None = None

    def roll_out(self, parameters: Vector) -> tuple[Rollout, Note]:
        began = time.monotonic()
        if self._compute is not None and self._played is not None:
            time.sleep(self._compute)
        else:
            set_parameters(self._policy, parameters)
            self._played = self._environment.roll_out(self._policy, _STEPS)
        return self._played, Note(os.getpid(), _STEPS, score_of(self._played, _STEPS), time.monotonic() - began)


class Learning:
    """With a timer, the gradient of the first rollouts is applied in every round."""

    def __init__(self, job: Job) -> None:
        self._updates = Updates(job)
        self._policy = cart_pole.build(job.size)
        self._timed = job.compute is not None
        self._gradient: Vector | None = None

    @property
    def parameters(self) -> Vector:
        return self._updates.parameters

    def learn(self, rollouts: Sequence[Rollout]) -> Vector:
        if not self._timed or self._gradient is None:
            set_parameters(self._policy, self.parameters)
            loss = torch.stack([cart_pole.loss_of(self._policy, rollout) for rollout in rollouts]).mean()
            self._gradient = gradient_of(self._policy, loss)
        return self._updates.take(self._gradient, [0])
