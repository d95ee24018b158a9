"""The peers beside us: real figures of Gloo, clear words about those that do not run, and nothing left behind."""

import glob
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench import keeper
from hoplite_ucx.bench.cluster import Cluster
from hoplite_ucx.bench.contents import Array, fill
from hoplite_ucx.bench.peers import launching
from hoplite_ucx.bench.peers.launching import why_missing
from hoplite_ucx.bench.peers.measuring import measure_peers
from hoplite_ucx.bench.peers.rounds import Cell, check, seeds_of
from hoplite_ucx.cli import app

pytestmark = pytest.mark.usefixtures("emulated_hosts")

RATE = 125e6


def bench(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", *arguments])


def left_behind(cluster_mark: str) -> list[str]:
    folders = glob.glob(f"{tempfile.gettempdir()}/hoplite-peer-*")
    return [*folders, *(str(pid) for pid, mark in keeper.marked().items() if mark == cluster_mark)]


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
    assert [each["what"] for each in told] == [
        *names[:2] * 2,
        *names[2:] * 2,
        *["Gloo allreduce"] * 2,
        *["Gloo broadcast"] * 2,
    ]
    for each in told:
        assert len(each["runs"]) == 2
        assert 0 < each["fastest_seconds"] <= each["seconds"] < 20
        assert each["ratio"] == pytest.approx(each["seconds"] / each["limit_seconds"])
        assert each["processor_seconds"] > 0
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
        figures = measure_peers(cluster, [Cell("reduce", 1024, 2)], rate=RATE, names=["broken", "absent"])
        assert left_behind(cluster.mark) == []
    assert not list(environment.iterdir())
    assert not figures.measured
    first, second = figures.not_run
    assert (first.what, first.why) == ("Broken", "Broken failed: why")
    assert second.what == "Absent"
    assert "no_such_module not found" in second.why
    assert "ci/peers" in second.why


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
    assert "none of openmpi" in unknown.stderr.replace("\n", " ")
    assert bench("peers", "--operation", "scatter").exit_code == 2
    large = bench("broadcast", "--size", "1000GiB", "--peers")
    assert large.exit_code == 1
    assert "MiB of memory" in large.stderr
    odd = bench("peers", "--size", "7")
    assert odd.exit_code == 1
    assert "whole float32 numbers" in odd.stderr


def test_a_python_without_peers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_PEERS_PYTHON", os.devnull)
    done = bench("broadcast", "--hosts", "2", "--size", "1KiB", "--repeat", "1", "--peers", "--no-bare")
    assert done.exit_code == 1
    assert "does not run" in done.stderr
