"""What a node keeps when its machine raised: everything that is certain, and nothing else.

Certain is what the shell has. A segment whose every byte is final, and that the machine knew as a decided version, is
kept under that version, with the users that have it mapped. Everything else is dropped as soon as the streams that use
it are closed: they were cancelled, but may still write or read until then. Puts that users know as done, and that have
no version from the directory yet, are put again. Calls that are unrelated to the event are repeated once: if the
machine raises again, they may be the reason.
"""

from dataclasses import dataclass

from hoplite_ucx.protocol.events import FromDirectory, NodeEvent, PutCall, UserCall, refs_in
from hoplite_ucx.protocol.ids import CallId, StreamId
from hoplite_ucx.protocol.node.memory import Holding, Memory, Phase


@dataclass(frozen=True, slots=True)
class RemainingSegment:
    size: int
    final: bool
    """Every byte of it is."""
    of: int | None = None
    """Of a window: the segment whose bytes it shares."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What a shell has when its machine raised, after it closed all sessions and slots and cancelled all streams."""

    segments: dict[int, RemainingSegment]
    receiving: dict[StreamId, int]
    """Streams that are not closed yet, and the segment that each writes."""
    serving: dict[StreamId, int]
    """The same of those that read."""
    pins: frozenset[CallId]
    """The gets whose memory users still have."""


def asked_again(call: UserCall, event: NodeEvent) -> bool:
    """Whether an open call continues with the successor of a machine that raised during an event: it must be unrelated
    to that event. A put does not continue, since its progress is unknown."""
    answers = event.message if isinstance(event, FromDirectory) else event
    if isinstance(call, PutCall) or getattr(answers, "call", None) == call.call:
        return False
    return set(refs_in(call)).isdisjoint(refs_in(event))


class Inheritance:
    """The streams of an earlier machine, until they are closed."""

    def __init__(self) -> None:
        self.receiving: dict[StreamId, Holding] = {}
        self.serving: dict[StreamId, Holding] = {}

    def take(self, memory: Memory, earlier: Memory, remains: Remains) -> None:
        """Make the accounts of what remains."""
        for number, segment in sorted(remains.segments.items()):
            self._take_segment(memory, earlier, number, segment, remains.pins)
        for mine, open_streams in ((self.receiving, remains.receiving), (self.serving, remains.serving)):
            for stream, number in open_streams.items():
                mine[stream] = memory.segments[number]
                mine[stream].uses += 1
        for holding in list(memory.segments.values()):
            if holding.version is None:
                memory.doom(holding)
        memory.succeed(earlier)

    def receive_closed(self, memory: Memory, stream: StreamId) -> bool:
        """Whether it was one of these."""
        return _let_go(memory, self.receiving, stream)

    def serve_closed(self, memory: Memory, stream: StreamId) -> bool:
        return _let_go(memory, self.serving, stream)

    def uses(self) -> list[Holding]:
        """What each of the streams keeps."""
        return [*self.receiving.values(), *self.serving.values()]

    def _take_segment(
        self, memory: Memory, earlier: Memory, number: int, segment: RemainingSegment, pins: frozenset[CallId]
    ) -> None:
        known = earlier.segments.get(number)
        parent = memory.segments[segment.of] if segment.of is not None else None
        if known is None:
            memory.restore(Holding(b"", segment.size, b"", number, Phase.RECEIVING, parent=parent))
            return
        whole = segment.final and known.phase is Phase.COMPLETE
        holding = Holding(
            known.ref, segment.size, known.layout, number, Phase.COMPLETE if whole else Phase.RECEIVING, parent=parent
        )
        if whole:
            holding.watermark = segment.size
            holding.used_at = known.used_at
            holding.sealed, holding.origin = known.sealed, known.origin
            holding.pins = known.pins & pins
        memory.restore(holding)
        named = known.version is not None and earlier.holdings.get(known.version) is known
        if whole and named and known.version is not None and known.sealed and not known.piece and parent is None:
            memory.name(holding, known.version)


def _let_go(memory: Memory, streams: dict[StreamId, Holding], stream: StreamId) -> bool:
    holding = streams.pop(stream, None)
    if holding is None:
        return False
    holding.uses -= 1
    memory.release(holding)
    return True
