"""What must be true of a machine between any two events. It is cheap enough to be asked for after every event."""

from hoplite_ucx.protocol.directory.invariants import check_directory
from hoplite_ucx.protocol.directory.machine import Directory
from hoplite_ucx.protocol.node.invariants import check_node
from hoplite_ucx.protocol.node.machine import NodeState


def check(machine: Directory | NodeState) -> None:
    """Raises `AssertionError` with what is wrong."""
    if isinstance(machine, Directory):
        check_directory(machine)
    else:
        check_node(machine)
