"""The judge of the fault harness: it must see what is wrong, and nothing else."""

from typing import Any

import pytest

from hoplite_ucx.bench.faults.injecting import Fault, FaultKind
from hoplite_ucx.bench.faults.oracle import LATE, Evidence, judge
from hoplite_ucx.bench.faults.scenarios import Call, Operation, Scenario
from hoplite_ucx.bench.faults.worker_proxy import Answer, WorkerError

DONE = Answer(done={"ended": 1.0})


def error(kind: str, ref: str | None = None, *, typed: bool = True, at: float = 0.1) -> Answer:
    return Answer(error=WorkerError(kind, typed, "text", ref, "remedy", at))


def broadcast(kind: FaultKind, victim: int, *answers: Answer, seconds: float = 0.0) -> Evidence:
    """Host 0 has it, hosts 1 to 3 get it; whatever came is right."""
    scenario = Scenario(Operation.BROADCAST, 1 << 20, [0], [1, 2, 3])
    return evidence(scenario, Fault(kind, victim, seconds), answers)


def reduction(kind: FaultKind, victim: int, count: int, *answers: Answer) -> Evidence:
    """Hosts 0 to 3 have a source each, host 0 and 1 get the sum of the first `count`."""
    scenario = Scenario(Operation.REDUCE, 1 << 20, [0, 1, 2, 3], [0, 1], 0, count)
    return evidence(scenario, Fault(kind, victim), answers)


def evidence(scenario: Scenario, fault: Fault, answers: tuple[Answer, ...]) -> Evidence:
    calls = [
        Call(rank, scenario.results, None, 0, answer)  # type: ignore[arg-type]
        for rank, answer in zip(scenario.getters, answers, strict=True)
    ]
    made = Evidence(scenario, fault, 0.0, calls)
    seeds = [source.seed for source in scenario.sources][: scenario.count or 1]
    for place, call in enumerate(calls):
        if call.answer.done is not None:
            made.checked |= {(place, ref): {"seeds": list(seeds)} for ref in call.refs}
    if scenario.target is not None and made.checked:
        refs = [source.ref for source in scenario.sources][: scenario.count]
        made.contributors = Answer(done={"refs": refs})
    return made


def lost(made: Evidence, place: int = 0) -> Answer:
    return error("ObjectLostError", made.scenario.results[place])


def test_nothing_is_wrong_when_all_is_well() -> None:
    assert judge(broadcast(FaultKind.KILL_HOST, 2, DONE, Answer(gone=True), DONE)) == []
    assert judge(broadcast(FaultKind.KILL_AGENT, 2, DONE, error("ClosedError"), DONE)) == []
    assert judge(broadcast(FaultKind.FULL, 2, DONE, error("StoreFullError"), DONE)) == []
    assert judge(reduction(FaultKind.KILL_HOST, 3, 3, DONE, DONE)) == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(), "hangs"),
        (Answer(gone=True), "was not killed"),
        (error("ClosedError"), "agent lives"),
        (error("StoreFullError"), "not filled"),
        (error("GetTimeoutError"), "no fault explains this"),
        (error("InternalError"), "no fault explains this"),
        (error("KeyError", typed=False), "not typed"),
        (error("ClosedError", at=LATE + 1), "after the fault"),
    ],
)
def test_errors_without_a_reason(answer: Answer, says: str) -> None:
    (problem,) = judge(broadcast(FaultKind.SLOW, 2, DONE, answer, DONE))
    assert says in problem


def with_losses(kind: FaultKind, victim: int, places: list[int], seconds: float = 0.0) -> list[str]:
    made = broadcast(kind, victim, DONE, DONE, DONE, seconds=seconds)
    for place in places:
        made.calls[place].answer = lost(made)
        del made.checked[place, made.scenario.results[0]]
    return judge(made)


def test_losses() -> None:
    everyone = [0, 1, 2]
    assert with_losses(FaultKind.KILL_HOST, 0, everyone) == []
    assert with_losses(FaultKind.CUT, 0, everyone, seconds=3.0) == []
    assert "a node that has the object lives" in with_losses(FaultKind.CUT, 0, everyone, seconds=0.5)[0]
    assert "a node that has the object lives" in with_losses(FaultKind.KILL_HOST, 3, everyone)[0]
    assert "hosts [1] have it" in with_losses(FaultKind.KILL_HOST, 0, [1, 2])[0]


@pytest.mark.parametrize(
    ("checked", "says"),
    [({"wrong": "a byte"}, "wrong value"), ({"seeds": [2]}, "bytes of"), (None, "not compared")],
)
def test_wrong_values(checked: dict[str, Any] | None, says: str) -> None:
    made = broadcast(FaultKind.SLOW, 2, DONE, DONE, DONE)
    key = (1, made.scenario.results[0])
    if checked is None:
        del made.checked[key]
    else:
        made.checked[key] = checked
    assert says in judge(made)[0]


def test_sums_must_be_of_whole_sources_and_the_same_for_all() -> None:
    made = reduction(FaultKind.SLOW, 2, 3, DONE, DONE)
    made.checked[1, made.scenario.results[0]] = {"seeds": [1, 2, 8]}
    problems = judge(made)
    assert any("different sums" in problem for problem in problems)
    assert any("contributors are said to be" in problem for problem in problems)
    made.checked[1, made.scenario.results[0]] = {"seeds": [1, 2]}
    assert any("2 sources are in it" in problem for problem in judge(made))


def test_a_reduction_may_fail_only_for_want_of_sources() -> None:
    def both_lost(kind: FaultKind, count: int) -> Evidence:
        made = reduction(kind, 3, count, DONE, DONE)
        made.checked.clear()
        made.contributors = None
        for call in made.calls:
            call.answer = lost(made)
        return made

    assert judge(both_lost(FaultKind.KILL_HOST, 4)) == []
    assert "enough sources" in judge(both_lost(FaultKind.KILL_HOST, 3))[0]
    assert "enough sources" in judge(both_lost(FaultKind.STOP, 4))[0]
    decided = both_lost(FaultKind.KILL_HOST, 3)
    decided.again = DONE
    assert judge(decided) == []


def test_what_is_left_and_what_was_said_are_problems() -> None:
    made = broadcast(FaultKind.SLOW, 2, DONE, DONE, DONE)
    made.left.append("a stream")
    made.words = "Traceback"
    assert len(judge(made)) == 2
