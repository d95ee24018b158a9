"""A virtual slot: parts combined in order, each only as far as the one before it, into the slot's segment.

What a range becomes is the multiset of what its parts are, so that a source counted twice, left out, or taken from
another version shows in the result. A stream that resumes anywhere but at its part's watermark would add bytes twice or
skip some: that poisons the slot for good.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from hoplite_ucx.protocol.events import Combined, NodeEvent
from hoplite_ucx.simulate.content import Content, Span
from hoplite_ucx.simulate.provenance import POISON, Provenance
from hoplite_ucx.simulate.segments import Segment


class Surroundings(Protocol):
    provenance: Provenance


class Node(Protocol):
    """What a slot needs of the node that it is on."""

    @property
    def cluster(self) -> Surroundings: ...
    def dispatch(self, event: NodeEvent) -> None: ...


class Feeding(Protocol):
    """A stream into a part."""

    def combined(self, watermark: int) -> None:
        """The slot has combined what came up to here."""
        ...


class Part:
    """One part: a segment of this node, or what has streamed in and waits to be combined."""

    def __init__(self, segment: Segment | None, start: int) -> None:
        self.segment = segment
        self.content = segment.content if segment is not None else Content()
        self.received = self.combined = start
        self.receiving: Feeding | None = None

    def available(self) -> int:
        return self.segment.watermark if self.segment is not None else self.received


class Combining:
    def __init__(self, node: Node, number: int, segment: Segment, parts: list[Segment | None], start: int) -> None:
        self._node = node
        self._number = number
        self._segment = segment
        self._parts = [Part(part, start) for part in parts]
        self._poisoned = False
        self._done = False
        segment.raise_watermark(start)
        for part in parts:
            if part is not None:
                part.readers[self] = None

    def begin_stream(self, index: int, receiving: Feeding, offset: int) -> None:
        part = self._parts[index]
        self._poisoned = self._poisoned or offset != part.combined
        part.received = offset
        part.receiving = receiving

    def end_stream(self, index: int) -> None:
        """What has come and was not combined is dropped: the stream reports only what was."""
        part = self._parts[index]
        part.received = part.combined
        part.receiving = None

    def receive(self, index: int, start: int, end: int, spans: list[Span]) -> None:
        part = self._parts[index]
        self._poisoned = self._poisoned or start != part.received
        for low, high, token in spans:
            part.content.write(low, high, token)
        part.received = end
        self.pump()

    def pump(self) -> None:
        """Combine as far as the parts have come."""
        if self._done:
            return
        before = self._parts[-1].combined
        limit = self._segment.size
        advanced: list[Part] = []
        for part in self._parts:
            limit = min(limit, part.available())
            if limit > part.combined:
                part.combined = limit
                advanced.append(part)
        self._write(before, limit)
        for part in advanced:
            if part.receiving is not None:
                part.receiving.combined(part.combined)
        self._segment.raise_watermark(limit)
        if limit == self._segment.size:
            self._done = True
            self._node.dispatch(Combined(self._number))

    def close(self) -> None:
        self._done = True
        for part in self._parts:
            if part.segment is not None:
                part.segment.readers.pop(self, None)

    def _write(self, start: int, end: int) -> None:
        if start >= end:
            return
        read = [part.content.read(start, end) for part in self._parts]
        if max(map(len, read)) == 1:
            self._write_span(start, end, [spans[0][2] for spans in read])
            return
        edges = sorted({edge for spans in read for low, high, _ in spans for edge in (low, high)})
        positions = [0] * len(read)
        for low, high in itertools.pairwise(edges):
            tokens = []
            for index, spans in enumerate(read):
                while spans[positions[index]][1] <= low:
                    positions[index] += 1
                tokens.append(spans[positions[index]][2])
            self._write_span(low, high, tokens)

    def _write_span(self, start: int, end: int, tokens: list[int]) -> None:
        token = POISON if self._poisoned else self._node.cluster.provenance.combined(tokens)
        self._segment.content.write(start, end, token)
