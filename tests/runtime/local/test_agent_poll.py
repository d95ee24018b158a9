"""How a host's agents are asked: all at once, so that stopped ones hold nobody up."""

import json
import os
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.errors import ClosedError, InvalidRequestError
from hoplite_ucx.runtime.launch import cluster, inspection
from hoplite_ucx.runtime.launch.inspection import local_agents
from hoplite_ucx.runtime.local import worker_messages as wire
from tests.tools.live import TOKEN, Live, live_cluster
from tests.tools.silent_agents import silent_agents

LONG = 1000.0
"""Whoever waits for a silent agent is ended by the test's time limit."""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_cluster(1) as found:
        yield found


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_GREETING_SECONDS", LONG)
    monkeypatch.setattr(inspection, "_SECONDS", LONG)


@pytest.mark.timeout(60)
def test_init_does_not_wait_for_agents_of_other_clusters(live: Live) -> None:
    with silent_agents(20):
        joined = cluster.join(live.address, None)
        assert joined.client.greeting.agent == live.hosts[0].agent.report["agent"]
        joined.close()


@pytest.mark.timeout(60)
def test_status_of_a_cluster_does_not_wait_for_agents_of_others(live: Live) -> None:
    with silent_agents(20):
        where = ["status", "--json", "--address", live.address]
        done = CliRunner().invoke(app, where, env={"HOPLITE_TOKEN": TOKEN.decode()})
    told = json.loads(done.stdout)
    assert [agent["agent"] for agent in told["agents"]] == [live.hosts[0].agent.report["agent"]]
    assert told["silent"] == []
    assert told["agents"][0]["workers"] == 1, "the test's own client, and not the command that asks"


@pytest.mark.timeout(60)
def test_all_are_asked_before_any_has_answered() -> None:
    """These answer when the last of them was asked."""
    with silent_agents(20, cluster=os.urandom(8).hex()) as fakes:

        def answer() -> None:
            connections = {agent: listening.accept()[0] for agent, listening in fakes.items()}
            for agent, connection in connections.items():
                with connection:
                    connection.recv(1000)
                    connection.sendall(wire.frame(wire.Greeting("c", agent, "127.0.0.1:1", 0, 0, 0, joined=True)))
                    connection.sendall(wire.frame(wire.Report(1, {"agent": agent})))

        answering = threading.Thread(target=answer)
        answering.start()
        (name,) = {listening.getsockname().decode().rpartition("-")[0] for listening in fakes.values()}
        found = local_agents(name.rpartition("-")[2])
        answering.join()
    assert sorted(agent["agent"] for agent in found.status) == sorted(fakes)
    assert found.silent == []


def test_who_does_not_answer_is_named(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_SECONDS", 0.1)
    monkeypatch.setattr(cluster, "_GREETING_SECONDS", 0.1)
    with silent_agents(3) as fakes:
        assert set(fakes) <= set(local_agents().silent)
        with pytest.raises(ClosedError, match="does not answer") as caught:
            cluster.join("127.0.0.1:1", None)
        assert all(agent in str(caught.value) for agent in fakes)


@pytest.mark.timeout(60)
def test_another_agent_of_the_same_cluster_is_known_by_its_name(live: Live) -> None:
    """Which of two is meant does not depend on who answers first."""
    report = live.hosts[0].agent.report
    with silent_agents(1, cluster=report["cluster"]) as fakes:
        with pytest.raises(InvalidRequestError, match="several agents") as caught:
            cluster.join(live.address, None)
        assert {report["agent"], *fakes} <= set(str(caught.value).replace(",", " ").replace(";", " ").split())
        cluster.join(live.address, report["agent"]).close()
