"""Medians, spreads, limits, and the lines they are reported in."""

import json

import pytest

from hoplite_ucx.bench.harness.timing import Measurement, Round, limit_seconds, measure, measure_in_turn, progress_bar


def test_limits_are_what_the_busiest_link_carries_at_its_payload() -> None:
    size, rate = 95_000_000, 1e8
    assert limit_seconds("broadcast", 8, size, rate) == pytest.approx(1)
    assert limit_seconds("reduce", 8, size, rate) == pytest.approx(1)
    assert limit_seconds("gather", 8, size, rate) == pytest.approx(7)
    assert limit_seconds("allreduce", 8, size, rate) == pytest.approx(1.75)


def test_untimed_rounds_do_not_count_and_every_round_moves_the_bar() -> None:
    seconds = iter([9.0, 1.0, 3.0, 2.0])
    moved: list[int] = []
    measured = measure("it", lambda: Round(next(seconds), 0.5), repeat=3, limit=1.6, advance=lambda: moved.append(1))
    assert measured.runs == (1.0, 3.0, 2.0)
    assert (measured.seconds, measured.fastest, measured.slowest, measured.spread) == (2.0, 1.0, 3.0, 1.0)
    assert measured.ratio == pytest.approx(1.25)
    assert measured.processor == 0.5
    assert len(moved) == 4


def test_things_to_be_compared_are_measured_in_turn() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> Round:
        order.append(name)
        return Round(seconds, seconds / 2)

    measured = measure_in_turn({"a": lambda: run("a", 1.0), "b": lambda: run("b", 3.0)}, repeat=2)
    assert order == ["a", "b"] * 3
    assert [(each.what, each.runs, each.processor) for each in measured] == [
        ("a", (1.0, 1.0), 0.5),
        ("b", (3.0, 3.0), 1.5),
    ]


def test_no_round_begins_when_time_is_up_but_each_is_timed_once() -> None:
    assert measure_in_turn({"it": lambda: Round(1.0, 0.5)}, repeat=5, untimed=2, seconds=-1.0)[0].runs == (1.0,)
    assert len(measure_in_turn({"it": lambda: Round(1.0, 0.5)}, repeat=5, seconds=60.0)[0].runs) == 5


def test_a_line_holds_the_figures_and_the_settings() -> None:
    figures = json.loads(Measurement("it", (1.0, 2.0, 4.0), 1.0, {"hosts": 8}).json_line())
    assert figures["seconds"] == figures["ratio"] == 2.0
    assert figures["spread"] == 1.5
    assert figures["runs"] == [1.0, 2.0, 4.0]
    assert figures["hosts"] == 8


def test_without_a_limit_there_is_no_ratio() -> None:
    assert json.loads(Measurement("it", (1.0,)).json_line())["ratio"] is None


def test_the_bar_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("it", 2) as advance:
        advance()
    assert capsys.readouterr() == ("", "")
