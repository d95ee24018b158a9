"""What messages cost the directory: how the time of its process is divided, and a small run with made-up nodes."""

import json
from pathlib import Path
from subprocess import Popen
from typing import cast

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.measures.directory_cost import SINGLY, Play, Spent
from hoplite_ucx.cli import app
from hoplite_ucx.simulate.directory_costs import OTHERS, PROGRESS


def test_the_process_is_divided_among_what_it_received_and_sent() -> None:
    spent = {
        "Delete": Spent(2e-3, received=1, sent=100),  # 20 µs for every message that is sent
        "Reduce": Spent(4e-3, received=1, sent=100),
        "Heartbeat": Spent(2.5e-3, received=100, sent=100),
        PROGRESS: Spent(3e-3, received=100, sent=100),
        SINGLY: Spent(3.5e-3, received=100, sent=100),
        "Completed": Spent(1e-3, received=100),
    }
    costs = Play(cast("Popen[bytes]", None), [], spent).costs()
    assert costs.sent == pytest.approx({"Bind": 40e-6, OTHERS: 20e-6})
    assert costs.received == pytest.approx({"Heartbeat": 5e-6, PROGRESS: 5e-6, "Completed": 10e-6, OTHERS: 5e-6})
    assert costs.wake_up == pytest.approx(10e-6)


def test_made_up_nodes_measure_a_directory_and_the_simulator_charges_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "directory", "--hosts", "5", "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.output
    measured = json.loads(done.output)
    kinds = {"Join", "Heartbeat", "Put", "Want", "Bound", "Consumed", "Completed", PROGRESS, OTHERS}
    assert set(measured["received"]) == kinds
    assert measured["sent"]["Bind"] > 0
    file = tmp_path / "costs.json"
    file.write_text(done.output)
    command = ["simulate", "broadcast", "--nodes", "3", "--size", "1MiB", "--json", "--directory-cost", str(file)]
    simulated = CliRunner().invoke(app, command)
    assert simulated.exit_code == 0, simulated.output
    assert json.loads(simulated.output)["directory_cost"]["received"] == measured["received"]
