"""Recorded figures as a page: one machine, one commit, and where others are faster."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.harness import machine_facts
from hoplite_ucx.bench.harness.page import README_BEGIN, README_END, Recording, page, readme_table, with_table
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.cli import app

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "docs" / "figures" / "peers.jsonl"
MACHINE = {
    "processor": "a processor", "commit": "abc1234", "date": "2026-11-18", "cores": 2, "memory": 8 << 30,
    "kernel": "6.1", "python": "3.11.2", "load": 0.1,
}  # fmt: skip


def line(what: str, operation: str, size: int, *runs: float, **machine: Any) -> str:
    seconds = sorted(runs)[len(runs) // 2]
    limit = size / (0.95 * 125e6)
    return json.dumps(
        {
            "what": what, "operation": operation, "hosts": 8, "size": size, "rate": 125e6, "seconds": seconds,
            "limit_seconds": limit, "fastest_seconds": min(runs), "slowest_seconds": max(runs), "runs": runs,
            "versions": {"hoplite": "0.1.0", "numpy": "2.0"}, "machine": {**MACHINE, **machine},
        }
    )  # fmt: skip


LINES = [
    line("broadcast", "broadcast", 32 << 20, 0.289, 0.290, 0.291),
    line("Ray broadcast", "broadcast", 32 << 20, 2.03),
    line("reduce", "reduce", 1 << 20, 0.015, 0.016, 0.017),
    line("Open MPI reduce", "reduce", 1 << 20, 0.010, 0.011, 0.012),
    line("bare reduce", "reduce", 1 << 20, 0.009),
    line("allreduce", "allreduce", 1 << 10, 0.002, 0.004, 0.006),
    line("Ray allreduce", "allreduce", 1 << 10, 0.003, 0.003, 0.003),
]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "peers.jsonl"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_a_page_has_every_cell_and_says_where_others_are_faster(recorded: Path) -> None:
    text = page(Recording(recorded), "the command")
    assert "8 emulated hosts of 1 Gbit/s" in text
    assert "commit abc1234, 2026-11-18" in text
    assert "| broadcast, 32 MiB | **290 ms** (1.03) | 2.03 s (7.18) |  |  |" in text
    assert "| reduce, 1 MiB | 16 ms (1.81) |  | **11 ms** (1.25) | 9 ms (1.02) |" in text  # bare sockets do not count
    losses = text.partition("## Where we lose\n\n")[2].partition("\n\n")[0].splitlines()
    assert losses == [
        "- reduce, 1 MiB: 16 ms, 1.45 × the time of Open MPI (11 ms)",
        "- allreduce, 1 KiB: 4 ms, 1.33 × the time of Ray (3 ms); some of our rounds were as fast as some of theirs",
    ]


@pytest.mark.parametrize(
    ("differs", "named"),
    [({"commit": "def5678"}, "commit"), ({"processor": "another"}, "processor"), ({"cores": 4}, "cores")],
)
def test_figures_of_two_roofs_are_refused(recorded: Path, differs: dict[str, Any], named: str) -> None:
    recorded.write_text("\n".join([*LINES, line("gather", "gather", 1 << 20, 0.1, **differs)]))
    with pytest.raises(PeerError, match=f"more than one {named}"):
        Recording(recorded)


def test_the_command_writes_a_page_and_the_table_of_the_readme(recorded: Path, tmp_path: Path) -> None:
    readme, output = tmp_path / "README.md", tmp_path / "page.md"
    readme.write_text(f"before\n{README_BEGIN}\nold\n{README_END}\nafter\n")
    done = CliRunner().invoke(app, ["bench", "page", str(recorded), "--output", str(output), "--readme", str(readme)])
    assert done.exit_code == 0, done.output
    assert output.read_text().startswith("# Benchmarks\n")
    text = readme.read_text()
    assert text.startswith(f"before\n{README_BEGIN}\n8 emulated hosts")
    assert text.endswith(f"{README_END}\nafter\n")
    assert "broadcast, 32 MiB" in text
    assert "old" not in text


def test_a_readme_without_a_place_for_the_table_is_left_alone(recorded: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no place\n")
    done = CliRunner().invoke(app, ["bench", "page", str(recorded), "--readme", str(readme)])
    assert done.exit_code == 1
    assert "no place for the table" in done.output
    assert readme.read_text() == "no place\n"


def test_records_say_where_they_were_taken() -> None:
    facts = machine_facts.facts()
    assert facts["cores"] > 0
    assert facts["commit"] is None or facts["commit"].partition(",")[0].isalnum()


@pytest.mark.skipif(not RECORDED.exists(), reason="no figures are recorded in docs/figures")
def test_the_pages_are_what_the_recorded_figures_give() -> None:
    recording = Recording(RECORDED)
    command = "hoplite bench page docs/figures/peers.jsonl"
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page(recording, command)
    readme = (ROOT / "README.md").read_text()
    assert readme == with_table(readme, readme_table(recording))
