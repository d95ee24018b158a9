"""What the README shows is what its program and its commands do."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = [block for language, block in BLOCKS if language == "python"]
PREFIX = ".venv/bin/hoplite simulate "
SIMULATED = [block for _, block in BLOCKS if block.startswith(PREFIX)]
SHOWN = [block.split("\n\n", 1) for block in SIMULATED if "\n\n" in block]
MENTIONED = [line for block in SIMULATED if "\n\n" not in block for line in block.splitlines()]
DEMO = next(block for _, block in BLOCKS if block.startswith("8 emulated hosts"))
TIME = r"\d+(\.\d+)?(us|ms|s)"
LIMIT = rf"\d+\.\d\d × the limit of {TIME}"
DEMO_FORMS = (  # of its lines
    r"\d+ (emulated hosts of \w+|hosts on loopback), each with an agent and a worker",
    r"",
    r"1  broadcast of \w+ from host 0 to \d+ hosts",
    r"2  reduce of \w+ from the first \d+ of \d+ hosts to host 0; some come [\d., ]+ s late",
    rf"   [✗↪] +{TIME}  host \d+ (is killed with -9, when|goes on behind host|pulls from host) .*",
    rf"(broadcast|reduce) +{TIME}( +{LIMIT})?( +host \d+ died(, rerouted in {TIME})?)?",
    rf" +made of \d+( \+ \d+)*( +{TIME}( \(\d+\.\d\d × the limit\))? after (the kill|the last of them came))?",
    r"every byte was right   \(\d+ s in all\)",
)


def simulated(command: str) -> str:
    """What the command prints into a file. It is the same every time: the time is virtual."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["simulate", *shlex.split(command.removeprefix(PREFIX))])
    assert done.exit_code == 0, done.output
    return "\n".join(line.rstrip() for line in done.output.splitlines()) + "\n"


def test_the_example_runs(tmp_path: Path) -> None:
    values, contributors = printed(PROGRAMS[0], tmp_path)
    numbers = json.loads(contributors)
    assert len(set(numbers)) == 3
    assert values.split()[0] == f"[{sum(numbers)}."


def test_the_other_calls_run(tmp_path: Path) -> None:
    where, info, error = printed(PROGRAMS[1], tmp_path)
    assert where.startswith("127.0.0.1:")
    assert info.startswith("ObjectInfo(")
    assert error.startswith("ObjectRef(")


def printed(program: str, folder: Path) -> list[str]:
    script = folder / "example.py"
    script.write_text(program)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_simulation_prints_what_is_shown(command: str, output: str) -> None:
    assert simulated(command) == output


@pytest.mark.parametrize("command", MENTIONED)
def test_a_simulation_that_is_mentioned_runs(command: str) -> None:
    assert simulated(command.replace("--seeds 0:1000", "--seeds 0:2"))  # a thousand runs would take a minute


def test_the_readme_has_simulations_to_check() -> None:
    assert len(SHOWN) >= 2
    assert len(MENTIONED) >= 5


@pytest.mark.parametrize("live", [False, True], ids=["shown", "live"])
def test_the_demo_looks_as_is_shown(live: bool) -> None:
    """Figures and incidents differ from run to run."""
    shown = DEMO
    if live:
        command = [sys.executable, "-m", "hoplite_ucx", "demo", "--hosts", "3", "--size", "4MiB", "--rate", "200mbit"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        if "on loopback" in done.stdout:
            pytest.skip("without emulated hosts")
        shown = done.stdout
    forms = [next((form for form in DEMO_FORMS if re.fullmatch(form, line)), line) for line in shown.splitlines()]
    assert set(forms) == set(DEMO_FORMS)
