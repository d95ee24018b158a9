"""`ci/hardware` for GPUs as far as it goes without any: two emulated hosts with made-up GPUs, and called so."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from hoplite_ucx.bench.hardware.gpus import not_tried
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from tests.gpu.made_up.build import Made

COMMAND = [sys.executable, "-m", "hoplite_ucx.bench.hardware"]
SETTINGS = {"HOPLITE_TOKEN": "a token for tests", "HOPLITE_UCX_TLS": "tcp,cuda_copy"}


@pytest.fixture(scope="module")
def hosts(made_up_gpus: Made, emulated_hosts: None) -> Iterator[tuple[list[Host], dict[str, str]]]:
    environment = {**made_up_gpus.environment(GPU_DELAY_US="0"), **SETTINGS}
    with Cluster(hosts=2, rate=None) as cluster:
        command = [*COMMAND, "serve", cluster.hosts[0].address]
        with cluster.hosts[0].popen(command, env=environment, stderr=subprocess.PIPE, text=True) as serving:
            assert serving.stderr is not None
            assert "ready on" in serving.stderr.readline()
            yield cluster.hosts, environment
            serving.kill()


@pytest.mark.long(reason="two hosts run tests in turn, then measure")
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
def test_the_report_has_tests_and_rates_by_path(hosts: tuple[list[Host], dict[str, str]]) -> None:
    (there, here), environment = hosts
    command = [*COMMAND, "run", there.address, "--no-links", "--size", "8", "--only", "whole_granules"]

    done = here.run(command, env=environment, timeout=500, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    gpus = json.loads(done.stdout)["gpus"]
    assert gpus["gpus"] == {"here": ["Made-up GPU 0", "Made-up GPU 1"], "there": ["Made-up GPU 0", "Made-up GPU 1"]}
    for host in ("here", "there"):
        assert gpus["tests"][host]["passed"]
        assert "1 passed" in gpus["tests"][host]["summary"]
    paths = {each["way"]: each["path"] for each in gpus["between_hosts"]}
    assert paths == {"tcp": "", "tcp-gpu": "staged", "ucx": "", "ucx-gpu": "direct"}
    assert {each["way"]: each["path"] for each in gpus["within_host"]} == {"gpu-copy": "", "gpu-peers": "peers"}
    assert all(each["bytes_per_second"] > 0 for part in ("between_hosts", "within_host") for each in gpus[part])
    for tool in ("nccl_between_hosts", "nccl_within_host"):
        assert "missing" in gpus[tool]
    untried = json.loads(done.stdout)["not_tried_on_hardware"]
    assert "GPUs: these are made up (Made-up GPU 0, Made-up GPU 1)" in untried


def test_a_report_without_gpus_says_so() -> None:
    assert not_tried(None) == ["device memory: links were checked with host memory"]
    real: dict[str, Any] = {
        "gpus": {"here": ["H100"], "there": ["H100"]},
        "between_hosts": [{"way": "ucx-gpu", "path": "direct"}],
        "within_host": [{"way": "gpu-peers", "failure": "there is only one GPU"}],
    }
    assert not_tried(real) == ["copies between GPUs of a host"]
    real["between_hosts"] = [{"way": "ucx-gpu", "failure": "it broke"}]
    assert not_tried(real) == ["memory of GPUs that goes direct", "copies between GPUs of a host"]


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
@pytest.mark.long(reason="loads torch twice")
def test_the_yardstick_through_torch_runs() -> None:
    """With gloo, on the processor."""
    command = [sys.executable, "-m", "hoplite_ucx.bench.hardware.nccl"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = [f"127.0.0.1:{port}", str(1 << 20), "gloo"]
    with subprocess.Popen([*command, "1", *given]) as other:
        done = subprocess.run([*command, "0", *given], capture_output=True, text=True, timeout=100, check=False)
        assert other.wait(100) == 0

    assert json.loads(done.stdout.splitlines()[-1])["bytes_per_second"] > 0, done.stderr
