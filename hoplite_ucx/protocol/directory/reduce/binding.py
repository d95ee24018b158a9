"""Binding: the directory asks nodes to run slots, and tells them to stop.

It asks for all slots at once, parts before the slots that use them: a chain costs one round trip, not one per slot. A
slot that a host has *taken* is *bound* once every slot below it is bound; only then does it pull, do others pull from
it, and may other reductions use it. A host reserves memory when it takes a slot, and no host holds memory while it
waits for the memory of others: it answers a `Bind` with yes or no, and waits only for the directory. So a slot that is
taken and not bound waits only for answers. If no node takes one of the slots below, it is given back, to be asked for
again later. Of two reductions that want the same memory one gets all of it, since nodes read the directory's requests
in the order in which it sends them. The bytes that a getter already has are not risked like this: a getter that would
continue with them is asked when everything below is bound.

A slot's *host* may be lost: another node takes the slot over under the same version, and its receivers resume where
they were. The slots above keep their memory meanwhile, because of the bytes in it. That wait ends: if no node takes a
slot within a lease, the reduction fails and releases everything.
"""

from collections.abc import Iterable, Sequence

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record, Reduction, Slot
from hoplite_ucx.protocol.directory.reduce.hosts import Hosts
from hoplite_ucx.protocol.directory.reduce.tree_builder import TreeBuilder
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.states import SlotState
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import NodeId, label
from hoplite_ucx.protocol.messages import Bind, Drop, Operation, Stripe

# This many slots carry the reduction's request, beside the root: it then outlives the directory and its requester.
_SLOTS_THAT_KNOW = 8


