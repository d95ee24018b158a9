"""What must be true of a `Directory` between any two events; `check_directory` asserts all of it.

Everything that is counted twice (a stream stands with its receiver, its sender, two members and two NICs) is
counted again from the receivers and compared. The cost is linear in what the directory knows, so that a simulation
can afford it after every event.

For reductions it asserts that sources and slots are a tree in which each appears once, that the tree, the records and
the streams between slots agree, and that everything that could be done at once has been done.
"""

import math
from collections.abc import Iterable

from hoplite_ucx.protocol.directory.machine import Directory
from hoplite_ucx.protocol.directory.records import Record, Reduction, Slot
from hoplite_ucx.protocol.directory.sender_choice import SenderPool
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast, Receiver
from hoplite_ucx.protocol.directory.spread.stripe_senders import StripePool
from hoplite_ucx.protocol.directory.states import SlotState, State
from hoplite_ucx.protocol.directory.tombstones import TIMER
from hoplite_ucx.protocol.ids import NodeId, ReceiverKey, label, receiver_key, short

# A timer may be as late as the shell is.
_SLACK = 1.0


def check_directory(directory: Directory) -> None:
    streams = _Streams()
    numbers: set[int] = set()
    inline = 0
    for ref, record in directory.records.items():
        _check_record(directory, ref, record)
        broadcast = record.broadcast
        if broadcast is not None:
            _check_version(directory, record, broadcast)
            _check_stripes(directory, record, broadcast)
            _check_roles(record, broadcast)
            _check_receivers(broadcast, numbers, streams)
            if not directory.world.recovering:
                _check_slot_receivers(directory, broadcast)
            _check_no_cycles(broadcast)
            _check_pool(broadcast)
            if broadcast.inline is not None:
                inline += broadcast.size
        if record.reduction is not None and record.reduction.record is record and not directory.world.recovering:
            _check_reduction(directory, record.reduction, numbers)
    _check_chains(directory)
    _check_members(directory, streams)
    _check_timers(directory)
    assert directory.versions.inline_total == inline, (
        f"inline total {directory.versions.inline_total}, but {inline} bytes are inline"
    )
    assert inline <= directory.settings.inline_total, f"{inline} inline bytes are over the limit"
    last = directory.world._number
    assert max(numbers, default=0) <= last, f"a placement is numbered above {last}, the last that was given"


class _Streams:
    """The streams of all objects, recounted from their receivers."""

    def __init__(self) -> None:
        self.receiving: dict[NodeId, int] = {}
        self.sending: dict[NodeId, int] = {}
        self.into: dict[int, dict[bytes, int]] = {}  # id of the Nic → ref → streams
        self.out_of: dict[int, dict[bytes, int]] = {}

    def add(self, broadcast: Broadcast, receiver: Receiver, sender: NodeId) -> None:
        ref, key = broadcast.version.ref, receiver.key
        receiver_nic, sender_nic = receiver.member.nic, broadcast.pool.locations[sender].nic
        if not isinstance(key, tuple) and broadcast.counts(key):
            self.receiving[key] = self.receiving.get(key, 0) + 1
            self.sending[sender] = self.sending.get(sender, 0) + 1
        into = self.into.setdefault(id(receiver_nic), {})
        into[ref] = into.get(ref, 0) + 1
        out_of = self.out_of.setdefault(id(sender_nic), {})
        out_of[ref] = out_of.get(ref, 0) + 1


# --- a ref ------------------------------------------------------------------------------------------------------


def _check_record(directory: Directory, ref: bytes, record: Record) -> None:
    """The states of a ref exclude each other, and its index of nodes is the other side of theirs."""
    name, broadcast = short(ref), record.broadcast
    assert record.ref == ref, f"{name}: filed under the wrong ref"
    assert not record.idle(), f"{name}: nothing is known of it, and yet it is kept"
    assert record.deleted == (ref in directory.table.tombstones), f"{name}: deleted, or not, without its tombstone"
    if record.deleted:
        _check_hidden(record)
        assert not {**record.waiting, **record.watchers}, f"{name}: deleted, and yet waited for"
        assert not record.deferred, f"{name}: deleted, and yet puts wait for it"
    if broadcast is not None:
        strays = record.waiting.keys() - {broadcast.producer, *broadcast.copies}
        if not broadcast.has_root() and (record.deferred or not broadcast.sealed):
            strays = set()  # they wait for what is offered next, or for a root
        assert not strays, f"{name}: has a version, and yet nodes wait for one: {strays}"
    if record.watchers and broadcast is not None:
        assert not broadcast.complete(), f"{name}: complete, and its watchers were not told"
    if record.deferred and not (broadcast is None and directory.world.recovering):
        assert broadcast is not None, f"{name}: a put is deferred without a reason"
        assert not broadcast.complete(), f"{name}: a put is deferred although there is a complete copy"
    starving = broadcast is not None and broadcast.waits()
    assert (ref in directory.table.starving) == starving, f"{name}: starving is {not starving}, waits is {starving}"
    for node, member in record.nodes.items():
        assert directory.members.get(node) is member, f"{name}: {label(node)} is no member"
        assert ref in member.refs, f"{name}: {label(node)} does not list it"
    askers = (asker for asker, _ in record.askers)
    for node in (*record.waiting, *record.watchers, *(putter for putter, _ in record.deferred), *askers):
        assert node in record.nodes, f"{name}: {label(node)} waits for it but is not involved"
    _check_made(directory, record)


