"""What became of nodes, streams and calls, as lines of the log: only if its level is `info` or lower.

Observers of the machines, so that nothing is paid for lines that nobody wants.
"""

import logging

from hoplite_ucx.protocol.events import (
    CallFailed,
    DirectoryConnected,
    DirectoryEffect,
    DirectoryEvent,
    DirectoryLost,
    Disconnect,
    FromNode,
    NodeEffect,
    NodeEvent,
    Probe,
    Probed,
    SendDirectory,
    SessionLost,
    Tick,
)
from hoplite_ucx.protocol.ids import NodeId, label
from hoplite_ucx.protocol.messages import Join, Leave, StreamFailed
from hoplite_ucx.runtime.shell.logs import about

__all__ = ["DirectoryLog", "NodeLog"]


class DirectoryLog:
    def __init__(self) -> None:
        self._log = logging.getLogger("hoplite.directory")

    def handled(self, event: DirectoryEvent, effects: list[DirectoryEffect], now: float, took: float) -> None:  # noqa: ARG002
        match event:
            case FromNode(node, Join() as join):
                self._log.info("%s at %s joins", label(node), join.address)
            case FromNode(node, StreamFailed() as failed):
                self._log.info(
                    "%s lost its stream of %s from %s at byte %d: %s",
                    label(node),
                    failed.version.ref.hex(),
                    label(failed.sender),
                    failed.watermark,
                    failed.fault.value,
                    extra=about(failed.version.ref),
                )
            case SessionLost(node):
                self._log.info("the session of %s is lost", label(node))
        for effect in effects:
            match effect:
                case Probe(node):
                    self._log.info("%s is suspected, and its port is asked", label(node))
                case Disconnect(node):
                    self._log.info("%s was removed: %s", label(node), _why(event, node))

    def replaced(self, now: float) -> None:
        """The fault that replaced the machine has its own lines."""


def _why(event: DirectoryEvent, node: NodeId) -> str:
    match event:
        case FromNode(_, Leave()):
            return "it left"
        case FromNode(other, Join()):
            return "it was declared dead before" if other == node else f"{label(other)} has taken its place"
        case Probed():
            return "it is dead, its port refused a connection"
        case Tick():
            return "it is dead, its lease ran out"
    return "it ended its session"


class NodeLog:
    def __init__(self) -> None:
        self._log = logging.getLogger("hoplite.agent")

    def handled(self, event: NodeEvent, effects: list[NodeEffect], now: float, took: float) -> None:  # noqa: ARG002
        match event:
            case DirectoryLost():
                self._log.info("the directory is lost, or not reached")
            case DirectoryConnected():
                self._log.info("the directory is reached")
        for effect in effects:
            match effect:
                case CallFailed(_, failure):
                    named = () if failure.ref is None else (failure.ref,)
                    self._log.info("a call failed: %s: %s", failure.kind.value, failure.detail, extra=about(*named))
                case SendDirectory(StreamFailed() as failed):
                    self._log.info(
                        "the stream of %s from %s ended early at byte %d: %s",
                        failed.version.ref.hex(),
                        label(failed.sender),
                        failed.watermark,
                        failed.fault.value,
                        extra=about(failed.version.ref),
                    )

    def replaced(self, now: float) -> None:
        """The fault that replaced the machine has its own lines."""
