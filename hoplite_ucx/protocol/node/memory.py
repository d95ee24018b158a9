"""The node's store, as accounts: which versions it holds, what keeps each of them, and which requests wait for room.

The shell has the bytes. A segment is freed only when nothing writes to it, nothing reads from it and no process has it
mapped: a cancelled stream may still write for a moment, so the node waits for its end.

Room is requested for the whole object, before anything is accepted. To evict secondary copies the node asks the
directory, least recently used first. Beyond that a request is denied at once, unless it is *patient* (a put, on which
nothing depends yet): it waits while current work would leave enough room when it ends. That work may itself wait for
something else, even for the very put that waits here, and only the whole cluster could tell; so it counts for as long
as its bytes move, and a while longer. So no wait for memory lasts for ever, whatever cycle it is part of. Time is
counted in heartbeats here: if this process is paused, no patience ends meanwhile.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from hoplite_ucx.protocol.events import Allocate, Free, Got, Window
from hoplite_ucx.protocol.ids import CallId, StreamId, Version
from hoplite_ucx.protocol.messages import Evict, Eviction, Origin
from hoplite_ucx.protocol.node.context import Context

# Work that does not move for this many leases is not waited for: long enough for a silent sender to be declared
# dead, and for another one to take over.
_PATIENCE = 2.0


class Phase(enum.Enum):
    PRODUCING = "producing"
    RECEIVING = "receiving"
    REDUCING = "reducing"
    COMPLETE = "complete"


@dataclass(slots=True, eq=False)
class Holding:
    """One version's bytes on this node, or some of them. A put has no version until the directory assigns one."""

    ref: bytes
    size: int
    layout: bytes
    segment: int
    phase: Phase
    version: Version | None = None
    watermark: int = 0
    start: int = 0
    """There are no bytes below this: a slot that was taken over makes only what its receivers still need."""
    used_at: float = 0.0
    moved_at: int = 0
    """The heartbeat in which bytes of it were last seen to come or to leave."""
    pins: set[CallId] = field(default_factory=set)
    receive: StreamId | None = None
    serves: int = 0
    writing: bool = False
    """A user's process is filling the segment."""
    uses: int = 0
    """Slots of this node that combine it."""
    inputs: list["Input"] = field(default_factory=list)
    """What streams into it, if it is a slot's."""
    parent: "Holding | None" = None
    """Of a window: the holding whose bytes it shares. It takes no memory of its own."""
    windows: int = 0
    """How many share its bytes."""
    sealed: bool = True
    """Whether users may have it."""
    origin: Origin | None = None
    """Of a decided target: how it came about, in case a new directory must be told."""
    piece: bool = False
    """It is of a stripe."""
    doomed: bool = False
    kept: Eviction | None = None
    """Why the directory refused its eviction, until that may have changed."""

    def in_use(self) -> bool:
        streams = self.receive is not None or any(i.receive is not None for i in self.inputs)
        return bool(self.pins or self.serves or self.writing or self.uses or self.windows) or streams

    def goes_on(self) -> bool:
        """Whether it will be freed, or become evictable, by itself: when it is made and decided, when its readers are
        done, or its stripes are over, or when whatever still touches it releases it."""
        if self.pins:
            return False
        under_way = self.phase in (Phase.RECEIVING, Phase.REDUCING) or not self.sealed or bool(self.windows)
        return under_way or bool(self.serves) or self.kept is Eviction.IN_USE or self.doomed

    @property
    def owner(self) -> "Holding":
        return self


@dataclass(slots=True, eq=False)
class Input:
    """One part of a slot that comes by a stream: how far it was combined into the slot's segment."""

    owner: Holding
    part: int
    version: Version
    size: int
    before: "Holding | Input | None" = None
    """The part that must be combined first."""
    watermark: int = 0
    receive: StreamId | None = None
    sealed: bool = False
    """Whether it was decided, as far as the slot knows."""

    def held_back(self) -> bool:
        """It waits for the part before it, not for its sender."""
        return self.before is not None and self.before.watermark <= self.watermark

    @property
    def segment(self) -> int:
        return self.owner.segment

    @property
    def doomed(self) -> bool:
        return self.owner.doomed


@dataclass(slots=True, eq=False)
class Request:
    size: int
    patient: bool
    granted: Callable[[], None]
    denied: Callable[[], None]
    since: int = 0
    """The heartbeat in which it came."""


