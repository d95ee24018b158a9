"""Machines through ssh: what a hosts file may say, figures for real, errors that name the machine, and nothing left."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import hoplite_ucx
from hoplite_ucx.bench.harness import live_cluster as live_module
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.ssh import Machine, SshCluster, read_hosts
from hoplite_ucx.bench.measures.operations import LiveRounds
from hoplite_ucx.cli import app
from tests.tools.sshd import PYTHON, Machines, machines
from tests.tools.waiting import HANG, eventually

RATE = 125e6
EVERYBODY = 7  # two guards, a directory, two agents, two workers; agents may have wardens


def bench(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *arguments])


# --- the file ---------------------------------------------------------------------------------------------------


def test_a_hosts_file_names_machines(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# two machines\n\nnode1\nalice@node2:2222 address=10.0.0.2 python='env A=1 /opt/venv/bin/python'  # fast\n"
    )
    assert read_hosts(path) == [
        Machine("node1"),
        Machine("node2", "alice", 2222, "10.0.0.2", ("env", "A=1", "/opt/venv/bin/python")),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("node1\n", "names 1 machines; 2 to 256"),
        ("node1\n-oProxyCommand=true\n", "line 2 of .*is not a machine"),
        ("node1 python=\n", "line 1 of .*is not a setting"),
        ("node1 shell=sh\n", "line 1 of .*'shell=sh' is not a setting"),
        ("node1 address=1 address=2\n", "line 1 of .*once"),
        ("node1 'address=1\n", "line 1 of .*No closing quotation"),
    ],
)
def test_what_a_hosts_file_may_not_say(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(PeerError, match=why):
        read_hosts(path)


def test_what_is_refused_before_anything_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("node1\nnode2\n")
    for options, why in (
        (("--hosts", "3"), "lists 2 machines, not 3"),
        (("--size", "7"), "whole float32 numbers"),
        (("--ssh", "no-such-ssh"), "no-such-ssh is not installed here"),
        (("--ssh", "'"), "is not a command"),
    ):
        refused = bench("broadcast", "--hosts-file", str(path), *options)
        assert refused.exit_code == 1
        assert why in refused.stderr
    assert bench("broadcast", "--hosts-file", str(path), "--peers").exit_code == 2
    missing = bench("broadcast", "--hosts-file", str(tmp_path / "none"))
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (1, True)


# --- for real ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(emulated_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("ssh"), 2, RATE) as made:
        yield made


def test_figures_of_machines_with_a_rate_that_is_measured(pair: Machines) -> None:
    done = bench(
        "allreduce", "--hosts-file", str(pair.file()), "--ssh", shlex.join(pair.ssh), "--size", "1MiB", "--repeat", "2",
        "--no-bare", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (row["what"], row["hosts"], row["rate_given"]) == ("allreduce", 2, False)
    assert 0 < row["rate"] < 1.2 * RATE
    assert row["ratio"] > 0
    assert row["processor_seconds"] > 0
    assert row["clock_error_seconds"] > 0
    assert [machine["address"] for machine in row["machines"]] == ["198.18.0.2", "198.18.0.3"]
    assert row["machines"][0]["versions"]["hoplite"] == hoplite_ucx.__version__
    assert pair.processes() == []


def test_the_token_is_on_no_command_line_and_an_error_leaves_nothing(
    pair: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[bytes] = []

    def directory_task(token: bytes, *rest: Any) -> dict[str, Any]:
        tokens.append(token)
        return task(token, *rest)

    task = live_module.directory_task
    monkeypatch.setattr(live_module, "directory_task", directory_task)

    def fail() -> None:
        with SshCluster(read_hosts(pair.file()), pair.ssh) as cluster, LiveCluster(cluster.hosts, RATE) as live:
            for operation in (LiveRounds.broadcast, LiveRounds.reduce, LiveRounds.gather):
                assert operation(LiveRounds(live, 64 << 10)).seconds > 0
            assert len(pair.processes()) >= EVERYBODY
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    told = entry.read_bytes()
                except OSError:
                    continue  # it has just ended
                assert not any(word in told for token in tokens for word in (token, token.hex().encode()))
            with pytest.raises(ValueError, match="on a command line"):
                cluster.hosts[0].popen(["true"], env={"HOPLITE_TOKEN": "secret"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tokens
    assert pair.processes() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_everything_ends_with_the_driver(pair: Machines, number: signal.Signals) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from hoplite_ucx.cli import main; main()"
    options = ["--hosts-file", str(pair.file()), "--ssh", shlex.join(pair.ssh), "--rate", "1gbit", "--no-bare"]
    command = [sys.executable, "-c", code, "bench", "broadcast", *options, "--size", "32MiB", "--repeat", "1000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            eventually(lambda: len(pair.processes()) >= EVERYBODY)
            os.kill(driver.pid, number)
            assert driver.wait(HANG) != 0
        finally:
            driver.kill()
    eventually(lambda: pair.processes() == [])


def test_everything_ends_when_the_network_is_gone(pair: Machines) -> None:
    with SshCluster(read_hosts(pair.file()), pair.ssh, silence=3) as cluster:
        host = cluster.hosts[0]
        sleeper = host.popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
        eventually(lambda: len(pair.processes()) == 3)
        pair.cluster.cut(1)
        try:
            eventually(lambda: len(pair.processes()) == 1)
            with pytest.raises(PeerError, match=r"hoplite on 198\.18\.0\.2 (failed|did not answer)"):
                host.clock()
            assert sleeper.wait(HANG) == 255  # ssh's own end of it
        finally:
            pair.cluster.heal(1)
    assert pair.processes() == []


def test_errors_name_the_machine_and_the_remedy(pair: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = f"198.18.0.2 python={shlex.quote(PYTHON)}"

    def refusal(*lines: str) -> str:
        with pytest.raises(PeerError) as refused, SshCluster(read_hosts(pair.file(*lines)), pair.ssh):
            pass
        eventually(lambda: pair.processes() == [])
        return str(refused.value)

    assert "198.18.0.3 cannot be reached" in (closed := refusal(sound, "198.18.0.3:9"))
    assert "Connection refused" in closed
    assert "; try: " in closed
    assert "198.18.0.3 has no /none/python (" in refusal(sound, "198.18.0.3 python=/none/python")
    assert "198.18.0.3 has no hoplite, or an older one" in refusal(sound, "198.18.0.3 python='python3 -I -S'")
    noisy = refusal(sound, """198.18.0.3 python="sh -c 'echo hello; cat'" """)
    assert "198.18.0.3 printed 'hello' before hoplite could" in noisy
    assert "have the same address, 198.18.0.2" in refusal(sound, sound)
    there = hoplite_ucx.__version__
    monkeypatch.setattr(hoplite_ucx, "__version__", "9.9")
    assert f"198.18.0.2 has hoplite {there}, and here it is 9.9: install the same there" in refusal(sound, sound)
