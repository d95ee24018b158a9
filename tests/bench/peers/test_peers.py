"""The peers beside us: real figures of Gloo, clear words about those that do not run, and nothing left behind."""

import glob
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.harness.contents import Array, fill
from hoplite_ucx.bench.harness.records import failure_in
from hoplite_ucx.bench.harness.timing import Measurement
from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts.line_process import LineProcess
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.peers import launching
from hoplite_ucx.bench.peers.launching import why_missing
from hoplite_ucx.bench.peers.measuring import NotRun, measure_peers
from hoplite_ucx.bench.peers.rounds import Cell, check, plan_of, seeds_of
from hoplite_ucx.cli import app

pytestmark = pytest.mark.usefixtures("emulated_hosts")

RATE = 125e6


def bench(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *arguments])


def left_behind(cluster_mark: str) -> list[str]:
    folders = glob.glob(f"{tempfile.gettempdir()}/hoplite-peer-*")
    return [*folders, *(str(pid) for pid, mark in namespace_keeper.marked().items() if mark == cluster_mark)]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders are made where nobody else makes any."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_gloo_beside_us_in_one_run(environment: Path) -> None:
    if (why := why_missing("gloo")) is not None:
        pytest.skip(why)
    sizes = ("--size", "64KiB", "--size", "1MiB")
    operations = ("--operation", "allreduce", "--operation", "broadcast")
    done = bench("peers", "--hosts", "2", "--repeat", "2", "--peer", "gloo", *sizes, *operations, "--json")
    assert done.exit_code == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    names = ["allreduce", "bare allreduce", "broadcast", "bare broadcast"]
    assert [each["what"] for each in told] == [*names * 2, *["Gloo allreduce", "Gloo broadcast"] * 2]
    assert [each["size"] for each in told] == [*[64 << 10] * 4, *[1 << 20] * 4, *[64 << 10] * 2, *[1 << 20] * 2]
    for each in told:
        assert len(each["runs"]) == 2
        assert 0 < each["fastest_seconds"] <= each["seconds"]
        assert each["ratio"] == pytest.approx(each["seconds"] / each["limit_seconds"])
        # On a busy machine a short round of a peer is over before its processes are listed.
        assert each["processor_seconds"] >= 0
        assert each["machine"]["cores"] > 0
    assert told[0]["versions"].keys() >= {"hoplite"}
    assert told[-1]["versions"].keys() == {"torch"}
    assert not list(environment.iterdir())


