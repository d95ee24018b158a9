"""A virtual cluster whose processes are recorded, for a trace like that of a live one. Its clock is the virtual one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hoplite_ucx.protocol import Settings
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.tracing.directory_recorder import DirectoryRecorder
from hoplite_ucx.tracing.document import TracedProcess, document, write
from hoplite_ucx.tracing.node_recorder import NodeRecorder
from hoplite_ucx.tracing.records import Record

__all__ = ["TracedCluster"]


class TracedCluster(VirtualCluster):
    def __init__(self, shape: Shape, seed: int = 0, settings: Settings | None = None, *, checked: bool = False) -> None:
        self._recorders: dict[str, NodeRecorder | DirectoryRecorder] = {}
        super().__init__(shape, seed, settings, checked=checked)
        self._recorders["directory"] = self.directory.recorder = DirectoryRecorder()

    def _spawn(self, index: int, delay: float = 0.0) -> VirtualNode:
        node = super()._spawn(index, delay)
        node.recorder = NodeRecorder(lambda: node.machine, lambda _: None)
        self._recorders[f"host {index}, node n{node.identity:x}"] = node.recorder
        return node

    def write_trace(self, path: Path, **facts: Any) -> None:
        """Raises an `OSError`."""
        names = sorted(self._recorders, key=lambda name: name != "directory")
        processes = [TracedProcess(name, *_taken(self._recorders[name], self.clock.now)) for name in names]
        write(path, document(processes, {"virtual": True, **facts}))


def _taken(recorder: NodeRecorder | DirectoryRecorder, now: float) -> tuple[list[Record]]:
    records: list[Record] = []
    while (taken := recorder.take(now)).more:
        records += taken.records
    return ([*records, *taken.records, *taken.open],)
