"""Records of a campaign, their figures and their picture."""

import importlib.util
from pathlib import Path

import pytest

from hoplite_ucx.bench.faults.plotting import plot
from hoplite_ucx.bench.faults.recording import Record, Recording, Settings, Times, percentile, summarise
from hoplite_ucx.bench.hosts.line_process import PeerError

SETTINGS = Settings(1, 4, 1 << 20, 1e6)


def record(case: int, fault: str = "kill host", *, long: bool = False, problems: list[str] | None = None) -> Record:
    return {
        "case": case,
        "operation": "broadcast",
        "fault": fault,
        "long": long,
        "role": "relay",
        "noticed_seconds": [0.001 * (case + 1)],
        "next_byte_seconds": [0.002 * (case + 1)],
        "after_fault_seconds": 0.5,
        "answers": {"1": "done", "2": "ClosedError: gone"},
        "problems": problems or [],
    }


def test_a_file_knows_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    recording = Recording(SETTINGS, path)
    assert recording.missing(3) == [0, 1, 2]
    recording.add(record(1))
    assert Recording(SETTINGS, path).missing(3) == [0, 2]
    assert Recording(SETTINGS, path).records == [record(1)]
    with pytest.raises(PeerError, match="another campaign"):
        Recording(Settings(2, 4, 1 << 20, 1e6), path)
    path.write_text("{")
    with pytest.raises(PeerError, match="not a record"):
        Recording(SETTINGS, path)


def test_percentiles() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7
    assert Times.of([]) is None
    assert Times.of(values) == Times(100, 50, 99, 100)


def test_a_summary_counts_and_keeps_long_silences_apart() -> None:
    records = [record(0), record(1), record(2, "cut"), record(3, "cut", long=True, problems=["a hang"])]
    summary = summarise([*records, {"case": 4, "problems": ["it broke"]}])
    assert summary.cases == 5
    assert summary.by_fault == {"kill host": 2, "cut": 1, "cut, long": 1, "none": 1}
    assert summary.errors == {"done": 4, "ClosedError": 4}
    assert summary.noticed["kill host"] == Times(2, 0.001, 0.002, 0.002)
    assert summary.problems == [(3, "a hang"), (4, "it broke")]
    assert '"passed": false' in summary.json_line()


def test_the_picture(tmp_path: Path) -> None:
    records = [record(0), record(1, "cut", long=True), {"case": 2, "problems": []}]
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(PeerError, match="matplotlib"):
            plot(records, "a campaign", tmp_path / "picture")
        return
    made = plot(records, "a campaign", tmp_path / "picture")
    assert [path.suffix for path in made] == [".png", ".svg"]
    assert all(path.stat().st_size > 1000 for path in made)
