"""`hoplite doctor` and `hoplite links`: what they say of this machine, and of made-up ones."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.runtime.launch.inspection import LocalAgents
from hoplite_ucx.transports.detection import UcxBuild
from tests.transports.test_detection import add_device

LINKS = import_module("hoplite_ucx.cli.links")  # the package has the command under this name


def test_json_is_one_object() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert {"devices", "ucx", "rdma", "problems", "open_files", "locked_memory"} <= set(report)


def test_a_port_that_is_down(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0")
    add_device(tmp_path, "mlx5_1", state="1: DOWN")
    result = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path)])
    assert result.exit_code == 0
    assert "mlx5_0" in result.stdout
    assert "port 1 of mlx5_1 is down" in result.stdout
    assert "check the cable" in result.stdout


def test_remedies_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    none = UcxBuild(failure="UCX cannot be loaded")
    monkeypatch.setattr("hoplite_ucx.transports.detection.ucx_build", lambda: none)
    result = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path)])
    assert "pip install 'hoplite-ucx[ucx]'" in result.stdout


def test_what_cannot_be_kept_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPLITE_LINKS_REQUIRE", "rdma")
    result = CliRunner().invoke(app, ["doctor", "--json", "--root", str(tmp_path)])
    assert result.exit_code == 1
    assert "links.require" in json.loads(result.stdout)["configuration_error"]


def test_links_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINKS, "local_agents", lambda: LocalAgents([], []))
    assert "no agent" in CliRunner().invoke(app, ["links"]).stdout
    assert json.loads(CliRunner().invoke(app, ["links", "--json"]).stdout) == {"agents": [], "silent": []}


def test_links_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    link = {
        "peer": "n2",
        "side": "receiving",
        "transport": "ucx",
        "bytes": 4096,
        "lanes": ["tcp/lo"],
        "reason": "a rule",
    }
    agent = {"agent": "a1", "address": "127.0.0.1:1", "links": [link]}
    monkeypatch.setattr(LINKS, "local_agents", lambda: LocalAgents([agent], []))
    shown = CliRunner().invoke(app, ["links"]).stdout
    assert "tcp/lo" in shown
    assert "a rule" in shown
    assert json.loads(CliRunner().invoke(app, ["links", "--json"]).stdout)["agents"] == [agent]
