"""The scripts of docs/examples that use torch run as they are."""

import subprocess
import sys

from tests.tools.packages import CHECKOUT

SECONDS = 300
"""Only ends a hang."""


def example(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(CHECKOUT / "docs" / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_data_parallel_training() -> None:
    loss, same = example("torch_training.py", "--processes", "2", "--steps", "40")
    assert float(loss.removeprefix("loss after 40 steps: ")) < 0.4, "it began near ln 2"
    assert same == "all processes have the same weights: True"


def test_weights_reach_processes_that_join_and_leave() -> None:
    lines = example("weight_sync.py", "--versions", "4")
    assert all(line.endswith(": right") for line in lines)
    assert {line.split(" has ")[0] for line in lines} == {"stays", "leaves early", "joins late"}
    for name in ("stays", "joins late"):
        assert f"{name} has version 3: right" in lines
