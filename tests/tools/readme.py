"""Blocks of the README and of the page about demo and simulator, and what their commands print."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from hoplite_ucx.cli import app

ROOT = Path(__file__).resolve().parents[2]
_TEXT = (ROOT / "README.md").read_text() + (ROOT / "docs" / "try.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", _TEXT, re.MULTILINE | re.DOTALL)
PREFIX = ".venv/bin/hoplite simulate "
SIMULATED = [block for _, block in BLOCKS if block.startswith(PREFIX)]
SHOWN = [block.split("\n\n", 1) for block in SIMULATED if "\n\n" in block]
MENTIONED = [line for block in SIMULATED if "\n\n" not in block for line in block.splitlines()]


def simulated(command: str) -> str:
    """What the command prints into a file. It is the same every time: the time is virtual."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["simulate", *shlex.split(command.removeprefix(PREFIX))])
    assert done.exit_code == 0, done.output
    return "\n".join(line.rstrip() for line in done.output.splitlines()) + "\n"
