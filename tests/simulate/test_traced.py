"""`hoplite simulate … --trace`: a virtual run as a trace, with what happened in it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from tests.tools import traces


def simulate(path: Path, *arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["simulate", *arguments, "--json", "--trace", str(path)])
    assert done.exit_code == 0, done.output
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def test_a_broadcast_with_a_kill_shows_its_tree_and_the_new_placement(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    figures = simulate(path, "broadcast", "--nodes", "6", "--size", "8MiB", "--kill", "2@50%")
    trace = traces.read(path)
    placements = traces.spans(trace, "placements", "directory")
    assert len(placements) == 5 + len(figures["moves"])  # type: ignore[arg-type]
    assert len(traces.spans(trace, "receiving")) >= 5
    assert len(traces.spans(trace, "sending")) == len(traces.spans(trace, "receiving"))
    assert any(span["args"].get("killed") for span in traces.spans(trace, "receiving", "host 2"))
    assert any(span["args"].get("fault") for span in placements)
    assert any(text.endswith("is gone") for text in traces.marks(trace))
    # from the directory to each receiver, and from each receiver to its sender
    assert {receiver for _, receiver in traces.arrows(trace, "placement")} == {3, 4, 5, 6, 7}
    assert len(traces.arrows(trace, "stream")) >= 5
    (put,) = traces.spans(trace, "calls", "host 0")
    assert put["name"].startswith("put ")


@pytest.mark.parametrize("operation", ["reduce", "allreduce"])
def test_a_reduction_shows_its_slots(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "run.json"
    simulate(path, operation, "--nodes", "4", "--size", "4MiB", "--arrivals", "every 5ms")
    trace = traces.read(path)
    (reduction,) = traces.spans(trace, "reductions")
    assert reduction["args"]["sources"] == 4
    made = traces.spans(trace, "slots", "host")
    assert made
    assert {span["args"]["op"] for span in made if "op" in span["args"]} == {"sum"}
    assert traces.arrows(trace, "slot")


def test_a_restarted_directory_and_a_gather_are_traced(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    simulate(path, "gather", "--nodes", "4", "--size", "1MiB", "--restart-directory", "50%")
    assert "lost the directory" in traces.marks(traces.read(path))


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", "broadcast", "--trace", str(tmp_path / "none" / "run.json")])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: the trace cannot be written: ")
    assert done.stderr.count("\n") == 1
