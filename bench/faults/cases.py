"""One case from beginning to end: an operation, a fault in the middle, its results, and no leftovers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.faults import oracle
from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.bench.faults.injecting import Fault, FaultKind
from hoplite_ucx.bench.faults.oracle import Evidence
from hoplite_ucx.bench.faults.plans import Plan
from hoplite_ucx.bench.faults.scenarios import CALL_SECONDS, Call, Operation, Role, identity, roles
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["Outcome", "Recovery", "play"]

_NOTICE = 0.03
"""The time between announcing the start and the start."""
_LOOK = 0.008
"""About how long a look at all agents takes."""
_GRACE = 8.0
"""After a call's own time limit; a call that is still silent then hangs."""
_RESTORE = 25.0
_REST = 6.0


@dataclass(frozen=True)
class Recovery:
    """Of one stream that the fault broke, seconds after it: when its receiver noticed, when the next byte came."""

    host: int
    noticed: float
    next_byte: float | None


@dataclass
class Outcome:
    plan: Plan
    fault: Fault
    role: Role
    roles: dict[int, Role]
    moment: float
    """Seconds after the operation began."""
    seconds: float | None = None
    """Until the last of the calls on other machines that came to a value."""
    after_fault: float | None = None
    """From the fault until the last call was answered."""
    recoveries: list[Recovery] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    evidence: Evidence | None = None


def play(cluster: FaultCluster, plan: Plan) -> Outcome:
    """Raises a `PeerError` if the cluster itself cannot continue; faults of the library are in the outcome."""
    scenario = plan.scenario
    scenario.prepare(cluster)
    at = time.monotonic() + _NOTICE
    calls = scenario.begin(cluster, at)
    if scenario.asked is not None:
        peer, ticket = scenario.asked
        if (answer := peer.answer(ticket, at + CALL_SECONDS)).done is None:
            raise PeerError(f"the reduction could not be requested: {answer}")
    least = _NOTICE if scenario.operation is Operation.WRITTEN else 0.0  # until there is something to get
    moment = at + max(least, plan.moment * scenario.expected_seconds(len(cluster.machines), cluster.rate))
    time.sleep(max(0.0, moment - _LOOK - time.monotonic()))
    found = _look(cluster, plan)
    victim = _choose(plan, found)
    fault = Fault(plan.kind, victim, plan.seconds)
    victim_node = cluster.machines[victim].node
    fault_at = fault.inject(cluster, scenario.filler)
    outcome = Outcome(plan, fault, found.get(victim, Role.IDLE), found, fault_at - at)
    evidence = outcome.evidence = Evidence(scenario, fault, fault_at, calls)
    disturbed = list(calls)  # others may follow

    _wait_and_undo(cluster, fault, fault_at, calls, at)
    _collect(cluster, evidence, at)
    _ask_again(cluster, evidence)
    for call in evidence.calls:
        outcome.answers[str(call.rank)] = str(call.answer)
    ends = [_ended(call) for call in disturbed]
    outcome.after_fault = max((end - fault_at for end in ends if end is not None), default=None)
    spared = [call for call in disturbed if fault.spares_machines or call.rank != victim]
    done = [call.answer.done["ended"] - at for call in spared if call.answer.done is not None]
    outcome.seconds = max(done, default=None)
    _compare(cluster, evidence)
    outcome.recoveries = _recoveries(cluster, evidence, victim_node)
    _clean_up(cluster, evidence)
    evidence.words = cluster.new_words()
    outcome.problems = oracle.judge(evidence)
    return outcome


# --- before -----------------------------------------------------------------------------------------------------


def _look(cluster: FaultCluster, plan: Plan) -> dict[int, Role]:
    asked = [(machine, machine.peer.tell("look")) for machine in cluster.machines]
    deadline = time.monotonic() + 5.0
    looks = {machine.index: machine.peer.answer(ticket, deadline).done for machine, ticket in asked}
    nodes = {machine.node: machine.index for machine in cluster.machines}
    return roles(plan.scenario, {rank: look for rank, look in looks.items() if look is not None}, nodes)


