"""What follows from a change, decided in one place, after the handler of an event has made it.

Handlers change state and *mark* what they changed; nothing is decided meanwhile, so no handler works on something that
changes under its hands. Marked are, in the order in which they are settled:

1. *Records.* Every change to a tree marks its ref by itself (`Broadcast._changed`), and so does whoever gives a record
   another tree, slot or reduction. A settled record declares a loss, takes in the nodes that waited for a version,
   binds its slot or gives it back, answers deferred puts and watchers, and is forgotten if nothing is left of it. If
   it looks different to the reductions that it is a source of, those are marked.
2. *Reductions*, when no record is marked: they choose, replace, bind, seal or fail, which marks records again.
3. *Trees*, when all that is decided: receivers get senders, once for each object and event. When a node can send again
   (`Marks.supply`), that is all trees in which a receiver waits. Streams that this ends still run until they have
   halted, so that their room is for the next event.

It ends: only changes set marks, and within an event each goes one way. Versions end, are lost or are sealed; a
reduction fails, or has its sources chosen; a slot loses its host once, since a node that cannot take it is not asked
again before a timer; a receiver is placed, or halted until it reports. If a fault breaks this, the machine raises.
"""

from hoplite_ucx.protocol.directory.objects import Objects
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.refusals import aborted, lost
from hoplite_ucx.protocol.directory.spread import stripes
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.spread.cutting import rescue
from hoplite_ucx.protocol.directory.spread.placing import Placing
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.messages import PutAccepted

_ROUNDS = 100  # so many, and as many for every record, are never needed; a fault must not stop the directory


class Settling:
    def __init__(self, table: Table, versions: Versions, objects: Objects) -> None:
        self._table = table
        self._versions = versions
        self._objects = objects
        self._reductions = objects.reductions
        self._world = table.world
        self._marks = table.world.marks
        self._placing = Placing(table, versions)

    def settle(self) -> None:
        """Look at everything that is marked, until nothing is."""
        marks, records = self._marks, self._table.records
        changed, reductions, trees = marks.records, marks.reductions, marks.trees
        supplied = False
        for _ in range(_ROUNDS + _ROUNDS * len(records)):
            if changed:
                refs = list(changed)
                changed.clear()
                for ref in refs:
                    if (record := records.get(ref)) is not None:
                        self._settle_record(record)
            elif reductions:
                target, _ = reductions.popitem(last=False)
                if (record := records.get(target)) is not None and record.reduction is not None:
                    self._reductions.review(record.reduction)
            elif trees:
                refs = list(trees)
                trees.clear()
                for ref in refs:
                    if (record := records.get(ref)) is not None:
                        self._placing.place(record)
            elif marks.supply and not supplied:
                marks.supply, supplied = False, True
                self._mark_starving()
            else:
                return
        raise AssertionError("what is marked does not settle")

    def _mark_starving(self) -> None:
        """A node can send again. For any object, running streams come before possible ones."""
        for tree in [self._table.live_tree(ref) for ref in self._table.starving]:
            tree.link_adopted()
            tree.look_for_senders()

    def _settle_record(self, record: Record) -> None:
        broadcast = record.broadcast
        if broadcast is not None and record.waiting:
            self._take_in(record, broadcast)
        if record.slot is not None and record.reduction is not None:
            self._reductions.output_changed(record.reduction, record.slot, broadcast)
        elif broadcast is not None:
            self._settle_version(record, broadcast)
        if (broadcast := record.broadcast) is not None:
            if record.watchers and broadcast.complete():
                self._table.tell_ready(record)
            if broadcast.stripes:
                stripes.end_if_unused(self._table, record)
            if broadcast.waits():
                self._marks.trees[record.ref] = None
            else:
                self._table.starving.pop(record.ref, None)
        if record.consumers and (outlook := self._table.outlook(record)) != record.outlook:
            record.outlook = outlook  # reductions look again at a source that is not what it was to them
            self._marks.reductions.update(dict.fromkeys(record.consumers))
        if broadcast is None and record.idle():
            self._table.forget(record)

    def _take_in(self, record: Record, broadcast: Broadcast) -> None:
        """Nodes that waited for a version have a place in its tree now, or their own put of it failed."""
        for member in list(record.waiting.values()):
            if not self._objects.waits_outside(record, broadcast, member):
                del record.waiting[member.node]
                self._objects.serve(record, member)

    def _settle_version(self, record: Record, broadcast: Broadcast) -> None:
        """Of an object that no reduction makes."""
        if broadcast.is_lost() and not self._world.recovering:
            if record.stripe_of is None:
                self._declare_lost(record, broadcast)
            else:
                self._settle_lost_stripe(record.stripe_of)
        elif record.deferred and broadcast.complete():
            deferred, record.deferred = record.deferred, []
            for node, put in deferred:
                self._world.send(node, PutAccepted(put.call, broadcast.version, existing=True))

    def _settle_lost_stripe(self, ref: bytes) -> None:
        target = self._table.records[ref].broadcast
        if target is not None and not rescue(self._table, target):
            stripes.end(self._table, target)

    def _declare_lost(self, record: Record, broadcast: Broadcast) -> None:
        self._world.tell(record.ref, "{} is lost", broadcast.version)
        if record.deferred and broadcast.version.incarnation < self._world.incarnation:
            self._table.reset(record)  # its put, or another one, is here and starts over: getters wait for that
        else:
            failure = aborted(record.ref) if broadcast.aborted else lost(record.ref)
            self._world.failed(record.ref, failure)
            self._versions.end_version(record, failure)
        self._objects.offer_deferred(record)
