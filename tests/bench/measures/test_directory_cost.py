"""What an event costs the directory: the division, and a small live run."""

import json

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.measures.directory_cost import DirectoryCost
from hoplite_ucx.cli import app


def test_the_process_is_divided_by_its_events() -> None:
    found = DirectoryCost(hosts=8, size=1 << 20, rounds=10, events=200, seconds=0.03)
    assert found.per_event == pytest.approx(150e-6)
    assert json.loads(found.json_line())["seconds_per_event"] == pytest.approx(150e-6)


@pytest.mark.long(reason="starts a cluster on emulated hosts")
def test_a_live_directory_is_measured(emulated_hosts: None) -> None:
    done = CliRunner().invoke(app, ["bench", "directory", "--hosts", "3", "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["events"] > 2 * 3
    assert report["seconds_per_event"] > 0