def _check_hidden(record: Record) -> None:
    """A deleted ref has a version only while a reduction that chose it needs the bytes."""
    name, broadcast = short(record.ref), record.broadcast
    assert record.reduction is None, f"{name}: deleted, and yet a reduction makes it"
    if broadcast is not None:
        assert record.pinned(), f"{name}: deleted, and yet it has a version that nobody needs"
        getters = _stores(broadcast.receivers)
        assert not getters, f"{name}: deleted, and yet {_labels(getters)} get it"


def _check_made(directory: Directory, record: Record) -> None:
    """What makes the object, and what is made of it."""
    name, reduction, slot, broadcast = short(record.ref), record.reduction, record.slot, record.broadcast
    for target, consumer in record.consumers.items():
        made = directory.records.get(target)
        assert made is not None, f"{name}: a source of {short(target)}, which is unknown"
        assert made.reduction is consumer, f"{name}: a source of {short(target)}, which is decided"
        assert record.ref in consumer.spec.sources, f"{name}: not among the sources of {short(target)}"
    if slot is not None:
        assert reduction is not None, f"{name}: the output of a slot of nothing"
        assert reduction.slots.get(record.ref) is slot, f"{name}: the output of a slot that is over"
    if record.askers:
        assert reduction is not None, f"{name}: decided, and nobody was told its contributors"
        assert reduction.failure is None, f"{name}: failed, and those who asked for its contributors were not told"
    if broadcast is not None and not directory.world.recovering:
        unsealed = slot is not None
        assert broadcast.sealed != unsealed, f"{name}: sealed is {broadcast.sealed}, undecided is {unsealed}"
    if reduction is None:
        return
    assert record.stripe_of is None, f"{name}: outlived a reduction that still makes it"
    assert not record.deferred, f"{name}: a put waits although a reduction makes it"
    assert reduction.record.reduction is reduction, f"{name}: a slot is left of a reduction that is decided"
    if reduction.record is not record:
        assert slot is not None, f"{name}: of a reduction, but no slot of it"
        return
    assert record.spec is reduction.spec, f"{name}: made by another reduction than it was asked for"
    assert record.contributors is None, f"{name}: undecided, and yet it has contributors"
    if reduction.failure is not None:
        assert broadcast is None, f"{name}: failed, and yet it has a version"
        assert not record.waiting, f"{name}: failed, and yet waited for"


# --- the tree of a version --------------------------------------------------------------------------------------


def _check_version(directory: Directory, record: Record, broadcast: Broadcast) -> None:
    assert broadcast.version.ref == record.ref, f"{broadcast.version}: kept under {short(record.ref)}"
    lost = record.slot is None and broadcast.is_lost() and not directory.world.recovering
    assert not lost, f"{broadcast.version}: lost, and nobody was told"
    if broadcast.inline is not None:
        assert len(broadcast.inline) == broadcast.size, f"{broadcast.version}: inline bytes of another size"


