"""A small application on real Ray nodes, with both systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ucx.bench.apps import running
from hoplite_ucx.bench.apps.plan import GRIDS, Kind, Run, runs
from hoplite_ucx.bench.apps.report import page
from hoplite_ucx.bench.apps.results import deaths, gains, joinings, wrong_answers, wrong_sums
from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.hosts.line_process import PeerError

_EXACT = Run(Kind.LEARNING, "sgd", "exact", nodes=2, rate=125e6, size=2 << 20, rounds=3, turns=1)


class _Nobody:
    def begin(self, run: Run) -> None:
        pass

    def end(self, problem: str | None) -> None:
        pass


@pytest.mark.timeout(600)
def test_sums_of_gradients_are_the_same_with_plain_ray_and_with_hoplite(tmp_path: Path) -> None:
    journal = Journal.in_folder(tmp_path)
    assert running.run_all(journal, [_EXACT], _Nobody()) == []
    for system in ("plain", "hoplite"):
        mine = [row for row in journal.records if row.get("system") == system]
        assert [row["round"] for row in mine if "round" in row] == [0, 1, 2]
        assert [row["sums"] for row in mine if "sums" in row] == [[{"wrong": 0, "worst": 0.0}] * 3]
    assert wrong_sums(journal.records) == []
    assert "largest error" in page(journal)
    again = Journal.in_folder(tmp_path)
    assert again.has_finished(_EXACT.key), "the same command would not run it again"


_KILLED = Run(
    Kind.FAILURE, "serving", "votes", nodes=4, rate=125e6, size=2 << 20, rounds=10**6, compute=0.1, seconds=30, kill=3.0
)
_COMING_AND_GOING = replace(
    _KILLED, application="weight_sync", task="versions", seconds=0.0, rounds=15, compute=2.0, kill=5.0
)


@pytest.mark.long(reason="two minutes: rounds go on until Ray has started a worker again")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", [_KILLED, replace(_KILLED, application="sgd", task="cart-pole")])
def test_a_killed_worker_comes_back(run: Run, tmp_path: Path) -> None:
    journal = Journal.in_folder(tmp_path)
    assert running.run_all(journal, [run], _Nobody()) == []
    found = deaths(journal.records)
    assert [death.system for death in found] == ["plain", "hoplite"]
    assert all(death.back is not None for death in found)
    assert wrong_answers(journal.records) == []
    assert "with the death" in page(journal)


@pytest.mark.long(reason="two minutes: versions come until Ray has started an engine again")
@pytest.mark.timeout(1200)
def test_engines_join_leave_and_die(tmp_path: Path) -> None:
    journal = Journal.in_folder(tmp_path)
    assert running.run_all(journal, [_COMING_AND_GOING], _Nobody()) == []
    for found in joinings(journal.records):
        assert len(found.joined) == 2, "one that came later, and the successor of the killed one"
        assert found.back is not None
        assert found.wrong == 0


def test_records_of_another_commit_are_not_continued(tmp_path: Path) -> None:
    journal = Journal.in_folder(tmp_path)
    journal.begin_run({"machine": {"commit": "abc123"}})
    running.check_commit(journal, "def456")  # nothing was measured yet
    journal.tell(_EXACT.key, {"round": 0})
    running.check_commit(journal, "abc123")
    with pytest.raises(PeerError, match="figures of commit abc123, and this is def456: choose another --output"):
        running.check_commit(journal, "def456")


class _FakeHosts:
    """In the place of a cluster and its Ray nodes: it counts how many times they were started."""

    started = 0

    def __init__(self, *_: object) -> None:
        type(self).started += 1

    def __enter__(self) -> _FakeHosts:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def fake_hosts(monkeypatch: pytest.MonkeyPatch) -> type[_FakeHosts]:
    class Counted(_FakeHosts):
        pass

    monkeypatch.setattr(running, "Cluster", Counted)
    monkeypatch.setattr(running, "ray_nodes", lambda *_: nullcontext())
    return Counted


_FAILED = """the hoplite program failed: Traceback (most recent call last):
  File "places.py", line 1, in pids_of
TimeoutError: only 3 of 7 workers came up within 120 s
(raylet) a worker died
"""


def test_after_a_failure_the_next_run_has_new_ray_nodes(
    fake_hosts: type[_FakeHosts], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second, third = (replace(_EXACT, rounds=rounds) for rounds in (1, 2, 3))

    def rows(run: Run, *_: object) -> Iterator[dict[str, Any]]:
        yield {"round": 0}
        if run == first:
            raise PeerError(_FAILED)

    monkeypatch.setattr(running, "_rows", rows)
    journal = Journal.in_folder(tmp_path)
    why = "the hoplite program failed: TimeoutError: only 3 of 7 workers came up within 120 s"
    assert running.run_all(journal, [first, second, third], _Nobody()) == [f"{first.title}: {why}"]
    assert fake_hosts.started == 2
    assert [journal.has_finished(run.key) for run in (first, second, third)] == [False, True, True]
    assert [(row["not_run"], row["said"]) for row in journal.records if "not_run" in row] == [(why, _FAILED)]


@pytest.mark.usefixtures("fake_hosts")
def test_figures_stand_without_the_trace_of_a_missed_goal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = Run(Kind.TIMING, "serving", "votes", nodes=8, rate=125e6, size=48 << 20, rounds=3, compute=0.0)

    def rows(*given: object) -> Iterator[dict[str, Any]]:
        if len(given) > 4:
            raise PeerError("the hoplite program failed: it exited with 1")
        yield from ({"round": number, "seconds": 1.0, "computed": 0.0, "samples": 1} for number in range(3))

    monkeypatch.setattr(running, "_rows", rows)
    journal = Journal.in_folder(tmp_path)
    assert running.run_all(journal, [slow], _Nobody()) == []
    assert journal.has_finished(slow.key)
    assert [gain.missed for gain in gains(journal.records)] == [True]
    assert [row["untraced"] for row in journal.records if "untraced" in row] == [
        "the hoplite program failed: it exited with 1"
    ]


def test_a_worker_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from hoplite_ucx.bench.apps.pieces.places import pids_of

    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked[:1], asked[1:]))
    with pytest.raises(TimeoutError, match="only 1 of 3 workers came up within 120 s"):
        pids_of([SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _: object())) for _ in range(3)])


def test_what_does_not_fit_into_memory_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "memory_available", lambda: 4 << 30)
    with pytest.raises(PeerError, match=r"4096 MiB are available.*choose a smaller --grid"):
        running.check_memory([replace(_EXACT, nodes=16)])
    running.check_memory([_EXACT])


@pytest.mark.parametrize("grid", GRIDS)
def test_plain_ray_has_rounds_that_count_before_a_death(grid: str) -> None:
    for run in runs(GRIDS[grid]):
        if run.kill is not None and run.application != "weight_sync":
            plain, _ = run.model.round_seconds(run.nodes, run.size, run.rate, run.compute or 0.0)
            assert run.kill >= 4 * plain, run.title


def test_the_default_grid_fits_where_24_gib_are() -> None:
    assert max(running.memory_needed(run) for run in runs(GRIDS["default"])) < 0.7 * (22 << 30)
