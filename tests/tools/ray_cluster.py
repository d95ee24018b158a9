"""A small real Ray of several nodes on this host, with hoplite, for tests: no dashboard, few workers, small stores.

Ray's nodes are processes of the test run, and end with it by their ids.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.tools.waiting import HANG

os.environ.update(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_enable_metrics_collection": "false",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
    }
)

THRESHOLD = 100_000
"""Bytes: arrays of tests are small."""
_TMPDIR = "RAY_TMPDIR"
_NODE: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_log_monitor": False}


class RayCluster:
    def __init__(self, nodes: int, **head: Any) -> None:
        from ray.cluster_utils import Cluster

        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        # Ray's default folder is this one: it also writes there which cluster is the current one, and expects that the
        # folder exists.
        self._outer = os.environ.get(_TMPDIR)
        os.environ[_TMPDIR] = self._folder.name
        os.mkdir(f"{self._folder.name}/ray")
        self._cluster = Cluster()
        self._cluster.add_node(**(_NODE | {"include_dashboard": False} | head))
        for _ in range(nodes - 1):
            self.add_node()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def dashboard(self) -> str:
        return f"http://{self._cluster.webui_url}"

    def kill_gcs(self) -> None:
        """Ray's control service, on the first node."""
        self._cluster.head_node.kill_gcs_server()

    def start_gcs(self) -> None:
        self._cluster.head_node.start_gcs_server()

    def add_node(self) -> Any:
        return self._cluster.add_node(**_NODE)

    def remove_node(self, node: Any) -> None:
        """Its processes are killed."""
        self._cluster.remove_node(node, allow_graceful=False)

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """Run a program as a job of its own; returns what it printed."""
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | {"RAY_ADDRESS": self.address} | variables,
            capture_output=True,
            text=True,
            timeout=2 * HANG,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def say(self, program: str, **variables: str) -> list[str]:
        """The same; only lines that begin with ">". Ray itself prints what it has to say of nodes and actors."""
        printed = self.run(program, **variables).splitlines()
        return [line.removeprefix("> ") for line in printed if line.startswith("> ")]

    def close(self) -> None:
        self._cluster.shutdown()
        self._folder.cleanup()
        if self._outer is None:
            del os.environ[_TMPDIR]
        else:
            os.environ[_TMPDIR] = self._outer


@contextmanager
def ray_with_hoplite(nodes: int = 2, **options: Any) -> Iterator[RayCluster]:
    import ray

    import hoplite_ucx.ray as hoplite_ray

    environment = {"env_vars": {"OMP_NUM_THREADS": "1"}, **options.pop("runtime_env", {})}
    ours: dict[str, Any] = {"memory": "256MiB", "threshold": THRESHOLD} | options
    cluster = RayCluster(nodes)
    try:
        hoplite_ray.init(
            **ours, runtime_env=environment, address=cluster.address, logging_level="error", log_to_driver=False
        )
        yield cluster
        hoplite_ray.shutdown()
    finally:
        ray.shutdown()
        cluster.close()