def test_a_peer_that_is_missing_or_fails_is_listed_and_nothing_is_left(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = launching.Peer(
        "Broken", ("json",), lambda stage: stage.lead(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo why >&2"], "Broken")
    )
    absent = launching.Peer("Absent", ("no_such_module",), broken.launch)
    monkeypatch.setattr(launching, "PEERS", {"broken": broken, "absent": absent})
    monkeypatch.setattr("hoplite_ucx.bench.peers.measuring.PEERS", launching.PEERS)
    with Cluster(2, RATE) as cluster:
        cells = [Cell("reduce", 1024, 2)]
        figures = measure_peers(cluster, {"broken": cells, "absent": cells}, rate=RATE)
        assert left_behind(cluster.mark) == []
    assert not list(environment.iterdir())
    assert not figures.measured
    first, second = figures.not_run
    assert (first.what, first.why) == ("Broken reduce", "Broken failed: why")
    assert second.what == "Absent"
    assert "no_such_module not found" in second.why
    assert "ci/peers" in second.why


def saying(*lines: str) -> Callable[[Any], LineProcess]:
    """A peer that says this for each of its cells."""
    script = "import sys, json; print('{\"versions\": {}}')\nfor cell in json.loads(sys.argv[1]):\n " + "\n ".join(
        lines
    )
    return lambda stage: stage.lead([sys.executable, "-uc", script, plan_of(stage.cells)], "Talker")


ROUND = """print('{"at": 0}'); print('{"seconds": 0.5}')"""


def test_a_peer_that_fails_in_a_cell_is_started_again_for_the_others(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = saying(ROUND, ROUND, "assert cell[0] != 'gather', 'no gather today'", """print('{"rounds": 2}')""")
    monkeypatch.setattr(launching, "PEERS", {"talker": launching.Peer("Talker", (), launch)})
    monkeypatch.setattr("hoplite_ucx.bench.peers.measuring.PEERS", launching.PEERS)
    cells = [Cell(operation, 1024, 2) for operation in ("broadcast", "gather", "reduce")]
    with Cluster(2, RATE) as cluster:
        figures = measure_peers(cluster, {"talker": cells}, rate=RATE)
        late = measure_peers(cluster, {"talker": cells}, rate=RATE, until=0.0)
        assert (late.measured, late.not_run) == ([], [])
        assert left_behind(cluster.mark) == []
    assert [each.what for each in figures.measured] == ["Talker broadcast", "Talker reduce"]
    assert [each.runs for each in figures.measured] == [(0.5,), (0.5,)]
    (failed,) = figures.not_run
    assert failed.what == "Talker gather"
    assert failed.why.endswith("no gather today")
    key, why = failure_in(json.loads(failed.json_line())) or ((), "")
    assert (key, why) == (("gather", "Talker", 2, 1024, RATE), failed.why)


def test_a_cell_goes_on_until_it_has_its_rounds_or_its_time_is_up() -> None:
    cell = Cell("reduce", 1024, rounds=5, least=2, seconds=10.0)
    assert [cell.goes_on(done, spent) for done, spent in ((1, 99.0), (2, 9.9), (2, 10.0), (4, 1.0), (5, 1.0))] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_a_run_goes_on_where_it_was_ended(environment: Path) -> None:
    output = environment / "figures.json"
    command = ["peers", "--operation", "broadcast", "--operation", "reduce", "--size", "4KiB", "--hosts", "2"]
    command += ["--repeat", "1", "--no-bare", "--peer", "gloo", "--output", str(output)]
    ours = {"operation": "broadcast", "hosts": 2, "size": 4096, "rate": RATE}
    made = [Measurement("broadcast", (0.25,), 1.0, ours).json_line()]
    made += [
        NotRun(f"Gloo {each}", "no reason", {**ours, "operation": each}).json_line() for each in ("broadcast", "reduce")
    ]
    output.write_text("\n".join([*made, ""]))

    nothing = bench(*command, "--within", "0s")
    assert nothing.exit_code == 3
    assert "1 of 4 figures are left" in nothing.stderr
    assert "250ms" in nothing.stdout
    done = bench(*command, "--within", "60s")
    assert done.exit_code == 1, done.stderr
    assert "not run: Gloo, reduce of 4KiB, 2 hosts: no reason" in done.stderr
    *before, added = output.read_text().splitlines()
    assert before == made
    assert json.loads(added)["what"] == "reduce"


def test_values_of_peers_are_compared() -> None:
    array: Array = np.empty(5000, np.float32)
    seeds = seeds_of(3, 4)
    assert len(set(seeds)) == 4
    fill(array, seeds)
    check(array, seeds)
    array[77] += 1
    with pytest.raises(ValueError, match="a wrong value"):
        check(array, seeds)


def test_bad_input_is_refused_before_anything_starts() -> None:
    unknown = bench("peers", "--peer", "smoke-signals")
    assert unknown.exit_code == 2
    assert "not one of openmpi" in unknown.stderr.replace("\n", " ")
    assert bench("peers", "--operation", "scatter").exit_code == 2
    large = bench("broadcast", "--size", "1000GiB", "--peers")
    assert large.exit_code == 1
    assert "MiB of memory" in large.stderr
    odd = bench("peers", "--size", "7")
    assert odd.exit_code == 1
    assert "whole float32 numbers" in odd.stderr


def test_another_version_in_the_python_of_the_peers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be given options that it does not know."""
    other = tmp_path / "python"
    lines = [f"echo {name} {tmp_path}/{name}/__init__.py" for name in ("torch", "hoplite_ucx")]
    other.write_text("\n".join(["#!/bin/sh", *lines]))
    other.chmod(0o700)
    monkeypatch.setenv("HOPLITE_PEERS_PYTHON", str(other))
    why = why_missing("gloo")
    assert why is not None
    assert "another version of hoplite_ucx" in why
    (tmp_path / "hoplite_ucx" / "bench").mkdir(parents=True)
    (tmp_path / "hoplite_ucx" / "bench" / "peers").symlink_to(Path(launching.__file__).parent)
    assert why_missing("gloo") is None


def test_a_python_without_peers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_PEERS_PYTHON", os.devnull)
    done = bench("broadcast", "--hosts", "2", "--size", "1KiB", "--repeat", "1", "--peers", "--no-bare")
    assert done.exit_code == 1
    assert "does not run" in done.stderr
