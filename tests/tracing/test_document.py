"""How records become a document that a viewer takes: lanes, clocks, arrows."""

from pathlib import Path

import pytest

from hoplite_ucx.tracing import records
from hoplite_ucx.tracing.document import Offset, TracedProcess, document, write
from hoplite_ucx.tracing.records import Mark, Recording, Span
from tests.tools import traces


def test_spans_that_overlap_get_lanes_and_those_that_touch_share_one() -> None:
    process = TracedProcess("a", [Span("calls", name, *when) for name, when in _OVERLAPPING.items()])
    trace = document([process], {})
    traces.check(trace)
    lanes = {event["name"]: event["tid"] for event in traces.spans(trace, "calls")}
    assert lanes["first"] == lanes["third"] != lanes["second"]


_OVERLAPPING = {"second": (0.5, 2.0), "first": (0.0, 1.0), "third": (1.0, 3.0), "at once": (1.5, 1.5)}


def test_clocks_are_put_on_one() -> None:
    ahead = TracedProcess("ahead", [Mark("marks", "there", 105.0)], Offset(100.0, 0.001, 8))
    here = TracedProcess("here", [Mark("marks", "here", 4.0)])
    trace = document([here, ahead], {})
    traces.check(trace)
    assert [event["ts"] for event in trace["traceEvents"] if event["ph"] == "i"] == [0.0, 1e6]
    stated = trace["otherData"]["processes"][1]
    assert (stated["clock_offset_seconds"], stated["clock_error_seconds"], stated["round_trips"]) == (100.0, 0.001, 8)


@pytest.mark.parametrize(("began", "ended", "drawn"), [(1.0, 2.0, 1), (-1.0, 2.0, 1), (-1.0, -0.5, 0)])
def test_an_arrow_has_both_ends_and_does_not_go_back(began: float, ended: float, drawn: int) -> None:
    """The end may seem to begin before the start, by the error of a clock; if it seems over, there is no arrow."""
    there = TracedProcess("a", [Span("placements", "p", 0.0, 3.0, {}, ("placement 1", "placement 2"))])
    here = TracedProcess("b", [Span("receiving", "r", began, ended, {}, (), ("placement 1", "placement 3"))])
    trace = document([there, here], {})
    traces.check(trace)
    assert len(traces.arrows(trace, "placement")) == drawn


@pytest.mark.parametrize(
    "events",
    [
        [{"ph": "B", "ts": 1}],
        [{"ph": "B", "ts": 1}, {"ph": "E", "ts": 2}, {"ph": "E", "ts": 3}],
        [{"ph": "X", "ts": 2, "dur": 1}, {"ph": "i", "ts": 1}],
        [{"ph": "X", "ts": 0, "dur": 2}, {"ph": "X", "ts": 1, "dur": 2}],
        [{"ph": "X", "ts": 0, "dur": 2}, {"ph": "s", "ts": 1, "cat": "arrow", "id": 1}],
        [{"ph": "s", "ts": 1, "cat": "arrow", "id": 1}, {"ph": "f", "ts": 1, "cat": "arrow", "id": 1}],
    ],
)
def test_the_check_finds_what_viewers_would_not_show(events: list[traces.Event]) -> None:
    named = [{"ph": "M", "name": f"{what}_name", "args": {}} for what in ("process", "thread")]
    with pytest.raises(AssertionError):
        traces.check({"traceEvents": [{"name": "x", "pid": 1, "tid": 1, **event} for event in (*named, *events)]})


def test_the_ring_is_bounded_and_counts_what_it_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEPT", 10)
    monkeypatch.setattr(records, "TAKEN", 4)
    recording = Recording()
    for number in range(13):
        recording.add(Mark("marks", str(number), float(number)))
    recording.begin(("call", 1), Span("calls", "get", 13.0, 13.0), 13.0)
    taken = [recording.take(14.0) for _ in range(3)]
    assert [mark.name for each in taken for mark in each.records] == [str(number) for number in range(3, 13)]
    assert [each.more for each in taken] == [True, True, False]
    assert taken[-1].dropped == 3
    (unfinished,) = taken[-1].open
    assert (unfinished.ended, unfinished.details) == (14.0, {"unfinished": True})


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write(path, document([], {}))
    before = path.read_bytes()
    (tmp_path / "run.json.part").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(path, document([], {"more": 1}))
    assert path.read_bytes() == before
