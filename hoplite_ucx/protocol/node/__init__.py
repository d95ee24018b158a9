"""A node: it holds objects and runs streams. See `machine` for where to begin."""

from hoplite_ucx.protocol.node.machine import NodeProfile, NodeState

__all__ = ["NodeProfile", "NodeState"]
