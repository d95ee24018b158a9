"""The soak itself: lanes of work on every machine, a fault now and then, samples all the time, and a verdict.

A lane is a worker process that has one task at a time. Machine 0 is never killed, so that its agent and its workers
live from the first to the last minute; everything else happens to it too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.bench.faults.injecting import BRIEF, LONG, Fault, FaultKind
from hoplite_ucx.bench.faults.worker_proxy import Peer
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.soak.sampling import Growth, Sampler
from hoplite_ucx.bench.soak.tasks import Books, Known, Task, TaskKind

__all__ = ["Verdict", "soak"]

_LOOK_AGAIN = 0.002
_SAMPLE_EVERY = 1.0
_TASK_SECONDS = 45.0
_RESTORE = 30.0
_REST = 15.0
_MEMORY = 384 << 20
_MOST_PROBLEMS = 20
_KINDS = {
    FaultKind.KILL_HOST: 3,
    FaultKind.KILL_AGENT: 2,
    FaultKind.KILL_WORKER: 2,
    FaultKind.STOP: 3,
    FaultKind.CUT: 2,
    FaultKind.CUT_IN: 1,
    FaultKind.CUT_OUT: 1,
    FaultKind.SLOW: 2,
    FaultKind.DIRECTORY: 3,
    FaultKind.CUT_DIRECTORY: 1,
}


@dataclass
class Lane:
    machine: int
    peer: Peer
    task: Task | None = None


@dataclass
class Verdict:
    seconds: float
    tasks: dict[str, int]
    errors: dict[str, int]
    faults: dict[str, int]
    growth: list[Growth]
    problems: list[str]

    @property
    def passed(self) -> bool:
        """Without a life that was long enough to be judged, nothing is proven."""
        return not self.problems and bool(self.growth) and all(growth.flat for growth in self.growth)

    def told(self) -> dict[str, Any]:
        growth = [{**asdict(each), "flat": each.flat} for each in self.growth]
        return {**asdict(self), "growth": growth, "passed": self.passed}


@dataclass
class _Counts:
    tasks: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def soak(
    *,
    seconds: float,
    machines: int,
    lanes: int,
    rate: float,
    every: float,
    seed: int,
    advance: Callable[[], object] = lambda: None,
) -> Verdict:
    """`lanes` workers a machine, a fault every so many seconds. `advance` is called once a second."""
    if machines < 3:
        raise PeerError(f"a soak needs 3 machines at least, not {machines}")
    with FaultCluster(machines, rate, _MEMORY) as cluster:
        run = _Soak(cluster, lanes, every, seed, advance)
        try:
            return run.play(seconds)
        finally:
            run.close()


class _Soak:
    def __init__(
        self, cluster: FaultCluster, lanes: int, every: float, seed: int, advance: Callable[[], object]
    ) -> None:
        self._arena = cluster
        self._books = Books(seed)
        self._every = every
        self._advance = advance
        self._sampler = Sampler()
        self._counts = _Counts()
        self._lanes = [Lane(m.index, cluster.new_worker(m.index)) for m in cluster.machines for _ in range(lanes)]
        self._await_lanes(self._lanes)
        self._fault: tuple[Fault, float] | None = None
        self._doubtful: list[Known] = []
        """What the fault may have lost."""

    def close(self) -> None:
        for lane in self._lanes:
            lane.peer.close()

    def play(self, seconds: float) -> Verdict:
        began = time.monotonic()
        next_fault, next_sample = began + self._every, began
        while (now := time.monotonic()) < began + seconds and len(self._counts.problems) < _MOST_PROBLEMS:
            if now >= next_sample:
                next_sample = now + _SAMPLE_EVERY
                self._sample()
            if self._fault is None and now >= next_fault and now < began + seconds - 3.0:
                next_fault = now + self._every
                self._break()
            elif self._fault is not None and now >= self._fault[1]:
                self._mend()
            self._work()
            time.sleep(_LOOK_AGAIN)
        if self._fault is not None:
            self._mend()
        took = time.monotonic() - began
        self._rest()
        counts = self._counts
        if words := self._arena.new_words().strip():
            counts.problems.append(f"an agent or the directory said: {words[-2000:]}")
        tasks, errors, faults = dict(counts.tasks), dict(counts.errors), dict(counts.faults)
        return Verdict(took, tasks, errors, faults, self._sampler.growth(), counts.problems)

    # --- work --------------------------------------------------------------------------------------------------

    def _work(self, *, more: bool = True) -> None:
        """Take in what is done, and give everybody something else to do."""
        for lane in self._lanes:
            self._take_in(lane)
            if more and lane.task is None and not lane.peer.gone and self._agent_lives(lane):
                self._tell(lane, self._books.next_task(lane.machine))

    def _take_in(self, lane: Lane) -> None:
        task = lane.task
        if task is None:
            return
        answer = lane.peer.answer(task.ticket, time.monotonic())
        if answer.silent and time.monotonic() - task.began < _TASK_SECONDS:
            return
        lane.task = None
        self._counts.tasks[task.kind] += 1
        if answer.error is not None:
            self._counts.errors[answer.error.type] += 1
        problem = self._books.end(task, answer)
        if problem is not None:
            self._counts.problems.append(problem)
        if task.kind is TaskKind.GET and answer.done is not None:
            self._tell(lane, self._books.check(task))

    def _tell(self, lane: Lane, task: Task) -> None:
        lane.task = task
        task.ticket = lane.peer.tell(task.kind.value, **task.step)

    def _agent_lives(self, lane: Lane) -> bool:
        return self._arena.machines[lane.machine].agent is not None

    def _sample(self) -> None:
        lanes = {f"lane {place}": lane.peer.pid for place, lane in enumerate(self._lanes) if not lane.peer.gone}
        self._sampler.sample({**self._arena.pids(), **lanes})
        self._advance()

    # --- faults ------------------------------------------------------------------------------------------------

    def _break(self) -> None:
        dice = self._books.dice
        kind = dice.choices(list(_KINDS), list(_KINDS.values()))[0]
        duration = 0.0
        if kind in (FaultKind.STOP, FaultKind.CUT, FaultKind.CUT_IN, FaultKind.CUT_OUT):
            duration = dice.uniform(*(LONG if dice.random() < 0.3 else BRIEF))
        elif kind in (FaultKind.SLOW, FaultKind.CUT_DIRECTORY):
            duration = dice.uniform(*BRIEF)
        elif kind is FaultKind.DIRECTORY:
            duration = dice.uniform(0.0, 0.6)
        spared = Fault(kind, 0, duration)
        first = 1 if spared.loses_copies or spared.kills_worker else 0
        fault = Fault(kind, dice.randrange(first, len(self._arena.machines)), duration)
        self._doubtful = self._books.note_fault(fault)
        if fault.kills_worker:  # the lanes of a machine are its workers
            for lane in self._lanes:
                if lane.machine == fault.victim:
                    lane.peer.kill()
        at = fault.inject(self._arena, "00" * 16)
        self._counts.faults[kind] += 1
        self._fault = (fault, at + fault.seconds)

    def _mend(self) -> None:
        assert self._fault is not None
        fault, _ = self._fault
        fault.undo(self._arena)
        self._arena.restore(time.monotonic() + _RESTORE)
        self._fault = None
        if fault.kills_agent or fault.kills_worker:
            self._replace_lanes(fault.victim)
        # Whatever may be lost is not to be waited for.
        lost = [object_ for object_ in self._doubtful if not object_.deleted]
        if lost:
            task = self._books.forget(0, lost)
            answer = self._arena.machines[0].peer.ask("delete", **task.step)
            if (problem := self._books.end(task, answer)) is not None:
                self._counts.problems.append(problem)

    def _replace_lanes(self, machine: int) -> None:
        """Workers whose agent was killed have heard of it, and end."""
        fresh = []
        for place, lane in enumerate(self._lanes):
            if lane.machine != machine:
                continue
            if lane.task is not None:
                answer = lane.peer.answer(lane.task.ticket, time.monotonic() + _TASK_SECONDS)
                if (problem := self._books.end(lane.task, answer)) is not None:
                    self._counts.problems.append(problem)
            lane.peer.close()
            self._lanes[place] = Lane(machine, self._arena.new_worker(machine))
            fresh.append(self._lanes[place])
        self._await_lanes(fresh)

    def _await_lanes(self, lanes: list[Lane]) -> None:
        deadline = time.monotonic() + _RESTORE
        for lane in lanes:
            if (answer := lane.peer.ready(deadline)).done is None:
                raise PeerError(f"a worker on host {lane.machine} did not start: {answer}")

    # --- the end -----------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Finish what is under way, delete everything, and see that nothing is left."""
        deadline = time.monotonic() + _TASK_SECONDS
        while any(lane.task is not None for lane in self._lanes) and time.monotonic() < deadline:
            self._work(more=False)
            time.sleep(_LOOK_AGAIN)
        everything = [*self._books.known.values(), *self._books.strays]
        if everything:
            task = self._books.forget(0, everything)
            answer = self._arena.machines[0].peer.ask("delete", **task.step)
            if (problem := self._books.end(task, answer)) is not None:
                self._counts.problems.append(problem)
        for lane in self._lanes:
            lane.peer.ask("drop")
        deadline = time.monotonic() + _REST
        while left := self._left():
            if time.monotonic() > deadline:
                self._counts.problems += left
                return
            time.sleep(0.1)

    def _left(self) -> list[str]:
        left = []
        for machine in self._arena.machines:
            look = machine.peer.ask("look")
            if look.done is None or look.done["objects"] or look.done["used"] or look.done["streams"]:
                left.append(f"host {machine.index} has something left: {look.done or look}")
        return left
