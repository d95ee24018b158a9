"""Settings of a live cluster: the directory's count for every node, and a node with others is refused."""

import contextlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import GetTimeoutError, HopliteError, InvalidRequestError
from hoplite_ucx.transports.mixed_transport import MixedTransport
from tests.runtime.launch.test_service import run, service, status
from tests.runtime.test_faults import children_of
from tests.tools.here import agent_here
from tests.tools.live import live_cluster
from tests.tools.waiting import eventually


def write(folder: Path, text: str) -> str:
    path = folder / "hoplite.toml"
    path.write_text(text)
    return str(path)


def test_the_directorys_file_counts_for_every_node(tmp_path: Path) -> None:
    path = write(tmp_path, '[cluster]\nheartbeat = "100ms"\nlease = "1800s"\n')
    with (
        service("--head", "--port", "0", "--config", path) as (_, head),
        service("--address", head["address"]) as (_, other),
    ):

        def in_force() -> dict[str, tuple[float, float]]:
            agents = status(head["address"])[1]
            return {
                name: (agent["settings"]["heartbeat"], agent["settings"]["lease"]) for name, agent in agents.items()
            }

        eventually(lambda: in_force() == dict.fromkeys((head["agent"], other["agent"]), (0.1, 1800.0)))
        shown = json.loads(run("config", "--json", "--address", head["address"]).stdout)["settings"]
        lease = next(row for row in shown if row["name"] == "cluster.lease")
        assert (lease["value"], lease["origin"]) == (1800.0, "cluster")
        asked = run("config", "--set", "cluster.lease=5s", "--address", head["address"])
        assert asked.returncode == 1
        assert "would be refused: the arguments: --set cluster.lease: is 5s here and 1800s in the" in asked.stderr


def test_a_node_that_differs_is_refused_before_it_starts(tmp_path: Path) -> None:
    path = write(tmp_path, "[store]\n\n[cluster]\nlease = 5\n")
    with service("--head", "--port", "0", "--set", "cluster.lease=4s") as (_, head):
        where = ["start", "--address", head["address"], "--memory", "64MiB"]
        refused = run(*where, HOPLITE_CONFIG=path)
        assert refused.returncode == 1
        assert f"{path}:4: cluster.lease: is 5s here and 4s in the cluster at {head['address']}" in refused.stderr
        assert "leave it out here" in refused.stderr
        by_variable = run(*where, HOPLITE_CLUSTER_LEASE="6s")
        assert "HOPLITE_CLUSTER_LEASE: is 6s here and 4s in the cluster" in by_variable.stderr
        assert len(status(head["address"])[0]["nodes"]) == 1
        with service("--address", head["address"], HOPLITE_CLUSTER_LEASE="4000ms"):  # the same: it is welcome
            pass


def test_a_bad_file_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "[cluster]\nheartbeats = 1\n")
    before = children_of(os.getpid())
    refused = run("start", "--head", "--port", "0", "--config", path)
    assert refused.returncode == 1
    assert f"{path}:2: cluster.heartbeats: is unknown; did you mean heartbeat?" in refused.stderr
    monkeypatch.delenv("HOPLITE_ADDRESS", raising=False)
    with pytest.raises(InvalidRequestError, match="did you mean heartbeat"):
        hoplite.connect(config=path)
    monkeypatch.setenv("HOPLITE_STORE_MEMORY", "lots")
    with pytest.raises(InvalidRequestError, match="HOPLITE_STORE_MEMORY: 'lots' is not a size"):
        hoplite.connect()
    assert children_of(os.getpid()) == before


def test_a_file_that_is_spoiled_later_does_not_keep_the_directory_from_coming_back(tmp_path: Path) -> None:
    path = write(tmp_path, "[cluster]\nlease = 3\n")
    with service("--head", "--port", "0", "--config", path) as (head, report):
        before = status(report["address"])[0]
        write(tmp_path, "[cluster]\nlease = 'soon'\n")
        [directory] = [pid for pid in children_of(head.pid) if "directory" in command_of(pid)]
        os.kill(directory, signal.SIGKILL)

        def returned() -> bool:
            told = run("config", "--json", "--address", report["address"])
            return told.returncode == 0 and directory not in children_of(head.pid)

        eventually(returned)
        after = status(report["address"])[0]
        assert after["incarnation"] > before["incarnation"]
        assert after["settings"] == before["settings"]


def command_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def test_a_private_cluster_takes_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPLITE_ADDRESS", raising=False)
    path = write(tmp_path, '[cluster]\nmax_object = "2MiB"\n[store]\nmemory = "48MiB"\n')
    with hoplite.connect(config=path) as cluster:
        assert cluster.info(cluster.put(np.zeros(1 << 20, np.uint8))).size >= 1 << 20
        with pytest.raises(InvalidRequestError, match="2097152"):
            cluster.put(np.zeros(3 << 20, np.uint8))


def test_a_lease_of_hours_loses_nobody_who_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_CLUSTER_LEASE", "3600s")
    with live_cluster(2) as live:
        holder, other = live.hosts
        ref = holder.put(np.zeros(1 << 20, np.uint8))
        os.kill(holder.agent.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(GetTimeoutError):  # after two seconds it would be lost, as a rule
                other.get(ref, timeout=4.0)
        finally:
            os.kill(holder.agent.process.pid, signal.SIGCONT)
        assert len(other.get(ref)) == 1 << 20


def test_workers_wait_for_the_agent_as_long_as_it_may_wait_for_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_CLUSTER_SUSPICION", "4s")
    monkeypatch.setenv("HOPLITE_CLUSTER_LEASE", "60s")
    with live_cluster(1) as live:
        [host] = live.hosts
        assert host.client.grace == 5.0
        os.kill(live.directory.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(HopliteError, match="directory"):  # after 1.75 s it would be the agent that is late
                host.get(hoplite.new_ref(), timeout=0.1)
        finally:
            os.kill(live.directory.process.pid, signal.SIGCONT)


def test_streams_take_turns_by_the_clusters_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []
    monkeypatch.setattr(MixedTransport, "set_patience", lambda _, seconds: patience.append(seconds))
    monkeypatch.setenv("HOPLITE_CLUSTER_SUSPICION", "1.5")
    with live_cluster(0) as live, agent_here(live.address):
        eventually(lambda: patience == [0.5])
