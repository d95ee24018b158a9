"""Slots: parts combined in order, each only as far as the one before it, into a segment, as the bytes come.

Bytes that stream in are combined on the thread that received them, and so is what that makes possible in other slots of
this node; what is possible from the start, or because a worker's put goes on, is done on the combiner's own thread,
never on the loop. A local part is read where it is. The first one that streams in is received straight into the output,
if no more than one part, a local one, comes before it: combined where it lies, it passes through the processor's cache
once, and it may wait there for the other. Every further stream has a ring of bounded size, and its sender is held back
while the ring is full.

One lock per slot, held for one step of every part at most: a thread that finds it taken sets a flag, and the holder
looks again.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property

import numpy as np

from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.arithmetic import bytes_on
from hoplite_ucx.gpu.copies import copy
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.runtime.agent.device_kernels import DeviceCombining, DeviceKernel
from hoplite_ucx.runtime.agent.store import Segment
from hoplite_ucx.runtime.objects.kernels import Bytes, Kernel

RING = 8 << 20
"""How much of a part may wait for the parts before it."""
STEP = 512 << 10
"""How much of a part is combined at a time: little enough to stay in the cache for the next part."""
_RINGS_KEPT = 8
_ALIGNMENT = 64


class Combiner:
    """What the slots of a node share: a thread for local work, and rings that are warm."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1, "hoplite-combine")
        self._loop = threading.get_ident()
        self.devices = DeviceCombining()
        self._rings: list[Ring] = []
        self._lock = threading.Lock()

    def is_loop(self) -> bool:
        """Whether this is the thread that made the combiner, which must not combine."""
        return threading.get_ident() == self._loop

    def take_ring(self, size: int, device: int | None = None) -> "Ring":
        """Memory for a part that waits, where it is combined."""
        if size >= RING:
            with self._lock:
                for index, ring in enumerate(self._rings):
                    if ring.device == device:
                        return self._rings.pop(index)
        if device is not None:
            memory = segments.create(segments.size_class(min(size, RING)), device)
            window = memory.window()[: min(size, RING)]
            memory.close()  # the window keeps it
            return Ring(window)
        return Ring(np.empty(min(size, RING), np.uint8).data)

    def return_ring(self, ring: "Ring") -> None:
        if len(ring.memory) == RING:
            with self._lock:
                if len(self._rings) < _RINGS_KEPT:
                    self._rings.append(ring)

    def close(self) -> None:
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.devices.close()


class Ring:
    """Memory of bounded size, which streams write to, and as an array to combine with."""

    def __init__(self, memory: memoryview | Window) -> None:
        self.memory = memory
        self.device = memory.device if isinstance(memory, Window) else None

    @cached_property
    def array(self) -> Bytes:
        memory = self.memory
        array: Bytes = bytes_on(memory) if isinstance(memory, Window) else np.frombuffer(memory, np.uint8)
        return array


class Part:
    """One part of a slot: memory that is here (a segment, or bytes that came at once), or what streams in.

    A local part may be `foreign`: on another device than the output, or on the host when that is on a device. It is
    copied to where the output is, piece by piece, as it is combined."""

    def __init__(self, index: int, segment: Segment | None, start: int, device: int | None) -> None:
        self.index = index
        self.segment = segment
        self.foreign = segment is not None and segment.device != device
        self.given: Bytes | None = None
        self.in_place = False
        """Whether its stream is received straight into the output."""
        self.ring: Ring | None = None
        self.origin = 0
        """Which of the part's bytes lies at the ring's beginning."""
        self.received = self.combined = start
        self.sink: PartSink | None = None

    @property
    def memory(self) -> Bytes | None:
        """All of it, where it is combined; None if it is not there."""
        return self.segment.array if self.segment is not None and not self.foreign else self.given

    def available(self) -> int:
        return self.segment.watermark() if self.segment is not None else self.received


