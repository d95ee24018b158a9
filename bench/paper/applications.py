"""Figure 12's applications: a loop that goes on while one of its workers is killed with -9 and comes back.

Serving: a front end puts a query, every worker gets it and puts its answer, and the front end gets the sum of the
answers of all workers that lived to give one. Training: a server gets the sum of the first half of the gradients that
are there, puts new parameters, and the contributors continue with those. Latencies are of whole rounds.

The driver stands for the task system: it tells workers over pipes what to do, sees a worker end as its parent does, and
starts it again at once, with agent and empty store, on the same cores that the others work on. Every sum is compared.
"""

from __future__ import annotations

import secrets
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.faults.fault_cluster import FaultCluster, Machine
from hoplite_ucx.bench.faults.worker_proxy import Answer, Peer
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.errors import HopliteError

__all__ = ["Lap", "serve", "train"]

_PATIENCE = 30.0
_NOTICE = 0.05
"""From telling the front end its query until it puts it: the array is to be ready."""
_ANSWER = 256 << 10
_THINKING = 0.05
_INTO_ROUND = 0.4
"""Where in a round the worker is killed, as a part of what rounds take."""
_WARM = 3
"""Rounds that do not count: links are opened, memory is touched for the first time."""


@dataclass(frozen=True)
class Lap:
    """One round: when it began, how long it took, how many workers took part, and what happened in it."""

    began: float
    seconds: float
    workers: int
    event: str | None = None
    """"failed" if a worker was lost in it, "rejoined" if it is the first with the worker that came back."""


def serve(arena: FaultCluster, rounds: int, size: int) -> Iterator[Lap]:
    yield from _laps(_Serving(arena, size), rounds)


def train(arena: FaultCluster, rounds: int, size: int) -> Iterator[Lap]:
    yield from _laps(_Training(arena, size), rounds)


# --- what both share --------------------------------------------------------------------------------------------


def _laps(application: _Serving | _Training, rounds: int) -> Iterator[Lap]:
    """So many rounds, then a failure; rounds until the worker is back, and so many more."""
    crew = application.crew
    for _ in range(_WARM):
        application.lap()
    start = time.monotonic()

    def lap() -> Lap:
        found = application.lap()
        return Lap(found.began - start, found.seconds, found.workers, found.event)

    before = []
    for _ in range(rounds):
        before.append(lap())
        yield before[-1]
    crew.kill_in(application.lead + _INTO_ROUND * statistics.median(each.seconds for each in before))
    deadline = time.monotonic() + _PATIENCE
    after = 0
    while after < rounds:
        found = lap()
        yield found
        after += after > 0 or found.event == "rejoined"
        if not after and time.monotonic() > deadline:
            raise PeerError(f"the worker that was killed did not come back within {_PATIENCE:g} s")