def _choose(plan: Plan, found: dict[int, Role]) -> int:
    fitting = [rank for rank in plan.order if found.get(rank) is plan.role]
    if plan.kind is FaultKind.FULL:  # it hits a machine that receives
        fitting = [rank for rank in plan.order if rank in plan.scenario.getters]
    return fitting[0] if fitting else plan.order[0]


# --- after ------------------------------------------------------------------------------------------------------


def _wait_and_undo(cluster: FaultCluster, fault: Fault, fault_at: float, calls: list[Call], at: float) -> None:
    if fault.kind is FaultKind.RESTART_AGENT:  # its worker is to hear of it before it is replaced
        for call in calls:
            if call.rank == fault.victim:
                call.answer = call.peer.answer(call.ticket, at + CALL_SECONDS + _GRACE)
    time.sleep(max(0.0, fault_at + fault.seconds - time.monotonic()))
    fault.undo(cluster)


def _collect(cluster: FaultCluster, evidence: Evidence, at: float) -> None:
    for call in evidence.calls:
        if call.answer.silent:
            call.answer = call.peer.answer(call.ticket, at + CALL_SECONDS + _GRACE)
    scenario, fault = evidence.scenario, evidence.fault
    if scenario.written is not None:  # whatever became of it, the writer must have come to an end
        peer, ticket = scenario.written
        if peer.answer(ticket, at + CALL_SECONDS + _GRACE).silent:
            evidence.left.append("a writer that hangs")
    if fault.kind is FaultKind.RESTART_AGENT and scenario.operation is not Operation.GATHER:
        _get_now(cluster, evidence, fault.victim)  # the newcomer wants it too
    elif all(call.answer.gone for call in evidence.calls):
        survivor = next(machine.index for machine in cluster.machines if machine.worker is not None)
        _get_now(cluster, evidence, survivor)  # no requester is left; the operation must still end


def _get_now(cluster: FaultCluster, evidence: Evidence, rank: int) -> None:
    """A get after a loss waits for the object to be put again: it is made only if there is one."""
    lost = any(c.answer.error is not None and c.answer.error.type != "ClosedError" for c in evidence.calls)
    if lost or _holders_are_dead(evidence):
        return
    call = evidence.scenario.get(cluster, rank)
    call.answer = call.peer.answer(call.ticket, time.monotonic() + CALL_SECONDS + _GRACE)
    evidence.calls.append(call)


def _holders_are_dead(evidence: Evidence) -> bool:
    scenario, fault = evidence.scenario, evidence.fault
    if scenario.target is not None:
        return not oracle.enough_sources(scenario, fault)
    return fault.victim in scenario.holders and (fault.loses_copies or fault.kills_worker)


def _ask_again(cluster: FaultCluster, evidence: Evidence) -> None:
    """A reduction that was lost although it has all its sources is requested again by a living worker."""
    scenario, fault = evidence.scenario, evidence.fault
    lost = any(c.answer.error is not None and c.answer.error.type == "ObjectLostError" for c in evidence.calls)
    if scenario.target is None or not lost or not oracle.enough_sources(scenario, fault):
        return
    survivor = next(rank for rank in range(len(cluster.machines)) if rank != fault.victim)
    scenario.requester = survivor
    peer, ticket = scenario.ask(cluster)
    deadline = time.monotonic() + CALL_SECONDS + _GRACE
    evidence.again = peer.answer(ticket, deadline)
    if evidence.again.done is not None:
        call = scenario.get(cluster, survivor)
        evidence.again = call.answer = call.peer.answer(call.ticket, deadline)
        if call.answer.done is not None:
            evidence.again = call.answer
            checked = call.peer.ask("check", ref=call.refs[0], size=scenario.size, seeds=_seeds(evidence))
            if checked.done is None or "wrong" in checked.done:
                evidence.left.append(f"a wrong value when it was asked for again: {checked}")