def _check_stripes(directory: Directory, record: Record, broadcast: Broadcast) -> None:
    """What an object is put together from is there, and goes to everyone who does so."""
    version, owner = broadcast.version, record.stripe_of
    if owner is not None:
        target = directory.records[owner].broadcast if owner in directory.records else None
        known = target is not None and any(stripe.version == version for stripe in target.stripes)
        assert known, f"{version}: outlived its reduction, and is a stripe of nothing"
    total = sum(stripe.size for stripe in broadcast.stripes)
    assert not broadcast.stripes or total == broadcast.size, f"{version}: its stripes have {total} bytes"
    assemblers = [key for key in _stores(broadcast.receivers) if broadcast.is_assembling(key)]
    for stripe in broadcast.stripes:
        output = directory.records.get(stripe.version.ref)
        tree = output.broadcast if output is not None else None
        assert output is not None, f"{version}: its stripe {stripe.version} is unknown"
        assert tree is not None, f"{version}: its stripe {stripe.version} is over"
        assert tree.version == stripe.version, f"{version}: its stripe {stripe.version} is {tree.version} now"
        assert tree.size == stripe.size, f"{version}: its stripe {stripe.version} has another size"
        made = output.reduction is not None and output.reduction is record.reduction
        assert made or output.stripe_of == record.ref, f"{version}: its stripe {stripe.version} is another's"
        for node in assemblers:
            gets = node in tree.receivers or node in tree.copies or node == tree.producer
            waits = node in output.waiting or (output.slot is not None and output.slot.host is not None)
            assert gets or waits, f"{version}: {label(node)} is not sent {stripe.version}"
    if broadcast.stripes and not broadcast.copies and ("place", version.ref) not in directory.world.timers:
        idle = [node for node, member in broadcast.waiting_stores().items() if member.connected]
        assert not idle, f"{version}: {_labels(idle)} wait for company, and nobody looks when that is over"
    if broadcast.stripes and record.reduction is None:
        assert assemblers, f"{version}: nobody puts it together, and its stripes are kept"
    assert broadcast.stripes or not broadcast.cut, f"{version}: cut into nothing"
    if broadcast.cut:
        _check_cut(directory, record, broadcast)


def _check_cut(directory: Directory, record: Record, broadcast: Broadcast) -> None:
    """Of an object that was cut: who has a stripe has all of it, or puts it together; a free seat is known as one."""
    version = broadcast.version
    assert record.reduction is None, f"{version}: cut while a reduction makes it"
    assert broadcast.sealed, f"{version}: cut and not decided"
    fresh = [r for r in broadcast.receivers.values() if r.state is State.WAITING and r.is_fresh()]
    idle = [r.key for r in fresh if r.member.connected]
    gathers = broadcast.crowd_until > directory.world.now - _SLACK and ("place", version.ref) in directory.world.timers
    assert gathers or not idle, f"{version}: {_labels(idle)} wait for company, and nobody looks when that is over"
    taken: dict[NodeId, int] = {}
    seats = None
    for stripe in broadcast.stripes:
        tree = directory.table.live_tree(stripe.version.ref)
        pool = tree.pool
        assert isinstance(pool, StripePool), f"{version}: {stripe.version} has other senders than a stripe"
        assert seats is None or pool.seats is seats, f"{version}: {stripe.version} does not share the seats"
        seats = pool.seats
        assert tree.producer is None, f"{version}: {stripe.version} is made, though it was cut"
        strangers = [node for node in tree.nodes() if not (node in broadcast.copies or broadcast.is_assembling(node))]
        assert not strangers, f"{version}: {_labels(strangers)} have {stripe.version}, and nothing to do with it"
        for node, location in pool.locations.items():
            taken[node] = taken.get(node, 0) + len(location.children)
    assert seats is not None, f"{version}: cut into nothing"
    assert seats.taken == taken, f"{version}: its seats are {seats.taken}, and taken are {taken}"
    free = {node for node, count in taken.items() if count < seats.stripes}
    assert seats.free.keys() == free, f"{version}: free seats are at {_labels(free)}, listed at {_labels(seats.free)}"


def _check_roles(record: Record, broadcast: Broadcast) -> None:
    """A node is one of copy, producer, receiver; it is then involved, and if it can send, it is in the pool."""
    version, copies, receivers, producer = broadcast.version, broadcast.copies, broadcast.receivers, broadcast.producer
    streamed = broadcast.inline is None
    locations = broadcast.pool.locations if streamed else {}
    both = copies.keys() & receivers.keys()
    assert not both, f"{version}: {_labels(both)} have it and yet receive it"
    for node, member in copies.items():
        assert record.nodes.get(node) is member, f"{version}: {label(node)} has a copy but is not involved"
        assert not streamed or node in locations, f"{version}: {label(node)} has a copy but is not in the pool"
    if producer is not None:
        assert producer not in copies, f"{version}: the producer {label(producer)} is a copy too"
        assert producer not in receivers, f"{version}: the producer {label(producer)} receives"
        assert producer in record.nodes, f"{version}: the producer {label(producer)} is not involved"
        assert producer in locations, f"{version}: the producer {label(producer)} is not in the pool"
    strangers = locations.keys() - copies.keys() - set(_stores(receivers)) - {producer}
    assert not strangers, f"{version}: {_labels(strangers)} are in the pool without having any of it"
    for key, receiver in receivers.items():
        assert key == receiver_key(receiver.member.node, receiver.into), f"{version}: {_who(key)} is filed wrongly"
        involved = record.nodes.get(receiver.member.node)
        assert involved is receiver.member, f"{version}: receiver {_who(key)} is not involved"
    expected = broadcast._expected - receivers.keys()
    assert not expected, f"{version}: {_labels(expected)} are expected to report but do not receive"


