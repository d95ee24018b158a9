"""Checks a trace as a viewer would: by the Trace Event Format, not by how we happen to write it."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_KINDS = {"X", "B", "E", "i", "M", "s", "f"}


def read(path: Path) -> dict[str, Any]:
    """The document, after all checks."""
    trace: dict[str, Any] = json.loads(path.read_text())
    check(trace)
    return trace


def check(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        assert event["ph"] in _KINDS, event
        assert isinstance(event["name"], str), event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["tid"], int), event
        if event["ph"] in "XBEi":
            assert event["ts"] >= 0, event
            tracks[event["pid"], event["tid"]].append(event)
    _check_names(events, tracks)
    for track in tracks.values():
        _check_track(track)
    _check_arrows(events, tracks)


def _check_names(events: list[Event], tracks: dict[tuple[int, int], list[Event]]) -> None:
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(tracks) <= named
    assert {process for process, _ in tracks} <= {e["pid"] for e in events if e["name"] == "process_name"}


def _check_track(track: list[Event]) -> None:
    """Every beginning has its end, time does not go back, and spans lie apart or within each other."""
    moments = [event["ts"] for event in track]
    assert moments == sorted(moments), "the clock of a track goes back"
    open_until: list[float] = []
    begun = 0
    for event in track:
        if event["ph"] == "B":
            begun += 1
        elif event["ph"] == "E":
            begun -= 1
            assert begun >= 0, f"an end without its beginning: {event}"
        elif event["ph"] == "X":
            assert event["dur"] > 0, event
            end = round(1e3 * (event["ts"] + event["dur"]))  # whole nanoseconds
            while open_until and open_until[-1] <= round(1e3 * event["ts"]):
                open_until.pop()
            assert not open_until or end <= open_until[-1], f"it overlaps another one: {event}"
            open_until.append(end)
    assert begun == 0, "a beginning without its end"


def _check_arrows(events: list[Event], tracks: dict[tuple[int, int], list[Event]]) -> None:
    """Each has both ends, within spans, and does not go back in time."""
    ends: dict[tuple[str, int], dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert isinstance(event["id"], int), event  # Perfetto takes a text for a hexadecimal number
            both = ends[event["cat"], event["id"]]
            assert event["ph"] not in both, f"twice: {event}"
            both[event["ph"]] = event
            spans = [span for span in tracks[event["pid"], event["tid"]] if span["ph"] == "X"]
            within = (span["ts"] <= event["ts"] <= span["ts"] + span["dur"] for span in spans)
            assert any(within), f"it is bound to no span: {event}"
    for name, both in ends.items():
        assert set(both) == {"s", "f"}, name
        assert both["s"]["ts"] <= both["f"]["ts"], name


def spans(trace: dict[str, Any], track: str, process: str = "") -> list[Event]:
    """Those of a track, whose process's name contains the text."""
    processes = {e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name" and process in e["args"]["name"]}
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] == track and event["pid"] in processes
    ]


def marks(trace: dict[str, Any]) -> list[str]:
    return [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"]


def arrows(trace: dict[str, Any], kind: str) -> set[tuple[int, int]]:
    """The processes that arrows of a kind connect."""
    starts = {event["id"]: event["pid"] for event in trace["traceEvents"] if event["ph"] == "s"}
    ends = [e for e in trace["traceEvents"] if e["ph"] == "f" and e["name"] == kind]
    return {(starts[event["id"]], event["pid"]) for event in ends}
