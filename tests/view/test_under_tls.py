"""A cluster with TLS is watched and traced by those who have a certificate of it; others are told what they lack."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import hoplite_ucx as hoplite
from tests.runtime.test_faults import without_address
from tests.tools import traces
from tests.tools.certificates import NEEDS_OPENSSL, Authority, variables
from tests.tools.commands import HOPLITE
from tests.tools.live import TOKEN, Live, live_cluster
from tests.tools.view_client import lines
from tests.tools.waiting import HANG, eventually

pytestmark = NEEDS_OPENSSL

HOSTS = 2
COMMANDS = {
    "dashboard": ["dashboard", "--no-browser", "--port", "0"],
    "status --watch": ["status", "--watch", "--every", "0.1"],
    "trace": ["trace", "--seconds", "0.2", "--out"],
}


@dataclass
class Secured:
    live: Live
    certificate: dict[str, str]
    """The variables that name it."""
    foreign: dict[str, str]
    """One of another authority."""

    def command(self, what: str, folder: Path) -> list[str]:
        file = [str(folder / "run.json")] if what == "trace" else []
        return [*HOPLITE, *COMMANDS[what], *file, "--address", self.live.address]


def environment(certificate: dict[str, str]) -> dict[str, str]:
    return {**without_address(), "HOPLITE_TOKEN": TOKEN.decode(), **certificate}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, other = tmp_path_factory.mktemp("tls"), tmp_path_factory.mktemp("other")
    mine = variables(Authority.make(folder).issue("node"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in mine.items():
            patch.setenv(name, value)
        with live_cluster(HOSTS) as live:
            patch.undo()
            yield Secured(live, mine, variables(Authority.make(other).issue("node")))


def all_hosts_told(page: str) -> bool:
    """Until the view has heard from every agent itself."""
    told = set()
    with closing(lines(page)) as changes:
        for line in changes:
            told |= {name for name, host in line.get("hosts", {}).items() if "memory" in host}
            if len(told) == HOSTS:
                return True
    return False


def test_the_dashboard_shows_every_host(secured: Secured, tmp_path: Path) -> None:
    command = secured.command("dashboard", tmp_path)
    with subprocess.Popen(
        command, env=environment(secured.certificate), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert all_hosts_told(process.stdout.readline().strip().rpartition(" ")[2])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert (process.returncode, errors) == (130, "")


def test_status_is_shown_again_and_again(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "status.txt"
    command = secured.command("status --watch", tmp_path)
    with (
        path.open("w") as file,
        subprocess.Popen(
            command, env=environment(secured.certificate), stdout=file, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        eventually(lambda: path.read_text().count(f"{HOSTS} nodes") >= 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert (process.returncode, errors) == (0, "")


def test_a_trace_has_all_processes(secured: Secured, tmp_path: Path) -> None:
    command = [*secured.command("trace", tmp_path), "--json"]
    done = subprocess.run(
        command, env=environment(secured.certificate), capture_output=True, text=True, timeout=HANG, check=True
    )
    processes = json.loads(done.stdout)["processes"]
    assert [process["note"] for process in processes] == [""] * (HOSTS + 1)
    traces.read(tmp_path / "run.json")


@pytest.mark.parametrize("what", COMMANDS)
@pytest.mark.parametrize("has", ["nothing", "a certificate of another authority", "a file that is missing"])
def test_without_a_certificate_of_the_cluster_there_is_one_line(
    secured: Secured, tmp_path: Path, what: str, has: str
) -> None:
    certificate, why = {
        "nothing": ({}, "the peer uses TLS, and this process does not"),
        "a certificate of another authority": (secured.foreign, "certificate"),
        "a file that is missing": (
            {**secured.certificate, "HOPLITE_TLS_CA": str(tmp_path / "none")},
            "tls.ca: cannot be read",
        ),
    }[has]
    done = subprocess.run(
        secured.command(what, tmp_path),
        env=environment(certificate),
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run.json").exists()


def test_a_head_starts_its_view_with_its_certificate(secured: Secured, tmp_path: Path) -> None:
    command = [*HOPLITE, "start", "--head", "--port", "0", "--view-port", "0", "--memory", "64MiB", "--json"]
    mine = {**without_address(), **secured.certificate, "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=mine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        page = json.loads(process.stdout.readline())["view"]
        with closing(lines(page)) as changes:
            assert any("memory" in host for line in changes for host in line.get("hosts", {}).values())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert (process.returncode, errors) == (0, "")


def test_a_program_traces_and_shows_a_private_cluster_whose_settings_have_tls(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token is random, and its certificate is named in a file that only its own processes were given."""
    for name in secured.certificate:
        monkeypatch.delenv(name, raising=False)
    settings = "".join(
        f'{name.removeprefix("HOPLITE_TLS_").lower()} = "{path}"\n' for name, path in secured.certificate.items()
    )
    config = tmp_path / "hoplite.toml"
    config.write_text(f"[tls]\n{settings}")
    path = tmp_path / "run.json"
    with hoplite.connect(memory="64MiB", config=config) as cluster:
        with cluster.trace(path):
            cluster.put(np.ones(1 << 18))
        with hoplite.start_view(cluster.address, port=0, config=config) as view, closing(lines(view.page)) as changes:
            assert any("memory" in host for line in changes for host in line.get("hosts", {}).values())
        with pytest.raises(hoplite.ClosedError, match="the peer uses TLS, and this process does not"):
            hoplite.start_view(cluster.address, port=0)
    (put,) = traces.spans(traces.read(path), "calls")
    assert put["name"].startswith("put ")
