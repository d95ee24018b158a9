"""`hoplite start --head` starts a crashed directory again, and transfers that are under way do not notice."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.bench.faults.worker_proxy import Peer
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from tests.tools.waiting import HANG, eventually

pytestmark = pytest.mark.usefixtures("emulated_hosts")

HOPLITE = [sys.executable, "-c", "from hoplite_ucx.cli import main; main()"]
SIZE = 24 << 20
RATE = 25e6


def start(host: Host, environment: dict[str, str], *options: str) -> tuple["subprocess.Popen[str]", dict[str, str]]:
    command = [*HOPLITE, "start", "--json", "--memory", "256MiB", "--rate", "200mbit", "--host", host.address, *options]
    process = host.popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def directory_of(service: int) -> int:
    children = Path(f"/proc/{service}/task/{service}/children").read_text().split()
    (found,) = [c for c in children if Path(f"/proc/{c}/cmdline").read_text().split("\0")[-4] == "directory"]
    return int(found)


def whole_again(worker: Peer, nodes: int) -> dict[str, Any]:
    """What the new directory says when everybody has come back to it."""
    told: list[dict[str, Any]] = []

    def is_whole() -> bool:
        status = worker.ask("cluster").done
        if status is None or sum(node["connected"] for node in status["nodes"]) != nodes:
            return False
        told.append(status)
        return True

    eventually(is_whole)
    return told[0]


def has_begun(worker: Peer, ref: str) -> bool:
    """Whether bytes of the object have come to the worker's host; all of them, if the test itself was held up."""
    seen = worker.ask("look").done
    assert seen is not None
    return ref in seen["phases"] and (seen["phases"][ref] == "complete" or any(s["position"] for s in seen["streams"]))


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}
    return {**kept, "HOPLITE_TOKEN": secrets.token_hex(16)}


def test_a_directory_dies_in_the_middle_of_a_broadcast(environment: dict[str, str]) -> None:
    with Cluster(hosts=3, rate=RATE) as cluster:
        head, report = start(cluster.hosts[0], environment, "--head", "--port", "0")
        services = [head, *(start(h, environment, "--address", report["address"])[0] for h in cluster.hosts[1:])]
        workers = [Peer(host, report["address"], environment) for host in cluster.hosts]
        try:
            deadline = time.monotonic() + HANG
            assert all(worker.ready(deadline).done is not None for worker in workers)
            first = workers[0].ask("cluster").done
            ref = secrets.token_hex(16)
            assert workers[0].ask("put", ref=ref, size=SIZE, seed=1).done is not None
            gets = [(worker, worker.tell("get", refs=[ref])) for worker in workers[1:]]
            eventually(lambda: all(has_begun(worker, ref) for worker in workers[1:]))
            os.kill(directory_of(head.pid), signal.SIGKILL)
            answers = [worker.answer(ticket, time.monotonic() + HANG) for worker, ticket in gets]
            assert all(answer.done is not None for answer in answers), [str(answer) for answer in answers]
            checks = [worker.ask("check", ref=ref, size=SIZE, seeds=[1]).done for worker in workers[1:]]
            assert checks == [{"seeds": [1]}] * 2
            second = whole_again(workers[1], 3)
            assert first is not None
            assert second["incarnation"] > first["incarnation"]
            assert second["cluster"] == first["cluster"]
        finally:
            for worker in workers:
                worker.close()
            for service in services:
                service.kill()
                with service:
                    pass
