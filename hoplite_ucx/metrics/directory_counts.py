"""What the directory's machine did, counted from its events and effects: placements, slots, reductions, event time.

An observer of the machine, on its thread: nothing here locks, and nothing is looked up by a label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from hoplite_ucx.metrics.families import CALL_SECONDS, EVENT_SECONDS, Family, Histogram, Kind, Sample, Total
from hoplite_ucx.protocol.events import DirectoryEffect, DirectoryEvent, FromNode, SendNode
from hoplite_ucx.protocol.messages import Assemble, Bind, Over, Place, Reduce, Result

__all__ = ["DirectoryCounts"]

_MOST_REDUCTIONS = 10_000
"""Those that are asked for and not over are remembered up to this many: whoever asked may be gone."""


class DirectoryCounts:
    def __init__(self) -> None:
        self._events = Histogram(EVENT_SECONDS)
        self._messages: defaultdict[type, Total] = defaultdict(Total)
        self._placements = 0
        self._slots = 0
        self._assemblies = 0
        self._reductions = Histogram(CALL_SECONDS)
        self._reducing: dict[bytes, float] = {}
        self._on_sent: dict[type, Callable[[Any, float], None]] = {
            Place: self._placed,
            Bind: self._bound,
            Assemble: self._assembled,
            Over: lambda over, now: self._reduced(over.target, now),
            Result: lambda result, now: self._reduced(result.version.ref, now),
        }

    def handled(self, event: DirectoryEvent, effects: list[DirectoryEffect], now: float, took: float) -> None:
        self._events.add(took)
        kind: type = type(event)
        if kind is FromNode:
            message = event.message  # type: ignore[union-attr]
            kind = type(message)
            if kind is Reduce:
                self._asked_to_reduce(message, now)  # type: ignore[arg-type]
        total = self._messages[kind]
        total.count += 1
        total.seconds += took
        on_sent = self._on_sent
        for effect in effects:
            if type(effect) is SendNode and (count := on_sent.get(type(effect.message))) is not None:
                count(effect.message, now)

    def replaced(self, now: float) -> None:
        """Another machine continues, and reductions begin again."""

    # --- counting ----------------------------------------------------------------------------------------------

    def _placed(self, _: Place, __: float) -> None:
        self._placements += 1

    def _bound(self, _: Bind, __: float) -> None:
        self._slots += 1

    def _assembled(self, _: Assemble, __: float) -> None:
        self._assemblies += 1

    def _asked_to_reduce(self, reduce: Reduce, now: float) -> None:
        self._reducing.setdefault(reduce.target, now)
        if len(self._reducing) > _MOST_REDUCTIONS:
            del self._reducing[next(iter(self._reducing))]

    def _reduced(self, target: bytes, now: float) -> None:
        if (began := self._reducing.pop(target, None)) is not None:
            self._reductions.add(now - began)

    # --- for the exporter --------------------------------------------------------------------------------------

    def families(self) -> list[Family]:
        return [
            Family(
                Kind.COUNTER,
                "hoplite_placements",
                "Receivers that were told whom to pull from.",
                [Sample(self._placements)],
            ),
            Family(
                Kind.COUNTER,
                "hoplite_slots_bound",
                "Slots of reductions that were given to a host.",
                [Sample(self._slots)],
            ),
            Family(
                Kind.COUNTER,
                "hoplite_assemblies",
                "Hosts that were told to put an object together from stripes.",
                [Sample(self._assemblies)],
            ),
            Family(
                Kind.HISTOGRAM,
                "hoplite_reduction_duration_seconds",
                "From the request for a reduction until it was decided or cancelled.",
                [Sample(self._reductions.copy())],
            ),
            Family(
                Kind.HISTOGRAM,
                "hoplite_directory_event_duration_seconds",
                "How long the directory's machine took for an event.",
                [Sample(self._events.copy())],
            ),
            Family(
                Kind.SUMMARY,
                "hoplite_directory_message_duration_seconds",
                "The same by what the event was: a message of a node, a timer, the end of a session.",
                [
                    Sample(Total(total.count, total.seconds), (kind.__name__,))
                    for kind, total in sorted(self._messages.items(), key=lambda item: item[0].__name__)
                ],
                ("message",),
            ),
        ]
