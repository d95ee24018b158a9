"""Places the nodes that wait for an object in its tree, or lets them assemble it from stripes."""

from hoplite_ucx.protocol.cost import choose_cut
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast, Receiver
from hoplite_ucx.protocol.directory.spread.cutting import cut
from hoplite_ucx.protocol.directory.spread.roles import lay
from hoplite_ucx.protocol.directory.spread.stripe_senders import TOO_SLOW
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions


class Placing:
    def __init__(self, table: Table, versions: Versions) -> None:
        self._table = table
        self._versions = versions
        self._world = table.world

    def place(self, record: Record) -> None:
        """Where receivers still have no sender, the table knows of it."""
        broadcast = record.broadcast
        if broadcast is not None and broadcast.waits():
            crowd = broadcast.crowd()
            if crowd and not broadcast.stripes:
                self._cut_for(record, broadcast, crowd)
            broadcast.place()
            if broadcast.stripes:
                self._assemble(record, broadcast, crowd)
            if broadcast.waits():
                self._table.starving[record.ref] = None
                if broadcast.gathers():
                    self._world.timers.set_no_later(("place", record.ref), broadcast.crowd_until)
                return
        self._table.starving.pop(record.ref, None)

    def _cut_for(self, record: Record, broadcast: Broadcast, crowd: list[Receiver]) -> None:
        """Cut the object into stripes, if that saves the crowd time and a node that has all of it is free to send."""
        holders = broadcast.holders() if broadcast.may_be_cut() else []
        if holders:
            bandwidth = self._table.members.bandwidth()
            count = choose_cut(broadcast.size, len(crowd), bandwidth, self._world.costs)
            if count > 1:
                cut(self._table, self._versions, record, count, holders)

    def _assemble(self, record: Record, target: Broadcast, crowd: list[Receiver]) -> None:
        members = target.assemble(crowd)
        if members and target.cut:
            self._lay_trees(target, members)
        elif members:
            self._follow_ring(record, target, members)

    def _lay_trees(self, target: Broadcast, members: list[Member]) -> None:
        """Each of them is interior in the tree of one stripe, and a leaf in the others; a slow one is a leaf in all."""
        enough = TOO_SLOW * self._table.members.bandwidth()
        relays = [member.node for member in members if member.nic.up > enough]
        nodes = [member.node for member in members]
        trees = lay(nodes, relays or nodes, len(target.stripes))
        for stripe, tree in zip(target.stripes, trees, strict=True):
            output, broadcast = self._table.records[stripe.version.ref], self._table.live_tree(stripe.version.ref)
            for seat in tree:
                member = self._table.members[seat.node]
                self._table.involve(output, member)
                broadcast.want(member, behind=seat.behind)

    def _follow_ring(self, record: Record, target: Broadcast, members: list[Member]) -> None:
        """Each is sent all stripes that it does not make, in the order of the ring."""
        ring = record.reduction.ring() if record.reduction is not None else ()
        seats = {node: seat for seat, node in enumerate(ring)}
        for stripe in target.stripes:
            output, tree = self._table.records[stripe.version.ref], self._table.live_tree(stripe.version.ref)
            end = seats.get(output.slot.prefers, 0) if output.slot is not None else 0
            distance = {node: (seat - end) % len(seats) for node, seat in seats.items()}
            behind = None if tree.getters() else tree.producer  # a late node is placed like any other
            for member in sorted(members, key=lambda member: distance.get(member.node, len(seats))):
                if tree.producer != member.node and member.node not in tree.copies:
                    self._table.involve(output, member)
                    tree.want(member, behind=behind)
                    behind = member.node
