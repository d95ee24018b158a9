"""A node: it holds objects and runs streams. Start reading at `machine`."""

from hoplite_ucx.protocol.node.machine import NodeProfile, NodeState

__all__ = ["NodeProfile", "NodeState"]
