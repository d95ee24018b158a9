"""`hoplite start` and `hoplite status`, as a user runs them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hoplite_ucx as hoplite
from hoplite_ucx.cli import app
from hoplite_ucx.errors import ClosedError
from hoplite_ucx.runtime.launch import cluster, inspection
from hoplite_ucx.runtime.launch.inspection import LocalAgents
from tests.runtime.test_faults import alive, children_of, without_address
from tests.tools.loopback import own_address
from tests.tools.waiting import HANG, eventually

HOPLITE = [sys.executable, "-c", "from hoplite_ucx.cli import main; main()"]
ENVIRONMENT = {**without_address(), "HOPLITE_TOKEN": "a token"}


@contextmanager
def service(*options: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    command = [*HOPLITE, "start", "--json", "--memory", "64MiB", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, env=ENVIRONMENT | environment)
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate(timeout=HANG)


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [*HOPLITE, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT | environment, timeout=60, check=False
    )


def status(address: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Of the cluster, and of each agent by its name. Other tests may run agents on this host meanwhile."""
    told = json.loads(run("status", "--json", "--address", address).stdout)
    return told["cluster"], {agent["agent"]: agent for agent in told["agents"]}


def test_a_host_that_leaves_hands_over_what_only_it_has() -> None:
    with service("--head", "--port", "0") as (_, head):
        with service("--address", head["address"], "--hand-over", str(HANG)) as (leaver, other):
            with hoplite.connect(head["address"], agent=other["agent"]) as cluster:
                ref = cluster.put(np.arange(1 << 18))
            leaver.terminate()
            assert leaver.wait(HANG) is not None
        with hoplite.connect(head["address"], agent=head["agent"]) as cluster:
            assert cluster.info(ref).copies == 1
            assert cluster.get(ref, timeout=HANG)[-1] == (1 << 18) - 1


def test_a_head_and_another_agent() -> None:
    with service("--head", "--port", "0") as (head, report):
        children = children_of(head.pid)
        assert len(children) == 2
        with service("--address", report["address"]) as (second, other):
            assert other["cluster"] == report["cluster"]
            assert other["agent"] != report["agent"]
            assert second.stderr is not None
            assert f"other agents of this cluster: {report['agent']}" in second.stderr.readline()
            hoplite.init(report["address"], agent=other["agent"])
            try:
                ref = hoplite.put(np.arange(1 << 18))
                cluster, agents = status(report["address"])
                assert len(cluster["nodes"]) == 2
                assert agents[other["agent"]]["largest"][0]["ref"] == ref.hex()
                shown = run("status", HOPLITE_ADDRESS=report["address"])
                assert ref.hex()[:16] in shown.stdout
            finally:
                hoplite.shutdown()
        wrong = run("status", "--address", report["address"], HOPLITE_TOKEN="wrong")
        assert wrong.returncode == 1
        assert "token" in wrong.stderr
    eventually(lambda: not any(alive(child) for child in children))


def test_agents_of_a_cluster_that_is_over_end_and_say_so() -> None:
    """Its head was ended and started again: that is another cluster at the same address."""
    with contextlib.ExitStack() as stack:
        where = ("--head", "--host", own_address(), "--port")
        first, report = stack.enter_context(service(*where, "0"))
        other, _ = stack.enter_context(service("--address", report["address"]))
        first.terminate()
        first.communicate(timeout=HANG)
        port = report["address"].rsplit(":", 1)[1]
        _, anew = stack.enter_context(service(*where, port))
        _, said = other.communicate(timeout=HANG)
        assert other.returncode == 1
        assert f"now serves a new cluster, {anew['cluster']}: cluster {report['cluster']} has ended" in said
        assert "start it again" in said


def test_a_directory_that_crashes_is_started_again() -> None:
    with service("--head", "--port", "0") as (head, report):
        hoplite.init(report["address"])
        try:
            ref = hoplite.put(np.arange(1 << 18))
            (directory,) = [child for child in children_of(head.pid) if _role(child) == "directory"]
            os.kill(directory, signal.SIGKILL)
            eventually(lambda: any(_role(c) == "directory" for c in children_of(head.pid) if c != directory))
            assert hoplite.get(hoplite.put("after"), timeout=HANG) == "after"
            assert hoplite.get(ref, timeout=HANG)[5] == 5
        finally:
            hoplite.shutdown()


