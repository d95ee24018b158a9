"""From the rows of programs to figures."""

from __future__ import annotations

from typing import Any

import pytest

from hoplite_ucx.bench.apps.plan import Kind
from hoplite_ucx.bench.apps.report import diff_of
from hoplite_ucx.bench.apps.results import (
    deaths,
    gains,
    joinings,
    latencies,
    percentile,
    real_computes,
    wrong_answers,
    wrong_sums,
)


def _row(system: str, number: int, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    common = {"application": "serving", "nodes": 8, "size": 48 << 20, "rate": 125e6, "compute": 0.0, "turn": 0}
    return {
        **common,
        "part": "p",
        "kind": Kind.TIMING,
        "title": "t",
        "load": 0.0,
        "system": system,
        "round": number,
        "seconds": seconds,
        "computed": 0.0,
        "samples": 10,
        "workers": 7,
        "began": float(number),
        **more,
    }


def test_the_first_two_rounds_do_not_count() -> None:
    warming = [_row("plain", 0, 100.0), _row("plain", 1, 50.0)]
    rows = [*warming, _row("plain", 2, 3.0), _row("plain", 3, 5.0), _row("hoplite", 2, 2.0)]
    (gain,) = gains(rows)
    assert (gain.plain, gain.ours, gain.speed_up) == (4.0, 2.0, 2.0)
    assert gain.bound == 7
    assert gain.of_expected == pytest.approx(2 / 7)
    assert gain.missed
    assert gain.samples == 5.0


def test_whole_cycles_count_after_the_first() -> None:
    """On 4 nodes three workers take turns. Rounds 0 to 2 use what was there at the start; round 6 begins a cycle."""
    turns = {"application": "impala", "nodes": 4, "workers": [0], "pids": [1]}
    seconds = (0.1, 0.1, 0.1, 3.0, 0.6, 0.3, 3.0)
    rounds = list(enumerate(seconds))
    (gain,) = gains(_row(system, number, each, **turns) for system in ("plain", "hoplite") for number, each in rounds)
    assert gain.ours == pytest.approx(1.3)


def test_there_is_a_goal_on_8_nodes_alone() -> None:
    (gain,) = gains([_row("plain", 2, nodes=16), _row("hoplite", 2, nodes=16)])
    assert gain.goal is None
    assert not gain.missed


def test_a_setting_that_only_one_system_ran_is_no_gain() -> None:
    assert gains([_row("plain", 2)]) == []


@pytest.mark.parametrize("more", [{"kind": Kind.LEARNING}, {"kind": Kind.FAILURE}, {"load": 2.0}, {"compute": None}])
def test_only_timing_runs_with_a_timer_and_without_load_are_gains(more: dict[str, Any]) -> None:
    assert gains([_row("plain", 2, **more), _row("hoplite", 2, **more)]) == []


def test_runs_with_the_same_title_are_not_put_together() -> None:
    rows = [_row(system, 2, seconds, part=part) for part, seconds in (("a", 1.0), ("b", 3.0)) for system in _BOTH]
    assert [gain.plain for gain in gains(rows)] == [1.0, 3.0]


_BOTH = ("plain", "hoplite")


def test_latencies_are_those_of_queries_that_came_by_themselves() -> None:
    rows = [_row("plain", number, float(number), load=2.0) for number in range(12)]
    (found,) = latencies([*rows, _row("plain", 5, 99.0, part="q")])
    assert found.queries == 10
    assert found.seconds == {50: 6.0, 90: 10.0, 99: 11.0, 100: 11.0}


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], percent) for percent in (1, 25, 26, 50, 99, 100)] == [1, 1, 2, 2, 4, 4]


def test_real_compute_has_a_table_of_its_own() -> None:
    rows = [_row("plain", 2, 4.0, compute=None, computed=3.0), _row("plain", 3, 4.0, compute=None, computed=2.0)]
    (found,) = real_computes([*rows, _row("plain", 2, part="q")])
    assert (found.seconds, found.computed, found.quickest, found.samples) == (4.0, 2.5, 2.0, 2.5)


@pytest.mark.parametrize("wrong", [0, 3])
def test_a_sum_with_wrong_elements_is_a_problem(wrong: int) -> None:
    row = {**_row("hoplite", 0, kind=Kind.LEARNING), "sums": [{"wrong": 0, "worst": 0.1}, {"wrong": wrong, "worst": 2}]}
    del row["round"]
    assert len(wrong_sums([_row("hoplite", 0, kind=Kind.LEARNING), row])) == (1 if wrong else 0)


def test_answers_must_not_depend_on_the_system() -> None:
    same = [_row("plain", 1, answer="a"), _row("hoplite", 1, answer="a")]
    assert wrong_answers(same) == []
    assert wrong_answers([*same, _row("hoplite", 2, answer="b")])


