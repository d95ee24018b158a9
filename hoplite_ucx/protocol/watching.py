"""What a viewer is told of a directory's work: who pulls what from whom, what is complete, sealed, lost or dead.

All of it is read from the events and effects of the machine, after they were handled: the machine does nothing for
viewers and knows nothing of them. Streams are told as they happen, with the moment; a reduction, of which many things
change at once, is told as it is, when it is asked for. What was told is kept up to a bound: a viewer that falls behind
gets a fresh picture instead.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from hoplite_ucx.protocol.directory.machine import Directory
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record, Reduction, Slot
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.directory.world import Incident
from hoplite_ucx.protocol.events import DirectoryEffect, DirectoryEvent, FromNode, SendNode
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.messages import (
    Assemble,
    Bind,
    Completed,
    Consumed,
    Drop,
    Halted,
    Join,
    Place,
    PutAccepted,
    Reduce,
    Result,
    Sealed,
    StreamFailed,
)

KEPT = 4096
"""What is told and not yet fetched; a viewer that is further behind starts over."""
MAX_SLOTS = 512
MAX_SOURCES = 512


class _Told(Struct, frozen=True, array_like=True, tag=True):
    at: float
    ref: bytes


class Begun(_Told, frozen=True):
    """A node puts the object."""

    node: NodeId
    size: int


class Placed(_Told, frozen=True):
    """A node pulls the object from another, for its store or (`into`) for a slot."""

    node: NodeId
    sender: NodeId
    size: int
    into: bytes
    number: int


class Stopped(_Told, frozen=True):
    """A stream ended early. Without a fault, the directory ended it."""

    node: NodeId
    into: bytes
    number: int
    watermark: int
    fault: str


class Arrived(_Told, frozen=True):
    """A node has every byte."""

    node: NodeId


class Taken(_Told, frozen=True):
    """A slot has combined every byte."""

    node: NodeId
    into: bytes


class Assembling(_Told, frozen=True):
    """A node puts the object together from stripes."""

    node: NodeId
    size: int
    stripes: tuple[bytes, ...]


class Decided(_Told, frozen=True):
    """A reduction is sealed."""


class Dropped(_Told, frozen=True):
    """The version is over: deleted, lost or replaced."""


class SlotIs(Struct, frozen=True, array_like=True):
    ref: bytes
    host: NodeId | None
    parts: tuple[bytes, ...]
    taken: tuple[bytes, ...]
    bound: bool


class ReductionIs(_Told, frozen=True):
    """A reduction as it is now. `ready` and `chosen` are among its sources; there may be more slots than are told."""

    op: str
    count: int
    sources: tuple[bytes, ...]
    ready: tuple[bytes, ...]
    homes: tuple[NodeId, ...]
    """A node that has each of the ready ones."""
    chosen: tuple[bytes, ...]
    requester: NodeId
    everywhere: bool
    size: int
    slots: tuple[SlotIs, ...]
    slot_count: int
    source_count: int
    failure: str


Told: TypeAlias = Begun | Placed | Stopped | Arrived | Taken | Assembling | Decided | Dropped | ReductionIs


class MemberIs(Struct, frozen=True, array_like=True):
    node: NodeId
    host: str
    address: str
    state: str
    rate: float
    """Of its network card, in bytes a second."""


def members_of(machine: Directory) -> list[MemberIs]:
    return [MemberIs(each.node, each.host, each.address, _state(each), each.nic.up) for each in machine.nodes()]


def _state(member: Member) -> str:
    if not member.connected:
        return "away"
    if member.suspect:
        return "suspect"
    return "leaving" if member.retiring else "up"


class Watching:
    """The log of what happened since somebody began to look; for one machine. `number` is that of what would have been
    told last: far above those of an earlier log, so that whoever has read that one starts over."""

    def __init__(self, machine: Directory, number: int = 0) -> None:
        self._machine = machine
        self._told: deque[Told] = deque(maxlen=KEPT)
        self._changed: dict[bytes, None] = {}  # targets of reductions
        self.number = number
        """Of the last thing that was told."""

    def handled(self, event: DirectoryEvent, effects: Iterable[DirectoryEffect]) -> None:
        """To be called after every event, with its effects."""
        now = self._machine.world.now
        if isinstance(event, FromNode):
            self._said(now, event.node, event.message)
        for effect in effects:
            if isinstance(effect, SendNode):
                self._sent(now, effect.node, effect.message)

    def since(self, number: int) -> Sequence[Told] | None:
        """What was told after that; None if it is not kept any more."""
        self._tell_reductions()
        behind = self.number - number
        if behind < 0 or behind > len(self._told):
            return None
        return list(self._told)[len(self._told) - behind :]

    def changed(self) -> bool:
        return bool(self._changed)

    def _tell(self, told: Told) -> None:
        self._told.append(told)
        self.number += 1

    def _tell_reductions(self) -> None:
        changed, self._changed = self._changed, {}
        for target in changed:
            record = self._machine.records.get(target)
            if record is not None and record.reduction is not None:
                self._tell(_reduction(self._machine, record.reduction))

    def _touch(self, ref: bytes) -> None:
        """It may be a source, or of a slot: the reductions that it is part of look different now."""
        record = self._machine.records.get(ref)
        if record is not None:
            if record.reduction is not None:
                self._changed[record.reduction.target] = None
            for target in record.consumers:
                self._changed[target] = None

    def _said(self, now: float, node: NodeId, message: object) -> None:
        match message:
            case Completed(version):
                self._tell(Arrived(now, version.ref, node))
                self._touch(version.ref)
            case Consumed(version, into):
                self._tell(Taken(now, version.ref, node, into))
                self._touch(version.ref)
                self._touch(into)
            case StreamFailed():
                ref, into, fault = message.version.ref, message.into, message.fault.value
                self._tell(Stopped(now, ref, node, into, message.number, message.watermark, fault))
            case Halted():
                into, number = message.into, message.number
                self._tell(Stopped(now, message.version.ref, node, into, number, message.watermark, ""))
            case Reduce():
                self._touch(message.target)
            case Join():
                for copy in message.copies:
                    self._touch(copy.version.ref)

    def _sent(self, now: float, node: NodeId, message: object) -> None:
        match message:
            case Place():
                ref, size = message.version.ref, message.size
                self._tell(Placed(now, ref, node, message.sender, size, message.into, message.number))
                self._touch(ref)
            case PutAccepted(version=version, existing=False):
                record = self._machine.records.get(version.ref)
                broadcast = record.broadcast if record is not None else None
                if broadcast is not None and broadcast.version == version:
                    if broadcast.inline is None:
                        self._tell(Begun(now, version.ref, node, broadcast.size))
                    self._touch(version.ref)
            case Bind():
                self._changed[message.target] = None
            case Assemble():
                stripes = tuple(stripe.version.ref for stripe in message.stripes)
                self._tell(Assembling(now, message.version.ref, node, message.size, stripes))
            case Sealed(version) | Result(version):
                last = self._told[-1] if self._told else None
                if not (isinstance(last, Decided) and last.ref == version.ref):  # every holder is notified
                    self._tell(Decided(now, version.ref))
            case Drop(version):
                last = self._told[-1] if self._told else None
                if not (isinstance(last, Dropped) and last.ref == version.ref) and self._is_over(version.ref):
                    self._tell(Dropped(now, version.ref))

    def _is_over(self, ref: bytes) -> bool:
        record = self._machine.records.get(ref)
        return record is None or record.broadcast is None


# --- a fresh picture ------------------------------------------------------------------------------------------------


def picture_of(machine: Directory, records: Iterable[Record]) -> Iterator[Told]:
    """What goes on in these records, as if it had just been told. Objects that only lie in stores are left out."""
    now = machine.world.now
    for record in records:
        if record.reduction is not None and record.reduction.record is record:
            yield _reduction(machine, record.reduction)
        broadcast = record.broadcast
        if broadcast is not None and broadcast.receivers:
            yield from _streams(now, record, broadcast)


def _streams(now: float, record: Record, broadcast: Broadcast) -> Iterator[Told]:
    if broadcast.producer is not None and record.slot is None:
        yield Begun(broadcast.began, record.ref, broadcast.producer, broadcast.size)
    for node in broadcast.copies:
        yield Arrived(broadcast.began, record.ref, node)
    for receiver in broadcast.receivers.values():
        node = receiver.member.node
        if receiver.state is State.STREAMING and receiver.sender is not None:
            begun = receiver.begun if receiver.begun is not None else now
            size, into = broadcast.size, receiver.into
            yield Placed(begun, record.ref, node, receiver.sender, size, into, receiver.number)
        elif receiver.state is State.ASSEMBLING:
            stripes = tuple(stripe.version.ref for stripe in broadcast.stripes)
            yield Assembling(now, record.ref, node, broadcast.size, stripes)


def _reduction(machine: Directory, reduction: Reduction) -> ReductionIs:
    spec = reduction.spec
    ready = [ref for ref in reduction.ready if machine.table.is_ready(ref)][:MAX_SOURCES]
    return ReductionIs(
        machine.world.now,
        reduction.target,
        spec.op.value,
        spec.count,
        spec.sources[:MAX_SOURCES],
        tuple(ready),
        tuple(machine.table.home_of(ref) for ref in ready),
        tuple(reduction.chosen)[:MAX_SOURCES],
        reduction.requester,
        spec.everywhere,
        reduction.size,
        tuple(_slot(slot) for slot in list(reduction.slots.values())[:MAX_SLOTS]),
        len(reduction.slots),
        len(spec.sources),
        reduction.failure.detail if reduction.failure is not None else "",
    )


def _slot(slot: Slot) -> SlotIs:
    host = slot.host.node if slot.host is not None else None
    return SlotIs(slot.ref, host, tuple(slot.parts), tuple(slot.consumed), slot.bound)


# --- what travels ---------------------------------------------------------------------------------------------------


class Known(Struct, frozen=True, array_like=True):
    """Of an object that was asked about; see `messages.Description`."""

    ref: bytes
    state: str
    size: int | None
    layout: bytes
    copies: int
    creator: str | None
    age: float | None


class Looked(Struct, frozen=True, array_like=True):
    """A directory's answer to a viewer. `fresh`: what is told is a whole picture, and what was known before is over."""

    incarnation: int
    cluster: str
    now: float
    uptime: float
    number: int
    fresh: bool
    objects: int
    members: list[MemberIs]
    told: list[Told]
    incidents: list[Incident]
    known: list[Known]
    stories: list[tuple[bytes, list[tuple[float, str]]]]
