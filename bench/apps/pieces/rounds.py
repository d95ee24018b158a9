"""The rounds of a program, the death of a worker in the middle of one, and what is told of each."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hoplite_ucx.bench.apps.job import Job, Row

if TYPE_CHECKING:
    from hoplite_ucx.bench.apps.pieces.learning import Note  # it loads torch, which serving does without

__all__ = ["Rounds", "learnt"]


class Rounds:
    """The numbers of a job's rounds. A timer kills the victim when that is due, wherever the round is then."""

    def __init__(self, job: Job, victim: int) -> None:
        self._most = job.rounds
        self._seconds = job.seconds
        self._kill = job.kill
        self._victim = victim
        self.struck_at: float | None = None
        """When the victim was killed, by the monotonic clock."""
        self._told = False

    def __iter__(self) -> Iterator[int]:
        timer = threading.Timer(self._kill or 0.0, self._strike)
        if self._kill is not None:
            timer.start()
        try:
            began = time.monotonic()
            for number in range(self._most):
                if self._seconds and time.monotonic() - began >= self._seconds:
                    return
                yield number
        finally:
            timer.cancel()

    def struck(self) -> bool:
        """Whether the victim was killed since this was last asked."""
        found = self.struck_at is not None and not self._told
        self._told |= found
        return found

    def _strike(self) -> None:
        self.struck_at = time.monotonic()
        os.kill(self._victim, signal.SIGKILL)


def learnt(
    number: int, began: float, seconds: float, workers: Sequence[int], notes: Sequence[Note], rounds: Rounds
) -> Row:
    """What is told of a round in which these workers took part."""
    return {
        "round": number,
        "began": began,
        "seconds": seconds,
        "workers": workers,
        "pids": [note.pid for note in notes],
        "killed": rounds.struck(),
        "samples": sum(note.samples for note in notes),
        "score": statistics.fmean(note.score for note in notes),
        "computed": statistics.fmean(note.seconds for note in notes),
    }