def test_a_service_whose_agent_dies_ends() -> None:
    with service("--head", "--port", "0") as (head, _):
        (agent,) = [child for child in children_of(head.pid) if _role(child) == "agent"]
        os.kill(agent, signal.SIGKILL)
        assert head.wait(HANG) == 1


def test_a_service_that_is_killed_leaves_nothing() -> None:
    with service("--head", "--port", "0") as (head, _):
        children = children_of(head.pid)
        head.kill()
        eventually(lambda: not any(alive(child) for child in children))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["start"], "--head"),
        (["start", "--head", "--address", "127.0.0.1:1"], "--head"),
        (["start", "--address", "127.0.0.1:1"], "nothing listens there (127.0.0.1:1)"),
        (["start", "--address", "nonsense"], "not an address"),
        (["start", "--head", "--memory", "much"], "--memory"),
        (["start", "--head", "--memory", "0"], "--memory"),
        (["start", "--head", "--host", "0.0.0.0"], "--host"),
        (["start", "--address", "127.0.0.1:1", "--host", "::"], "--host"),
        (["doctor", "--root", "/nowhere"], "does not exist"),
        (["status", "--address", "127.0.0.1:1"], "nothing listens there"),
        (["status", "--address", "nonsense"], "not an address"),
    ],
)
def test_bad_input(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code != 0
    assert says in done.stderr.replace("\n", " "), done.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("start", "--head", "--port", port)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr


def test_status_where_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("hoplite_ucx.cli.status"), "local_agents", lambda _: LocalAgents([], []))
    monkeypatch.delenv("HOPLITE_ADDRESS", raising=False)
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 1
    assert "hoplite start" in done.stdout.replace("\n", " ")


def test_an_agent_that_is_stopped_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_GREETING_SECONDS", 0.5)
    monkeypatch.setattr(inspection, "_SECONDS", 0.5)
    with service("--head", "--port", "0") as (head, report):
        (agent,) = [child for child in children_of(head.pid) if b"agent" in Path(f"/proc/{child}/cmdline").read_bytes()]
        os.kill(agent, signal.SIGSTOP)
        try:
            for command in ("status", "links"):
                shown = CliRunner().invoke(app, [command]).stdout.replace("\n", " ")
                assert f"agent {report['agent']} does not answer" in shown
            assert report["agent"] in json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)["silent"]
            with pytest.raises(ClosedError, match=f"{report['agent']}.* does not answer"):
                hoplite.init(report["address"], agent=report["agent"])
        finally:
            os.kill(agent, signal.SIGCONT)


def test_a_token_file_that_is_named_must_have_a_token(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("missing", "empty"):
        environment = {"HOPLITE_TOKEN": None, "HOPLITE_TOKEN_FILE": str(tmp_path / name)}
        done = CliRunner().invoke(app, ["start", "--head"], env=environment)
        assert done.exit_code == 1
        assert "token file" in done.stderr


def _role(pid: int) -> str:
    """Nothing of a process that has just been forked, or has ended."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return arguments[-4] if len(arguments) > 3 else ""


def test_what_a_program_left_can_be_deleted() -> None:
    program = (
        "import numpy as np, hoplite_ucx as h\nh.init()\nprint(h.put(np.ones(1 << 18)).hex(), h.put(np.ones(4)).hex())"
    )
    with service("--head", "--port", "0") as (_, report):
        where = {"HOPLITE_ADDRESS": report["address"]}
        command = [sys.executable, "-c", program]
        left = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT | where, timeout=60, check=True)
        large, small = left.stdout.split()
        shown = run("status", **where)
        assert large in shown.stdout
        by_name = run("delete", small, **where)
        assert by_name.stdout == "deleted 1 ref\n", by_name.stderr
        assert run("delete", "--idle", "3600s", **where).stdout == "deleted 0 objects\n"
        assert run("delete", "--idle", "0s", **where).stdout == "deleted 1 object\n"
        _, agents = status(report["address"])
        assert agents[report["agent"]]["objects"] == 0


@pytest.mark.parametrize("arguments", [(), ("--idle", "1s", "ab"), ("xyz",), ("abcd",)])
def test_delete_says_what_it_wants(arguments: tuple[str, ...]) -> None:
    refused = run("delete", "--address", "127.0.0.1:9", *arguments)
    assert refused.returncode == 2
    assert "REF" in refused.stderr
