"""Jobs in a Ray cluster that is made for them."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hoplite_ucx.bench.harness.json_lines import told
from hoplite_ucx.bench.hosts.line_process import LineProcess
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.ray.nodes import RayNodes, ray_nodes

__all__ = ["Job", "ray_cluster"]

_SECONDS = 300.0
_LEAST_MEMORY = 256 << 20


class Job:
    """A driver on the first host, and everything that it starts in Ray."""

    def __init__(self, nodes: RayNodes, module: str, plan: dict[str, Any], stack: ExitStack) -> None:
        command = [sys.executable, "-P", "-m", f"hoplite_ucx.bench.ray.{module}"]
        plan = {"addresses": [host.address for host in nodes.hosts], **plan}
        log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self.process = LineProcess(
            nodes.hosts[0], nodes.command([*command, json.dumps(plan)]), "the Ray program", None, log
        )
        stack.callback(self.process.close)

    def report(self, *wanted: str, seconds: float = _SECONDS) -> dict[str, Any]:
        """The next that has one of these names."""
        return told(self.process, time.monotonic() + seconds, *wanted)

    def ask(self, wanted: str, **question: Any) -> Any:
        self.process.tell(json.dumps(question))
        return self.report(wanted)[wanted]


@contextmanager
def ray_cluster(nodes: int, rate: float, largest: int) -> Iterator[tuple[RayNodes, int]]:
    """Nodes, and how much memory each has for the objects of a job. What is dropped is freed a moment later, so that
    objects of several rounds lie there."""
    memory = max(_LEAST_MEMORY, 2 * (nodes + 4) * largest)
    with Cluster(hosts=nodes, rate=rate) as cluster, ray_nodes(cluster, memory) as started:
        yield started, memory
