"""Dask on emulated hosts: faults, and what many rounds leave. All of it through the commands that people run."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.cli.bench.adapters import growth
from hoplite_ucx.cli.bench.dask import LEFT

LOOK: dict[str, Any] = {
    "objects": 0,
    "tasks": 0,
    "shared": 0,
    "threads": 40,
    "descriptors": {"workers": 100, "agents": 100},
    "memory": {"workers": 400 << 20},
}


def bench(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["bench", "dask", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_counts_as_grown() -> None:
    assert growth(LOOK, LOOK, LEFT) == []
    more: dict[str, Any] = {
        **LOOK,
        "objects": 3,
        "threads": 140,
        "descriptors": {"workers": 300, "agents": 110},
        "memory": {"workers": 900 << 20},
    }
    assert growth(LOOK, more, LEFT) == ["objects", "descriptors of workers", "memory of workers", "threads"]


@pytest.mark.long(reason="13 Dask clusters, one after the other")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("emulated_hosts")
def test_every_fault_ends_in_the_right_value() -> None:
    outcomes = bench("faults", "--workers", "4", "--size", "32MiB")
    assert len(outcomes) == 13


@pytest.mark.long(reason="200 rounds take minutes")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("emulated_hosts")
def test_two_hundred_rounds_leave_nothing_behind() -> None:
    looks = bench("rounds", "--count", "200", "--workers", "4")
    assert [look["round"] for look in looks] == [20, 100, 200]


@pytest.mark.long(reason="a Dask cluster on emulated hosts")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("emulated_hosts")
def test_speed_beside_plain_dask() -> None:
    measured = bench("speed", "--workers", "2", "--size", "4MiB", "--repeat", "1")
    assert sorted(each["what"] for each in measured).count("hoplite") == 3
