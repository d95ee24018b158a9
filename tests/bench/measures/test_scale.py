"""The scale grid: what it consists of, what is left out of it and why, and files that a later run goes on with."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.harness.figure_file import FigureFile
from hoplite_ucx.bench.harness.machine_facts import memory_available
from hoplite_ucx.bench.hosts import namespaces as clusters
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.measures.scale import TOGETHER, Cell, NotRun, grid, measure_scale
from hoplite_ucx.cli import app


def scale(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "scale", *arguments])


# --- the grid ---------------------------------------------------------------------------------------------------


def test_more_than_eight_hosts_share_what_eight_have() -> None:
    cells = grid(["reduce", "broadcast", "reduce"], [16, 2, 8], [1024], 125e6)
    assert [(cell.operation, cell.hosts) for cell in cells] == [
        ("reduce", 2), ("broadcast", 2), ("reduce", 8), ("broadcast", 8), ("reduce", 16), ("broadcast", 16)
    ]  # fmt: skip
    assert [cell.rate for cell in cells[::2]] == [125e6, 125e6, TOGETHER / 16]


def test_what_could_never_be_measured_is_refused() -> None:
    with pytest.raises(PeerError, match="'scatter' is not one of broadcast"):
        grid(["scatter"], [2], [1024], 125e6)
    with pytest.raises(PeerError, match="2 to 16 hosts, not to 17"):
        grid(["reduce"], [2, 17], [1024], 125e6)
    with pytest.raises(PeerError, match="whole float32 numbers, not 7 bytes"):
        grid(["reduce"], [2], [7], 125e6)


def test_what_does_not_fit_memory_or_time_is_left_out_with_the_reason() -> None:
    told: list[object] = []
    huge, slow = Cell("broadcast", 2, 1 << 44, 125e6), Cell("broadcast", 2, 1 << 20, 1e3)
    figures = measure_scale([huge, slow], repeat=1, told=told.append)
    assert figures.measured == []
    assert told == figures.not_run
    memory, time = figures.not_run
    assert isinstance(memory, NotRun)
    assert memory.needs > memory.there > memory_available() / 4
    assert "of memory are needed, and 70% of" in json.loads(memory.json_line())["not_run"]
    assert time.why == "a round takes 1104 s at this rate, and may take at most 60 s"


# --- files ------------------------------------------------------------------------------------------------------


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    for text in ("dear diary\n", "dear diary", '{"what": "reduce"}\n[]\n'):
        path = tmp_path / "figures"
        path.write_text(text)
        with pytest.raises(PeerError, match="something other than figures"), FigureFile(path):
            pass
        assert path.read_text() == text
    with pytest.raises(PeerError, match="cannot be written"), FigureFile(tmp_path):
        pass


def test_a_file_is_one_run_s_and_a_line_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    path.write_text('{"what": "reduce", "not_run": "why"}\n{"what": "red')
    with FigureFile(path) as file:
        with pytest.raises(PeerError, match="being written by another run"), FigureFile(path):
            pass
        file.append('{"what": "broadcast"}')
    assert path.read_text() == '{"what": "reduce", "not_run": "why"}\n{"what": "broadcast"}\n'


def test_a_machine_without_emulated_hosts_is_told_in_a_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_TOOLS", {"no-such-tool": "some-package"})
    path = tmp_path / "figures.jsonl"
    refused = scale("--hosts", "2", "--size", "1KiB", "--output", str(path))
    assert refused.exit_code == 1
    assert refused.stderr == "hoplite bench: emulated hosts need the packages some-package; install them\n"
    assert list(tmp_path.iterdir()) == []


# --- for real ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("emulated_hosts")
def test_two_hosts_and_two_sizes_for_real(tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    options = ("--hosts", "2", "--operation", "reduce", "--repeat", "2", "--output", str(path))
    first = scale("--size", "64KiB", "--size", "1MiB", "--json", "--plot", str(tmp_path / "picture"), *options)
    assert first.exit_code == 0, first.stderr
    rows = list(map(json.loads, path.read_text().splitlines()))
    assert rows == list(map(json.loads, first.stdout.splitlines()))
    assert [(row["operation"], row["hosts"], row["size"]) for row in rows] == [
        ("reduce", 2, 64 << 10), ("reduce", 2, 1 << 20)
    ]  # fmt: skip
    for row in rows:
        assert row["ratio"] == pytest.approx(row["seconds"] / row["limit_seconds"])
        assert row["spread"] >= 0 < row["processor_seconds"]
        assert row["versions"]["hoplite"]
        assert row["machine"]["cores"] > 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "picture.svg").read_text()

    again = scale("--size", "64KiB", "--size", "1MiB", "--size", "1TiB", *options)
    assert again.exit_code == 0, again.stderr
    assert "2 hosts of 1gbit" in again.stdout
    assert "not run: reduce of 1TiB, 2 hosts: about" in again.stdout
    *before, left_out = map(json.loads, path.read_text().splitlines())
    assert before == rows  # nothing was measured again
    assert left_out["needs"] > left_out["there"]

    nothing = scale("--size", "1TiB", "--hosts", "2")
    assert nothing.exit_code == 1
    assert "no cell of this grid" in nothing.stderr
