"""The figures of docs/design/striped-trees.md are what its model computes, where that is quick."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DESIGN = Path(__file__).resolve().parents[1] / "docs" / "design"
[ROW] = re.findall(r"^\| 256 \|(.*)\|$", (DESIGN / "striped-trees.md").read_text(), re.MULTILINE)
TWO_STRIPES, *_, KILLED = ROW.split("|")


@pytest.mark.parametrize(("figure", "options"), [(TWO_STRIPES, ["--stripes", "2"]), (KILLED, ["--kill", "0.01"])])
def test_the_model_gives_what_the_plan_says(figure: str, options: list[str]) -> None:
    command = [sys.executable, str(DESIGN / "striped_trees.py"), "256", *options]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"{figure.strip()} x S/B" in told
    assert " 0 unfinished" in told
