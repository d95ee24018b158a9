"""The simulated ratios of docs/simulated.md are what its commands compute."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "simulated.md"
ROWS = re.findall(r"^\| .* \| (.*) \| `((?:broadcast|gather|reduce|allreduce) .*)` \|$", PAGE.read_text(), re.MULTILINE)
RATIO = r"(≤ )?(\d+\.(\d+)) × (?:\d )?(?:S/B|the limit)"
WITHOUT_DIRECTORY = ("--directory-cost", "0us")  # as the page says
TOO_LONG = "allreduce --nodes 64"  # 17 s
CHECKED = [(text, command) for text, command in ROWS if re.search(RATIO, text) and not command.startswith(TOO_LONG)]


@pytest.mark.parametrize(("text", "command"), CHECKED, ids=[command for _, command in CHECKED])
def test_a_ratio_is_what_the_command_computes(text: str, command: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *shlex.split(command), *WITHOUT_DIRECTORY, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    again = result.get("again") or {}
    ratios = [ratio for ratio in (result["ratio"], result.get("after_last_ratio"), again.get("ratio")) if ratio]
    [(bound, figure, decimals), *_] = re.findall(RATIO, text)
    rounded = [f"{ratio:.{len(decimals)}f}" for ratio in ratios]
    assert figure in rounded or (bound and float(min(rounded)) <= float(figure))


def test_there_are_ratios_to_check() -> None:
    assert len(CHECKED) >= 15