def _check_receivers(broadcast: Broadcast, numbers: set[int], streams: _Streams) -> None:
    """One parent each, listed by it and by no other; the watermark within the object; numbers never used twice."""
    version, waiting, locations = broadcast.version, broadcast._waiting, broadcast.pool.locations
    streaming = 0
    for key, receiver in broadcast.receivers.items():
        state, sender, number = receiver.state, receiver.sender, receiver.number
        assert (key in waiting) == (state is State.WAITING), f"{version}: {_who(key)} is {state}, queue disagrees"
        adopted = key in broadcast._adopted
        assert adopted == (state is State.ADOPTED), f"{version}: {_who(key)} is {state}, list of adopted disagrees"
        assert 0 <= receiver.watermark <= broadcast.size, f"{version}: {_who(key)} is at {receiver.watermark}"
        if number:
            assert number not in numbers, f"{version}: placement {number} of {_who(key)} was given twice"
            numbers.add(number)
        if state is not State.STREAMING:
            assert sender is None, f"{version}: {_who(key)} is {state} and yet has a sender"
            continue
        assert sender is not None, f"{version}: {_who(key)} streams from nobody"
        assert number, f"{version}: {_who(key)} streams without a placement"
        if not isinstance(key, tuple):
            assert key in locations, f"{version}: {_who(key)} streams but is not in the pool"
        assert sender in locations, f"{version}: {_who(key)}'s sender {label(sender)} is not in the pool"
        served = sender != broadcast.producer or receiver.watermark >= broadcast.start
        assert served, (
            f"{version}: {_who(key)} needs what is below {broadcast.start}, {label(sender)} has nothing there"
        )
        location = locations[sender]
        assert key in location.children, f"{version}: {label(sender)} does not list its child {_who(key)}"
        streaming += 1
        streams.add(broadcast, receiver, sender)
    listed = sum(len(location.children) for location in locations.values())
    assert listed == streaming, f"{version}: {listed} children are listed, {streaming} receivers stream"
    assert len(waiting) <= len(broadcast.receivers), f"{version}: one waits that is no receiver"


def _check_slot_receivers(directory: Directory, broadcast: Broadcast) -> None:
    """Bytes go to slots only that are bound, at their hosts, and that still need them."""
    version = broadcast.version
    for key, receiver in broadcast.receivers.items():
        if not receiver.into:
            continue
        output = directory.records.get(receiver.into)
        slot = output.slot if output is not None else None
        assert slot is not None, f"{version}: sent to {_who(key)}, a slot that is over"
        assert slot.host is receiver.member, f"{version}: sent to {_who(key)}, which is not the slot's host"
        assert slot.bound, f"{version}: sent to {_who(key)}, which has not taken the slot"
        assert version.ref in slot.parts, f"{version}: sent to {_who(key)}, and no part of it"
        assert version.ref not in slot.consumed, f"{version}: sent to {_who(key)}, which has it"


def _check_no_cycles(broadcast: Broadcast) -> None:
    """The way up from any receiver ends at a root, or at a receiver that will be placed again."""
    receivers = broadcast.receivers
    sound: set[ReceiverKey] = set()
    for key in receivers:
        chain: dict[ReceiverKey, None] = {}
        above: ReceiverKey | None = key
        while above is not None and above not in sound and above in receivers:
            assert above not in chain, f"{broadcast.version}: a cycle of {_labels(chain)}"
            chain[above] = None
            above = receivers[above].sender
        sound.update(chain)


def _check_pool(broadcast: Broadcast) -> None:
    """The accounts of the senders add up."""
    version, pool = broadcast.version, broadcast.pool
    for node, location in pool.locations.items():
        assert location.node == node, f"{version}: {label(node)} is filed as {label(location.node)}"
        children = location.children
        if not children:
            assert location.load == 0.0, f"{version}: {label(node)} sends nothing with a load of {location.load}"
            assert location.free_at == -math.inf, f"{version}: {label(node)} sends nothing and is not free"
            continue
        load, until = 0.0, -math.inf
        for child in children.values():
            load += child.rate
            until = max(until, child.until)
        assert abs(location.load - load) <= 1e-6 * load, (
            f"{version}: {label(node)} has load {location.load}, not {load}"
        )
        assert location.free_at == until, f"{version}: {label(node)} is free at {location.free_at}, not at {until}"
    _check_slow(broadcast, pool)


