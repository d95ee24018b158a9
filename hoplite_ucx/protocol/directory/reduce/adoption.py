"""Slots that an earlier directory made, as their hosts announce them: which of them can continue."""

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Slot
from hoplite_ucx.protocol.directory.states import SlotState
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import Bind, Reduce, SlotReport


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete set of slots: trees in which every part is known and each source appears once."""

    slots: dict[bytes, Slot]
    """Each after those below it."""
    chosen: dict[bytes, Version]
    size: int
    layout: bytes


def whole_of(table: Table, spec: Reduce, reports: dict[bytes, tuple[SlotReport, Member]]) -> Whole | None:
    """The slots of the reduction, if they can continue; otherwise it starts over."""
    binds = {ref: report.bind for ref, (report, _) in reports.items()}
    if spec.target in binds:
        binds = _below(spec.target, binds)  # slots that belong to no root are of an earlier try
    slots = {ref: _adopted_slot(*reports[ref]) for ref in binds}
    order = _children_first(slots)
    if order is None or len({(bind.size, bind.layout, bind.op) for bind in binds.values()}) != 1:
        return None
    chosen: dict[bytes, Version] = {}
    for ref, slot in slots.items():
        if not _is_sound(table, spec, slot, binds[ref], slots, chosen):
            return None
    root = slots.get(spec.target)
    if len(chosen) > spec.count or (root is not None) != (len(chosen) == spec.count):
        return None
    if root is not None and any(slot.parent is None for slot in slots.values() if slot is not root):
        return None
    bind = next(iter(binds.values()))
    return Whole({ref: slots[ref] for ref in order}, chosen, bind.size, bind.layout)


def _adopted_slot(report: SlotReport, host: Member) -> Slot:
    parts = [version.ref for version in report.bind.parts]
    slot = Slot(report.bind.version.ref, parts, 1, host.node, version=report.bind.version, host=host)
    slot.number = report.bind.number
    slot.move(SlotState.BOUND)
    slot.start, slot.available_from = report.bind.start, report.bind.available_from
    slot.consumed = set(parts) - {version.ref for version in report.missing}
    slot.unsure = {version.ref for version in report.undecided}
    return slot


def _is_sound(
    table: Table, spec: Reduce, slot: Slot, bind: Bind, slots: dict[bytes, Slot], chosen: dict[bytes, Version]
) -> bool:
    """Whether the slot's parts are what they were; their current state is recorded on the way."""
    for version in bind.parts:
        child = slots.get(version.ref)
        if child is not None and child.parent is None and child.version == version:
            child.parent = slot
        elif version.ref in spec.sources and version.ref not in chosen and _goes_on(table, slot, version):
            chosen[version.ref] = version
        else:
            return False
    return True


def _goes_on(table: Table, slot: Slot, version: Version) -> bool:
    """Whether a source is still available in this version, or is not needed."""
    ref = version.ref
    if table.is_ready(ref) and table.version_of(ref) == version:
        return True
    if ref in slot.unsure:
        return table.became(version)
    return ref in slot.consumed and table.is_decided_as(version)


def _below(root: bytes, binds: dict[bytes, Bind]) -> dict[bytes, Bind]:
    """The slots that the root is made of, and it."""
    found = {root: binds[root]}
    pending = [binds[root]]
    while pending:
        for part in pending.pop().parts:
            child = binds.get(part.ref)
            if child is not None and child.version == part and part.ref not in found:
                found[part.ref] = child
                pending.append(child)
    return found


def _children_first(slots: dict[bytes, Slot]) -> list[bytes] | None:
    """The slots in an order in which each comes after what it is made of; None if there is no such order."""
    try:
        made_from = {ref: [part for part in slot.parts if part in slots] for ref, slot in slots.items()}
        return list(TopologicalSorter(made_from).static_order())
    except CycleError:
        return None
