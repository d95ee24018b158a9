"""What the counters make of a machine's events and effects, and how the text of it looks to Prometheus."""

from typing import Any

import pytest

from hoplite_ucx.metrics.directory_counts import DirectoryCounts
from hoplite_ucx.metrics.families import Distribution, Family, Histogram, Kind, Total
from hoplite_ucx.metrics.node_counts import NodeCounts
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    DirectoryLost,
    FromNode,
    GetCall,
    Got,
    PutCall,
    Receive,
    SendDirectory,
    SendNode,
    Serve,
    Tick,
)
from hoplite_ucx.protocol.ids import StreamId, Version, node_id
from hoplite_ucx.protocol.messages import Heartbeat, Operation, Over, Place, Reduce, StreamFailed, StreamFault, Want

REF = bytes(16)
VERSION = Version(REF, 1, 1)
NODE = node_id(5)
FAILURE = Failure(FailureKind.LOST, "gone", "put it again", REF)


def values(families: list[Family]) -> dict[tuple[str, ...], Any]:
    return {(family.name, *sample.labels): sample.value for family in families for sample in family.samples}


def test_calls_are_timed_from_the_question_to_the_answer() -> None:
    counts = NodeCounts()
    counts.handled(GetCall(1, REF, None), [], 10.0, 1e-5)
    counts.handled(PutCall(2, REF, 1, b"", None, None), [], 10.0, 1e-5)
    counts.handled(GetCall(3, REF, None), [], 10.0, 1e-5)
    counts.handled(Tick(), [Got(1, VERSION, b"", 1, None, b"x"), CallFailed(3, FAILURE)], 10.3, 1e-5)
    counts.handled(CancelCall(2), [], 11.0, 1e-5)
    counts.handled(DirectoryLost(), [], 11.0, 1e-5)
    found = values(counts.families())
    gets = found["hoplite_call_duration_seconds", "get"]
    assert (sum(gets.counts), gets.sum) == (2, pytest.approx(0.6))
    assert gets.counts[gets.bounds.index(0.5)] == 2
    assert found["hoplite_calls_failed", "get", "lost"] == 1
    assert found["hoplite_calls_cancelled", "put"] == 1
    assert found["hoplite_directory_sessions_lost",] == 1
    assert sum(found["hoplite_agent_event_duration_seconds",].counts) == 6


def test_streams_are_counted_as_begun_resumed_and_broken() -> None:
    counts = NodeCounts()
    stream = StreamId(NODE, 1)
    first = Receive(stream, 1, node_id(6), "a:1", VERSION, 0, 100, 10)
    again = Receive(StreamId(NODE, 2), 1, node_id(7), "b:1", VERSION, 40, 100, 10)
    failed = SendDirectory(StreamFailed(VERSION, 3, 40, node_id(6), StreamFault.STALLED, True))
    counts.handled(Tick(), [first, SendDirectory(Heartbeat())], 1.0, 1e-5)
    counts.handled(Tick(), [failed, again, Serve(StreamId(node_id(8), 1), 1, 0, 100, 10)], 2.0, 1e-5)
    found = values(counts.families())
    assert found["hoplite_streams", "received"] == 2
    assert found["hoplite_streams", "sent"] == 1
    assert found["hoplite_streams_resumed",] == 1
    assert [found["hoplite_streams_broken", fault] for fault in StreamFault] == [0, 1, 0, 0]


def test_the_directory_counts_placements_and_times_reductions_and_messages() -> None:
    counts = DirectoryCounts()
    place = SendNode(NODE, Place(VERSION, 1, 100, b"", node_id(6), "a:1", 10, 1e9))
    reduce = Reduce(1, REF, (b"1" * 16,), Operation.SUM, 1)
    counts.handled(FromNode(NODE, reduce), [], 5.0, 2e-5)
    counts.handled(FromNode(NODE, reduce), [], 6.0, 2e-5)  # asked again, which does not begin it again
    counts.handled(FromNode(NODE, Want(REF)), [place, place], 7.0, 3e-5)
    counts.handled(Tick(), [SendNode(NODE, Over(REF)), SendNode(NODE, Over(REF))], 9.0, 1e-5)
    found = values(counts.families())
    assert found["hoplite_placements",] == 2
    reductions = found["hoplite_reduction_duration_seconds",]
    assert (sum(reductions.counts), reductions.sum) == (1, 4.0)
    messages = {labels[1]: total for labels, total in found.items() if isinstance(total, Total)}
    assert {name: total.count for name, total in messages.items()} == {"Reduce": 2, "Tick": 1, "Want": 1}
    assert messages["Reduce"].seconds == pytest.approx(4e-5)


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    """As Prometheus has it: a bucket's bound is the largest value in it."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.add(value)
    assert histogram.copy() == Distribution((1.0, 2.0), (2, 2, 1), 8.0)


def test_names_and_units_follow_the_conventions() -> None:
    families = [*NodeCounts().families(), *DirectoryCounts().families()]
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.name.startswith("hoplite_")
        assert family.help.endswith(".")
        assert not family.name.endswith("_total"), "the text adds it"
        assert family.kind not in (Kind.HISTOGRAM, Kind.SUMMARY) or family.name.endswith("_seconds")
