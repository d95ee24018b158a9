"""`hoplite simulate` as people and programs use it."""

import json

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.cli import app


def simulate(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["simulate", *arguments])


def test_the_demo_tells_what_happened() -> None:
    result = simulate("broadcast", "--nodes", "8", "--size", "64MiB", "--kill", "4@40%")
    assert result.exit_code == 0, result.output
    assert "× the limit of 537ms" in result.output
    assert "host 4 died at 215ms" in result.output
    assert "host 5 continued from host 3 instead of 4" in result.output
    assert "0 → 1 → 2 → 3 → 5 → 6 → 7" in result.output


def test_a_long_chain_stays_on_one_line() -> None:
    result = simulate("broadcast", "--nodes", "24", "--size", "64MiB")
    assert "0 → 1 → 2 → … → 23   (24 hosts)" in result.output


def test_a_crowd_gets_stripes() -> None:
    result = simulate("broadcast", "--nodes", "32", "--size", "64MiB")
    assert "in 8 stripes, each along a tree of its own" in result.output
    assert "→" not in result.output


def test_a_shallow_tree_is_drawn_with_branches() -> None:
    result = simulate("broadcast", "--nodes", "16", "--size", "64KiB")
    assert "├──" in result.output
    assert "└──" in result.output


def test_json_is_one_object_and_nothing_else() -> None:
    result = simulate("broadcast", "--nodes", "4", "--size", "1MiB", "--kill", "2@0.004s", "--compare-static", "--json")
    figures = json.loads(result.stdout)
    assert figures["seconds"] / figures["limit_seconds"] == pytest.approx(figures["ratio"])
    assert [get["host"] for get in figures["gets"]] == [1, 3]
    assert [killed["host"] for killed in figures["killed"]] == [2]
    assert {tree["tree"] for tree in figures["static"]} >= {"chain", "binomial", "2-ary", "star"}
    assert result.stderr == ""


def test_compared_trees_stand_in_one_table_with_ours() -> None:
    result = simulate("broadcast", "--nodes", "8", "--size", "256KiB", "--compare-static")
    names = [line.split()[0] for line in result.output.split("× ours")[1].splitlines()[1:]]
    assert sorted(names) == sorted(["ours", "chain", "binomial", "2-ary", "3-ary", "4-ary", "8-ary", "star"])


def test_a_loss_is_told_with_its_remedy_and_mended_by_putting_again() -> None:
    result = simulate("broadcast", "--nodes", "4", "--size", "4MiB", "--kill", "source@50%", "--put-again")
    assert result.exit_code == 0
    assert "every get failed" in result.output
    assert "gets will then succeed" in result.output
    assert "put again, and all hosts asked again" in result.output


def test_gather_draws_where_the_objects_come_from() -> None:
    result = simulate("gather", "--nodes", "4", "--size", "1MiB")
    assert result.exit_code == 0
    assert "0 ← 1 · 2 · 3" in result.output


def test_reduce_draws_its_chain() -> None:
    result = simulate("reduce", "--nodes", "8", "--size", "8MiB")
    assert result.exit_code == 0, result.output
    assert "× the limit of 67.1ms" in result.output
    assert "0 ← 7 ← 6 ← 5 ← 4 ← 3 ← 2 ← 1" in result.output


def test_reduce_tells_who_took_the_place_of_a_dead_source() -> None:
    result = simulate("reduce", "--nodes", "9", "--count", "8", "--size", "8MiB", "--kill", "4@50%")
    assert result.exit_code == 0, result.output
    assert "reduce of 8MiB from the first 8 of 9 hosts to host 0" in result.output
    assert "the slot of host 4 started over on host 8" in result.output
    assert "5 of 7 slots started over" in result.output
    assert "made of 0 + 1 + 2 + 3 + 5 + 6 + 7 + 8" in result.output


def test_reduce_tells_how_long_it_took_after_the_last_arrival() -> None:
    result = simulate("reduce", "--nodes", "4", "--size", "4MiB", "--arrivals", "bimodal 50%", "--json")
    figures = json.loads(result.stdout)
    assert figures["after_last_seconds"] == pytest.approx(figures["seconds"] - figures["ready_seconds"])
    assert figures["after_last_ratio"] <= 1.15
    assert figures["contributors"] == [0, 1, 2, 3]
    shown = simulate("reduce", "--nodes", "4", "--size", "4MiB", "--arrivals", "bimodal 50%")
    assert "after its last source, which came at" in shown.output


def test_a_taken_over_slot_is_drawn_where_it_went() -> None:
    result = simulate("reduce", "--nodes", "8", "--size", "8MiB", "--copies", "2", "--kill", "4@50%")
    assert result.exit_code == 0, result.output
    assert "the slot of host 4 continued on host" in result.output
    assert "0 of 7 slots started over" in result.output


def test_reduce_stands_in_one_table_with_static_trees() -> None:
    result = simulate("reduce", "--nodes", "8", "--size", "256KiB", "--compare-static")
    names = [line.split()[0] for line in result.output.split("× ours")[1].splitlines()[1:]]
    assert sorted(names) == sorted(["ours", "chain", "2-ary", "3-ary", "4-ary", "8-ary", "star"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--count", "9"], "9 sources"),
        (["--getters", "0"], "0 of 8 hosts"),
        (["--kill", "0@10%"], "get the result"),
        (["--copies", "2", "--arrivals", "every 1s"], "before the clock starts"),
        (["--arrivals", "bimodal"], "not an arrival pattern"),
    ],
)
def test_impossible_reductions_are_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    result = simulate("reduce", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_inline_objects_need_no_tree() -> None:
    result = simulate("broadcast", "--nodes", "3", "--size", "100", "--json")
    assert json.loads(result.stdout)["tree"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nodes", "1"], "too few"),
        (["--size", "0"], "0 bytes"),
        (["--size", "64XB"], "unknown unit"),
        (["--kill", "8@40%"], "no host 8"),
        (["--kill", "4"], "does not say when"),
        (["--kill", "4@-1s"], "not a duration"),
        (["--kill", "four@40%"], "not a host"),
        (["--unplug", "4@x%"], "not a fraction of the limit"),
        (["--arrivals", "sometimes"], "not an arrival pattern"),
        (["--arrivals", "every"], "not an arrival pattern"),
        (["--slow", "5"], "does not say how slow"),
        (["--slow", "9=500mbit"], "no host 9"),
        (["--copies", "8"], "no receiver"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], complaint: str) -> None:
    result = simulate("broadcast", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_the_gatherer_cannot_be_killed() -> None:
    result = simulate("gather", "--kill", "0@10%")
    assert result.exit_code == 2
    assert "host 0 gathers" in result.stderr


def test_allreduce_tells_of_its_stripes() -> None:
    result = simulate("allreduce", "--nodes", "4", "--size", "4MiB")
    assert result.exit_code == 0, result.output
    assert "allreduce of 4MiB from 4 hosts to 4 hosts" in result.output
    assert "in 4 stripes" in result.output
    figures = json.loads(simulate("allreduce", "--nodes", "4", "--size", "4MiB", "--json", "--compare-static").output)
    assert figures["stripes"] == 4
    assert len(figures["gets"]) == 4
    assert figures["ratio"] < 1.1
    assert {"ring in stripes", "chain + chain"} <= {tree["tree"] for tree in figures["static"]}


def test_allreduce_does_not_kill_who_asks() -> None:
    result = simulate("allreduce", "--nodes", "4", "--kill", "0@50%")
    assert result.exit_code == 2
    assert "host 0 asks for the allreduce" in result.output
