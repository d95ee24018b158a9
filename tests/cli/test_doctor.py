"""`hoplite doctor` and `hoplite links`: what they say of this machine, and of made-up ones."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.runtime.launch.inspection import LocalAgents
from hoplite_ucx.transports.detection import LinkHardware, Port, RdmaDevice, UcxBuild
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.ucx.transport import UcxTransport
from tests.transports.test_detection import add_device

DOCTOR = import_module("hoplite_ucx.cli.doctor")
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


@pytest.mark.parametrize(("named", "status"), [("rdma", 1), ("auto", 0)])
def test_it_starts_ucx_as_an_agent_would(monkeypatch: pytest.MonkeyPatch, named: str, status: int) -> None:
    """What the kernel and UCX say of themselves is not enough: they promise RDMA here, and UCX does not start."""
    port = Port(1, "ACTIVE", "LinkUp", "InfiniBand", 100e9, 1, ("ib0",))
    cards = (RdmaDevice("mlx5_0", 0, "0000:01:00.0", (port,)),)
    machine = LinkHardware(cards, UcxBuild(version="1.22.0", transports=("rc_mlx5", "tcp")), 1 << 20, -1)
    monkeypatch.setattr(DOCTOR, "detect", lambda _root: machine)
    monkeypatch.setenv("HOPLITE_LINKS_TRANSPORT", named)
    monkeypatch.setenv("HOPLITE_UCX_NET_DEVICES", "mlx5_0:1")

    def refuse(_self: UcxTransport) -> None:
        raise TransportError("UCX does not take its settings: no device", "this process", "correct the [ucx] section")

    monkeypatch.setattr(UcxTransport, "start", refuse)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == status
    report = json.loads(result.stdout)
    refused, problems = report["configuration_error"] or "", [found["problem"] for found in report["problems"]]
    assert ("no device" in refused) is (status == 1)
    assert any("no device" in problem for problem in problems) is (status == 0)


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
