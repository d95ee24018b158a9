"""A trace as a document in the Trace Event Format, which Perfetto and chrome://tracing show.

Every process has its tracks. Spans of one track that overlap are put on several lanes, since viewers allow none to
overlap without lying within another. Arrows have both ends or are left out. All times are on one clock, in microseconds
since the first record; what is known of the clocks is stated in `otherData`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from hoplite_ucx.tracing.records import Mark, Record, Span

__all__ = ["Offset", "TracedProcess", "check_writable", "document", "write"]

Event: TypeAlias = dict[str, Any]

_TRACKS = ("marks", "calls", "waits", "receiving", "sending", "slots", "reductions", "placements", "events")
"""From top to bottom."""
_SHORTEST = 1
"""Nanoseconds: what took no time is still to be seen."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a process's clock is ahead of the trace's, from the quickest of some round trips: the error is at most
    half of that."""

    seconds: float = 0.0
    error: float = 0.0
    round_trips: int = 0


@dataclass(slots=True)
class TracedProcess:
    """A process, and what was recorded of it, on its own clock."""

    name: str
    records: list[Record] = field(default_factory=list)
    offset: Offset = Offset()
    dropped: int = 0
    """Records that were lost because nobody took them in time."""
    note: str = ""
    """Why there is no more of it, if so."""


def document(processes: Iterable[TracedProcess], facts: dict[str, Any]) -> dict[str, Any]:
    """`facts` are for people: what was traced, with what."""
    traced = list(processes)
    zero = min((_moment(each, record) for each in traced for record in each.records), default=0.0)
    events: list[Event] = []
    arrows = _Arrows()
    for number, process in enumerate(traced, 1):
        events += _events_of(process, number, zero, arrows)
    return {
        "traceEvents": [*events, *arrows.events()],
        "displayTimeUnit": "ms",
        "otherData": {
            "hoplite_ucx": metadata.version("hoplite-ucx"),
            **facts,
            "clock": "microseconds since the first record, on the clock of the process that collected them",
            "processes": [
                {
                    "name": process.name,
                    "clock_offset_seconds": process.offset.seconds,
                    "clock_error_seconds": process.offset.error,
                    "round_trips": process.offset.round_trips,
                    "records": len(process.records),
                    "dropped": process.dropped,
                    "note": process.note,
                }
                for process in traced
            ],
        },
    }


def write(path: Path, trace: dict[str, Any]) -> None:
    """All of it or nothing: an earlier file stays as it is until this one is whole. Raises an `OSError`."""
    partial = _partial(path)
    try:
        partial.write_bytes(msgspec.json.encode(trace) + b"\n")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Before anything is traced for nothing. Raises an `OSError`."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    _partial(path).touch()
    _partial(path).unlink()


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _moment(process: TracedProcess, record: Record) -> float:
    """On the trace's clock, in seconds."""
    return (record.began if isinstance(record, Span) else record.at) - process.offset.seconds


def _events_of(process: TracedProcess, number: int, zero: float, arrows: _Arrows) -> list[Event]:
    events: list[Event] = [
        _metadata("process_name", number, 0, {"name": process.name}),
        _metadata("process_sort_index", number, 0, {"sort_index": number}),
    ]
    thread = 0
    by_track: dict[str, list[_Drawn]] = {track: [] for track in _TRACKS}
    for record in process.records:
        by_track[record.track].append(_drawn(record, zero + process.offset.seconds))
    for track, drawn in by_track.items():
        lanes = _lanes(sorted(drawn, key=lambda each: each.began))
        for index, lane in enumerate(lanes, 1):
            thread += 1
            name = track if len(lanes) == 1 else f"{track} {index}"
            events.append(_metadata("thread_name", number, thread, {"name": name}))
            events.append(_metadata("thread_sort_index", number, thread, {"sort_index": thread}))
            for each in lane:
                event = _event(each, number, thread)
                events.append(event)
                if isinstance(each.record, Span):
                    arrows.add(each.record, event)
    return events


class _Drawn(NamedTuple):
    """A record as it is drawn, in whole nanoseconds: rounded once, so that nothing overlaps by rounding."""

    began: int
    ended: int
    record: Record


def _drawn(record: Record, zero: float) -> _Drawn:
    if isinstance(record, Mark):
        at = round(1e9 * (record.at - zero))
        return _Drawn(at, at, record)
    began, ended = (round(1e9 * (moment - zero)) for moment in (record.began, record.ended))
    return _Drawn(began, max(ended, began + _SHORTEST), record)


def _lanes(drawn: list[_Drawn]) -> list[list[_Drawn]]:
    """Each is put on the first lane that is free when it begins; they come in the order in which they begin."""
    lanes: list[list[_Drawn]] = []
    for each in drawn:
        lane = next((lane for lane in lanes if lane[-1].ended <= each.began), None)
        if lane is None:
            lanes.append([each])
        else:
            lane.append(each)
    return lanes


def _event(drawn: _Drawn, number: int, thread: int) -> Event:
    record = drawn.record
    event: Event = {"name": record.name, "cat": record.track, "pid": number, "tid": thread, "ts": drawn.began / 1e3}
    if record.details:
        event["args"] = record.details
    if isinstance(record, Mark):
        return {**event, "ph": "i", "s": "t"}
    return {**event, "ph": "X", "dur": (drawn.ended - drawn.began) / 1e3}


def _metadata(name: str, number: int, thread: int, values: dict[str, str | int]) -> Event:
    return {"ph": "M", "name": name, "pid": number, "tid": thread, "args": values}


class _Arrows:
    """From the beginning of one span to that of another: a placement to its stream, a request to its sender."""

    def __init__(self) -> None:
        self._from: dict[str, Event] = {}
        self._to: dict[str, Event] = {}

    def add(self, span: Span, event: Event) -> None:
        self._from.update(dict.fromkeys(span.starts, event))
        self._to.update(dict.fromkeys(span.follows, event))

    def events(self) -> list[Event]:
        """Of those that have both ends. Clocks differ by their error: no arrow goes back in time for that."""
        events: list[Event] = []
        for name, source in self._from.items():
            target = self._to.get(name)
            if target is None:
                continue
            at = max(source["ts"], target["ts"])
            if at > target["ts"] + target["dur"]:
                continue
            arrow = {
                "name": name.partition(" ")[0],
                "cat": "arrow",
                "id": len(events) // 2 + 1,
            }  # Perfetto takes numbers
            events.append({**arrow, "ph": "s", **_place(source), "ts": source["ts"]})
            events.append({**arrow, "ph": "f", "bp": "e", **_place(target), "ts": at})
        return events


def _place(event: Event) -> Event:
    return {"pid": event["pid"], "tid": event["tid"]}
