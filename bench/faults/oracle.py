"""Which results of a disturbed operation are allowed: the judge that knows which fault was injected.

The rules are the promises of docs/faults.md, as checks:
- every call ends, with a value or with a typed error that says what to do;
- a value is the bytes of one put, or the sum of `count` whole sources, and `contributors` names those;
- an object is lost only if its holders may count as dead, and for no caller if a living node has it;
- a reduction fails only if too few of its sources are left, or if its result was lost after it was decided: then the
  same call makes it again;
- a call says that its agent is gone only if it is, and that the store is full only where it was filled;
- otherwise nothing fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.faults.injecting import LEASE, Fault, FaultKind
from hoplite_ucx.bench.faults.scenarios import Call, Operation, Scenario
from hoplite_ucx.bench.faults.worker_proxy import Answer, WorkerError

__all__ = ["Checked", "Evidence", "judge"]

LATE = LEASE + 6.0
"""An error that comes later than this after the fault is as bad as a hang."""
_LOSSES = ("ObjectLostError", "PutAbortedError")

Checked = dict[str, Any]
"""Of one value: the seeds that are in it, or what is wrong with it."""


@dataclass
class Evidence:
    """Everything that is known of a case when it is over."""

    scenario: Scenario
    fault: Fault
    fault_at: float
    calls: list[Call]
    checked: dict[tuple[int, str], Checked] = field(default_factory=dict)
    """By the place of the call and the ref."""
    contributors: Answer | None = None
    again: Answer | None = None
    """What came of a result that was asked for again because it was lost."""
    words: str = ""
    """What agents and the directory wrote to standard error."""
    left: list[str] = field(default_factory=list)
    """What was left when everything was deleted."""


def judge(evidence: Evidence) -> list[str]:
    """Everything that is wrong, in words."""
    problems = [problem for place, call in enumerate(evidence.calls) for problem in _call(evidence, place, call)]
    problems += _together(evidence)
    problems += _contributors(evidence)
    problems += [f"an agent or the directory said: {evidence.words.strip()[-2000:]}"] if evidence.words.strip() else []
    return problems + [f"left behind: {what}" for what in evidence.left]


def enough_sources(scenario: Scenario, fault: Fault) -> bool:
    """Whether a reduction has as many sources as it needs, whatever became of the victim's."""
    return sum(source.rank not in _lost_ranks(fault) for source in scenario.sources) >= scenario.count


def _lost_ranks(fault: Fault) -> set[int]:
    return {fault.victim} if fault.loses_copies else set()


# --- one call ---------------------------------------------------------------------------------------------------


def _call(evidence: Evidence, place: int, call: Call) -> list[str]:
    fault, answer = evidence.fault, call.answer
    who = f"the get on host {call.rank}"
    is_victim = call.rank == fault.victim and not fault.spares_machines
    if answer.silent:
        return [f"{who} hangs"]
    if answer.gone:
        return [] if is_victim and fault.kills_worker else [f"{who} ended, although its worker was not killed"]
    if answer.error is not None:
        reason = _unjustified(evidence, answer.error, is_victim=is_victim)
        return [] if reason is None else [f"{who}: {reason}: {answer}"]
    return [f"{who}: {wrong}" for ref in call.refs if (wrong := _wrong_value(evidence, place, ref)) is not None]


def _wrong_value(evidence: Evidence, place: int, ref: str) -> str | None:
    scenario = evidence.scenario
    checked = evidence.checked.get((place, ref))
    if checked is None:
        return "a value that was not compared"
    if "wrong" in checked:
        return f"a wrong value: {checked['wrong']}"
    seeds = checked["seeds"]
    if ref == scenario.target:
        return None if len(seeds) == scenario.count else f"{len(seeds)} sources are in it, not {scenario.count}"
    own = [source.seed for source in scenario.sources if source.ref == ref]
    return None if seeds == own else f"it has the bytes of {seeds}, not of {own}"


def _unjustified(evidence: Evidence, error: WorkerError, *, is_victim: bool) -> str | None:
    """Why an error is not allowed; None if it is."""
    scenario, fault = evidence.scenario, evidence.fault
    if not error.typed or not error.remedy:
        return "an error that is not typed, or has no remedy"
    if error.at - evidence.fault_at > LATE:
        return f"an error {error.at - evidence.fault_at:.1f} s after the fault"
    if error.type == "ClosedError":
        return None if is_victim and fault.kills_agent else "its agent lives"
    if error.type == "StoreFullError":
        return None if is_victim and fault.kind is FaultKind.FULL else "its store was not filled"
    if error.type not in _LOSSES:
        return "no fault explains this"
    if error.ref is not None and error.ref not in scenario.refs:
        return "it names an unknown object"
    if scenario.target is None:
        return _unjustified_loss(evidence, error)
    if enough_sources(scenario, fault) and not _lost_after_seal(evidence):
        return "enough sources are left"
    return None


def _unjustified_loss(evidence: Evidence, error: WorkerError) -> str | None:
    scenario, fault = evidence.scenario, evidence.fault
    (source,) = (s for s in scenario.sources if s.ref == error.ref) if error.ref else (None,)
    if source is None:
        return "it does not say which object is lost"
    writer_died = scenario.operation is Operation.WRITTEN and fault.kills_worker and source.rank == fault.victim
    return None if source.rank in _lost_ranks(fault) or writer_died else "a node that has the object lives"


def _lost_after_seal(evidence: Evidence) -> bool:
    """The result was decided, and died with the only node that had all of it: asked for again, it is made again."""
    return evidence.fault.loses_copies and evidence.again is not None and evidence.again.done is not None


# --- all calls together -----------------------------------------------------------------------------------------


def _together(evidence: Evidence) -> list[str]:
    """A value that a living node has is lost for no caller; and all callers have the same sum."""
    fault, problems = evidence.fault, []
    counting = [(place, call) for place, call in enumerate(evidence.calls) if call.rank not in _lost_ranks(fault)]
    have = [call.rank for _, call in counting if call.answer.done is not None]
    lost = [call.rank for _, call in counting if call.answer.error is not None and call.answer.error.type in _LOSSES]
    if have and lost and evidence.scenario.operation is not Operation.GATHER:
        problems.append(f"hosts {have} have it, and to hosts {lost} it is lost")
    sums: set[tuple[int, ...]] = {
        tuple(checked["seeds"])
        for (_, ref), checked in evidence.checked.items()
        if ref == evidence.scenario.target and "seeds" in checked
    }
    if len(sums) > 1:
        problems.append(f"different sums were given out: {sorted(sums)}")
    return problems


def _contributors(evidence: Evidence) -> list[str]:
    answer, scenario = evidence.contributors, evidence.scenario
    if answer is None:
        return []
    if answer.done is None:
        return [f"the contributors are unknown: {answer}"]
    by_ref = {source.ref: source.seed for source in scenario.sources}
    named = sorted(by_ref.get(ref, 0) for ref in answer.done["refs"])
    return [
        f"{checked['seeds']} went in, and the contributors are said to be {named}"
        for (_, ref), checked in evidence.checked.items()
        if ref == scenario.target and "seeds" in checked and checked["seeds"] != named
    ]