class Binder:
    """The slots of reductions and the nodes that run them."""

    def __init__(self, table: Table, versions: Versions, builder: TreeBuilder, hosts: Hosts) -> None:
        self._table = table
        self._versions = versions
        self._world = table.world
        self._builder = builder
        self._hosts = hosts

    def lay(self, reduction: Reduction, slots: Iterable[Slot]) -> None:
        """Slots were added to the tree, or adopted: each has a record for its output."""
        for slot in slots:
            record = self._table.record(slot.ref)
            record.slot, record.reduction = slot, reduction

    # --- asking --------------------------------------------------------------------------------------------------

    def ensure(self, reduction: Reduction, top: Slot) -> Failure | None:
        """Bind the slot and those below it that no node runs and that are needed, parts before the slots that use them.
        The slots above one that no node has room for wait, however far above, so that they do not take that room. If
        no node has had room for too long, the failure is returned."""
        starved: set[bytes] = set()
        for slot in self._needed_of(reduction, top):
            if reduction.slots.get(slot.ref) is not slot:
                return None  # one of them made everything start over
            is_starved = not starved.isdisjoint(slot.parts)
            failure: Failure | None = None
            if slot.gathers:
                complete = slot.version is not None and self._table.has_copy(slot.ref)
                if self._hosts.is_bound_below(reduction, slot) and not complete:
                    failure = self._gather(reduction, slot)
            elif slot.host is None and not is_starved and self._can_be_bound(reduction, slot):
                failure = self._bind(reduction, slot)
            elif slot.host is None:
                slot.homeless_since = None  # no node can be asked for another reason than room
            if failure is not None:
                return failure
            if is_starved or (slot.host is None and slot.homeless_since is not None):
                starved.add(slot.ref)
        return None

    def _needed_of(self, reduction: Reduction, top: Slot) -> list[Slot]:
        """The slot and those below it whose output has not all been pulled, each after those below it."""
        slots, found = reduction.slots, list[Slot]()
        pending = [top]
        while pending:
            slot = pending.pop()
            found.append(slot)
            pending += [
                slots[part] for part in slot.parts if part in slots and not self._hosts.has_taken(reduction, slot, part)
            ]
        return found[::-1]

    def _can_be_bound(self, reduction: Reduction, slot: Slot) -> bool:
        """No node has the output, and all its receivers have reported where they are; every part exists, or a node has
        been asked to make it."""
        broadcast = self._table.tree(slot.ref)
        if broadcast is not None and not broadcast.is_lost():
            return False
        for part in slot.parts:
            child = reduction.slots.get(part)
            if child is not None:
                if child.host is None and not self._table.has_copy(part):
                    return False
            elif part not in reduction.ready or self._table.version_of(part) != reduction.chosen.get(part):
                return False
        return True

    def _bind(self, reduction: Reduction, slot: Slot) -> Failure | None:
        if slot is reduction.root and self._hosts.splits_root(reduction, slot):
            self._world.tell(reduction.target, "its parts are combined for a getter that has a part of it")
            self.lay(reduction, self._builder.split(reduction, slot))
            return self.ensure(reduction, slot)
        host = self._hosts.choose_host(reduction, slot)
        if host is None:
            return self._wait_for_room(reduction, slot)
        received = self._hosts.received(slot, host)
        if received and not self._hosts.is_bound_below(reduction, slot):
            return None  # asked only then: the getter would lose its bytes if it was asked in vain
        size = reduction.size if slot.cut is None else slot.cut[1]
        if slot.version is None:
            slot.version = self._versions.begin_output(slot.ref, size, reduction.layout, host, reduction.size)
        slot.start = received or self._hosts.lowest_needed(
            reduction, slot
        )  # which depends on which other nodes could be asked
        slot.available_from = 0 if received else slot.start
        slot.host = host
        slot.move(SlotState.ASKED)
        slot.number = self._world.next_number()
        self._table.involve(self._table.record(slot.ref), host)
        parts = tuple(self._table.version_of(part) for part in slot.parts)
        self._world.tell(reduction.target, "{} combines {} parts into {}", label(host.node), len(parts), slot.version)
        known = slot is reduction.root or len(reduction.slots) <= _SLOTS_THAT_KNOW
        self._world.send(
            host.node,
            Bind(
                slot.version,
                slot.number,
                size,
                reduction.layout,
                reduction.spec.op,
                parts,
                reduction.target,
                reduction.spec if known else None,
                slot.start,
                resume=received > 0,
                offset=None if slot.cut is None else slot.cut[0],
                divisor=self.divisor(reduction, slot),
            ),
        )
        return None

    def divisor(self, reduction: Reduction, made_by: Slot | None) -> int:
        """A mean is divided where the target is made, by its root or the root of each stripe, and nowhere below: slots
        that feed others sum. Without a slot it is combined at once."""
        if reduction.spec.op is not Operation.MEAN:
            return 0
        ends_stripe = made_by is not None and made_by.parent is not None and made_by.parent.gathers
        return reduction.spec.count if made_by is None or made_by is reduction.root or ends_stripe else 0

    def _wait_for_room(self, reduction: Reduction, slot: Slot) -> Failure | None:
        """No node takes the slot now: try again soon, but not for ever; then the failure is returned. It may wait for
        memory that the slots above have taken, so that is given back."""
        now = self._world.now
        above = slot.parent
        while above is not None:
            if not above.bound:
                self.unbind(above)
            above = above.parent
        if not any(member.usable() for member in self._table.members):
            slot.homeless_since = None  # no node could be asked: that is not a lack of room
        elif slot.homeless_since is None:
            slot.homeless_since = now
        if slot.homeless_since is None or now - slot.homeless_since < self._world.settings.lease:
            self._world.timers.set(("reduce", reduction.target), now + self._world.settings.declined)
        elif slot.cut is not None:
            self._start_over_without_stripes(reduction)
            self._world.timers.set(("reduce", reduction.target), now)
        else:
            detail = f"no node has room for a part of it ({reduction.size} bytes)"
            remedy = "delete objects or raise the stores' limits, and reduce again"
            return Failure(FailureKind.STORE_FULL, detail, remedy, reduction.target)
        return None

    # --- answers -------------------------------------------------------------------------------------------------

    def taken(self, slot: Slot, missing: set[bytes]) -> None:
        """The host has memory for the slot."""
        slot.homeless_since = None
        if slot.state is not SlotState.TAKEN:
            slot.move(SlotState.TAKEN)
        slot.consumed = {part for part in slot.parts if part not in missing}
        self._world.mark(slot.ref)

    def settle_slot(self, reduction: Reduction, slot: Slot, broadcast: Broadcast | None) -> None:
        """Its output, its host or a slot below it has changed."""
        if slot.host is None and (broadcast is None or not broadcast.copies):
            if broadcast is not None and slot.bound and broadcast.is_lost():
                self.unbind(slot)
            self._world.marks.reductions[reduction.target] = None  # it, or what went into it, may be needed again
        elif broadcast is not None and broadcast.needs_lower_bytes():
            self.bind_lower(reduction, slot)
        elif slot.state is SlotState.TAKEN and self._hosts.is_bound_below(reduction, slot):
            self._begin_pulling(reduction, slot)
        elif not slot.bound:
            self._let_pull(reduction, slot.parent)  # its host had it all

    def _begin_pulling(self, reduction: Reduction, slot: Slot) -> None:
        assert slot.host is not None
        slot.move(SlotState.BOUND)
        record = self._table.record(slot.ref)
        if not self._table.has_part(slot.ref, slot.host.node, complete=True):  # else it came back with all of it
            self._versions.produce(record, slot.host, slot.available_from)
        for part in slot.parts:
            sent = part not in slot.consumed and self._is_as_chosen(reduction, part)
            if sent and self.feed(part, slot.host, slot.ref, slot.start):
                slot.consumed.add(part)
        self._let_pull(reduction, slot.parent)

    def _let_pull(self, reduction: Reduction, slot: Slot | None) -> None:
        """A slot below it grows: if all of them do, it pulls, or a node is asked to run it, or to gather it."""
        waits = slot is not None and (slot.host is None or slot.state is SlotState.TAKEN)
        if slot is not None and waits and self._hosts.is_bound_below(reduction, slot):
            self._world.mark(slot.ref)

    def _is_as_chosen(self, reduction: Reduction, part: bytes) -> bool:
        """Whether the source was not lost and put again since its slot was asked for: the host would not know that
        version, and the slot starts over when the source is ready."""
        broadcast = self._table.tree(part)
        return part in reduction.slots or broadcast is None or broadcast.version == reduction.chosen.get(part)

    def known_again(self, record: Record) -> None:
        """A version that may have been lost has a tree again, without receivers: the bound slots that were made for it
        and still need it wait in it again. A slot that is bound later is sent it then."""
        broadcast = record.broadcast
        assert broadcast is not None
        for reduction in record.consumers.values():
            if not reduction.uses(broadcast.version):
                continue
            for slot in self._builder.slots_with(reduction, record.ref):
                if slot.bound and slot.host is not None and record.ref not in slot.consumed:
                    self._table.involve(record, slot.host)
                    broadcast.want(slot.host, slot.start, into=slot.ref)

    def resumed(self, slot: Slot, missing: set[bytes]) -> None:
        """The host came back with the slot, and says which parts it still needs."""
        if not slot.bound:
            self.taken(slot, missing)
            return
        assert slot.host is not None
        slot.consumed -= missing
        for part in slot.parts:
            if part not in missing and part not in slot.consumed:
                slot.consumed.add(part)
                self._table.unfeed(part, slot.host.node, slot.ref)

    def declined(self, reduction: Reduction, slot: Slot) -> None:
        assert slot.host is not None
        slot.refused[slot.host.node] = self._world.now + self._world.settings.declined
        self.unbind(slot)
        if slot.cut is not None:
            self._start_over_without_stripes(reduction)
        self._world.marks.reductions[reduction.target] = None

    def bind_lower(self, reduction: Reduction, slot: Slot) -> None:
        """Its host began where its receivers were; a receiver now needs lower bytes, so it is bound again, lower."""
        self._world.tell(reduction.target, "{} is needed from lower on than {}", slot.version, slot.start)
        self.unbind(slot)

    # --- stripes -------------------------------------------------------------------------------------------------

    def _start_over_without_stripes(self, reduction: Reduction) -> None:
        """A source's host has no room for its stripes, or no node has the source: any node can take a whole one."""
        reduction.no_stripes = True
        self.drop_slots(reduction)
        self._world.tell(reduction.target, "starts over without stripes")
        batch: dict[NodeId, list[bytes]] = {}
        for ref in reduction.chosen:
            home = self._table.home_of(ref) if ref in reduction.ready else reduction.requester
            batch.setdefault(home, []).append(ref)
        self.lay(reduction, self._builder.add_groups(reduction, batch))

    def _gather(self, reduction: Reduction, root: Slot) -> Failure | None:
        """All stripes are in progress: the target has a version, and a node assembles it."""
        target = reduction.record.broadcast
        if target is None:
            outputs = [(reduction.slots[ref], self._table.version_of(ref)) for ref in root.parts]
            sizes = [(version, slot.cut[1]) for slot, version in outputs if slot.cut is not None]
            root.version = self._versions.begin_output(root.ref, reduction.size, reduction.layout, None, reduction.size)
            root.move(SlotState.GATHERING)
            target = self._table.live_tree(root.ref)
            target.stripes = tuple(Stripe(version, size) for version, size in sizes)
            target.company = frozenset(reduction.ring())
            target.company_until = self._world.now + self._patience(reduction)
            self._world.mark(root.ref)  # waiting nodes are served when the event is over
        if target.getters() or reduction.record.waiting:
            return None
        host = self._hosts.choose_host(reduction, root)
        if host is None:
            return self._wait_for_room(reduction, root)
        if host.node not in root.refused:
            root.homeless_since = None
        self._table.involve(reduction.record, host)
        target.want(host)
        return None

    def _patience(self, reduction: Reduction) -> float:
        """How long to wait for the nodes that will get the target. Hosts of sources lose nothing by it, since their
        links are busy combining; other getters begin that much later."""
        return min(self._world.settings.regroup, reduction.size / self._table.members.bandwidth() / 4)

    def assembler_declined(self, reduction: Reduction, root: Slot, node: NodeId) -> None:
        root.refused[node] = self._world.now + self._world.settings.declined
        self._world.marks.reductions[reduction.target] = None

    def ensure_assembler(self, reduction: Reduction, root: Slot) -> None:
        """If no node gets the target any more, one must be asked to."""
        target = reduction.record.broadcast
        if root.gathers and target is not None and not (target.copies or target.getters() or reduction.record.waiting):
            self._world.timers.set_if_absent(
                ("reduce", reduction.target), self._world.now + self._world.settings.declined
            )

    def feed(self, part: bytes, host: Member, slot: bytes, start: int) -> bool:
        """Send the part, from `start` on, to a slot's host; True if it is so small that it went with the message."""
        record = self._table.record(part)
        self._table.involve(record, host)
        if record.broadcast is None:
            return False
        record.broadcast.want(host, start, into=slot)
        return record.broadcast.inline is not None

    # --- stopping ------------------------------------------------------------------------------------------------

    def unbind(self, slot: Slot) -> None:
        """No node runs the slot any more, and the parts that its host pulled are not needed. Whether the slot is needed
        again is known when its receivers have reported."""
        host, slot.host = slot.host, None
        if slot.state is not SlotState.VACANT:
            slot.move(SlotState.VACANT)
        slot.consumed.clear()
        if host is None:
            return
        self._world.mark(slot.ref)
        self.stop_feeding(slot, host)
        broadcast = self._table.tree(slot.ref)
        if broadcast is not None and broadcast.producer == host.node:
            broadcast.remove(host.node)
        if broadcast is not None and slot.version is not None and self._table.members.get(host.node) is host:
            self._world.send(host.node, Drop(slot.version))
            broadcast.told_to_drop(host.node)

    def stop_feeding(self, slot: Slot, host: Member) -> None:
        for part in slot.parts:
            self._table.unfeed(part, host.node, slot.ref)

    def end_output(self, slot: Slot) -> None:
        self.unbind(slot)
        if slot.version is None:
            return
        slot.version = None
        slot.homeless_since = None
        self._table.reset(self._table.record(slot.ref))

    def drop_slots(self, reduction: Reduction, keep: Sequence[bytes] = ()) -> None:
        for slot in list(reduction.slots.values()):
            if slot.ref not in keep:
                self.end_output(slot)
                self._forget_slot(slot.ref)
        reduction.slots.clear()
        reduction.root = None

    def _forget_slot(self, ref: bytes) -> None:
        """The slot is gone; of the target only the slot is forgotten, not the reduction."""
        record = self._table.records[ref]
        record.slot = None
        if record.spec is None:
            record.reduction = None
        self._world.mark(ref)