def _check_slow(broadcast: Broadcast, pool: SenderPool) -> None:
    for child, sender in pool._slow.items():
        location = pool.locations.get(sender)
        assert location is not None, f"{broadcast.version}: {label(sender)} is gone, {_who(child)} is listed as slow"
        assert child in location.children, f"{broadcast.version}: {_who(child)} is listed as slow and streams not"


# --- a reduction ------------------------------------------------------------------------------------------------


def _check_reduction(directory: Directory, reduction: Reduction, numbers: set[int]) -> None:
    """An undecided reduction: what it chose, the tree, the hosts, and that nothing is left undone."""
    name, spec, chosen = short(reduction.target), reduction.spec, reduction.chosen
    assert len(chosen) <= spec.count, f"{name}: {len(chosen)} sources are chosen, {spec.count} were asked for"
    foreign = chosen.keys() - set(spec.sources)
    assert not foreign, f"{name}: {_refs(foreign)} are chosen, and no sources of it"
    for ref in spec.sources:
        record = directory.records.get(ref)
        consumer = record.consumers.get(reduction.target) if record is not None else None
        assert consumer is reduction, f"{name}: its source {short(ref)} does not know of it"
    host, inline = reduction.inline_host, reduction.inline_version
    assert host is None or inline is not None, f"{name}: it has an inline host, and no inline version"
    if host is not None:
        assert host in reduction.record.nodes, f"{name}: combined by {label(host)}, which is not involved"
    if reduction.failure is not None:
        left = chosen or reduction.slots or reduction.terms or reduction.held or reduction.root or inline
        assert not left, f"{name}: failed, and something of it is left"
        return
    if inline is not None:
        assert not reduction.slots, f"{name}: combined inline, and yet it has slots"
        assert reduction.root is None, f"{name}: combined inline, and yet it has a root"
    else:
        homes = _check_trees(name, reduction)
        for ref, slot in reduction.slots.items():
            _check_slot(directory, name, ref, slot, reduction)
            if slot.number:
                assert slot.number not in numbers, f"{name}: slot {short(ref)} was bound under a number given before"
                numbers.add(slot.number)
        for tree in homes:
            _check_versions(directory, name, reduction, tree)
        _check_nothing_undone(directory, name, reduction, homes)


def _check_trees(name: str, reduction: Reduction) -> list[dict[bytes, Slot | None]]:
    """One tree, or one for every stripe, of the same sources, with a root that gathers them."""
    slots, root = reduction.slots, reduction.root
    terms = [ref for ref, _ in reduction.terms]
    terms += reduction.held[0] if reduction.held is not None else []
    full = len(reduction.chosen) == reduction.spec.count
    assert (root is not None) == full, f"{name}: has a root is {root is not None}, is full is {full}"
    if root is not None:
        assert root.ref == reduction.target, f"{name}: its root makes {short(root.ref)}"
        assert slots.get(root.ref) is root, f"{name}: its root is none of its slots"
        assert not terms, f"{name}: {_refs(terms)} do not go into its root"
    if root is None or not root.gathers:
        return [_check_tree(name, reduction.chosen.keys(), slots, root, terms)]
    end = 0
    trees = []
    for ref in root.parts:
        top = slots[ref]
        assert top.parent is root, f"{name}: stripe {short(ref)} does not go into its root"
        assert top.cut is not None, f"{name}: stripe {short(ref)} has no place in it"
        assert top.cut[0] == end, f"{name}: stripe {short(ref)} begins at {top.cut[0]}, not at {end}"
        end += top.cut[1]
        stripe = {ref: slot for ref, slot in slots.items() if slot.cut == top.cut}
        trees.append(_check_tree(name, reduction.chosen.keys(), stripe, top, []))
    assert end == reduction.size, f"{name}: its stripes end at {end} of {reduction.size}"
    total = 1 + sum(slot.cut is not None for slot in slots.values())
    assert total == len(slots), f"{name}: {len(slots) - total} slots are in no stripe"
    return trees


