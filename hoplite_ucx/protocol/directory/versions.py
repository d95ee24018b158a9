"""How versions begin and end: their numbers, their trees, and the small objects whose bytes live here.

Small objects live in the directory's answer itself, up to a total; beyond that they stream like others.
"""

import hashlib
from collections.abc import Iterable
from functools import partial

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.refusals import deleted
from hoplite_ucx.protocol.directory.spread import stripes
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.spread.stripe_senders import Seats, StripePool
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.ids import REF_BYTES, NodeId, Version
from hoplite_ucx.protocol.messages import RANKS, Failed, Origin, Put, Stripe


class Versions:
    def __init__(self, table: Table, broadcast_type: type[Broadcast]) -> None:
        self._table = table
        self._world = table.world
        self.inline_total = 0  # bytes of objects that live here
        self.tree = partial(broadcast_type, table.world, table.members)
        self._counter = 0
        self._turns = 0

    def new_version(self, ref: bytes) -> Version:
        self._counter += 1
        return Version(ref, self._world.incarnation, self._counter)

    def next_turn(self) -> int:
        """The sequence number of a striped reduction: streams of stripes go in the order in which reductions were
        built."""
        self._turns += 1
        return self._turns

    def begin_put(self, record: Record, member: Member, put: Put) -> Broadcast:
        """If the bytes came with the put, they live here, as long as there is room for them."""
        inline = put.data if put.data is not None and self.has_inline_room(put.size) else None
        broadcast = self.tree(self.new_version(put.ref), put.size, put.layout, member.nic.up, inline)
        record.broadcast = broadcast
        record.put = (member.node, put.call)
        if inline is not None:
            self.inline_total += put.size
        return broadcast

    def begin_output(self, ref: bytes, size: int, layout: bytes, host: Member | None, whole: int) -> Version:
        """A slot begins a version of its output, which is all or a stripe of `whole` bytes; without a host it is
        gathered from others."""
        record = self._table.record(ref)
        version = self.new_version(ref)
        rate = self._table.members.bandwidth() if host is None else host.nic.up
        record.broadcast = self.tree(version, size, layout, rate)
        record.broadcast.counted = not record.is_stripe()
        record.broadcast.whole = whole
        if record.slot is not None and record.reduction is not None and record.is_stripe():
            record.broadcast.rank = record.reduction.turn * RANKS + record.slot.height
        record.broadcast.sealed = False
        return version

    def begin_stripe(self, target: Broadcast, size: int, seats: Seats) -> Stripe:
        """A complete object is cut: a stripe is an object of its own, under a name that is not used twice."""
        name = target.version.ref + self._world.next_number().to_bytes(8, "big")
        record = self._table.record(hashlib.blake2b(name, digest_size=REF_BYTES).digest())
        version = self.new_version(record.ref)
        record.broadcast = tree = self.tree(version, size, b"", self._table.members.bandwidth())
        record.decided = version
        tree.counted = False
        tree.whole = target.size
        tree.pool = StripePool(record.ref, target.pool.granule, self._world.costs, seats)
        return Stripe(version, size)

    def begin_inline(self, record: Record, version: Version, layout: bytes, data: bytes) -> None:
        """A small result has come: it lives here like a small put."""
        record.broadcast = self.tree(version, len(data), layout, 1.0, data)
        self.inline_total += len(data)
        self._world.mark(record.ref)

    def produce(self, record: Record, host: Member, start: int) -> None:
        """A slot's output begins to grow at its host, whose own gets will find it there."""
        assert record.broadcast is not None
        if host.node in record.broadcast.receivers:
            record.broadcast.remove(host.node)
            if not record.is_stripe():  # else it was for a target that starts over there
                record.waiting[host.node] = host
        record.broadcast.produce(host, start)

    def decide(self, record: Record, origin: Origin) -> None:
        """The target's current version becomes the result of the reduction."""
        assert record.broadcast is not None
        record.broadcast.origin = origin
        record.spec, record.decided = origin.spec, record.broadcast.version
        record.contributors = {source.ref: source for source in origin.contributors}

    def end_version(self, record: Record, failure: Failure, also: Iterable[NodeId] = ()) -> None:
        broadcast, record.broadcast, record.put = record.broadcast, None, None
        told = dict.fromkeys(also)
        if broadcast is not None:
            told |= dict.fromkeys(key for key in broadcast.receivers if not isinstance(key, tuple))
        for node in told:
            self._world.send(node, Failed(record.ref, failure))
        if broadcast is not None:
            if broadcast.inline is not None:
                self.inline_total -= broadcast.size
            broadcast.drop_everywhere()
            stripes.end(self._table, broadcast)
        self._table.end_tree(record)

    def release_sources(self, refs: Iterable[bytes]) -> None:
        """Sources that are not chosen any more: those deleted meanwhile are removed."""
        for ref in refs:
            record = self._table.records.get(ref)
            if record is not None and record.deleted and record.broadcast is not None and not record.pinned():
                self.end_version(record, deleted(ref))

    def has_inline_room(self, size: int) -> bool:
        return self.inline_total + size <= self._world.settings.inline_total
