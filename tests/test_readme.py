"""What the README and the page about demo and simulator show is what their program and commands do."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.commands import HOPLITE
from tests.tools.readme import BLOCKS, MENTIONED, SHOWN, simulated

PROGRAMS = [block for language, block in BLOCKS if language == "python"]
DEMO = next(block for _, block in BLOCKS if block.startswith("8 emulated hosts"))
TIME = r"\d+(\.\d+)?(us|ms|s)"
LIMIT = rf"\d+\.\d\d × the limit of {TIME}"
DEMO_FORMS = (  # of its lines
    r"\d+ (emulated hosts of \w+|hosts on loopback), each with an agent and a worker",
    r"",
    r"1  broadcast of \w+ from host 0 to \d+ hosts",
    r"2  reduce of \w+ from the first \d+ of \d+ hosts to host 0; some come [\d., ]+ s late",
    rf"   [✗↪·] +{TIME}  (host \d+ (is killed with -9, when|continues from|pulls from)|nobody was killed:) .*",
    rf"(broadcast|reduce) +{TIME}( +{LIMIT})?( +host \d+ died(, rerouted in {TIME})?)?",
    rf" +made of \d+( \+ \d+)*( +{TIME}( \(\d+\.\d\d × the limit\))? after (the kill|the last of them came))?",
    r"every byte was right   \(\d+ s in all\)",
)


def test_the_example_runs(tmp_path: Path) -> None:
    values, contributors = printed(PROGRAMS[0], tmp_path)
    numbers = json.loads(contributors)
    assert len(set(numbers)) == 3
    assert values.split()[0] == f"[{sum(numbers)}."


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


def test_there_are_simulations_to_check() -> None:
    assert len(SHOWN) >= 2
    assert len(MENTIONED) >= 5


def test_the_demo_is_shown_in_the_form_it_has() -> None:
    assert demo_forms(DEMO) == set(DEMO_FORMS)


def test_the_demo_has_the_form_in_which_it_is_shown() -> None:
    """Figures and incidents differ from run to run; a host that is done early is not killed."""
    command = [*HOPLITE, "demo", "--hosts", "3", "--size", "4MiB", "--rate", "200mbit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    if "on loopback" in done.stdout:
        pytest.skip("without emulated hosts")
    assert demo_forms(done.stdout) <= set(DEMO_FORMS)


def demo_forms(text: str) -> set[str]:
    """Of its lines; a line of another form stands for itself."""
    return {next((form for form in DEMO_FORMS if re.fullmatch(form, line)), line) for line in text.splitlines()}


def test_the_speed_ups_are_those_of_the_applications() -> None:
    root = Path(__file__).parents[1]
    told = re.findall(r"(SGD|IMPALA|A3C|ensemble serving) (\d+\.\d) ×", (root / "README.md").read_text())
    page = (root / "docs" / "applications.md").read_text()
    measured = re.findall(r"^\| (\w+), [\d.]+ MiB, 16 nodes .*?\*\*(\d+\.\d\d) ×\*\*", page, re.MULTILINE)
    rounded = {name: float(times) for name, times in measured}
    assert {name.split()[-1].lower() for name, _ in told} == rounded.keys() - {"weight_sync"}
    for name, times in told:
        assert float(times) == pytest.approx(rounded[name.split()[-1].lower()], abs=0.051)
