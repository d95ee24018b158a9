"""`hoplite simulate chaos`: what it says of sound seeds, of fresh ones, of mutants, recordings and bad input."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hoplite_ucx.cli import app
from hoplite_ucx.simulate.chaos import run_seed
from hoplite_ucx.simulate.cluster import VirtualCluster
from hoplite_ucx.simulate.mutants import MUTANTS


def chaos(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "chaos", *arguments])


def test_sound_seeds_pass() -> None:
    result = chaos("--seeds", "0:6", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "6 seeds, 0 failed" in result.output


def test_one_seed_tells_its_story() -> None:
    result = chaos("--seed", "3")
    assert result.exit_code == 0, result.output
    assert "seed 3: all promises kept" in result.output
    assert "directory" in result.output


def test_a_mutant_is_caught_and_can_be_replayed() -> None:
    result = chaos("--mutant", "no-seal", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "mutant no-seal: caught after" in result.output
    assert "replay: hoplite simulate chaos --seed" in result.output


def test_json_is_one_object_and_nothing_else() -> None:
    figures = json.loads(chaos("--seeds", "0:3", "--jobs", "1", "--json").stdout)
    assert figures["seeds"] == 3
    assert figures["failed"] == 0
    assert figures["failures"] == []


def test_fresh_seeds_are_named() -> None:
    result = chaos("--minutes", "0.001", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert re.search(r"^seeds from \d+ up, for 0.001 minutes\n\d+ seeds, 0 failed", result.output)


def test_every_failure_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualCluster, "node_machine", MUTANTS["no-seal"].cluster().node_machine)
    result = chaos("--seeds", "0:6", "--jobs", "1", "--no-reductions")
    assert result.exit_code == 1, result.output
    failed = [seed for seed in range(6) if not run_seed(seed, reductions=False).ok]
    assert len(failed) > 3, "more than those whose story is told"
    for seed in failed:
        assert f"replay: hoplite simulate chaos --seed {seed} --no-reductions\n" in result.output


def test_ctrl_c_ends_it_with_what_was_found_so_far() -> None:
    """Also where it reaches every process of the terminal."""
    command = [sys.executable, "-c", "from hoplite_ucx.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "simulate", "chaos", "--minutes", "10", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("seeds from ")
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "seeds, 0 failed" in output
    assert errors == ""
    assert process.returncode == 130


def test_ctrl_c_before_the_first_run_is_answered_as_later() -> None:
    code = (
        "import os, signal\nfrom hoplite_ucx.cli import chaos, main\nmake = chaos.Progress\n"
        "chaos.Progress = lambda **how: (os.kill(os.getpid(), signal.SIGINT), make(**how))[1]\nmain()"
    )
    command = [sys.executable, "-c", code, "simulate", "chaos", "--jobs", "2", "--minutes", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "seeds, 0 failed" in done.stdout
    assert (done.returncode, done.stderr) == (130, "")


def test_ctrl_c_that_reaches_a_worker_as_it_begins_breaks_nothing(tmp_path: Path) -> None:
    """However this Python starts workers: each of them loads this, or is forked from who did."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nfrom multiprocessing.process import BaseProcess\nbegin = BaseProcess._bootstrap\n"
        "def interrupted(self, *given, **named):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return begin(self, *given, **named)\n"
        "BaseProcess._bootstrap = interrupted\n"
    )
    command = [sys.executable, "-m", "hoplite_ucx", "simulate", "chaos", "--jobs", "2", "--seeds", "0:40"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert "40 seeds, 0 failed" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_is_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded = chaos("--seed", "16", "--mutant", "no-flush", "--record", str(path))
    assert recorded.exit_code == 1, recorded.output
    assert "seed 16:" in recorded.output
    again = chaos("--replay", str(path), "--mutant", "no-flush")
    assert again.exit_code == 1
    assert again.output.partition(":")[2] == recorded.output.partition(":")[2]
    sound = chaos("--replay", str(path))
    assert sound.exit_code == 0, sound.output
    assert "all promises kept" in sound.output
    assert json.loads(chaos("--replay", str(path), "--json").stdout)["problem"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seeds", "5"),
        ("--seeds", "9:3"),
        ("--seed", "-1"),
        ("--mutant", "none-such"),
        ("--seed", "1", "--seeds", "0:3"),
        ("--seed", "1", "--minutes", "1"),
        ("--minutes", "0"),
        ("--minutes", "nan"),
        ("--minutes", "inf"),
        ("--record", "run.jsonl"),
        ("--seed", "1", "--record", "/none/such/run.jsonl"),
        ("--replay", "/none/such/run.jsonl"),
        ("--replay", __file__),
    ],
)
def test_bad_input_is_refused(arguments: tuple[str, ...]) -> None:
    result = chaos(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
