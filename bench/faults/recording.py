"""The records of a campaign: one JSON object per case, in a file that a later run continues; and their summary.

A case is known by its number. A file belongs to one seed, one number of machines and one size of objects: its first
line says so, and a run with others is refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hoplite_ucx.bench.faults.cases import Outcome
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["Record", "Recording", "Settings", "Summary", "Times", "percentile", "summarise"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What the cases of a campaign have in common. `size` is that of the largest objects."""

    seed: int
    machines: int
    size: int
    rate: float


def record_of(outcome: Outcome) -> Record:
    scenario, fault = outcome.plan.scenario, outcome.fault
    return {
        "case": outcome.plan.number,
        "operation": scenario.operation.value,
        "size": scenario.size,
        "sources": len(scenario.sources),
        "count": scenario.count,
        "fault": fault.kind.value,
        "fault_seconds": fault.seconds,
        "long": fault.outlasts_lease,
        "victim": fault.victim,
        "role": outcome.role.value,
        "moment_seconds": outcome.moment,
        "seconds": outcome.seconds,
        "after_fault_seconds": outcome.after_fault,
        "noticed_seconds": [each.noticed for each in outcome.recoveries],
        "next_byte_seconds": [each.next_byte for each in outcome.recoveries if each.next_byte is not None],
        "answers": outcome.answers,
        "problems": outcome.problems,
    }


class Recording:
    """The records of a campaign, in memory and, with a path, in a file."""

    def __init__(self, settings: Settings, path: Path | None = None) -> None:
        self.records: list[Record] = []
        self._path = path
        if path is None:
            return
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            path.write_text(json.dumps({"campaign": asdict(settings)}) + "\n")
            return
        try:
            first, *rest = (json.loads(line) for line in lines)
        except ValueError as error:
            raise PeerError(f"{path} is not a record of a campaign: {error}") from error
        if first != {"campaign": asdict(settings)}:
            raise PeerError(f"{path} belongs to another campaign, {first}; give its settings, or another file")
        self.records = rest

    def missing(self, faults: int) -> list[int]:
        """Which of the first `faults` cases are not recorded."""
        done = {record["case"] for record in self.records}
        return [number for number in range(faults) if number not in done]

    def add(self, record: Record) -> None:
        self.records.append(record)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


# --- figures ----------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], part: float) -> float:
    """The least value that `part` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


@dataclass(frozen=True)
class Times:
    """Of many: how many there are, the median, the 99th percentile and the most."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Times | None:
        found = list(values)
        if not found:
            return None
        return cls(len(found), percentile(found, 0.5), percentile(found, 0.99), max(found))


@dataclass(frozen=True)
class Summary:
    cases: int
    by_fault: dict[str, int]
    by_operation: dict[str, int]
    by_role: dict[str, int]
    errors: dict[str, int]
    """How often calls ended in which error; each of them was found justified, or is among the problems."""
    noticed: dict[str, Times]
    """By fault, of the streams that it broke."""
    next_byte: dict[str, Times]
    completed: dict[str, Times]
    """By fault: from it until the last call was answered."""
    problems: list[tuple[int | None, str]]

    @property
    def passed(self) -> bool:
        """Without a case, nothing is proven."""
        return bool(self.cases) and not self.problems

    def json_line(self) -> str:
        told = asdict(self)
        told["passed"] = self.passed
        return json.dumps({"summary": told})


def summarise(records: Sequence[Record]) -> Summary:
    kinds = sorted({kind_of(record) for record in records})
    return Summary(
        cases=len(records),
        by_fault=dict(Counter(kind_of(record) for record in records)),
        by_operation=dict(Counter(record.get("operation", "none") for record in records)),
        by_role=dict(Counter(record.get("role", "none") for record in records)),
        errors=dict(
            Counter(answer.partition(":")[0] for record in records for answer in record.get("answers", {}).values())
        ),
        noticed=_times(records, kinds, "noticed_seconds"),
        next_byte=_times(records, kinds, "next_byte_seconds"),
        completed=_times(records, kinds, "after_fault_seconds"),
        problems=[(record["case"], problem) for record in records for problem in record["problems"]],
    )


def kind_of(record: Record) -> str:
    """A fault's name; a silence that outlasts the lease is another fault than one that does not."""
    return f"{record.get('fault', 'none')}{', long' if record.get('long') else ''}"


def _times(records: Sequence[Record], kinds: Sequence[str], field: str) -> dict[str, Times]:
    found = {}
    for kind in kinds:
        values: list[float] = []
        for record in records:
            if kind_of(record) == kind and (value := record.get(field)) is not None:
                values += value if isinstance(value, list) else [value]
        if (times := Times.of(value for value in values if value >= 0)) is not None:
            found[kind] = times
    return found