class Memory:
    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self.limit = limit
        self.used = 0
        self.evicted_objects = 0
        self.evicted_bytes = 0
        self.holdings: dict[Version, Holding] = {}
        self.segments: dict[int, Holding] = {}
        self.pinned: dict[CallId, Holding] = {}  # by the get that gave it out
        self._by_ref: dict[bytes, dict[Version, Holding]] = {}
        self._requests: list[Request] = []
        self._next_segment = 0
        self._asked: dict[Version, Holding] = {}  # the directory was asked to evict them, and has not answered
        self._refused: list[Holding] = []  # of those that it has, since the last heartbeat
        self.beats = 0

    def get(self, version: Version) -> Holding | None:
        return self.holdings.get(version)

    def is_made(self, version: Version) -> bool:
        """Whether the version is put or combined here, and not received."""
        holding = self.holdings.get(version)
        return holding is not None and holding.phase in (Phase.PRODUCING, Phase.REDUCING)

    def complete_copy(self, ref: bytes) -> Holding | None:
        """A copy of the ref that a get may return."""
        return next(
            (h for h in self._of_ref(ref) if h.phase is Phase.COMPLETE and h.sealed),
            None,
        )

    def has_newer(self, version: Version) -> bool:
        return any(h.version is not None and h.version > version for h in self._of_ref(version.ref))

    def largest(self, count: int = 3) -> list[Holding]:
        return sorted((h for h in self.segments.values() if h.parent is None), key=lambda h: -h.size)[:count]

    def unused_since(self, moment: float, most: int) -> list[bytes]:
        """The refs of complete objects that nobody has used since then, the least recently used first."""
        idle = [
            h
            for h in self.segments.values()
            if h.parent is None and h.phase is Phase.COMPLETE and not h.pins and h.used_at <= moment
        ]
        return [holding.ref for holding in sorted(idle, key=lambda h: h.used_at)[:most]]

    # --- room --------------------------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        request.since = self.beats
        self._requests.append(request)
        self.review()

    def withdraw(self, request: Request) -> None:
        if request in self._requests:
            self._requests.remove(request)

    def has_room(self, size: int) -> bool:
        return self.used + size <= self.limit

    def could_fit(self, size: int) -> bool:
        return self.used + size - sum(h.size for h in self._evictable()) - self._leaving() <= self.limit

    def moved(self, holding: Holding) -> None:
        """Some of its bytes came or left."""
        (holding.parent or holding).moved_at = self.beats

    def could_come(self, size: int, since: int) -> bool:
        """Whether there would be room if the current work here ended. Work that has not moved for long, nor since the
        request began to wait, does not count."""
        hoped_for = sum(
            h.size
            for h in self.segments.values()
            if h.parent is None and h.goes_on() and not self.is_long_ago(max(h.moved_at, since))
        )
        return self.could_fit(size - hoped_for)

    def is_long_ago(self, beat: int) -> bool:
        """Whether patience has ended for something that happened in this heartbeat, and not since."""
        settings = self._context.settings
        return (self.beats - beat) * settings.heartbeat >= _PATIENCE * settings.lease

    def review(self) -> None:
        """Answer the requests that can be answered now. The impatient come first: others depend on them."""
        for request in sorted(self._requests, key=lambda request: request.patient):
            if request not in self._requests:
                continue  # answered from within a callback
            if self.has_room(request.size):
                self._requests.remove(request)
                request.granted()
            elif self.could_fit(request.size):
                self._ask_to_evict(request.size)
            elif not (request.patient and self.could_come(request.size, request.since)):
                self._requests.remove(request)
                request.denied()

    def _ask_to_evict(self, size: int) -> None:
        if not self._context.joined:
            return  # joining looks again
        shortage = self.used + size - self.limit - self._leaving()
        if shortage <= 0:
            return
        # If many were refused, many more may be: each time twice as many are asked for, so that there is an end soon.
        for place, holding in enumerate(sorted(self._evictable(), key=lambda h: h.used_at)):
            if shortage <= 0 and place >= len(self._refused):
                break
            assert holding.version is not None
            self._asked[holding.version] = holding
            shortage -= holding.size
            self._context.tell_directory(Evict(holding.version))

    def _leaving(self) -> int:
        """Bytes whose eviction the directory was asked for."""
        return sum(h.size for h in self._asked.values())

    def _evictable(self) -> list[Holding]:
        return [
            h
            for h in self.holdings.values()
            if h.phase is Phase.COMPLETE
            and h.sealed
            and not (h.in_use() or h.doomed or h.version in self._asked or h.kept or h.parent is not None)
        ]

    def evict_answered(self, version: Version, answer: Eviction) -> None:
        holding = self._asked.pop(version, None)
        if holding is None:
            return
        if answer is Eviction.GRANTED:
            self.evicted_objects += 1
            self.evicted_bytes += holding.size
            self.doom(holding)
        else:
            holding.kept = answer
            self._refused.append(holding)
        if not self._asked:
            self.review()

    def beat(self) -> None:
        """What the directory refused a while ago may be granted now, and moving work may have stopped. But a request
        that asks for one copy after the other finishes first."""
        self.beats += 1
        if not self._asked:
            for holding in self._refused:
                holding.kept = None
            self._refused.clear()
        self.review()

    def session_lost(self) -> None:
        """Answers that were on their way will not come; the next `Join` announces every copy again."""
        self._asked.clear()
        self.review()

    # --- holdings ----------------------------------------------------------------------------------------------

    def allocate(self, ref: bytes, size: int, layout: bytes, phase: Phase) -> Holding:
        """Take room that `request` granted."""
        self._next_segment += 1
        holding = Holding(ref, size, layout, self._next_segment, phase, used_at=self._context.now, moved_at=self.beats)
        self.segments[holding.segment] = holding
        self.used += size
        self._context.emit(Allocate(holding.segment, size))
        return holding

    def restore(self, holding: Holding) -> None:
        """Take the segments of an earlier machine into the accounts."""
        self.segments[holding.segment] = holding
        if holding.parent is None:
            self.used += holding.size
        else:
            holding.parent.windows += 1
        self.pinned |= dict.fromkeys(holding.pins, holding)

    def succeed(self, earlier: "Memory") -> None:
        """No segment has the number of an earlier one, and what was evicted counts on."""
        self._next_segment = earlier._next_segment
        self.evicted_objects = earlier.evicted_objects
        self.evicted_bytes = earlier.evicted_bytes

    def window(self, parent: Holding, offset: int, size: int, phase: Phase, ref: bytes) -> Holding:
        """A piece of another holding, as a holding of its own; the other stays while it does."""
        self._next_segment += 1
        window = Holding(ref, size, parent.layout, self._next_segment, phase, parent=parent, used_at=self._context.now)
        window.sealed = False
        window.piece = True
        parent.windows += 1
        self.segments[window.segment] = window
        self._context.emit(Window(window.segment, parent.segment, offset, size))
        return window

    def name(self, holding: Holding, version: Version) -> None:
        holding.version = version
        self.holdings[version] = holding
        self._by_ref.setdefault(version.ref, {})[version] = holding

    def unname(self, holding: Holding) -> None:
        """The bytes stay, but do not belong to this version any more."""
        self._unlist(holding)
        holding.version = None

    def _unlist(self, holding: Holding) -> None:
        version = holding.version
        if version is None or self.holdings.get(version) is not holding:
            return
        del self.holdings[version]
        versions = self._by_ref[holding.ref]
        del versions[version]
        if not versions:
            del self._by_ref[holding.ref]

    def give_out(self, holding: Holding, call: CallId) -> None:
        """Answer a get with the holding, which stays until the user releases it."""
        assert holding.version is not None
        holding.pins.add(call)
        holding.used_at = self._context.now
        self.pinned[call] = holding
        self._context.answer(Got(call, holding.version, holding.layout, holding.size, holding.segment, None))

    def unpin(self, call: CallId) -> None:
        holding = self.pinned.pop(call, None)
        if holding is not None:
            holding.pins.discard(call)
            self.release(holding)

    def doom(self, holding: Holding) -> None:
        """The holding is over; its memory is freed as soon as nothing touches it."""
        holding.doomed = True
        if holding.version is not None:
            self._asked.pop(holding.version, None)  # the answer would find nothing, and others wait for it
        self._unlist(holding)
        self.release(holding)

    def release(self, holding: Holding) -> None:
        """Something released the holding."""
        if holding.doomed and not holding.in_use() and holding.segment in self.segments:
            del self.segments[holding.segment]
            self._context.emit(Free(holding.segment))
            if holding.parent is None:
                self.used -= holding.size
            else:
                holding.parent.windows -= 1
                self.release(holding.parent)
        if holding.kept is Eviction.IN_USE and not holding.serves:
            holding.kept = None
        self.review()

    def _of_ref(self, ref: bytes) -> list[Holding]:
        return list(self._by_ref.get(ref, {}).values())