@dataclass
class _Crew:
    """The workers: who lives, who was killed, and how it comes back."""

    arena: FaultCluster
    alive: list[Machine] = field(init=False)
    _victim: Machine = field(init=False)
    _timer: threading.Timer | None = None
    _reviving: threading.Thread | None = None
    _failure: Exception | None = None

    def __post_init__(self) -> None:
        self.alive = self.arena.machines[1:]
        self._victim = self.alive[len(self.alive) // 2]

    @property
    def front(self) -> Peer:
        return self.arena.machines[0].peer

    def kill_in(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._kill, [self._victim.peer])
        self._timer.start()

    def _kill(self, worker: Peer) -> None:
        self.arena.signal_agent(self._victim.index, signal.SIGKILL)
        worker.kill()

    def lost(self, machine: Machine) -> str:
        """A worker did not answer because it is gone: it is started again while the others go on."""
        if machine is not self._victim or self._timer is None:
            raise PeerError(f"the worker on host {machine.index} ended by itself")
        self._timer.join()
        self.alive = [each for each in self.alive if each is not machine]
        self.arena.kill_agent(machine.index)
        self.arena.kill_worker(machine.index)
        self._reviving = threading.Thread(target=self._revive, daemon=True)
        self._reviving.start()
        return "failed"

    def _revive(self) -> None:
        try:
            self.arena.revive(self._victim.index)
        except (PeerError, HopliteError) as failure:
            self._failure = failure

    def take_back(self) -> str | None:
        """Whether the worker that was lost is there again."""
        if self._reviving is None or self._reviving.is_alive():
            return None
        self._reviving = None
        if self._failure is not None:
            raise PeerError(f"the worker that was killed could not be started again: {self._failure}")
        self.alive.append(self._victim)
        return "rejoined"

    @staticmethod
    def is_dead(machine: Machine) -> bool:
        """Its agent has ended, as its parent knows."""
        return machine.agent is None or not machine.agent.running()


def _ref() -> str:
    return secrets.token_hex(16)


def _seed(machine: Machine) -> int:
    """A power of two, so that a sum tells what went into it."""
    return 1 << machine.index


def _need(what: str, answer: Answer) -> dict[str, Any]:
    if answer.done is None:
        raise PeerError(f"{what}: {answer}")
    return answer.done


def _get_sum(front: Peer, target: str, sources: list[str], count: int) -> Answer:
    """Ask for the sum of some objects, and get it."""
    deadline = time.monotonic() + _PATIENCE
    asked = front.tell("reduce", ref=target, sources=sources, count=count, everywhere=False)
    got = front.tell("get", refs=[target])
    answer = front.answer(asked, deadline)
    return answer if answer.done is None else front.answer(got, deadline)


def _check(front: Peer, target: str, size: int, machines: list[Machine]) -> None:
    seeds = [_seed(machine) for machine in machines]
    told = _need("a sum cannot be compared", front.ask("check", ref=target, size=size, seeds=seeds))
    if sorted(told.get("seeds", ())) != sorted(seeds):
        raise PeerError(f"a wrong sum of the workers {[machine.index for machine in machines]}: {told}")


# --- serving ----------------------------------------------------------------------------------------------------


class _Serving:
    lead = _NOTICE

    def __init__(self, arena: FaultCluster, size: int) -> None:
        self.crew = _Crew(arena)
        self._size = size

    def lap(self) -> Lap:
        crew, front = self.crew, self.crew.front
        event = crew.take_back()
        query = _ref()
        answers = {machine.index: _ref() for machine in crew.alive}
        told = {
            machine.index: machine.peer.tell(
                "answer", question=query, ref=answers[machine.index], size=_ANSWER, seed=_seed(machine)
            )
            for machine in crew.alive
        }
        deadline = time.monotonic() + _PATIENCE
        put = front.tell("put", ref=query, size=self._size, seed=1, at=time.monotonic() + _NOTICE)
        answered = []
        for machine in crew.alive:
            answer = machine.peer.answer(told[machine.index], deadline)
            if answer.gone:
                event = crew.lost(machine)
            else:
                _need(f"the worker on host {machine.index} gave no answer", answer)
                answered.append(machine)
        began = _need("the query could not be put", front.answer(put, deadline))["began"]
        target = _ref()
        got = _get_sum(front, target, [answers[each.index] for each in answered], len(answered))
        dead = [machine for machine in answered if crew.is_dead(machine)]
        if got.error is not None and dead:  # it answered, and died before its answer was added
            event = crew.lost(dead[0])
            answered.remove(dead[0])
            target = _ref()
            got = _get_sum(front, target, [answers[each.index] for each in answered], len(answered))
        ended = _need("the answers could not be added", got)["ended"]
        _check(front, target, _ANSWER, answered)
        _need("delete", front.ask("delete", refs=[query, target, *answers.values()]))
        return Lap(began, ended - began, len(answered), event)


# --- training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gradient:
    """One that is there, or is being made: by whom, from what, and the ticket of that step."""

    machine: Machine
    parameters: str
    ticket: int


class _Training:
    lead = 0.0

    def __init__(self, arena: FaultCluster, size: int) -> None:
        self.crew = _Crew(arena)
        self._size = size
        self._count = max(1, len(self.crew.alive) // 2)
        self._pending: dict[str, _Gradient] = {}
        self._parameters = self._put_parameters()
        self._old: set[str] = set()
        """Parameters that somebody may still be getting."""
        for machine in self.crew.alive:
            self._go_on(machine)

    def lap(self) -> Lap:
        crew, front = self.crew, self.crew.front
        began = time.monotonic()
        event = crew.take_back()
        if event is not None:
            self._go_on(crew.alive[-1])
        event = self._drop_lost() or event
        target = _ref()
        got = _get_sum(front, target, list(self._pending), min(self._count, len(self._pending)))
        _need("the gradients could not be added", got)
        chosen = _need("the contributors are unknown", front.ask("contributors", ref=target))["refs"]
        contributors = {ref: self._pending.pop(ref).machine for ref in chosen}
        self._old.add(self._parameters)
        self._parameters = self._put_parameters()
        event = self._drop_lost() or event
        for machine in contributors.values():
            if machine in crew.alive:
                self._go_on(machine)
        seconds = time.monotonic() - began
        _check(front, target, self._size, list(contributors.values()))
        done_with = self._old - {gradient.parameters for gradient in self._pending.values()}
        self._old -= done_with
        _need("delete", front.ask("delete", refs=[target, *contributors, *done_with]))
        return Lap(began, seconds, len(contributors), event)

    def _put_parameters(self) -> str:
        ref = _ref()
        _need("parameters could not be put", self.crew.front.ask("put", ref=ref, size=self._size, seed=1))
        return ref

    def _go_on(self, machine: Machine) -> None:
        ref = _ref()
        thinking = _THINKING * (1 + machine.index / len(self.crew.arena.machines))
        ticket = machine.peer.tell(
            "answer", question=self._parameters, ref=ref, size=self._size, seed=_seed(machine), seconds=thinking
        )
        self._pending[ref] = _Gradient(machine, self._parameters, ticket)

    def _drop_lost(self) -> str | None:
        for ref, gradient in list(self._pending.items()):
            if self.crew.is_dead(gradient.machine):
                del self._pending[ref]
                return self.crew.lost(gradient.machine)
            answer = gradient.machine.peer.answer(gradient.ticket, time.monotonic())
            if answer.error is not None:
                raise PeerError(f"the worker on host {gradient.machine.index} has no gradient: {answer}")
        return None
