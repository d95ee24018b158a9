"""The ambushes of chaos: faults that wait for the moment at which they hurt most.

A run has at most one (see `Ambush`). It watches the messages between the directory and the nodes, strikes once (for
slots and crowds a few times), and is over.
"""

from __future__ import annotations

from hoplite_ucx.protocol.ids import NodeId, identity_of
from hoplite_ucx.protocol.messages import Assemble, Bind, Bound, Completed, Place, ToDirectory, ToNode
from hoplite_ucx.simulate.drawing import BANDWIDTH, Ambush, Draw
from hoplite_ucx.simulate.faults import Faults
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.stage import Stage
from hoplite_ucx.simulate.users import Users

__all__ = ["Ambushes"]

_SLOTS = 3


class Ambushes:
    def __init__(self, draw: Draw, stage: Stage, users: Users, faults: Faults) -> None:
        self._draw = draw
        self._random = draw.random
        self._stage = stage
        self._cluster = stage.cluster
        self._users = users
        self._faults = faults
        self._victims_left = _SLOTS
        self.waiting = draw.ambush
        """None once it is over."""

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        if self.waiting is Ambush.DIRECTORY and isinstance(message, Place | Bind) and self._random.random() < 0.2:
            self._at_directory(self._cluster.nodes[identity_of(node)], message)
        if self.waiting is Ambush.PLACEMENT and isinstance(message, Place):
            self._at_placement(self._cluster.nodes[identity_of(node)], message)
        elif self.waiting is Ambush.TRANSFER and isinstance(message, Place):
            self._at_transfer(message)
        elif self.waiting is Ambush.CROWD and isinstance(message, Assemble):
            self._at_crowd(self._cluster.nodes[identity_of(node)], message)

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        if self.waiting is Ambush.COMPLETION and isinstance(message, Completed):
            self._at_completion(node, message)
        elif self.waiting in (Ambush.SLOT, Ambush.STRIPE) and isinstance(message, Bound):
            self._at_slot(node, message)

    def _at_transfer(self, message: Place) -> None:
        """The object is deleted while it is being sent."""
        number = self._stage.number_of(message.version.ref)
        if number is not None:
            self.waiting = None
            self._stage.later(self._random.random() * message.size / BANDWIDTH, self._users.delete, number)

    def _at_crowd(self, node: VirtualNode, message: Assemble) -> None:
        """While an object comes in stripes, one of its hosts dies, or one that has all of it, or the directory; or the
        object is deleted."""
        rng = self._random
        if rng.random() < 0.5:
            return
        moment = rng.random() * 1.5 * message.size / BANDWIDTH
        number = self._stage.number_of(message.version.ref)
        victims = [node, *self._complete_elsewhere(message.version.ref, node)]
        kind = rng.random()
        if kind < 0.7:
            self._stage.later(moment, self._faults.kill_node, rng.choice(victims))
        elif kind < 0.85 or number is None:
            self._stage.later(moment, self._faults.crash_directory, 0.001)
        else:
            self._stage.later(moment, self._users.delete, number)
        self._victims_left -= 1
        if not self._victims_left:
            self.waiting = None

    def _at_completion(self, node: VirtualNode, message: Completed) -> None:
        """The only other complete copy dies, and the report of the new one is delayed: does the directory declare a
        loss?"""
        others = self._complete_elsewhere(message.version.ref, node)
        if len(others) == 1:
            self.waiting = None
            self._faults.cut(node.host, "directory", for_seconds=self._random.choice((0.01, 0.1)))
            self._stage.later(0.0, self._faults.kill_node, others[0])

    def _at_placement(self, node: VirtualNode, message: Place) -> None:
        """The receiver is cut off with its request on the way, and the object is lost and put again meanwhile: when
        the request arrives, its sender has another version."""
        sender = self._cluster.nodes[identity_of(message.sender)]
        roots = self._complete_elsewhere(message.version.ref, node)
        if not roots or sender in roots:
            return
        self.waiting = None
        absence = 1.3 * self._cluster.settings.lease + 0.2
        self._faults.cut_off(node.host, from_now=1.5 * self._cluster.shape.latency, until=absence)
        for root in roots:
            self._stage.later(2 * self._cluster.shape.latency, self._faults.kill_node, root)

    def _at_slot(self, node: VirtualNode, message: Bound) -> None:
        """The host of a slot, or of a part that it still needs, dies while they are combined; after a takeover in the
        middle, also the node that has the first bytes."""
        record = self._cluster.directory.machine.records.get(message.version.ref)
        slot = record.slot if record is not None else None
        taken_over = slot is not None and slot.start > 0
        if self._random.random() < 0.5 and not taken_over:
            return
        victims = [node]
        if slot is not None and slot.parent is not None and slot.parent.host is not None:
            victims.append(self._cluster.nodes[identity_of(slot.parent.host.node)])
        for part in message.missing if not taken_over else ():
            victims += self._complete_elsewhere(part.ref, node)
        delay = self._random.random() * (2 * self._draw.largest / BANDWIDTH + 0.02)
        self._stage.later(delay, self._faults.kill_node, self._random.choice(victims))
        self._victims_left -= 1
        if not self._victims_left:
            self.waiting = None

    def _at_directory(self, node: VirtualNode, message: Place | Bind) -> None:
        """The directory dies while bytes flow, perhaps together with a node that sends or combines them."""
        self.waiting = None
        moment = self._random.random() * message.size / BANDWIDTH
        self._stage.later(moment, self._faults.crash_directory, 0.001)
        if self._random.random() < 0.3:
            victims = [
                node,
                *([self._cluster.nodes[identity_of(message.sender)]] if isinstance(message, Place) else []),
            ]
            self._stage.later(moment, self._faults.kill_node, self._random.choice(victims))

    def _complete_elsewhere(self, ref: bytes, node: VirtualNode) -> list[VirtualNode]:
        return [
            other
            for other in self._cluster.slots
            if other.alive and other is not node and other.machine.memory.complete_copy(ref)
        ]
