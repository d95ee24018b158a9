"""Faults against real processes on emulated hosts: a part of the campaign, in a few clusters that are used again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.faults.campaign import run_campaign
from hoplite_ucx.bench.faults.injecting import FaultKind
from hoplite_ucx.bench.faults.plans import draw
from hoplite_ucx.bench.faults.recording import Settings
from hoplite_ucx.bench.faults.scenarios import Operation
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.cli import app

SIZE = 8 << 20
MORE = pytest.mark.long(reason="more seeds of the same")
RATE = 50e6


@pytest.mark.usefixtures("emulated_hosts")
@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=MORE) for seed in (12, 13, 14, 15))])
def test_faults_in_the_middle_of_everything(seed: int) -> None:
    """Ten each: no wrong byte, no hang, every error justified, nothing left."""
    records = run_campaign(Settings(seed, 4, SIZE, RATE), 10)
    assert len(records) == 10
    assert [(record, record["problems"]) for record in records if record["problems"]] == []


@pytest.mark.usefixtures("emulated_hosts")
def test_the_command_goes_on_where_it_was(tmp_path: Path) -> None:
    output = tmp_path / "campaign.jsonl"
    common = ["bench", "faults", "--seed", "5", "--size", "4MiB", "--hosts", "3", "--output", str(output), "--json"]
    first = CliRunner().invoke(app, [*common, "--faults", "1"])
    assert first.exit_code == 0, first.output
    second = CliRunner().invoke(app, [*common, "--faults", "2"])
    assert second.exit_code == 0, second.output
    lines = [json.loads(line) for line in second.stdout.splitlines()]
    assert [line["case"] for line in lines[:-1]] == [1]
    assert lines[-1]["summary"]["cases"] == 2
    assert lines[-1]["summary"]["passed"]
    assert len(output.read_text().splitlines()) == 3
    other = CliRunner().invoke(app, [*common, "--faults", "2", "--seed", "6"])
    assert other.exit_code == 1
    assert "another campaign" in other.stderr


def test_bad_input() -> None:
    with pytest.raises(PeerError, match="machines"):
        run_campaign(Settings(0, 1, SIZE, RATE), 1)
    with pytest.raises(PeerError, match="1MiB"):
        run_campaign(Settings(0, 4, 1000, RATE), 1)


def test_cases_repeat_and_cover_everything() -> None:
    def told(number: int) -> tuple[object, ...]:
        plan = draw(3, number, 4, SIZE)
        scenario = plan.scenario
        return (
            *(scenario.operation, scenario.size, scenario.holders, scenario.getters, scenario.count),
            *(plan.kind, plan.seconds, plan.role, plan.order, plan.moment),
        )

    assert [told(number) for number in range(50)] == [told(number) for number in range(50)]
    plans = [draw(3, number, 4, SIZE) for number in range(300)]
    assert {plan.kind for plan in plans} == set(FaultKind) - {FaultKind.NOTHING}
    assert {plan.scenario.operation for plan in plans} == set(Operation)
    assert all(plan.scenario.count <= len(plan.scenario.sources) for plan in plans)
