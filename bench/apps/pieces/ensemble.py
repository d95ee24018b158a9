"""Models that vote on a batch of pictures, and when batches come."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hoplite_ucx.bench.apps.job import Job, Row
from hoplite_ucx.bench.apps.pieces.rounds import Rounds

__all__ = ["Ballot", "Batch", "Voter", "answered", "arrivals", "batch_of"]

Batch = npt.NDArray[np.float32]

_PICTURES = 64
_CLASSES = 100


class Ballot(msgspec.Struct, frozen=True):
    votes: npt.NDArray[np.float32]
    seconds: float
    """That the model computed, for real or by the timer."""


def batch_of(job: Job) -> Batch:
    return np.random.default_rng(job.seed).standard_normal((_PICTURES, job.size // 4 // _PICTURES), np.float32)


class Voter:
    """A linear classifier over all of the picture: it reads every byte of the batch.

    With a timer in the accelerator's place, it votes for real once and says the same in every round.
    """

    def __init__(self, job: Job, number: int) -> None:
        wide = job.size // 4 // _PICTURES
        self._weights = np.random.default_rng(number).standard_normal((wide, _CLASSES), np.float32)
        self._compute = job.compute
        self._votes: npt.NDArray[np.float32] | None = None

    def vote(self, batch: Batch) -> Ballot:
        began = time.monotonic()
        if self._compute is None or self._votes is None:
            self._votes = np.asarray(batch @ self._weights, np.float32)
        else:
            time.sleep(self._compute)
        return Ballot(self._votes, time.monotonic() - began)


def arrivals(job: Job) -> list[float]:
    """When queries come by themselves, at random moments, so many a second."""
    gaps = np.random.default_rng(job.seed).exponential(1 / job.load, job.rounds)
    begun = time.monotonic() + 0.2
    return [begun + float(after) for after in np.cumsum(gaps)]


def answered(
    number: int,
    began: float,
    seconds: float,
    ballots: Sequence[Ballot],
    decided: npt.NDArray[Any],
    rounds: Rounds,
) -> Row:
    """What is told of a query that these ballots decided."""
    return {
        "round": number,
        "began": began,
        "seconds": seconds,
        "workers": len(ballots),
        "killed": rounds.struck(),
        "samples": _PICTURES,
        "computed": statistics.fmean(ballot.seconds for ballot in ballots),
        "answer": hashlib.blake2b(np.ascontiguousarray(decided, np.int64).tobytes(), digest_size=8).hexdigest(),
    }
