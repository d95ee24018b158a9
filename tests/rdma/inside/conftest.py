"""These tests run inside a guest of `ci/rdma` alone. Each names its tier; `/out/results.jsonl` gets what became of it.

`quick` and `default` run under qemu, the first also without the second; `live` runs in a user-mode kernel. A test adds
figures to its line with `record_property`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.transports.ucx import library

TIER = os.environ.get("HOPLITE_RDMA_TIER", "")
RESULTS = Path("/out/results.jsonl")
_RUNS = {"quick": {"quick"}, "default": {"quick", "default"}, "live": {"live"}}

collect_ignore_glob = [] if TIER else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _loaded() -> None:
    """Loading UCX takes seconds in software: no test's time is spent on it."""
    library.load()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    tiers = {item: item.get_closest_marker("tier") for item in here}
    for item, mark in tiers.items():
        if mark is None or mark.args not in [(name,) for name in _RUNS]:
            raise pytest.UsageError(f"{item.nodeid} does not name its tier, one of {', '.join(_RUNS)}")
    others = [item for item, mark in tiers.items() if mark is not None and mark.args[0] not in _RUNS[TIER]]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=_name(nodeid), outcome="started", seconds=0.0, figures={})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        why = "" if report.passed else str(report.longrepr)[-2000:]
        figures = dict(report.user_properties)
        _write(
            test=_name(report.nodeid),
            outcome=report.outcome,
            seconds=round(report.duration, 2),
            figures=figures,
            why=why,
        )


def _name(nodeid: str) -> str:
    return nodeid.rpartition("/")[2].removeprefix("test_").replace(".py::test_", ": ")


def _write(**line: Any) -> None:
    if not TIER:
        return  # these hooks hear of every test of a run on the host, too
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
