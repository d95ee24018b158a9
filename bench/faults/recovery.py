"""How fast the library recovers: one kind of fault again and again at full size, compared with runs without a fault.

Each round is a case like those of a campaign, and is judged like them; what is wrong with one is a problem of all.
Rounds without a fault come in turn with the others, after an untimed one that warms up what was started anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hoplite_ucx.bench.faults.campaign import ROOM
from hoplite_ucx.bench.faults.cases import Outcome, play
from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.bench.faults.injecting import LONG, FaultKind
from hoplite_ucx.bench.faults.plans import Plan
from hoplite_ucx.bench.faults.recording import Times
from hoplite_ucx.bench.faults.scenarios import Operation, Role, Scenario

__all__ = ["SUBJECTS", "Found", "Subject", "measure_recovery"]


@dataclass(frozen=True)
class Subject:
    """What breaks in which operation, and whom it hits."""

    says: str
    operation: Operation
    kind: FaultKind
    role: Role
    seconds: float = 0.0
    of_all: float = 1.0
    """Which part of the sources is reduced."""

    def scenario(self, machines: int, size: int) -> Scenario:
        everyone = list(range(machines))
        if self.operation.reduces:
            return Scenario(self.operation, size, everyone, [0], 0, max(1, int(machines * self.of_all)))
        return Scenario(self.operation, size, [0], everyone[1:])

    def plan(self, number: int, machines: int, size: int, *, disturbed: bool) -> Plan:
        """In the middle; of several that fit, each in turn. The requester of a reduction stays."""
        first = 1 + number % (machines - 1)
        order = (*range(first, machines), *range(1, first), 0)
        kind = self.kind if disturbed else FaultKind.NOTHING
        seconds = self.seconds if disturbed else 0.0
        return Plan(number, self.scenario(machines, size), kind, seconds, self.role, order, 0.5)


SUBJECTS = {
    "relay": Subject("a relay is killed", Operation.BROADCAST, FaultKind.KILL_HOST, Role.RELAY),
    "silent-relay": Subject("a relay's cable is cut", Operation.BROADCAST, FaultKind.CUT, Role.RELAY, LONG[1]),
    "silent-source": Subject(
        "the only holder's cable is cut", Operation.BROADCAST, FaultKind.CUT, Role.SOURCE, LONG[1]
    ),
    "directory": Subject(
        "the directory is killed and started again", Operation.BROADCAST, FaultKind.DIRECTORY, Role.RELAY
    ),
    "directory-reduce": Subject(
        "the directory is killed and started again", Operation.REDUCE, FaultKind.DIRECTORY, Role.SLOT
    ),
    "spare": Subject(
        "half of the sources are reduced, and one dies", Operation.REDUCE, FaultKind.KILL_HOST, Role.SLOT, of_all=0.5
    ),
    "no-spare": Subject("all sources are reduced, and one dies", Operation.REDUCE, FaultKind.KILL_HOST, Role.SLOT),
}


@dataclass(frozen=True)
class Found:
    """`seconds` of rounds that came to a value, from the beginning to the last survivor; moments after the fault."""

    subject: str
    undisturbed: Times | None
    disturbed: Times | None
    noticed: Times | None
    next_byte: Times | None
    ended: Times | None
    """From the fault until the last call was answered, with a value or an error."""
    errors: Times | None
    """From the fault until the first typed error, where there was one."""
    hit: dict[str, int]
    """How often which role was really hit."""
    values: int
    """Rounds in which every survivor had its value."""
    problems: list[str]

    @property
    def ratio(self) -> float | None:
        """Disturbed to undisturbed, by their medians."""
        if self.undisturbed is None or self.disturbed is None:
            return None
        return self.disturbed.p50 / self.undisturbed.p50


def measure_recovery(
    name: str,
    *,
    machines: int,
    size: int,
    rate: float,
    repeat: int,
    advance: Callable[[], object] = lambda: None,
) -> Found:
    subject = SUBJECTS[name]
    plain: list[Outcome] = []
    broken: list[Outcome] = []
    with FaultCluster(machines, rate, ROOM * size) as cluster:
        for number in range(repeat):
            play(cluster, subject.plan(number, machines, size, disturbed=False))
            plain.append(play(cluster, subject.plan(number, machines, size, disturbed=False)))
            broken.append(play(cluster, subject.plan(number, machines, size, disturbed=True)))
            advance()
    return _found(name, plain, broken)


def _found(name: str, plain: list[Outcome], broken: list[Outcome]) -> Found:
    recoveries = [each for outcome in broken for each in outcome.recoveries]
    roles = [outcome.role.value for outcome in broken]
    return Found(
        name,
        Times.of(outcome.seconds for outcome in plain if outcome.seconds is not None),
        Times.of(outcome.seconds for outcome in broken if outcome.seconds is not None and not _errors(outcome)),
        Times.of(each.noticed for each in recoveries),
        Times.of(each.next_byte for each in recoveries if each.next_byte is not None),
        Times.of(outcome.after_fault for outcome in broken if outcome.after_fault is not None),
        Times.of(min(_errors(outcome)) for outcome in broken if _errors(outcome)),
        {role: roles.count(role) for role in sorted(set(roles))},
        sum(not _errors(outcome) for outcome in broken),
        [problem for outcome in (*plain, *broken) for problem in outcome.problems],
    )


def _errors(outcome: Outcome) -> list[float]:
    """When calls failed, after the fault."""
    if outcome.evidence is None:
        return []
    calls = outcome.evidence.calls
    return [c.answer.error.at - outcome.evidence.fault_at for c in calls if c.answer.error is not None]
