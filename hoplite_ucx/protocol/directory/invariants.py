"""What must be true of a `Directory` between any two events; `Directory.check()` asserts all of it.

Everything that is counted twice (a stream stands with its receiver, its sender, two members and two NICs) is
counted again from the receivers and compared. The cost is linear in what the directory knows, so that a simulation
can afford it after every event.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hoplite_ucx.protocol.directory.broadcast import Broadcast, State
from hoplite_ucx.protocol.ids import NodeId, label, short
from hoplite_ucx.protocol.placement import Nic, SenderPool

if TYPE_CHECKING:
    from hoplite_ucx.protocol.directory.machine import Directory, Record


def check_directory(directory: "Directory") -> None:
    streams = _Streams()
    numbers: set[int] = set()
    inline = 0
    for ref, record in directory.records.items():
        _check_record(directory, ref, record)
        broadcast = record.broadcast
        if broadcast is not None:
            _check_version(record, broadcast)
            _check_roles(record, broadcast)
            _check_receivers(broadcast, numbers, streams)
            _check_no_cycles(broadcast)
            _check_pool(broadcast)
            if broadcast.inline is not None:
                inline += broadcast.size
    _check_members(directory, streams)
    _check_timers(directory)
    assert directory._inline_total == inline, f"inline total {directory._inline_total}, but {inline} bytes are inline"
    assert inline <= directory.settings.inline_total, f"{inline} inline bytes are over the limit"
    last = directory._world._number
    assert max(numbers, default=0) <= last, f"a placement is numbered above {last}, the last that was given"


class _Streams:
    """The streams of all objects, recounted from their receivers."""

    def __init__(self) -> None:
        self.receiving: dict[NodeId, int] = {}
        self.sending: dict[NodeId, int] = {}
        self.into: dict[int, dict[bytes, int]] = {}  # id of the Nic → ref → streams
        self.out_of: dict[int, dict[bytes, int]] = {}

    def add(self, ref: bytes, receiver: NodeId, receiver_nic: Nic, sender: NodeId, sender_nic: Nic) -> None:
        self.receiving[receiver] = self.receiving.get(receiver, 0) + 1
        self.sending[sender] = self.sending.get(sender, 0) + 1
        into = self.into.setdefault(id(receiver_nic), {})
        into[ref] = into.get(ref, 0) + 1
        out_of = self.out_of.setdefault(id(sender_nic), {})
        out_of[ref] = out_of.get(ref, 0) + 1


# --- a ref ------------------------------------------------------------------------------------------------------


def _check_record(directory: "Directory", ref: bytes, record: "Record") -> None:
    """The states of a ref exclude each other, and its index of nodes is the other side of theirs."""
    name, broadcast = short(ref), record.broadcast
    assert record.ref == ref, f"{name}: filed under the wrong ref"
    assert not record.idle(), f"{name}: nothing is known of it, and yet it is kept"
    if record.deleted:
        assert broadcast is None, f"{name}: deleted, and yet it has a version"
        assert not {**record.waiting, **record.watchers}, f"{name}: deleted, and yet waited for"
        assert not record.deferred, f"{name}: deleted, and yet puts wait for it"
        assert ("tombstone", ref) in directory._world.timers, f"{name}: its tombstone never expires"
    if broadcast is not None:
        strays = record.waiting.keys() - {broadcast.producer, *broadcast.copies}
        if record.deferred and not broadcast.has_root():
            strays = set()  # they wait for what is offered next
        assert not strays, f"{name}: has a version, and yet nodes wait for one: {strays}"
    if record.watchers and broadcast is not None:
        assert not broadcast.complete(), f"{name}: complete, and its watchers were not told"
    if record.deferred:
        assert broadcast is not None, f"{name}: a put is deferred without a reason"
        assert not broadcast.complete(), f"{name}: a put is deferred although there is a complete copy"
    starving = broadcast is not None and broadcast.waits()
    assert (ref in directory._starving) == starving, f"{name}: starving is {not starving}, waits is {starving}"
    for node, member in record.nodes.items():
        assert directory.members.get(node) is member, f"{name}: {label(node)} is no member"
        assert ref in member.refs, f"{name}: {label(node)} does not list it"
    for node in (*record.waiting, *record.watchers, *(putter for putter, _ in record.deferred)):
        assert node in record.nodes, f"{name}: {label(node)} waits for it but is not involved"


# --- the tree of a version --------------------------------------------------------------------------------------


def _check_version(record: "Record", broadcast: Broadcast) -> None:
    assert broadcast.version.ref == record.ref, f"{broadcast.version}: kept under {short(record.ref)}"
    assert not broadcast.is_lost(), f"{broadcast.version}: lost, and nobody was told"
    if broadcast.inline is not None:
        assert len(broadcast.inline) == broadcast.size, f"{broadcast.version}: inline bytes of another size"


def _check_roles(record: "Record", broadcast: Broadcast) -> None:
    """A node is one of copy, producer, receiver; whoever is one is involved, and whoever can send is in the pool."""
    version, copies, receivers, producer = broadcast.version, broadcast.copies, broadcast.receivers, broadcast.producer
    locations = broadcast.pool.locations
    both = copies.keys() & receivers.keys()
    assert not both, f"{version}: {_labels(both)} have it and yet receive it"
    for node, member in copies.items():
        assert record.nodes.get(node) is member, f"{version}: {label(node)} has a copy but is not involved"
        assert node in locations, f"{version}: {label(node)} has a copy but is not in the pool"
    if producer is not None:
        assert producer not in copies, f"{version}: the producer {label(producer)} is a copy too"
        assert producer not in receivers, f"{version}: the producer {label(producer)} receives"
        assert producer in record.nodes, f"{version}: the producer {label(producer)} is not involved"
        assert producer in locations, f"{version}: the producer {label(producer)} is not in the pool"
    strangers = locations.keys() - copies.keys() - receivers.keys() - {producer}
    assert not strangers, f"{version}: {_labels(strangers)} are in the pool without having any of it"
    for node, receiver in receivers.items():
        assert record.nodes.get(node) is receiver.member, f"{version}: receiver {label(node)} is not involved"
    expected = broadcast._expected - receivers.keys()
    assert not expected, f"{version}: {_labels(expected)} are expected to report but do not receive"


def _check_receivers(broadcast: Broadcast, numbers: set[int], streams: _Streams) -> None:
    """One parent each, listed by it and by nobody else; the watermark within the object; numbers never used twice."""
    version, waiting, locations = broadcast.version, broadcast._waiting, broadcast.pool.locations
    streaming = 0
    for node, receiver in broadcast.receivers.items():
        state, sender, number = receiver.state, receiver.sender, receiver.number
        assert (node in waiting) == (state is State.WAITING), f"{version}: {label(node)} is {state}, queue disagrees"
        assert 0 <= receiver.watermark <= broadcast.size, f"{version}: {label(node)} is at {receiver.watermark}"
        if number:
            assert number not in numbers, f"{version}: placement {number} of {label(node)} was given twice"
            numbers.add(number)
        if state is not State.STREAMING:
            assert sender is None, f"{version}: {label(node)} is {state} and yet has a sender"
            continue
        assert sender is not None, f"{version}: {label(node)} streams from nobody"
        assert number, f"{version}: {label(node)} streams without a placement"
        assert node in locations, f"{version}: {label(node)} streams but is not in the pool"
        assert sender in locations, f"{version}: {label(node)}'s sender {label(sender)} is not in the pool"
        location = locations[sender]
        assert node in location.children, f"{version}: {label(sender)} does not list its child {label(node)}"
        streaming += 1
        streams.add(version.ref, node, receiver.member.nic, sender, location.nic)
    listed = sum(len(location.children) for location in locations.values())
    assert listed == streaming, f"{version}: {listed} children are listed, {streaming} receivers stream"
    assert len(waiting) <= len(broadcast.receivers), f"{version}: one waits that is no receiver"


def _check_no_cycles(broadcast: Broadcast) -> None:
    """Going up from any receiver one comes to a root, or to a receiver that will be placed again."""
    receivers = broadcast.receivers
    sound: set[NodeId] = set()
    for node in receivers:
        chain: dict[NodeId, None] = {}
        above: NodeId | None = node
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
        assert location is not None, f"{broadcast.version}: {label(sender)} is gone, {label(child)} is listed as slow"
        assert child in location.children, f"{broadcast.version}: {label(child)} is listed as slow and streams not"


# --- members, timers --------------------------------------------------------------------------------------------


def _check_members(directory: "Directory", streams: _Streams) -> None:
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


def _check_timers(directory: "Directory") -> None:
    timers = directory._world.timers
    assert not len(directory.members) or "sweep" in timers, "nobody looks whether the members are alive"
    for key in timers:
        match key:
            case ("tombstone", bytes() as ref):
                assert ref in directory.records, f"{short(ref)}: a tombstone of nothing expires"
                assert directory.records[ref].deleted, f"{short(ref)}: a tombstone of a live ref expires"
            case ("place", bytes() as ref):
                record = directory.records.get(ref)
                assert record is not None, f"{short(ref)}: unknown, and yet to be placed"
                assert record.broadcast is not None, f"{short(ref)}: without a version, and yet to be placed"


def _labels(nodes: Iterable[NodeId]) -> str:
    return ", ".join(sorted(map(label, nodes)))