class Slot:
    def __init__(
        self,
        combiner: Combiner,
        segment: Segment,
        kernel: Kernel | None,
        parts: list[Segment | None],
        on_combined: Callable[[], None],
        on_failed: Callable[[Exception], None],
        *,
        start: int = 0,
        divisor: int = 0,
    ) -> None:
        """Without a kernel there is one part, which is copied as far as it has come. With one that cannot combine such
        parts nothing is ever combined: the slot only takes in what was sent to it already."""
        assert kernel is not None or len(parts) == 1
        self.segment = segment
        self._combiner = combiner
        self._kernel = kernel
        self._divisor = divisor
        self._final = start
        self._parts = [Part(index, part, start, segment.device) for index, part in enumerate(parts)]
        # A foreign first part is copied into the output, which is then no place for the second.
        for part in self._parts[: 1 if parts[0] is None or self._parts[0].foreign else 2]:
            part.in_place = part.segment is None
        self._on_combined = on_combined
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._dirty = False
        self._done = kernel is not None and kernel.failure is not None
        segment.raise_watermark(start)
        if self._done:
            return
        for part in self._parts:
            if part.segment is not None:
                part.segment.subscribe(self._risen)
        if segment.device is not None:
            # Now, when it is no surprise that the device has no memory left. The first part needs none of its own.
            for part in self._parts[1:]:
                if part.foreign or (part.segment is None and not part.in_place):
                    part.ring = combiner.take_ring(segment.size, segment.device)
        if isinstance(kernel, DeviceKernel) and not kernel.ready:
            combiner.devices.prepare(kernel, self._advance_soon, self._not_prepared)
        self._advance_soon()

    def supply(self, index: int, data: bytes) -> None:
        """All of a small part at once."""
        with self._lock:
            part = self._parts[index]
            assert self.segment.device is None, "small objects are not on devices"
            part.given = np.frombuffer(data, np.uint8)
            part.received = len(data)
        self._advance_soon()

    def stands_at(self, index: int) -> int:
        """Where the next stream into a part must begin: anywhere else, bytes would be combined twice or never."""
        return self._parts[index].combined

    def sink(self, index: int) -> "PartSink":
        """Where a stream into a part goes; it begins where the part stands."""
        part = self._parts[index]
        with self._lock:
            part.received = part.combined
            part.sink = sink = PartSink(self, part)
        self._look_again()
        return sink

    def close(self) -> None:
        """Nothing is read or written after this."""
        with self._lock:
            self._done = True
            self._let_go()

    # --- combining ---------------------------------------------------------------------------------------------

    def _risen(self) -> None:
        """A local part has grown. The thread that made it grow continues with it: a thread switch costs more."""
        if self._combiner.is_loop():
            self._advance_soon()
        else:
            self.advance()

    def _advance_soon(self) -> None:
        with suppress(RuntimeError):  # the node is closing
            self._combiner.executor.submit(self.advance)

    def _not_prepared(self, error: Exception) -> None:
        """The device has no kernel for this slot."""
        with self._lock:
            self._done = True
            self._let_go()
        self._on_failed(error)

    def _look_again(self) -> None:
        """For a thread that held the lock and combined nothing: another thread may have set the flag and left."""
        if self._dirty:
            self._advance_soon()

    def advance(self, arriving: "PartSink | None" = None) -> None:
        """Combine as far as the parts allow. The sink whose bytes arrived checks the result itself."""
        self._dirty = True
        if self._kernel is not None and not self._kernel.ready:
            return  # the thread that makes it ready looks again
        while self._dirty and not self._done:
            if not self._lock.acquire(blocking=False):
                return  # its holder looks again
            try:
                self._dirty = False
                grown, finished = self._step()
            except Exception as error:  # it would be lost with the thread that happened to be here
                self._done = True
                self._let_go()
                self._on_failed(error)
                return
            finally:
                self._lock.release()
            for sink in grown:
                if sink is not arriving:
                    sink.tell()
            if finished:
                self._on_combined()

    def _step(self) -> tuple[list["PartSink"], bool]:
        """Take every part one step further, under the lock."""
        if self._done:
            return [], False
        size = self.segment.size
        limit = size
        grown = []
        for part in self._parts:
            before = part.combined
            if before == size:
                continue
            goal = min(limit, part.available())
            if part.index == 0 or self._kernel is None:
                part.combined = self._take_first(part, goal)
            else:
                goal = self._kernel.floor(goal)
                part.combined = self._take(part, goal, self._kernel)
            if part.combined < goal:
                self._dirty = True
            if part.combined > before and part.sink is not None:
                grown.append(part.sink)
            if part.combined == size and part.ring is not None:
                self._combiner.return_ring(part.ring)
                part.ring = None
            limit = part.combined
        self._finish(limit)
        if limit == size:
            self._done = True
            self._let_go()
            return grown, True
        return grown, False

    def _finish(self, end: int) -> None:
        """Every part has gone into what lies below `end`: it is divided, if it is a mean, and then it is final."""
        if self._divisor and self._kernel is not None:
            end = self._kernel.floor(end)
            if end > self._final:
                self._kernel.divide(self.segment.array, self._final, end, self._divisor)
                self._kernel.settle()
        self._final = end
        if end > self.segment.watermark():
            self.segment.raise_watermark(end)

    def _take_first(self, part: Part, goal: int) -> int:
        """The first part is not touched: the second is combined with it where it lies. Alone, or if it lies on another
        device, it is copied."""
        if part.segment is not None and (part.foreign or len(self._parts) == 1):
            goal = min(goal, part.combined + STEP)
            copy(self.segment.memory[part.combined : goal], part.segment.memory[part.combined : goal])
        elif part.given is not None and len(self._parts) == 1:
            goal = min(goal, part.combined + STEP)
            self.segment.array[part.combined : goal] = part.given[part.combined : goal]
        return goal

    def _take(self, part: Part, goal: int, kernel: Kernel) -> int:
        start = part.combined
        first = self._parts[0].memory
        left = first if part.index == 1 and first is not None else self.segment.array
        goal = min(goal, start + STEP)
        if (memory := part.memory) is not None:
            right, shift = memory, 0
        elif part.segment is not None:  # foreign
            if goal <= start:
                return start
            part.ring = part.ring or self._combiner.take_ring(self.segment.size, self.segment.device)
            right, shift = part.ring.array, start
            copy(part.ring.memory[: goal - start], part.segment.memory[start:goal])
        elif part.in_place:
            right, shift = self.segment.array, 0
        else:
            if goal <= start or part.ring is None:
                return start
            right = part.ring.array
            place = (start - part.origin) % len(right)
            shift = start - place
            goal = min(goal, start + len(right) - place)
        if goal > start:
            kernel.combine(self.segment.array, left, right, start, goal, shift)
            kernel.settle()  # before anybody hears of it, or writes to the ring again
        return max(goal, start)

    def _let_go(self) -> None:
        for part in self._parts:
            if part.segment is not None:
                part.segment.unsubscribe(self._risen)

    # --- streams, by their sinks -------------------------------------------------------------------------------

    def window(self, part: Part, offset: int, length: int) -> memoryview | Window:
        if part.in_place:
            return self.segment.memory[offset : offset + length]
        if part.ring is None:
            part.ring = self._combiner.take_ring(self.segment.size, self.segment.device)
        if part.combined == offset:
            # Nothing waits: what comes goes where the ring was used last, which the processor has in its cache.
            # Aligned, so that the ring's end cuts no element.
            part.origin = offset - offset % _ALIGNMENT
        room = len(part.ring.memory)
        place = (offset - part.origin) % room
        return part.ring.memory[place : min(place + length, room)]

    def room(self, part: Part) -> int:
        """How far a part may run ahead of what was combined."""
        size = self.segment.size
        return size if part.in_place else min(size, part.combined + min(size, RING))

    def end_stream(self, part: Part) -> int:
        """Bytes that arrived and were not combined are dropped: the stream reports only combined ones."""
        with self._lock:
            part.received = part.combined
            part.sink = None
            if part.ring is not None and part.combined < self.segment.size:
                self._combiner.return_ring(part.ring)
                part.ring = None
            stands_at = part.combined
        self._look_again()
        return stands_at


class PartSink:
    """The sink of one stream into one part."""

    def __init__(self, slot: Slot, part: Part) -> None:
        self.device = slot.segment.device
        self._slot = slot
        self._part = part
        self._grown: Callable[[], None] | None = None

    def window(self, offset: int, length: int) -> memoryview | Window:
        return self._slot.window(self._part, offset, length)

    def arrived(self, end: int) -> None:
        self._part.received = end
        self._slot.advance(self)

    def watermark(self) -> int:
        return self._part.combined

    def limit(self) -> int:
        return self._slot.room(self._part)

    def subscribe(self, grown: Callable[[], None]) -> None:
        self._grown = grown

    def tell(self) -> None:
        """The part moved, and not only by what has just arrived."""
        if self._grown is not None:
            self._grown()

    def end(self) -> int:
        self._grown = None
        return self._slot.end_stream(self._part)
