"""What viewers are shown, one by one: streams, operations, hosts. Plain data, and how it is written as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

SAMPLES = 128
"""How often a position is remembered; of more, every second one is forgotten."""
_RATE_OVER = 0.9
"""Seconds over which a rate is averaged."""

_FINAL = ("", "dead", "dropped", "not seen")
"""How streams end that nobody continues."""

Json: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Stream:
    id: str
    ref: str
    to: str
    sender: str
    into: str
    size: int
    begun: float
    number: int
    """Of its placement: the directory and the agent mean the same stream by it."""
    offset: int = 0
    first: float | None = None
    ended: float | None = None
    position: int = 0
    fault: str = ""
    told_by_agent: bool = False
    """How it ended is known exactly."""
    samples: list[tuple[float, int]] = field(default_factory=list)

    def sample(self, at: float, position: int) -> bool:
        if position < self.position or (self.samples and at <= self.samples[-1][0]):
            return False
        if self.first is None and position > self.offset:
            self.first = at
        self.position = position
        self.samples.append((at, position))
        if len(self.samples) > SAMPLES:
            del self.samples[1:-1:2]
        return True

    def rate(self) -> float:
        """Lately, in bytes a second."""
        if not self.samples:
            return 0.0
        at, position = self.samples[-1]
        earlier = next((each for each in reversed(self.samples) if each[0] <= at - _RATE_OVER), self.samples[0])
        seconds = at - earlier[0]
        return (position - earlier[1]) / seconds if seconds > 0 else 0.0

    def show(self, operation: str, *, whole: bool = False) -> Json:
        shown: Json = {
            "id": self.id,
            "op": operation,
            "ref": self.ref,
            "to": self.to,
            "from": self.sender,
            "into": self.into,
            "size": self.size,
            "begun": self.begun,
            "first": self.first,
            "ended": self.ended,
            "offset": self.offset,
            "position": self.position,
            "fault": self.fault,
            "rate": self.rate() if self.ended is None else 0.0,
        }
        if whole:
            shown["samples"] = self.samples
        elif self.samples:
            shown["at"] = self.samples[-1][0]
        return shown


def _begun(stream: Stream) -> float:
    return stream.begun


@dataclass(slots=True)
class Operation:
    id: str
    ref: str
    size: int
    began: float
    last: float
    """When something last happened to it."""
    putter: str = ""
    ended: float | None = None
    copies: dict[str, float] = field(default_factory=dict)
    """Nodes that have all of it, and since when."""
    streams: dict[str, Stream] = field(default_factory=dict)
    reduction: Json | None = None
    sealed: float | None = None
    failure: str = ""
    deaths: list[tuple[float, str]] = field(default_factory=list)
    assembling: dict[str, float] = field(default_factory=dict)
    slots: dict[str, Json] = field(default_factory=dict)
    """What is combined, and how far it is."""
    slot_samples: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def open(self) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.ended is None]

    def placement(self, number: int) -> Stream | None:
        return next((stream for stream in self.streams.values() if stream.number == number), None)

    def has_lost_sender(self) -> bool:
        """Whether a receiver's last stream broke, and it may yet get another."""
        last = {(each.to, each.ref, each.into): each.fault for each in sorted(self.streams.values(), key=_begun)}
        return any(fault not in _FINAL for fault in last.values())

    def pending(self) -> bool:
        """Whether it goes on though nothing streams."""
        return self.reduction is not None and self.sealed is None and not self.failure

    @property
    def kind(self) -> str:
        if self.reduction is None:
            return "broadcast"
        return "allreduce" if self.reduction["everywhere"] else "reduce"


@dataclass(slots=True)
class Host:
    id: str
    host: str
    address: str
    state: str
    rate: float
    since: float
    why: str = ""
    report: Json = field(default_factory=dict)
    counted: dict[tuple[str, str], tuple[float, int, float]] = field(default_factory=dict)
    """Bytes of its links: when, how many, and the rate."""

    def show(self) -> Json:
        return {
            "id": self.id,
            "host": self.host,
            "address": self.address,
            "state": self.state,
            "why": self.why,
            "since": self.since,
            "rate": self.rate,
            **self.report,
        }
