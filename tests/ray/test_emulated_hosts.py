"""Ray on emulated hosts: speed, faults, and what many rounds leave. All of it through the commands that people run."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app

pytestmark = [pytest.mark.timeout(3600), pytest.mark.usefixtures("emulated_hosts")]


def bench(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["bench", "ray", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long(reason="eighteen Ray jobs, one after the other, and nodes that start again")
def test_every_fault_ends_in_the_right_value_or_an_error_of_rays() -> None:
    outcomes = bench("faults", "--nodes", "4", "--size", "32MiB")
    assert all(outcome["right"] for outcome in outcomes)


@pytest.mark.long(reason="300 rounds take minutes")
def test_three_hundred_rounds_and_a_killed_driver_leave_nothing_behind() -> None:
    *looks, killed = bench("rounds", "--count", "300", "--nodes", "4")
    assert [look["round"] for look in looks] == [30, 150, 300]
    assert killed["left"] == []


@pytest.mark.long(reason="a Ray cluster on emulated hosts")
def test_speed_beside_plain_ray() -> None:
    measured = bench("speed", "--nodes", "3", "--size", "8MiB", "--repeat", "2")
    assert [each["what"] for each in measured] == ["plain Ray", "hoplite"] * 3


@pytest.mark.long(reason="a Ray cluster on emulated hosts")
def test_small_calls_beside_plain_ray() -> None:
    (calls,) = bench("small", "--kind", "put", "--size", "1KiB", "--count", "100")
    assert calls["low"] <= calls["ratio"] <= calls["high"]