def _ended(call: Call) -> float | None:
    answer = call.answer
    if answer.error is not None:
        return answer.error.at
    return answer.done["ended"] if answer.done is not None else None


def _seeds(evidence: Evidence) -> list[int]:
    return [source.seed for source in evidence.scenario.sources]


def _compare(cluster: FaultCluster, evidence: Evidence) -> None:
    scenario = evidence.scenario
    asked = []
    for place, call in enumerate(evidence.calls):
        if call.answer.done is not None:
            for ref in call.refs:
                step = {"ref": ref, "size": scenario.size, "seeds": _seeds(evidence)}
                asked.append((place, ref, call.peer, call.peer.tell("check", **step)))
    deadline = time.monotonic() + CALL_SECONDS
    for place, ref, peer, ticket in asked:
        answer = peer.answer(ticket, deadline)
        evidence.checked[place, ref] = answer.done if answer.done is not None else {"wrong": str(answer)}
    if scenario.target is not None and evidence.again is None and evidence.checked:
        asker = next(m for m in cluster.machines if m.agent is not None and m.worker is not None)
        evidence.contributors = asker.peer.ask("contributors", ref=scenario.target)


def _recoveries(cluster: FaultCluster, evidence: Evidence, victim: str) -> list[Recovery]:
    """From what the agents remember of streams that came from the victim and broke."""
    if evidence.fault.spares_machines:
        return []
    alive = [m for m in cluster.machines if m.agent is not None and m.worker is not None and not m.worker.gone]
    asked = [(machine, machine.peer.tell("history", refs=evidence.scenario.refs)) for machine in alive]
    deadline = time.monotonic() + CALL_SECONDS
    found = []
    for machine, ticket in asked:
        answer = machine.peer.answer(ticket, deadline)
        streams = answer.done["streams"] if answer.done is not None else []
        found += _recoveries_on(machine.index, streams, victim, evidence.fault_at)
    return found


def _recoveries_on(host: int, streams: list[dict[str, Any]], victim: str, fault_at: float) -> list[Recovery]:
    found = []
    for place, stream in enumerate(streams):
        closed = stream["closed"]
        if identity(stream["sender"]) != victim or closed is None or closed < fault_at or stream["opened"] > fault_at:
            continue
        if stream["watermark"] < stream["size"]:
            alike = (s for s in streams[place + 1 :] if (s["ref"], s["into"]) == (stream["ref"], stream["into"]))
            following = next((s["first_byte"] for s in alike if s["first_byte"] is not None), None)
            next_byte = None if following is None else following - fault_at
            found.append(Recovery(host, closed - fault_at, next_byte))
    return found


# --- the end ----------------------------------------------------------------------------------------------------


def _clean_up(cluster: FaultCluster, evidence: Evidence) -> None:
    """Repair everything, delete everything, and check that nothing is left."""
    cluster.restore(time.monotonic() + _RESTORE)
    for machine in cluster.machines:
        machine.peer.ask("drop")
    refs = [*evidence.scenario.refs, evidence.scenario.filler]
    deleted = cluster.machines[0].peer.ask("delete", refs=refs)
    if deleted.done is None:
        evidence.left.append(f"objects that could not be deleted: {deleted}")
    deadline = time.monotonic() + _REST
    while left := _left(cluster):
        if time.monotonic() > deadline:
            evidence.left += left
            return
        time.sleep(0.05)


def _left(cluster: FaultCluster) -> list[str]:
    left = []
    for machine in cluster.machines:
        look = machine.peer.ask("look")
        if look.done is None:
            left.append(f"host {machine.index} does not report: {look}")
        elif look.done["objects"] or look.done["used"] or look.done["streams"]:
            told = {name: look.done[name] for name in ("objects", "used", "streams", "phases")}
            left.append(f"host {machine.index} still has {told}")
    return left
