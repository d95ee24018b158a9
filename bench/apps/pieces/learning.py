"""What a worker of SGD computes, and how a server uses it: pictures, the pole on a cart, or sums that are checked.

With a timer in the accelerator's place, a gradient is computed once, for real, and sent in every round.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hoplite_ucx.bench.apps.job import Job
from hoplite_ucx.bench.apps.pieces import cart_pole, vision
from hoplite_ucx.bench.apps.pieces.vectors import Vector, gradient_of, parameters_of, set_parameters

__all__ = ["EXACT", "RANDOM", "Note", "Sum", "Updates", "Work", "add", "computed", "model_of", "work_of"]

EXACT = "exact"
"""A task whose gradients are powers of two: a sum tells whose gradients are in it, and any other byte is wrong."""
RANDOM = "random"
"""A task whose gradients are random numbers, other ones in each worker: sums are compared with those of float64."""
_LEARNING_RATE = 0.05
_BATCH = {vision.SMALL: 64}
_LARGE_BATCH = 2
_STEPS = 200


class Work(Protocol):
    samples: int
    """How many a gradient is made of."""

    def gradient(self, parameters: Vector) -> Vector: ...

    @property
    def score(self) -> float:
        """How good the parameters of the last gradient were: a loss, or the length of an episode."""


class Note(msgspec.Struct, frozen=True):
    """What a worker tells beside a gradient."""

    pid: int
    samples: int
    score: float
    seconds: float
    """That it computed, for real or by the timer."""


class Sum(msgspec.Struct, frozen=True):
    """How a sum of checked gradients compares with what it should be."""

    wrong: int
    """Elements that are not exact, or further from the sum in float64 than n · eps · the sum of the magnitudes."""
    worst: float
    """The largest distance, in units of that."""


def computed(work: Work, parameters: Vector) -> tuple[Vector, Note]:
    began = time.monotonic()
    gradient = work.gradient(parameters)
    return gradient, Note(os.getpid(), work.samples, work.score, time.monotonic() - began)


def model_of(job: Job) -> nn.Module:
    if job.task in _CHECKED:
        return nn.ParameterList([torch.zeros(job.size // 4)])
    return cart_pole.build(job.size) if job.task == cart_pole.NAME else vision.build(job.task)


def work_of(job: Job, number: int) -> Work:
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[Job, int], Work]] = {EXACT: _Checked, RANDOM: _Checked, cart_pole.NAME: _Pole}
    work = kinds.get(job.task, _Pictures)(job, number)
    return work if job.compute is None else _Timed(work, job.compute, number)


class _Pictures:
    def __init__(self, job: Job, number: int) -> None:
        self._name, self._seed = job.task, 1_000_000 * number + job.seed
        self._model = model_of(job)
        self.samples = _BATCH.get(job.task, _LARGE_BATCH)
        self.score = 0.0

    def gradient(self, parameters: Vector) -> Vector:
        self._seed += 1
        set_parameters(self._model, parameters)
        seen, shown = vision.pictures(self._name, self.samples, self._seed)
        loss = nn.functional.cross_entropy(self._model(seen), shown)
        self.score = loss.item()
        return gradient_of(self._model, loss)


class _Pole:
    def __init__(self, job: Job, number: int) -> None:
        self._policy = cart_pole.build(job.size)
        self._environment = cart_pole.Environment(1000 * job.seed + number)
        self.samples = _STEPS
        self.score = 0.0

    def gradient(self, parameters: Vector) -> Vector:
        set_parameters(self._policy, parameters)
        rollout = self._environment.roll_out(self._policy, _STEPS)
        self.score = cart_pole.score_of(rollout, _STEPS)
        return gradient_of(self._policy, cart_pole.loss_of(self._policy, rollout))


def _exact(job: Job, number: int) -> Vector:
    return np.full(job.size // 4, 2.0**number, np.float32)


def _random(job: Job, number: int) -> Vector:
    return np.random.default_rng(number).standard_normal(job.size // 4, np.float32)


_CHECKED: dict[str, Callable[[Job, int], Vector]] = {EXACT: _exact, RANDOM: _random}


class _Checked:
    samples = 1
    score = 0.0

    def __init__(self, job: Job, number: int) -> None:
        self._gradient = _CHECKED[job.task](job, number)

    def gradient(self, parameters: Vector) -> Vector:  # noqa: ARG002
        return self._gradient


class _Timed:
    """The accelerator is a timer; a slower one for each further worker, so that all do not end at once."""

    def __init__(self, work: Work, seconds: float, number: int) -> None:
        self._work = work
        self._seconds = seconds * (1 + 0.02 * number)
        self._made: Vector | None = None
        self.samples = work.samples

    @property
    def score(self) -> float:
        return self._work.score

    def gradient(self, parameters: Vector) -> Vector:
        if self._made is None:
            self._made = self._work.gradient(parameters)
        else:
            time.sleep(self._seconds)
        return self._made


def add(vectors: tuple[Vector, ...]) -> Vector:
    """A sum where the arrays are. One alone is not copied."""
    first, *others = vectors
    if not others:
        return first
    total = first + others[0]
    for other in others[1:]:
        total += other
    return total


class Updates:
    """The server's parameters, and what a sum of gradients does to them.

    The policy learns with Adam where it learns for real. With a timer, the update is that of plain SGD: what Adam
    computes besides is the accelerator's work.
    """

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        self._job = job
        self._parameters = torch.from_numpy(parameters_of(model_of(job)))
        self._adam = (
            torch.optim.Adam([self._parameters], lr=0.01)
            if job.task == cart_pole.NAME and job.compute is None
            else None
        )
        self.sums: list[Sum] = []
        """Of checked gradients, in the order of the rounds."""

    @property
    def parameters(self) -> Vector:
        found: Vector = self._parameters.numpy()
        return found

    def take(self, total: Vector, workers: Sequence[int]) -> Vector:
        """The sum of the gradients of these workers."""
        if self._job.task in _CHECKED:
            self.sums.append(self._compared(total, workers))
        elif self._adam is not None:
            self._parameters.grad = torch.from_numpy(total / np.float32(len(workers)))
            self._adam.step()
        else:
            self._parameters.add_(_as_tensor(total), alpha=-_LEARNING_RATE / len(workers))
        return self.parameters

    def _compared(self, total: Vector, workers: Sequence[int]) -> Sum:
        sources = [_CHECKED[self._job.task](self._job, number) for number in workers]
        expected: npt.NDArray[np.float64] = np.sum(sources, axis=0, dtype=np.float64)
        distance = np.abs(total - expected)
        allowed = len(workers) * np.finfo(np.float32).eps * np.sum(np.abs(sources), axis=0, dtype=np.float64)
        beyond = distance > (0.0 if self._job.task == EXACT else allowed)
        return Sum(int(np.count_nonzero(beyond | ~np.isfinite(distance))), float(np.max(distance / allowed)))


def _as_tensor(vector: Vector) -> torch.Tensor:
    """Without a copy. Torch warns of arrays that are read-only; this one is only read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(vector)
