"""`hoplite bench` as people and programs use it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.hosts import namespaces as clusters
from hoplite_ucx.cli import app

pytestmark = pytest.mark.usefixtures("emulated_hosts")


def bench(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *arguments])


def execute(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`bench cluster exec` becomes the command, so it needs a process of its own."""
    command = [sys.executable, "-c", "from hoplite_ucx.cli import main; main()", "bench", "cluster", "exec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"command-{os.getpid()}"
    yield name
    clusters.take_down(name)


def test_hosts_stay_up_between_commands_until_they_are_taken_down(name: str) -> None:
    made = json.loads(bench("cluster", "up", "--hosts", "2", "--rate", "100mbit", "--name", name, "--json").stdout)
    assert made["name"] == name
    assert made["rate"] == 12.5e6
    assert [host["address"] for host in made["hosts"]] == ["198.18.0.1", "198.18.0.2"]

    assert "198.18.0.2" in execute("--name", name, "1", "--", "ip", "-brief", "address").stdout
    assert execute("--name", name, "1", "sh", "-c", "exit 5").returncode == 5
    outside = bench("cluster", "exec", "--name", name, "2", "--", "true")
    assert outside.exit_code == 1
    assert "has the hosts 0 to 1, not 2" in outside.stderr
    again = bench("cluster", "up", "--name", name)
    assert again.exit_code == 1
    assert "already exists" in again.stderr

    assert json.loads(bench("cluster", "down", "--name", name, "--json").stdout) == {"down": [name]}
    assert name not in clusters.names_up()
    gone = bench("cluster", "down", "--name", name)
    assert gone.exit_code == 1
    assert "nothing of one is left" in gone.stderr


def test_bare_figures_for_people_and_for_programs() -> None:
    options = ("bare", "broadcast", "--hosts", "2", "--size", "1MiB", "--rate", "1gbit", "--repeat", "2")
    shown = bench(*options)
    assert shown.exit_code == 0, shown.stderr
    assert "broadcast of 1MiB between 2 hosts, 1gbit each" in shown.stdout
    assert "× limit" in shown.stdout
    figures = json.loads(bench(*options, "--json").stdout)
    assert figures["seconds"] / figures["limit_seconds"] == pytest.approx(figures["ratio"])
    assert len(figures["runs"]) == 2
    refused = bench("bare", "reduce", "--hosts", "1")
    assert refused.exit_code == 1
    assert "between two or more hosts" in refused.stderr
