"""The page of the manual, from a journal alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.bench.apps.manual_page import is_journal, page
from hoplite_ucx.bench.apps.plan import PLAIN_AND_OURS, Kind, Run
from hoplite_ucx.bench.apps.running import about
from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.hosts.line_process import PeerError

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "docs" / "figures" / "apps.jsonl"
_MACHINE = {"processor": "a processor", "cores": 2, "memory": 8 << 30, "kernel": "6", "python": "3", "date": "today"}
_SERVING = Run(Kind.TIMING, "serving", "votes", nodes=8, rate=125e6, size=48 << 20, rounds=4, compute=0.0)


def _journal(folder: Path, *commits: str) -> Journal:
    made = Journal.in_folder(folder)
    for commit in commits:
        made.begin_run(
            {"machine": {**_MACHINE, "load": 0.25, "commit": commit}, "versions": {"hoplite": "0.1", "ray": "2.60"}}
        )
    return made


def _tell(journal: Journal, **seconds: float) -> None:
    for system in PLAIN_AND_OURS:
        for number in range(4):
            row: dict[str, Any] = {"round": number, "began": float(number), "seconds": seconds[system], "workers": 7}
            row |= {"samples": 8, "computed": 0.0, "answer": "the same"}
            journal.tell(_SERVING.key, {**row, **about(_SERVING), "system": system, "turn": 0})


def test_figures_and_what_is_missed(tmp_path: Path) -> None:
    journal = _journal(tmp_path, "abc123")
    _tell(journal, plain=4.0, hoplite=1.0)
    trace = {"file": "trace-1.json", "rounds": 5, "whole": 10.0, "sending": 6.0, "busiest": 4.0}
    journal.tell(_SERVING.key, {"title": _SERVING.title, "trace": trace})
    text = page(journal, "hoplite bench page")
    assert "at commit abc123, today. With ray 2.60. The load average was 0.2 when runs began" in text
    assert "| **4.00 ×** | 7.00 × | 57% (goal 80%, **missed**) | 7 × |" in text
    assert "0 of 1 settings with a goal reach it." in text
    assert "in a round of 2.00 s some host received for 1.20 s" in text
    assert "8 answers of ensembles were the same" in text
    assert is_journal(journal.path)


def test_what_failed_is_named(tmp_path: Path) -> None:
    journal = _journal(tmp_path, "abc123")
    _tell(journal, plain=4.0, hoplite=1.0)
    assert "What failed" not in page(journal, "hoplite bench page")
    other = replace(_SERVING, nodes=16)
    journal.tell(other.key, {"title": other.title, "not_run": "Ray did not start"})
    assert page(journal, "hoplite bench page").endswith(f"\n\n## What failed\n\n- {other.title}: Ray did not start\n")


def test_figures_of_several_commits_make_no_page(tmp_path: Path) -> None:
    journal = _journal(tmp_path, "abc123", "def456")
    _tell(journal, plain=4.0, hoplite=1.0)
    with pytest.raises(PeerError, match="several commits: abc123, def456"):
        page(journal, "hoplite bench page")


@pytest.mark.skipif(not RECORDED.exists(), reason="no figures of applications are recorded in docs/figures")
def test_the_page_is_what_the_recorded_figures_give() -> None:
    command = "hoplite bench page docs/figures/apps.jsonl"
    assert (ROOT / "docs" / "applications.md").read_text() == page(Journal(RECORDED), command)
