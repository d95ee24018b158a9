"""What a trace says of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.bench.apps.streams import read_streams, streams_of
from hoplite_ucx.bench.hosts.line_process import PeerError


def _received(host: int, begin: float, end: float, track: str = "receiving") -> dict[str, Any]:
    return {"cat": track, "ph": "X", "pid": host, "tid": 1, "ts": begin * 1e6, "dur": (end - begin) * 1e6, "name": "s"}


def test_streams_beside_each_other_count_once() -> None:
    found = streams_of([_received(1, 1, 3), _received(2, 2, 4), _received(1, 6, 7), _received(2, 5, 9, "calls")])
    assert (found.whole, found.sending, found.silent) == pytest.approx((6.0, 4.0, 2.0))
    assert found.busiest == pytest.approx(3.0)


def test_a_trace_without_streams() -> None:
    assert streams_of([{"ph": "M", "name": "process_name", "pid": 1}]).whole == 0.0


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(PeerError, match=r"trace\.json cannot be read"):
        read_streams(tmp_path / "trace.json")