def _check_tree(
    name: str, chosen: Iterable[bytes], slots: dict[bytes, Slot], root: Slot | None, terms: list[bytes]
) -> dict[bytes, Slot | None]:
    """Every chosen source, and every slot but the root, stands once: in a slot, which is returned, or as a term."""
    homes: dict[bytes, Slot | None] = {}
    for slot in slots.values():
        assert slot.parts, f"{name}: slot {short(slot.ref)} has no parts"
        for part in slot.parts:
            assert part not in homes, f"{name}: {short(part)} goes into it twice"
            homes[part] = slot
    for term in terms:
        assert term not in homes, f"{name}: the term {short(term)} stands twice"
        homes[term] = None
    expected = set(chosen) | (slots.keys() - ({root.ref} if root is not None else set()))
    missing, strange = expected - homes.keys(), homes.keys() - expected
    assert not missing, f"{name}: {_refs(missing)} have no place in the tree"
    assert not strange, f"{name}: {_refs(strange)} stand in the tree and were not chosen"
    for ref, slot in slots.items():
        assert slot.ref == ref, f"{name}: slot {short(slot.ref)} is filed as {short(ref)}"
        if slot is not root:
            assert slot.parent is homes.get(ref), f"{name}: slot {short(ref)} has another parent than it is a part of"
    sound: set[bytes] = set()
    for slot in slots.values():
        path: set[bytes] = set()
        above: Slot | None = slot
        while above is not None and above.ref not in sound:
            assert above.ref not in path, f"{name}: slot {short(above.ref)} goes into itself"
            path.add(above.ref)
            above = above.parent
        sound |= path
    return homes


def _check_slot(directory: Directory, name: str, ref: bytes, slot: Slot, reduction: Reduction) -> None:
    """The slot, the record of its output, and its host agree."""
    what = f"{name}: slot {short(ref)}"
    record, host = directory.records.get(ref), slot.host
    assert record is not None, f"{what} has no record"
    assert record.slot is slot, f"{what} is unknown to its record"
    assert record.reduction is reduction, f"{what} is of another reduction by its record"
    broadcast = record.broadcast
    version = broadcast.version if broadcast is not None else None
    assert slot.version == version, f"{what} makes {slot.version}, its record has {version}"
    strange = slot.consumed - set(slot.parts)
    assert not strange, f"{what} has consumed {_refs(strange)}, which are no parts of it"
    hosted = slot.state in (SlotState.ASKED, SlotState.TAKEN, SlotState.BOUND)
    assert hosted == (host is not None), f"{what} is {slot.state.value}, and has a host is {host is not None}"
    if slot.state is SlotState.TAKEN:
        due = directory.reductions.hosts.is_bound_below(reduction, slot)
        assert not due, f"{what} is taken, all below it is bound, and it is not"
    assert slot.available_from in (0, slot.start), (
        f"{what} begins at {slot.start}, and is available from {slot.available_from}"
    )
    assert slot is not reduction.root or not slot.available_from, (
        f"{what} is the root, and nobody makes its first bytes"
    )
    if broadcast is not None and broadcast.producer is not None:
        assert broadcast.start == slot.available_from, (
            f"{what} is available from {slot.available_from}, its version from {broadcast.start}"
        )
        assert not broadcast.needs_lower_bytes(), f"{what} begins at {slot.start}, and lower bytes are needed"
        assert slot.bound, f"{what} is made by {label(broadcast.producer)}, and not bound"
        assert host is not None, f"{what} is bound to nobody"
        assert broadcast.producer == host.node, f"{what} is made by {label(broadcast.producer)}, not by its host"
    if host is None:
        _check_nothing_held(directory, what, slot)
        return
    assert directory.members.get(host.node) is host, f"{what}: its host {label(host.node)} is no member"
    assert record.nodes.get(host.node) is host, f"{what}: its host {label(host.node)} is not involved"
    assert slot.number, f"{what} has a host without a number"
    assert broadcast is not None, f"{what} has a host and no version"
    if slot.bound:
        root = broadcast.producer == host.node or host.node in broadcast.copies
        assert root, f"{what} is bound to {label(host.node)}, which is no root of it"
        _check_fed(directory, what, slot, host.node, reduction)


def _check_nothing_held(directory: Directory, what: str, slot: Slot) -> None:
    """While no node has room for a slot, no node holds memory for the slots above that wait for it."""
    if slot.homeless_since is None or directory.table.has_copy(slot.ref):
        return
    above = slot.parent
    while above is not None:
        assert above.bound or above.host is None, f"{what} has no host, and {short(above.ref)} holds memory for it"
        above = above.parent


