"""Nodes that leave on purpose first hand over the copies that no other node has.

A retiring node says so and stays a member: it serves, and its copies count. For every object of which it has the last
good copy, the directory has another node get it, and tells the retiring one that it may leave when none is left, or no
node can take the rest. The directory reviews this when the node says that it retires, and with every sweep until it is
gone, so it notices later changes such as the death of a taker. The node's shell decides how long to wait.

Copies of other retiring nodes do not count as good ones: all of them may leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.ids import NodeId, Version, label
from hoplite_ucx.protocol.messages import MayLeave, Retire

_ATTEMPTS = 3
"""A node that failed this often to get an object, without memory or with broken streams, is not asked again."""


@dataclass(slots=True)
class _Departure:
    member: Member
    attempts: dict[tuple[Version, NodeId], int] = field(default_factory=dict)


class Retiring:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._world = table.world
        self._members = table.members
        self._departures: dict[NodeId, _Departure] = {}

    def begin(self, member: Member, _: Retire) -> None:
        member.retiring = True
        self._departures.setdefault(member.node, _Departure(member))
        self.review()

    def forget(self, member: Member) -> None:
        self._departures.pop(member.node, None)

    def review(self) -> None:
        """While a new directory listens to the nodes of an earlier one, it is unknown which copies are the last."""
        if self._world.recovering:
            return
        for departure in list(self._departures.values()):
            self._relieve(departure)

    def _relieve(self, departure: _Departure) -> None:
        member = departure.member
        moving = left = 0
        for ref in list(member.refs):
            record = self._table.records[ref]
            broadcast = record.broadcast
            if broadcast is None or not self._must_stay(record, broadcast, member):
                continue
            if self._is_taken(broadcast) or self._find_taker(departure, record, broadcast):
                moving += 1
            else:
                left += 1
        if not moving and member.connected:
            self._world.send(member.node, MayLeave(left))

    def _must_stay(self, record: Record, broadcast: Broadcast, member: Member) -> bool:
        """Whether the object would be lost with the member. What a reduction makes can be made again by others."""
        if member.node not in broadcast.copies or broadcast.inline is not None or not broadcast.sealed:
            return False
        if record.deleted or record.slot is not None or record.stripe_of is not None:
            return False
        return not broadcast.has_good_copy(besides=member.node)

    def _is_taken(self, broadcast: Broadcast) -> bool:
        """Whether somebody who stays is getting it."""
        return any(not self._members[node].retiring for node in broadcast.getters())

    def _find_taker(self, departure: _Departure, record: Record, broadcast: Broadcast) -> bool:
        """Whether somebody is asked to get it now, or may be asked later."""
        version = broadcast.version
        attempts = departure.attempts
        willing = [
            member
            for member in self._members
            if not member.retiring and attempts.get((version, member.node), 0) < _ATTEMPTS
        ]
        usable = [member for member in willing if member.usable()]
        if not usable:
            return bool(willing)
        taker = min(usable, key=lambda member: (attempts.get((version, member.node), 0), len(member.refs), member.node))
        attempts[version, taker.node] = attempts.get((version, taker.node), 0) + 1
        self._world.tell(record.ref, "{} is to take it over from {}", label(taker.node), label(departure.member.node))
        self._table.involve(record, taker)
        broadcast.want(taker)
        return True
