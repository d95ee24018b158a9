"""`ci/hardware` as far as it goes without hardware: two emulated hosts, and UCX over their TCP."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from hoplite_ucx.bench.hosts.namespaces import Cluster, Host

pytestmark = [
    pytest.mark.usefixtures("emulated_hosts"),
    pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'"),
]

COMMAND = [sys.executable, "-m", "hoplite_ucx.bench.hardware"]
ENVIRONMENT = {**os.environ, "HOPLITE_TOKEN": "a token for tests", "HOPLITE_UCX_TLS": "tcp"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with Cluster(hosts=2, rate=None) as cluster:
        address = cluster.hosts[0].address
        serving = cluster.hosts[0].popen(
            [*COMMAND, "serve", address], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        with serving:
            assert serving.stderr is not None
            assert "ready on" in serving.stderr.readline()
            yield cluster.hosts
            serving.kill()


def run(hosts: list[Host], *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "run", hosts[0].address, "--size", "8", *options]
    return hosts[1].run(command, env={**ENVIRONMENT, **variables}, timeout=100, check=False)


@pytest.mark.long(reason="measures for half a minute")
def test_the_report_says_what_was_used_and_what_was_not(hosts: list[Host]) -> None:
    done = run(hosts, "--only", "sender")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    checks = {check["check"]: check for check in report["checks"]}
    assert set(checks) == {"sender_killed", "sender_stopped", "sender_goes_on"}
    assert all(check["passed"] and check["hosts"] == 2 for check in checks.values())
    assert report["lanes"] == ["tcp/eth0"]
    assert "RDMA: these links used tcp/eth0" in report["not_tried_on_hardware"]
    assert report["kills"]["kill_noticed_seconds"] > 0
    assert report["kills"]["stopped_cancelled_seconds"] > 0
    assert report["registration"]["first_seconds"] > 0
    assert [each["granule"] for each in report["throughput"]] == [64 << 10, 1 << 20, 4 << 20]
    assert all(each["bytes_per_second"] > 0 for each in report["throughput"])
    assert {"here", "there"} == set(report["machines"])


@pytest.mark.long(reason="measures for half a minute")
def test_two_devices_are_measured_alone_and_together(hosts: list[Host]) -> None:
    report = json.loads(run(hosts, "--only", "no such check", HOPLITE_UCX_NET_DEVICES="eth0,lo").stdout)
    assert [each["net_devices"] for each in report["rails"]] == [["eth0"], ["lo"], ["eth0", "lo"]]
    assert ["failure" in each for each in report["rails"]] == [False, True, False]  # nobody is reached over loopback


def test_what_cannot_be_is_told(hosts: list[Host]) -> None:
    assert "HOPLITE_TOKEN" in run(hosts, HOPLITE_TOKEN="").stderr
    wrong = run(hosts, HOPLITE_TOKEN="another")
    assert wrong.returncode == 1
    assert "token" in wrong.stderr
    differing = run(hosts, "--only", "sender_killed", HOPLITE_UCX_SEGMENT="64KiB")
    assert differing.returncode == 1
