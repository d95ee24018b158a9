"""What programs are made of: checked sums, rounds, deaths, ballots."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hoplite_ucx.bench.apps.job import Job
from hoplite_ucx.bench.apps.pieces.ensemble import Voter, arrivals, batch_of
from hoplite_ucx.bench.apps.pieces.learning import EXACT, RANDOM, Updates, add, computed, work_of
from hoplite_ucx.bench.apps.pieces.rounds import Rounds
from tests.tools.waiting import HANG


def _job(task: str, **more: object) -> Job:
    return Job(**{"address": "", "nodes": [""], "rounds": 3, "task": task, "size": 4096, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("task", [EXACT, RANDOM])
def test_a_right_sum_has_no_wrong_element(task: str) -> None:
    job = _job(task)
    updates = Updates(job)
    gradients = [computed(work_of(job, number), updates.parameters)[0] for number in (0, 2, 5)]
    updates.take(add(tuple(gradients)), [0, 2, 5])
    (found,) = updates.sums
    assert found.wrong == 0
    assert found.worst <= 1.0


@pytest.mark.parametrize("task", [EXACT, RANDOM])
def test_a_sum_without_a_gradient_or_with_one_wrong_element_is_noticed(task: str) -> None:
    job = _job(task)
    updates = Updates(job)
    first, second = (computed(work_of(job, number), updates.parameters)[0] for number in (0, 1))
    updates.take(first, [0, 1])
    total = first + second
    total[17] += 1e-3
    updates.take(total, [0, 1])
    total[17] = np.nan
    updates.take(total, [0, 1])
    missing, wrong, lost = (found.wrong for found in updates.sums)
    assert missing == job.size // 4
    assert (wrong, lost) == (1, 1)


def test_with_a_timer_a_gradient_is_computed_once_and_the_timer_is_what_counts() -> None:
    job = _job("cart-pole", compute=0.01)
    work, updates = work_of(job, 0), Updates(job)
    first, _ = computed(work, updates.parameters)
    again, note = computed(work, updates.parameters)
    assert again is first
    assert note.seconds >= 0.01
    assert note.samples > 0


def test_rounds_end_by_their_number_or_when_their_time_is_over() -> None:
    assert list(Rounds(_job(EXACT), victim=0)) == [0, 1, 2]
    assert list(Rounds(_job(EXACT, seconds=1e-9), victim=0)) == []


def test_a_victim_is_killed_once_while_rounds_go_on() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        rounds = Rounds(_job(EXACT, rounds=10**9, kill=0.01), victim.pid)
        told = []
        for _ in rounds:
            told.append(rounds.struck())
            if told[-1]:
                break
        assert victim.wait(HANG) == -9
        assert not rounds.struck(), "it is told once"
        assert rounds.struck_at is not None


def test_a_round_without_a_death_kills_nobody() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        for _ in Rounds(_job(EXACT, kill=HANG), victim.pid):
            pass
        assert victim.poll() is None
        victim.communicate(b"\n", HANG)


def test_voters_read_the_batch_and_differ() -> None:
    job = _job("votes", size=64 * 1024)
    batch = batch_of(job)
    first, second = (Voter(job, number).vote(batch).votes for number in (0, 1))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, Voter(job, 0).vote(batch + 1).votes)


def test_both_systems_get_their_queries_at_the_same_moments() -> None:
    job = _job("votes", load=5.0, rounds=50)
    first, second = (np.diff(arrivals(job)) for _ in range(2))
    assert np.allclose(first, second)
    assert 0.1 < first.mean() < 0.4
