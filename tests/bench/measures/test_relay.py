"""What a relay costs: the agent in the middle of a chain, beside a bare forwarder."""

import json

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app

pytestmark = pytest.mark.usefixtures("emulated_hosts")


def test_the_processor_time_of_a_relay_beside_that_of_a_bare_forwarder() -> None:
    done = CliRunner().invoke(app, ["bench", "relay", "--size", "16MiB", "--repeat", "2", "--json"])
    assert done.exit_code == 0, done.stderr
    (told,) = map(json.loads, done.stdout.splitlines())
    assert (told["what"], told["hosts"], told["size"]) == ("relay", 3, 16 << 20)
    assert len(told["runs"]) == len(told["bare_runs"]) == 2
    # No machine passes bytes on for nothing, nor at less than 10 MB/s of processor time.
    assert all(1e-12 < seconds < 1e-7 for seconds in [*told["runs"], *told["bare_runs"]])
    assert told["ratio"] == pytest.approx(told["processor_seconds_per_byte"] / told["bare_processor_seconds_per_byte"])


def test_a_size_that_is_no_array_is_refused() -> None:
    refused = CliRunner().invoke(app, ["bench", "relay", "--size", "7"])
    assert refused.exit_code == 1
    assert "whole float32 numbers" in refused.stderr