def _check_fed(directory: Directory, what: str, slot: Slot, host: NodeId, reduction: Reduction) -> None:
    """The parts that a bound slot still needs are sent to it, unless they are gone and must be replaced."""
    for part in slot.parts:
        record = directory.records.get(part)
        broadcast = record.broadcast if record is not None else None
        if part in slot.consumed or broadcast is None:
            continue
        if part in reduction.slots or reduction.chosen.get(part) == broadcast.version:
            fed = (host, slot.ref) in broadcast.receivers
            assert fed, f"{what} needs {short(part)}, which is not sent to it"


def _check_versions(directory: Directory, name: str, reduction: Reduction, homes: dict[bytes, Slot | None]) -> None:
    """A source that is itself undecided was taken in its current version, or not taken at all."""
    for ref, version in reduction.chosen.items():
        slot, record = homes[ref], directory.records.get(ref)
        if slot is None or not slot.bound or record is None or record.reduction is None or record.broadcast is None:
            continue
        current = record.broadcast.version
        right = current == version or not record.reduction.is_bound()
        assert right, f"{name}: {version} is a part of it, but {short(ref)} is {current} now"


def _check_nothing_undone(
    directory: Directory, name: str, reduction: Reduction, trees: list[dict[bytes, Slot | None]]
) -> None:
    chosen, spec, root = reduction.chosen, reduction.spec, reduction.root
    changed = [
        ref
        for ref in chosen
        if not _is_available(directory, reduction, ref)
        and not all(_is_in(directory, reduction, homes, ref) for homes in trees)
    ]
    gone = [ref for ref in changed if not directory.reductions.may_come(reduction, ref)]
    spare = next((ref for ref in spec.sources if ref not in chosen and _can_be_chosen(directory, ref)), None)
    if spare is not None:
        assert len(chosen) == spec.count, f"{name}: {short(spare)} is ready, and was not chosen"
        assert not gone, f"{name}: {_refs(gone)} are gone, and {short(spare)} could replace them"
    for ref in changed:
        assert not directory.table.is_ready(ref), f"{name}: {short(ref)} has a new version, which is not used"
    # With too few sources left it waits for those who may turn out to have the target, and binds nothing.
    for slot in _needed(directory, reduction) if directory.reductions.could_finish(reduction) else ():
        broadcast = directory.records[slot.ref].broadcast
        if slot.host is not None or (broadcast is not None and not broadcast.is_lost()):
            continue  # it is on its way, it has a copy, or those who pull from it have yet to report
        if all(_may_be_pulled(directory, reduction, slot, part) for part in slot.parts):
            looked_for = ("reduce", reduction.target) in directory.world.timers
            assert looked_for, f"{name}: slot {short(slot.ref)} could be bound, and nobody does"
    if root is not None and directory.table.has_copy(root.ref):
        undecided = any(directory.table.is_undecided(ref) for ref in chosen)
        makers = reduction.makers(root)
        at_work = any(
            slot.host is not None and not directory.table.has_part(slot.ref, slot.host.node, complete=True)
            for slot in makers
        )
        assert undecided or at_work, f"{name}: complete and decided, and yet not sealed"


def _can_be_chosen(directory: Directory, ref: bytes) -> bool:
    return directory.table.is_ready(ref) and not directory.table.is_deleted(ref)


def _may_be_pulled(directory: Directory, reduction: Reduction, slot: Slot, part: bytes) -> bool:
    """Whether the slot can be bound as far as this part is concerned: it exists, or a node has been asked to make it. A
    getter that would continue with its own bytes is asked later."""
    broadcast = directory.records[slot.ref].broadcast
    goes_on = broadcast is not None and any(broadcast.receivers[node].watermark for node in broadcast.getters())
    if part in reduction.slots and not slot.gathers and not goes_on and reduction.slots[part].host is not None:
        return True
    return _is_available(directory, reduction, part)


def _is_available(directory: Directory, reduction: Reduction, part: bytes) -> bool:
    """Whether the part grows, in the version that was chosen."""
    if part in reduction.slots:
        return reduction.slots[part].bound or directory.table.has_copy(part)
    return directory.table.is_ready(part) and directory.table.version_of(part) == reduction.chosen.get(part)


def _is_in(directory: Directory, reduction: Reduction, homes: dict[bytes, Slot | None], ref: bytes) -> bool:
    """Whether the bytes of a source are in a slot that has them, or in what was made of that slot."""
    part, slot = ref, homes[ref]
    while slot is not None:
        taken = slot.bound and part in slot.consumed
        if taken and directory.reductions.hosts.is_above(reduction, slot, slot.available_from):
            return True
        if directory.table.has_copy(slot.ref):
            return True
        part, slot = slot.ref, slot.parent
    return False


