"""`hoplite simulate chaos`: what it says of sound seeds, of mutants and of bad input."""

import json

import pytest
from typer.testing import CliRunner, Result

from hoplite_ucx.cli import app


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


@pytest.mark.parametrize(
    "arguments", [("--seeds", "5"), ("--seeds", "9:3"), ("--mutant", "none-such"), ("--seed", "1", "--seeds", "0:3")]
)
def test_bad_input_is_refused(arguments: tuple[str, ...]) -> None:
    result = chaos(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
