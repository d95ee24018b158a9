"""The report, from a journal alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.bench.apps.plan import PLAIN_AND_OURS, Kind, Run
from hoplite_ucx.bench.apps.report import page
from hoplite_ucx.bench.apps.running import about
from hoplite_ucx.bench.harness.journal import Journal
from hoplite_ucx.bench.hosts.line_process import PeerError

_SERVING = Run(Kind.TIMING, "serving", "votes", nodes=8, rate=125e6, size=48 << 20, rounds=4, compute=0.0)
_LOADED = replace(_SERVING, size=8 << 20, load=2.0)
_REAL = Run(Kind.TIMING, "sgd", "resnet50", nodes=4, rate=125e6, size=102_228_128, rounds=4)
_LEARNING = replace(_REAL, kind=Kind.LEARNING, task="small-cnn")
_EXACT = replace(_LEARNING, task="exact")
_KILLED = replace(_SERVING, kind=Kind.FAILURE, kill=1.0)
_SYNC = replace(_KILLED, application="weight_sync", task="versions")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal.in_folder(tmp_path)
    made.begin_run(
        {"begun": "today", "command": "hoplite bench apps", "machine": {"cores": 2}, "versions": {"ray": "2"}}
    )
    return made


def _tell(journal: Journal, run: Run, **more: Any) -> None:
    journal.begin(run.key)
    for system in PLAIN_AND_OURS:
        for number in range(4):
            row = {"round": number, "began": float(number), "seconds": 1.5, "workers": 7, "samples": 8, "computed": 1.0}
            if run.kill is not None and run.application != "weight_sync":
                row["killed"] = number == 3
            journal.tell(run.key, {**row, **more, **about(run), "system": system, "turn": 0})
    journal.finish(run.key, 1.0)


def _section(text: str, heading: str) -> str:
    return re.split(r"<h2>", text.partition(f"<h2>{heading}</h2>")[2])[0]


def test_a_journal_without_records_has_no_report(journal: Journal) -> None:
    with pytest.raises(PeerError, match="no records yet"):
        page(journal)


def test_every_kind_of_run_has_its_own_section(journal: Journal) -> None:
    for run in (_SERVING, _LOADED, _REAL, _KILLED):
        _tell(journal, run)
    _tell(journal, _LEARNING, score=2.0)
    _tell(journal, _SYNC, exactly=7, behind=0.5, wrong=0)
    exact = {**about(_EXACT), "system": "hoplite", "turn": 0, "sums": [{"wrong": 0, "worst": 0.0}]}
    journal.tell(_EXACT.key, exact)
    text = page(journal)
    timing = _section(text, "Timing runs")
    assert "serving, 48 MiB, 8 nodes" in timing
    assert "resnet50" not in timing
    assert "small-cnn" not in timing
    assert "resnet50" in _section(text, "A timing run with real compute")
    assert "2 queries/s" in _section(text, "Serving under open-loop load")
    assert "weight_sync" in _section(text, "Weight sync")
    death = _section(text, "A worker is killed with -9 and comes back")
    assert "serving, votes" in death
    assert death.count("<img") == 1
    learning = _section(text, "Learning runs")
    assert "small-cnn" in learning
    assert "exact" in learning
    assert "serving" not in learning
    assert "+import hoplite_ucx.ray as hoplite" in _section(text, "What a Ray user changes")


def test_a_missed_goal_comes_with_what_its_trace_says(journal: Journal) -> None:
    _tell(journal, _SERVING)
    trace = {"file": "trace-1.json", "rounds": 5, "whole": 10.0, "sending": 6.0, "busiest": 4.0}
    journal.tell(_SERVING.key, {"title": _SERVING.title, "trace": trace})
    timing = _section(page(journal), "Timing runs")
    assert "80%, missed" in timing
    assert "of 2.00 s, some host received for 1.20 s" in timing
    assert 'href="trace-1.json"' in timing


def test_a_missed_goal_may_have_no_trace(journal: Journal) -> None:
    _tell(journal, _SERVING)
    journal.tell(_SERVING.key, {"title": _SERVING.title, "untraced": "the hoplite program failed"})
    timing = _section(page(journal), "Timing runs")
    assert "80%, missed" in timing
    assert "no trace: the hoplite program failed" in timing


def test_all_that_a_failed_program_said_is_kept(journal: Journal) -> None:
    journal.tell(_SERVING.key, {"title": _SERVING.title, "not_run": "in short", "said": "Traceback\nin short"})
    assert "<details><summary>All that was said</summary><pre>Traceback\nin short" in _section(page(journal), "Not run")


def test_what_was_not_run_is_named(journal: Journal) -> None:
    journal.tell(_SERVING.key, {"title": _SERVING.title, "not_run": "Ray did not start <here>"})
    assert "Ray did not start &lt;here&gt;" in _section(page(journal), "Not run")
