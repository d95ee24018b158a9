"""Which nodes could run a slot, and from which byte on.

The host of a slot is the node that has the least to pull. A takeover begins at the lowest byte that the slot's
receivers still need: no node needs the output below that. Some node must have all of the root, so a getter continues
with what it has, or with what another node combines for it.
"""

from collections.abc import Iterable

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Reduction, Slot
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.messages import BIND_ALIGNMENT


class Hosts:
    """What is known of the nodes that run the slots of a reduction, or might. Nothing here changes state."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._world = table.world

    def has_taken(self, reduction: Reduction, slot: Slot, part: bytes) -> bool:
        """Whether the slot's host does not need the part any more. From a slot that runs beside it, it still needs the
        bytes to come."""
        child = reduction.slots.get(part)
        grows_beside = child is not None and child.host is slot.host and not self._table.has_copy(part)
        return slot.bound and part in slot.consumed and not grows_beside

    def is_above(self, reduction: Reduction, slot: Slot, end: int) -> bool:
        """Whether all of the slot's output below `end` is in the slots above it, and will not be needed again."""
        while end > 0:
            parent = slot.parent
            if parent is None:
                return False
            if parent.bound:
                end = parent.available_from
            elif self._begins_at(reduction, parent) < end:
                return False
            elif parent is reduction.root:
                return True
            slot = parent
        return True

    def is_bound_below(self, reduction: Reduction, slot: Slot) -> bool:
        """Whether all slots that the slot pulls from have begun to grow. An empty object has nothing to pull."""
        if reduction.size == 0:
            return True
        for part in slot.parts:
            child = reduction.slots.get(part)
            if child is not None and not child.bound and not self._table.has_copy(part):
                return False
        return True

    # --- where a slot begins -------------------------------------------------------------------------------------

    def _begins_at(self, reduction: Reduction, slot: Slot) -> int:
        """Where the slot's host begins, or would begin. It is a guess only as long as no node pulls."""
        while slot.host is None:
            if slot is reduction.root:
                host = self.choose_host(reduction, slot)
                return self.received(slot, host) if host is not None else 0
            known, above = self._known_need(reduction, slot), slot.parent
            if known is not None or above is None:
                return known or 0
            slot = above
        return slot.start

    def lowest_needed(self, reduction: Reduction, slot: Slot) -> int:
        """The first byte of the output that any current or future receiver needs."""
        known = self._known_need(reduction, slot)
        if known is None and slot.parent is not None:
            return self._begins_at(reduction, slot.parent)
        return known or 0

    def _known_need(self, reduction: Reduction, slot: Slot) -> int | None:
        """The first byte that the slot's receivers need; None if that depends on where the slot above begins. Of the
        root's output a node must have all, and small objects and stripes are needed whole."""
        above = slot.parent
        small = slot.cut is not None or reduction.size <= self._world.settings.inline_limit
        if above is None or small:
            return 0
        broadcast = self._table.tree(slot.ref)
        if broadcast is not None and broadcast.receivers:
            return _aligned(broadcast.lowest())
        return 0 if above.bound or above.version is None else None

    def received(self, slot: Slot, member: Member) -> int:
        """How much of the slot's output the node has because it was getting it, and can continue with."""
        if slot.cut is not None or slot.gathers:
            return 0
        broadcast = self._table.tree(slot.ref)
        receiver = broadcast.receivers.get(member.node) if broadcast is not None else None
        return _aligned(receiver.watermark) if receiver is not None else 0

    # --- who runs it ---------------------------------------------------------------------------------------------

    def choose_host(self, reduction: Reduction, slot: Slot) -> Member | None:
        """The node with the least to pull. Among equals: the node that the slot was made for, then the one with most of
        its sources (the output of another slot is sent by its host in any case), then the one that waits for its
        output: what a node sends to itself does not cross its busy uplink."""
        usable = self._usable_for(reduction, slot)
        if len(usable) < 2:
            return usable[0] if usable else None
        sources = [part for part in slot.parts if part not in reduction.slots]
        lowest = self.lowest_needed(reduction, slot)
        return max(
            usable,
            key=lambda member: (
                -self._to_pull(reduction, slot, member, lowest),
                member.node == slot.prefers,
                sum(self._table.has_part(source, member.node) for source in sources),
                slot.parent is not None and member is slot.parent.host,
                -member.node,
            ),
        )

    def _usable_for(self, reduction: Reduction, slot: Slot) -> list[Member]:
        """The possible hosts: those with an advantage, or if none of them can be asked now, any node. A stripe's slot
        cuts its piece out of the source, so the source must be on the host."""
        if slot.cut is not None:
            return self._askable(slot, self._table.holders_of(slot.parts[0], complete=True))
        return self._askable(slot, self._favoured(reduction, slot)) or self._askable(slot, self._table.members)

    def _favoured(self, reduction: Reduction, slot: Slot) -> list[Member]:
        """The node that the slot was made for, and nodes that have a part, make one, or pull the output."""
        found: dict[NodeId, Member] = {}
        prefers = self._table.members.get(slot.prefers)
        hosts = [slot.parent.host if slot.parent is not None else None]
        hosts += [below.host for below in reduction.below(slot)]
        for member in (prefers, *hosts):
            if member is not None:
                found[member.node] = member
        for part in slot.parts:
            found.update((member.node, member) for member in self._table.holders_of(part))
        broadcast = self._table.tree(slot.ref)
        for receiver in broadcast.receivers.values() if broadcast is not None else ():
            found[receiver.member.node] = receiver.member
        return list(found.values())

    def _askable(self, slot: Slot, members: Iterable[Member]) -> list[Member]:
        now = self._world.now
        return [m for m in members if m.usable() and slot.refused.get(m.node, 0.0) <= now]

    def _to_pull(self, reduction: Reduction, slot: Slot, member: Member, lowest: int) -> int:
        """How many bytes the node would have to pull as the slot's host."""
        start = self.received(slot, member) or lowest
        return self._parts_to_pull(reduction, slot, member, start) * (reduction.size - start)

    def _parts_to_pull(self, reduction: Reduction, slot: Slot, member: Member, start: int) -> int:
        return sum(not self._will_have(reduction, part, member, start) for part in slot.parts)

    def _will_have(self, reduction: Reduction, part: bytes, member: Member, start: int) -> bool:
        """Whether the node has the part from `start` on, or has been asked to make it."""
        child = reduction.slots.get(part)
        makes_it = child is not None and child.host is member and child.available_from <= start
        return makes_it or self._table.has_part(part, member.node, start=start)

    def splits_root(self, reduction: Reduction, root: Slot) -> bool:
        """Whether the root is done sooner if a getter continues with what it has, and another node combines the
        remaining parts for it: no getter that has much has parts too."""
        if len(root.parts) == 1:
            return False
        usable = self._usable_for(reduction, root)
        ahead = max((self.received(root, member) for member in usable), default=0)
        if ahead == 0:
            return False
        missing = min(self._parts_to_pull(reduction, root, member, ahead) for member in usable)
        alone = min(self._to_pull(reduction, root, member, 0) for member in usable)
        return max(missing, 1) * (reduction.size - ahead) < alone


def _aligned(watermark: int) -> int:
    """Where a slot can begin: not within an element of any dtype."""
    return watermark - watermark % BIND_ALIGNMENT
