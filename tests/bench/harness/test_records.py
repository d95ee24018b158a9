"""Figures that were written: compared, drawn, and refused with a reason."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.harness.records import changes, figure_of, read_figures
from hoplite_ucx.bench.harness.timing import Measurement
from hoplite_ucx.cli import app


def bench(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *map(str, arguments)])


def written(path: Path, *runs: tuple[str, tuple[float, ...]]) -> Path:
    settings = {"operation": "reduce", "hosts": 8, "size": 1 << 20, "rate": 125e6}
    lines = [Measurement(what, seconds, 0.01, settings).json_line() for what, seconds in runs]
    path.write_text("\n".join([*lines, json.dumps({"what": "Ray", "not_run": "no such thing"})]) + "\n")
    return path


def test_figures_know_whose_they_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a", ("reduce", (0.02,)), ("bare reduce", (0.03,)), ("Open MPI reduce", (0.04,)))
    figures = read_figures(path)
    assert [figure.subject for figure in figures] == ["hoplite", "bare sockets", "Open MPI"]
    assert figures[0].ratio == pytest.approx(2)
    assert figure_of(Measurement("put", (1.0,))) is None


def test_changes_are_told_from_noise(tmp_path: Path) -> None:
    before = written(
        tmp_path / "a", ("reduce", (0.02, 0.03, 0.04)), ("bare reduce", (0.02, 0.03)), ("Gloo reduce", (1.0,))
    )
    after = written(tmp_path / "b", ("bare reduce", (0.01, 0.015)), ("reduce", (0.035, 0.06)))
    ours, bare = changes(read_figures(before), read_figures(after))
    assert (ours.before.subject, ours.beyond_spread) == ("hoplite", False)
    assert (bare.ratio, bare.beyond_spread) == (pytest.approx(0.5), True)
    shown = bench("compare", before, after)
    assert shown.exit_code == 0
    assert "within the spread" in shown.stdout
    assert "faster" in shown.stdout


def test_files_that_are_no_figures_are_refused(tmp_path: Path) -> None:
    good = written(tmp_path / "good", ("reduce", (0.02,)))
    other = written(tmp_path / "other", ("Gloo reduce", (0.02,)))
    empty, garbage = tmp_path / "empty", tmp_path / "garbage"
    empty.write_text("")
    garbage.write_text("{not json\n")
    for bad, why in ((tmp_path / "none", "cannot be read"), (empty, "no figures"), (garbage, "line 1 of")):
        for refused in (bench("compare", good, bad), bench("plot", bad)):
            assert refused.exit_code == 1
            assert why in refused.stderr
    assert "no figure in common" in bench("compare", good, other).stderr


def test_figures_are_drawn_twice(tmp_path: Path) -> None:
    path = written(tmp_path / "run.json", ("reduce", (0.02, 0.03)), ("Gloo reduce", (0.04,)))
    done = bench("plot", path)
    if done.exit_code and "need matplotlib" in done.stderr:
        pytest.skip(done.stderr)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "run.svg").read_text()
