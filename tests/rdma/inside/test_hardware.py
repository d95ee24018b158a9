"""`ci/hardware` over RDMA, with both of its hosts in one guest: its report is complete."""

import json
import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "hoplite_ucx.bench.hardware"]
ADDRESS = "198.18.7.1"


@pytest.mark.tier("default")
def test_the_report_is_complete() -> None:
    env = {
        **os.environ,
        "HOPLITE_TOKEN": "a token for tests",
        "HOPLITE_UCX_TLS": "rc",
        "HOPLITE_UCX_NET_DEVICES": "rxe0:1",
    }
    with subprocess.Popen([*COMMAND, "serve", ADDRESS], env=env, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            assert "ready on" in serving.stderr.readline()
            run = [*COMMAND, "run", ADDRESS, "--size", "8", "--long", "96", "--only", "check_o"]
            done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=500, check=False)
        finally:
            serving.kill()
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert all(check["passed"] for check in report["checks"])
    assert "rc_verbs/rxe0:1" in report["lanes"]
    assert report["kills"]["kill_noticed_seconds"] > 0
    assert report["not_tried_on_hardware"][0] == "several RDMA rails"
    assert {"machines", "throughput", "registration", "ucx_perftest", "rails", "ucx_py"} <= report.keys()