def test_fewer_voters_may_answer_otherwise() -> None:
    assert wrong_answers([_row("plain", 1, answer="a"), _row("hoplite", 1, answer="b", workers=6)]) == []


def test_what_a_death_cost() -> None:
    rows = [_row("hoplite", number, kind=Kind.FAILURE) for number in range(6)]
    rows.append(_row("hoplite", 6, 1.2, kind=Kind.FAILURE, killed=True, workers=6))
    rows.append(_row("hoplite", 7, 1.5, kind=Kind.FAILURE, workers=6))
    rows.append(_row("hoplite", 8, kind=Kind.FAILURE))
    rows.append(_row("hoplite", 9, 7.0, kind=Kind.FAILURE))
    (death,) = deaths(rows)
    assert death.ratio == pytest.approx(1.2)
    assert death.slowest == 1.5
    assert death.back == 3.0


def test_a_round_with_a_death_is_judged_by_rounds_of_the_same_half() -> None:
    """The halves of 7 workers take turns: a long round and a short one, whoever dies."""
    half = {"kind": Kind.FAILURE, "workers": [0, 1, 2], "pids": [0, 1, 2]}
    before = [_row("hoplite", number, 3.0 if number % 2 == 0 else 1.0, **half) for number in range(2, 10)]
    (long,) = deaths([*before, _row("hoplite", 10, 3.6, killed=True, **half)])
    assert (long.ratio, long.of_median, long.missed) == (pytest.approx(1.2), pytest.approx(1.8), False)
    assert long.above_median, "the median of all rounds stays beside it"
    (short,) = deaths([*before, _row("hoplite", 10, 1.0, **half), _row("hoplite", 11, 1.5, killed=True, **half)])
    assert (short.ratio, short.missed) == (pytest.approx(1.5), True), "a short round is not excused by long ones"


def test_where_all_workers_take_part_all_rounds_are_alike() -> None:
    rows = [_row("hoplite", number, 3.0 if number % 2 == 0 else 1.0, kind=Kind.FAILURE) for number in range(2, 10)]
    (death,) = deaths([*rows, _row("hoplite", 10, 3.0, kind=Kind.FAILURE, killed=True)])
    assert death.ratio == death.of_median == 1.5


def test_a_run_that_failed_has_no_figures() -> None:
    rows = [_row(system, number) for system in ("plain", "hoplite") for number in range(4)]
    assert len(gains(rows)) == 1
    assert gains([*rows, {"part": "p", "title": "t", "not_run": "the hoplite program failed"}]) == []


def test_a_worker_is_back_when_its_new_process_takes_part() -> None:
    rows = [_row("hoplite", number, kind=Kind.FAILURE, workers=[0] * 7, pids=[number % 3]) for number in range(6)]
    rows.append(_row("hoplite", 6, kind=Kind.FAILURE, workers=[0] * 7, pids=[0], killed=True))
    rows.append(_row("hoplite", 7, kind=Kind.FAILURE, workers=[2] * 7, pids=[2]))
    assert deaths(rows)[0].back is None
    rows.append(_row("hoplite", 8, kind=Kind.FAILURE, workers=[2] * 7, pids=[77]))
    assert deaths(rows)[0].back == 3.0


def test_engines_that_come_and_go() -> None:
    versions = [
        _row("plain", number, 2.0 + number, kind=Kind.FAILURE, exactly=3, behind=0.5, wrong=0) for number in range(5)
    ]
    other = {key: versions[0][key] for key in ("part", "kind", "title", "system", "load", "compute")}
    rows = [
        *versions,
        {**other, "joined": 3, "again": False, "at": 8.0, "took": 0.7, "version": 3},
        {**other, "joined": 1, "again": True, "at": 9.5, "took": 0.9, "version": 4},
        {**other, "killed_at": 4.0},
    ]
    (found,) = joinings(rows)
    assert (found.newest, found.longest, found.behind) == (5.0, 6.0, 0.5)
    assert found.joined == [0.7, 0.9]
    assert found.back == 5.5
    assert found.wrong == 0
    assert deaths(rows) == [], "there are no rounds in which all wait for each other"
    assert wrong_answers(rows) == []
    versions[3]["wrong"] = 1
    assert joinings(rows)[0].wrong == 1
    (problem,) = wrong_answers(rows)
    assert "version 5 has wrong weights in 1 engines" in problem


@pytest.mark.parametrize("program", ["sgd", "impala", "serving"])
def test_programs_differ_only_in_the_lines_that_use_hoplite(program: str) -> None:
    changed = [line for line in diff_of(program).splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert 0 < len(changed) <= 10
    added = [line for line in changed if line.startswith("+")]
    assert any("hoplite.init" in line for line in added)
    for line in changed:
        assert any(word in line for word in ("hoplite", "ray.", "memory=", "rate=", "total", "ready")), line