def _needed(directory: Directory, reduction: Reduction) -> list[Slot]:
    """The slots whose output is still needed: the tops, and below them whatever was not consumed."""
    found, has_taken = reduction.tops(), directory.reductions.hosts.has_taken
    for slot in found:
        found.extend(below for below in reduction.below(slot) if not has_taken(reduction, slot, below.ref))
    return found


def _check_chains(directory: Directory) -> None:
    """Going from targets to what is made of them one comes to an end."""
    sound: set[bytes] = set()
    for ref, record in directory.records.items():
        if not record.consumers or ref in sound:
            continue
        open_: set[bytes] = set()
        pending = [(ref, False)]
        while pending:
            at, left = pending.pop()
            if left:
                open_.discard(at)
                sound.add(at)
            elif at not in sound:
                assert at not in open_, f"{short(at)}: made from itself"
                open_.add(at)
                pending.append((at, True))
                consumers = directory.records[at].consumers if at in directory.records else ()
                pending.extend((target, False) for target in consumers if target not in sound)


# --- members, timers --------------------------------------------------------------------------------------------


def _check_members(directory: Directory, streams: _Streams) -> None:
    members, records = directory.members, directory.records
    nics: dict[str, int] = {}
    for member in members:
        node, name = member.node, label(member.node)
        receiving, sending = streams.receiving.get(node, 0), streams.sending.get(node, 0)
        assert member.receiving == receiving, f"{name}: counts {member.receiving} incoming streams, has {receiving}"
        assert member.sending == sending, f"{name}: counts {member.sending} outgoing streams, has {sending}"
        assert receiving <= member.streams_in, f"{name}: {receiving} incoming streams are over {member.streams_in}"
        assert sending <= member.streams_out, f"{name}: {sending} outgoing streams are over {member.streams_out}"
        for ref in member.refs:
            record = records.get(ref)
            assert record is not None, f"{name}: lists {short(ref)}, which is unknown"
            assert node in record.nodes, f"{name}: lists {short(ref)}, which does not involve it"
        assert not members.is_fenced(node), f"{name}: is a member and fenced"
        assert member.host in members._nics, f"{name}: its host {member.host} has no account"
        assert members._nics[member.host][0] is member.nic, f"{name}: its NIC is not that of its host {member.host}"
        nics[member.host] = nics.get(member.host, 0) + 1
    assert nics == {host: users for host, (_, users) in members._nics.items()}, "hosts' users are miscounted"
    for host, (nic, _) in members._nics.items():
        into, out_of = streams.into.get(id(nic), {}), streams.out_of.get(id(nic), {})
        assert nic.receiving == into, f"host {host}: its account of incoming streams is wrong"
        assert nic.sending == out_of, f"host {host}: its account of outgoing streams is wrong"


def _check_timers(directory: Directory) -> None:
    timers = directory.world.timers
    assert ("recover" in timers) == directory.world.recovering, "the recovery never ends, or has no end"
    assert not len(directory.members) or "sweep" in timers, "nobody looks whether the members are alive"
    assert (TIMER in timers) == bool(directory.table.tombstones), "tombstones never expire, or there are none"
    for key in timers:
        match key:
            case ("probe", int() as node):
                assert directory.members.get(node) is not None, f"{label(node)}: gone, and yet to be probed"
            case ("place", bytes() as ref):
                record = directory.records.get(ref)
                assert record is not None, f"{short(ref)}: unknown, and yet to be placed"
                assert record.broadcast is not None, f"{short(ref)}: without a version, and yet to be placed"
            case ("reduce", bytes() as ref):
                record = directory.records.get(ref)
                assert record is not None, f"{short(ref)}: unknown, and yet to be reduced"
                assert record.reduction is not None, f"{short(ref)}: decided, and yet to be reduced"
                assert record.reduction.failure is None, f"{short(ref)}: failed, and yet to be reduced"


def _stores(receivers: Iterable[ReceiverKey]) -> list[NodeId]:
    """The nodes that receive for their store."""
    return [key for key in receivers if not isinstance(key, tuple)]


def _who(key: ReceiverKey) -> str:
    return f"{label(key[0])} for {short(key[1])}" if isinstance(key, tuple) else label(key)


def _labels(keys: Iterable[ReceiverKey]) -> str:
    return ", ".join(sorted(map(_who, keys)))


def _refs(refs: Iterable[bytes]) -> str:
    return ", ".join(sorted(map(short, refs)))
