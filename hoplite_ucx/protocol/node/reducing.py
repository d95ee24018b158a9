"""The slots of this node: parts that it combines, in order and as they come, into objects of its own.

A slot takes its memory whole before it is accepted. Parts that are here are used as they are and kept until the slot is
over; the others stream in, each as far as the part before it. Nothing is decided here: the directory binds a slot,
drops it when its parts change, and seals its output.
"""

from dataclasses import dataclass, field

from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import Combine, CombineBytes, Fill
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import (
    BIND_ALIGNMENT,
    MAX_TEXT,
    Bind,
    Bound,
    CombinedInline,
    CombineInline,
    Completed,
    Declined,
    Inline,
    Result,
    Sealed,
    SlotReport,
    Unfit,
)
from hoplite_ucx.protocol.node.context import Context
from hoplite_ucx.protocol.node.fetching import Fetching
from hoplite_ucx.protocol.node.memory import Holding, Input, Memory, Phase, Request
from hoplite_ucx.protocol.node.serving import Serving


@dataclass(slots=True, eq=False)
class Slot:
    bind: Bind
    request: Request | None = None
    holding: Holding | None = None
    used: list[Holding] = field(default_factory=list)


class Reducing:
    def __init__(self, context: Context, memory: Memory, serving: Serving, fetching: Fetching) -> None:
        self._context = context
        self._memory = memory
        self._serving = serving
        self._fetching = fetching
        self.slots: dict[bytes, Slot] = {}  # by the ref of the output
        self._inline: dict[Version, CombineInline] = {}

    def bind(self, bind: Bind) -> None:
        ref = bind.version.ref
        refs = {ref, *(part.ref for part in bind.parts)}
        if len(refs) <= len(bind.parts) or bind.start > bind.size:
            return  # a part stands twice, or is what it would be made into; or there is nothing to make
        old = self.slots.get(ref)
        if old is not None and bind.number <= old.bind.number:
            return
        here = self._memory.get(bind.version)
        if here is not None and here.phase is Phase.COMPLETE:
            self._context.tell_directory(Completed(bind.version))  # got from the host before, and not known yet
            return
        if old is not None:
            self._end(old)
        slot = self.slots[ref] = Slot(bind)
        if bind.resume:
            self._resume(slot)
            return
        slot.request = Request(
            bind.size, patient=False, granted=lambda: self._granted(slot), denied=lambda: self._denied(slot)
        )
        self._memory.request(slot.request)

    def _resume(self, slot: Slot) -> None:
        """Make the rest of what was being received, in place."""
        bind = slot.bind
        holding = self._fetching.received_of(bind.version)
        if holding is None or not 0 <= holding.watermark - bind.start < BIND_ALIGNMENT:
            self._denied(slot)  # let go of meanwhile
            return
        self._fetching.hand_over(bind.version)
        holding.phase = Phase.REDUCING
        holding.watermark = bind.start
        self._combine(slot, holding)

    def _granted(self, slot: Slot) -> None:
        bind = slot.bind
        slot.request = None
        if bind.offset is not None and not self._has_source(bind, bind.offset):
            self._denied(slot)
            return
        self._fetching.make_instead(bind.version)
        holding = self._memory.allocate(bind.version.ref, bind.size, bind.layout, Phase.REDUCING)
        holding.sealed = False
        holding.piece = bind.offset is not None
        holding.start = holding.watermark = bind.start
        self._memory.name(holding, bind.version)
        self._combine(slot, holding)

    def _combine(self, slot: Slot, holding: Holding) -> None:
        bind = slot.bind
        slot.holding = holding
        parts: list[int | None] = []
        missing: list[Version] = []
        before: Holding | Input | None = None
        for index, version in enumerate(bind.parts):
            here = self._memory.get(version)
            if here is not None and here.phase in (Phase.COMPLETE, Phase.REDUCING) and here.start <= bind.start:
                if bind.offset is not None and index == 0:
                    here = self._memory.window(here, bind.offset, bind.size, Phase.COMPLETE, version.ref)
                    here.watermark = here.size
                here.uses += 1
                slot.used.append(here)
                parts.append(here.segment)
                before = here
            else:
                if bind.size:  # else it is combined before any stream could open
                    missing.append(version)
                parts.append(None)
                before = Input(holding, index, version, bind.size, before, bind.start)
                holding.inputs.append(before)
        self._context.tell(
            bind.version.ref, "combines {} parts, {} from elsewhere, from {} on", len(parts), len(missing), bind.start
        )
        form = (bind.size, bind.layout, bind.op)
        self._context.emit(Combine(holding.segment, *form, tuple(parts), bind.start, bind.offset or 0, bind.divisor))
        for sink in holding.inputs:
            if sink.size:
                self._fetching.feed(sink, bind.version.ref)
        self._context.tell_directory(Bound(bind.version, bind.number, tuple(missing)))
        self._serving.arrived(holding)

    def _has_source(self, bind: Bind, offset: int) -> bool:
        """Whether the source of which a stripe takes a piece is here: it is not sent."""
        source = self._memory.get(bind.parts[0])
        return source is not None and source.phase is Phase.COMPLETE and offset + bind.size <= source.size

    def _denied(self, slot: Slot) -> None:
        del self.slots[slot.bind.version.ref]
        self._context.tell_directory(Declined(slot.bind.version, slot.bind.number))

    def combined(self, segment: int) -> None:
        """The last byte of every part is in."""
        for slot in self.slots.values():
            holding = slot.holding
            if holding is not None and holding.segment == segment and not holding.doomed:
                holding.watermark = holding.size
                for sink in holding.inputs:
                    sink.watermark = sink.size  # the end of its stream may come later
                if holding.start:
                    continue  # it has what is needed, but it is not a complete copy
                holding.phase = Phase.COMPLETE
                self._context.tell(slot.bind.version.ref, "{} is complete", slot.bind.version)
                self._context.tell_directory(Completed(slot.bind.version))

    def failed(self, what: int | Version, failure: Failure) -> None:
        """The parts cannot be combined. We drop them before we report it: if the report is lost with the session, the
        next `Join` shows that no node combines them, and the next node that is asked reports it again."""
        if isinstance(what, Version):
            if self._inline.pop(what, None) is not None:
                self._tell_unfit(what, failure)
            return
        for slot in list(self.slots.values()):
            if slot.holding is not None and slot.holding.segment == what:
                self._end(slot)
                self._tell_unfit(slot.bind.version, failure)

    def _tell_unfit(self, version: Version, failure: Failure) -> None:
        self._context.tell(version.ref, "cannot be combined: {}", failure.detail)
        self._context.tell_directory(Unfit(version, failure.detail[:MAX_TEXT], failure.remedy[:MAX_TEXT]))

    def dropped(self, version: Version) -> None:
        self._inline.pop(version, None)
        slot = self.slots.get(version.ref)
        if slot is not None and slot.bind.version == version:
            self._end(slot)

    def sealed(self, seal: Sealed) -> None:
        """The result is decided: it stays as an object, and its parts are free."""
        version = seal.version
        slot = self.slots.get(version.ref)
        if slot is not None and slot.bind.version == version:
            if slot.holding is None or slot.holding.phase is not Phase.COMPLETE:
                return
            del self.slots[version.ref]
            self._fetching.stop_feeding(version.ref)
            self._free_parts(slot)
        self._fetching.sealed(seal)

    def combine_inline(self, message: CombineInline) -> None:
        self._inline[message.version] = message
        form = (message.layout, message.op)
        self._context.emit(CombineBytes(message.version, *form, message.parts, message.divisor))

    def combined_inline(self, version: Version, data: bytes) -> None:
        """The result lives in the directory; like the bytes of a small put it is kept here too, if there is room now:
        nothing waits for that."""
        message = self._inline.pop(version, None)
        if message is None:
            return
        kept = self._memory.has_room(len(data))
        if kept:
            self._keep_inline(version, message.layout, data).sealed = False
        self._context.tell_directory(CombinedInline(version, data, kept))

    def _keep_inline(self, version: Version, layout: bytes, data: bytes) -> Holding:
        holding = self._memory.allocate(version.ref, len(data), layout, Phase.COMPLETE)
        holding.watermark = len(data)
        self._memory.name(holding, version)
        self._context.emit(Fill(holding.segment, data))
        return holding

    def result(self, result: Result) -> None:
        """A small target that was asked for here, and that the directory has made. Kept like the bytes of a small put,
        it is found here by the gets that usually follow; if there is no room now, they ask the directory."""
        version, data = result.version, result.data
        if self._memory.get(version) is not None:
            return
        if self._memory.has_room(len(data)):
            holding = self._keep_inline(version, result.layout, data)
            holding.origin = result.origin
            self._fetching.put_here(holding)
        else:
            self._context.tell_directory(Declined(version, 0))
            self._fetching.inline(Inline(version, result.layout, data))

    def new_life(self) -> None:
        """The directory has given our slots to others."""
        for slot in list(self.slots.values()):
            self._end(slot)

    def announce(self) -> tuple[SlotReport, ...]:
        return tuple(
            SlotReport(slot.bind, self._fetching.missing_for(ref), _undecided(slot.holding, slot.used))
            for ref, slot in self.slots.items()
            if slot.holding is not None
        )

    def beat(self, combined: dict[int, int]) -> None:
        for slot in self.slots.values():
            if slot.holding is not None and combined.get(slot.holding.segment, 0) > slot.holding.watermark:
                slot.holding.watermark = combined[slot.holding.segment]
                self._memory.moved(slot.holding)

    def _end(self, slot: Slot) -> None:
        del self.slots[slot.bind.version.ref]
        if slot.request is not None:
            self._memory.withdraw(slot.request)
        self._fetching.stop_feeding(slot.bind.version.ref)
        if slot.holding is not None:
            self._serving.gone(slot.holding)
            self._memory.doom(slot.holding)
        self._free_parts(slot)

    def _free_parts(self, slot: Slot) -> None:
        used, slot.used = slot.used, []
        for holding in used:
            holding.uses -= 1
            if holding.parent is not None and holding.version is None:
                self._memory.doom(holding)  # a piece of a source, cut for this slot
            else:
                self._memory.release(holding)


def _undecided(output: Holding, used: list[Holding]) -> tuple[Version, ...]:
    """Parts of a slot that may yet turn out to be something else."""
    parts: list[Holding | Input] = [*used, *output.inputs]
    return tuple(part.version for part in parts if part.version is not None and not part.sealed)
