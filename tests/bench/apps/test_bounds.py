"""The speed-up that an application can have, by calculation."""

from __future__ import annotations

import pytest

from hoplite_ucx.bench.apps.bounds import MODELS, half
from hoplite_ucx.bench.apps.pieces import vision
from hoplite_ucx.bench.apps.pieces.vectors import size_of
from hoplite_ucx.bench.apps.plan import GRIDS, PARAMETERS, Grid, Kind, runs


@pytest.mark.parametrize(("nodes", "expected"), [(2, 1), (4, 1), (8, 3), (16, 7)])
def test_half_of_the_workers_leaves_out_the_server(nodes: int, expected: int) -> None:
    assert half(nodes) == expected


def test_without_compute_the_speed_up_is_the_bound() -> None:
    assert MODELS["serving"].speed_up(8, 48 << 20, 125e6, 0.0) == pytest.approx(7)
    assert MODELS["sgd"].speed_up(8, 100 << 20, 125e6, 0.0) == pytest.approx(3)


def test_much_compute_hides_the_transfers() -> None:
    assert MODELS["serving"].speed_up(8, 48 << 20, 125e6, 1e6) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", ["impala", "a3c", "serving"])
def test_the_papers_compute_gives_the_papers_figure(name: str) -> None:
    model = MODELS[name]
    assert model.speed_up(16, model.paper_size, 10e9 / 8, model.paper_compute) == pytest.approx(model.paper)


def test_serving_in_the_paper_has_about_216_ms_of_compute() -> None:
    assert MODELS["serving"].paper_compute == pytest.approx(0.216, abs=0.002)


def test_a_figure_above_the_bound_leaves_no_compute() -> None:
    sgd = MODELS["sgd"]
    assert sgd.paper is not None
    assert sgd.paper > sgd.bound(16)
    assert MODELS["sgd"].paper_compute == 0
    swept = [run.compute for run in runs(GRIDS["full"]) if run.task == "resnet50" and run.nodes == 8]
    assert swept == [0.0, pytest.approx(sgd.transfer_seconds(PARAMETERS["resnet50"], 125e6), abs=1e-3)]


def test_size_and_rate_scaled_together_keep_the_share_of_compute() -> None:
    model = MODELS["serving"]
    full = model.speed_up(8, 48 << 20, 125e6, model.compute_like_the_papers(48 << 20, 125e6))
    small = model.speed_up(8, 12 << 20, 125e6 / 4, model.compute_like_the_papers(12 << 20, 125e6 / 4))
    assert full == pytest.approx(small)


@pytest.mark.parametrize("name", [vision.SMALL, "resnet50", "alexnet"])
def test_models_have_the_size_that_the_plan_counts_with(name: str) -> None:
    assert size_of(vision.build(name)) == PARAMETERS[name]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_no_two_runs_of_a_grid_are_mistaken_for_each_other(grid: Grid) -> None:
    chosen = runs(grid)
    assert len({run.key for run in chosen}) == len(chosen)
    assert {run.kind for run in chosen} == set(Kind)


@pytest.mark.parametrize("name", ["default", "full"])
def test_one_timing_run_computes_for_real(name: str) -> None:
    real = [run.kind for run in runs(GRIDS[name]) if run.compute is None and run.kind is not Kind.LEARNING]
    assert real == [Kind.TIMING]
    assert all(run.compute is None for run in runs(GRIDS[name]) if run.kind is Kind.LEARNING)


def test_the_default_grid_has_every_application_at_4_8_and_16_nodes() -> None:
    timed = [run for run in runs(GRIDS["default"]) if run.kind is Kind.TIMING]
    for nodes in (4, 8, 16):
        assert {run.application for run in timed if run.nodes == nodes} == set(MODELS)
    for run in timed:
        full = 97.5 if run.application == "sgd" else {"serving": 48, "weight_sync": 32}.get(run.application, 64)
        if run.nodes == 16:
            assert run.size / run.rate == pytest.approx(full * (1 << 20) / 125e6, rel=1e-3), "S/B is kept"


def test_queries_come_by_themselves_in_every_grid() -> None:
    for grid in GRIDS.values():
        assert [run for run in runs(grid) if run.load], grid.name


@pytest.mark.parametrize(("name", "minutes"), [("quick", 5), ("default", 45)])
def test_grids_are_estimated_to_fit_their_time(name: str, minutes: float) -> None:
    assert sum(run.estimate for run in runs(GRIDS[name])) < 60 * minutes


def test_weight_sync_counts_from_when_new_weights_are_there() -> None:
    assert MODELS["weight_sync"].speed_up(8, 64 << 20, 125e6, 5.0) == pytest.approx(7)
