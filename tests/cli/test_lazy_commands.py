"""A command loads its own code, and nothing of the simulator or the benchmarks unless it is one of theirs."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import COMMANDS, app

_OTHERS = ("hoplite_ucx.bench", "hoplite_ucx.simulate")


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"], ["start", "--help"], ["delete", "--help"]])
def test_a_command_loads_neither_simulator_nor_benchmarks(arguments: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from hoplite_ucx.cli import app\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        f"print(json.dumps([name for name in sys.modules if name.startswith({_OTHERS!r})]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_is_listed_is_there(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert f"hoplite {name}" in shown.output
    assert "--install-completion" not in shown.output


def test_a_typo_is_told_what_it_may_have_meant() -> None:
    said = CliRunner().invoke(app, ["statu"])
    assert said.exit_code == 2
    assert "Did you mean 'status'" in said.output
