"""What observing costs: a small run, in which everything is scraped and traced."""

import json

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.measures.observing import Observation
from hoplite_ucx.cli import app


def test_ratios_are_of_rounds_beside_each_other() -> None:
    seconds = (1.0, 2.0, 4.0), (1.0, 1.0, 1.0)
    directory = (0.02, 0.02, 0.02), (0.01, 0.02, 0.04)
    found = Observation(3, 1 << 20, 0, False, *seconds, *directory, 6, 12)
    assert found.ratio.median == 2.0
    assert found.directory_ratio.median == 1.0
    assert found.per_placement(found.directory_alone) == 0.01


@pytest.mark.long(reason="starts two clusters on emulated hosts, and waits between rounds")
def test_a_cluster_is_scraped_and_traced_in_its_rounds(emulated_hosts: None) -> None:
    done = CliRunner().invoke(app, ["bench", "observed", "--hosts", "3", "--size", "1MiB", "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["rounds"] == 2
    assert report["scrapes"] >= 2 * 4
    assert report["spans"] >= 2 * 2
    assert report["ratio"] > 0
    assert report["directory_seconds_per_placement"] > 0
