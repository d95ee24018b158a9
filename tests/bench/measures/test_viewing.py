"""What viewers cost: the interval of a median, and a small run."""

import json

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.measures.viewing import Interval, median_interval
from hoplite_ucx.cli import app


def test_the_interval_of_a_median_is_that_of_the_binomial_tables() -> None:
    values = [float(number) for number in range(1, 41)]
    assert median_interval(values[::-1]) == Interval(20.5, 14.0, 27.0)
    assert median_interval([float(number) for number in range(1, 11)]) == Interval(5.5, 2.0, 9.0)
    assert median_interval([1.0, 2.0, 3.0]) == Interval(2.0, 1.0, 3.0)


@pytest.mark.long(reason="waits 6 s in each round until nobody looks any more")
def test_viewers_read_what_happens(emulated_hosts: None) -> None:
    done = CliRunner().invoke(app, ["bench", "view", "--hosts", "3", "--size", "1MiB", "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["rounds"] == 2
    assert report["lines"] > 2 * 3
    assert report["ratio"] > 0
