"""How soon engines have the newest weights, while they join, leave and die."""

from __future__ import annotations

import pytest
import torch

from hoplite_ucx.bench.apps.job import Job, Row
from hoplite_ucx.bench.apps.pieces.versions import (
    Had,
    Stay,
    Trainer,
    arrays_of,
    load,
    module_of,
    noted,
    rows_of,
    stays_of,
)


def _job(nodes: int = 2, rounds: int = 8, kill: float | None = None) -> Job:
    return Job(address="", nodes=[""] * nodes, rounds=rounds, task="versions", size=4096, compute=0.0, kill=kill)


def _had(engine: int, version: int, at: float, pid: int | None = None, right: bool = True) -> Had:
    return Had(engine, pid or engine, version, at, right)


def _versions(published: dict[int, float], had: list[Had]) -> list[Row]:
    return [row for row in rows_of(published, had) if "round" in row]


def test_a_newer_version_counts_as_well() -> None:
    steady = [_had(1, 1, 5.0), _had(1, 2, 11.0), _had(1, 3, 22.0)]
    late = [_had(2, 1, 5.0), _had(2, 3, 21.0)]
    first, second = _versions({2: 10.0, 3: 20.0}, steady + late)
    assert (first["seconds"], first["exactly"], first["workers"]) == (11.0, 1, 2)
    assert (second["seconds"], second["exactly"], second["workers"]) == (2.0, 2, 2)


def test_an_engine_that_is_not_there_is_not_waited_for() -> None:
    left = [_had(1, 1, 5.0), _had(1, 2, 11.0)]
    killed = [_had(2, 1, 5.0, pid=20), _had(2, 0, 30.0, pid=21), _had(2, 3, 32.0, pid=21)]
    stays = [_had(3, 1, 5.0), _had(3, 2, 13.0), _had(3, 3, 24.0)]
    first, second = _versions({2: 10.0, 3: 20.0}, left + killed + stays)
    assert (first["seconds"], first["workers"]) == (3.0, 2)
    assert (second["seconds"], second["workers"]) == (4.0, 1)


def test_how_far_engines_are_behind_is_a_mean_over_the_time() -> None:
    quarter = [_had(1, 1, 5.0), _had(1, 2, 12.5), _had(1, 3, 21.0)]
    half = [_had(2, 1, 5.0), _had(2, 2, 15.0), _had(2, 3, 21.0)]
    first, second = _versions({2: 10.0, 3: 20.0}, quarter + half)
    assert first["behind"] == pytest.approx((0.25 + 0.5) / 2)
    assert second["behind"] is None, "nobody knows when the next version would have come"


def test_two_versions_behind_count_twice() -> None:
    first, second, _ = _versions({2: 10.0, 3: 20.0, 4: 30.0}, [_had(1, 1, 5.0), _had(1, 4, 30.0)])
    assert (first["behind"], second["behind"]) == (1.0, 2.0)


def test_who_joins_later_and_who_comes_back() -> None:
    there = [_had(1, 1, 5.0, pid=10), _had(1, 2, 11.0, pid=10)]
    joins = [_had(2, 0, 15.0, pid=20), _had(2, 2, 15.5, pid=20)]
    back = [_had(1, 0, 25.0, pid=11), _had(1, 3, 26.0, pid=11)]
    found = [row for row in rows_of({2: 10.0, 3: 20.0}, there + joins + back) if "joined" in row]
    assert [(row["joined"], row["again"], row["took"]) for row in found] == [(2, False, 0.5), (1, True, 1.0)]


def test_a_wrong_weight_is_seen() -> None:
    (row,) = _versions({2: 10.0}, [_had(1, 1, 5.0), _had(1, 2, 11.0, right=False)])
    assert row["wrong"] == 1


def test_every_step_changes_every_weight_and_engines_notice() -> None:
    trainer, module = Trainer(_job()), module_of(_job())
    first = {name: weight.clone() for name, weight in trainer.step().items()}
    second = trainer.step()
    assert all(torch.all(first[name] == 1) and torch.all(second[name] == 2) for name in first)
    load(module, arrays_of(second))
    assert noted(0, 2, module).right
    assert not noted(0, 1, module).right
    with torch.no_grad():
        next(module.parameters())[0, 0] = 7
    assert not noted(0, 2, module).right


def test_with_a_death_one_engine_leaves_and_one_joins_later() -> None:
    assert stays_of(_job(5)) == [Stay(0, 9)] * 4
    leaves, *stay, joins = stays_of(_job(5, kill=1.0))
    assert leaves.after == 0
    assert 1 < leaves.until < 9
    assert 1 < joins.after < 9
    assert joins.until == 9
    assert stay == [Stay(0, 9)] * 2
    assert stays_of(_job(3, kill=1.0)) == [Stay(0, 9)] * 2, "too few for that"
