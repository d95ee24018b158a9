"""A small application on real Ray nodes, with both systems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hoplite_ucx.bench.apps import running
from hoplite_ucx.bench.apps.plan import GRIDS, Kind, Run, runs
from hoplite_ucx.bench.apps.report import page
from hoplite_ucx.bench.apps.results import deaths, joinings, wrong_answers, wrong_sums
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


def test_what_does_not_fit_into_memory_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "memory_available", lambda: 4 << 30)
    with pytest.raises(PeerError, match=r"4096 MiB are available.*choose a smaller --grid"):
        running.check_memory([replace(_EXACT, nodes=16)])
    running.check_memory([_EXACT])


def test_the_default_grid_fits_where_24_gib_are() -> None:
    assert max(running.memory_needed(run) for run in runs(GRIDS["default"])) < 0.7 * (22 << 30)
