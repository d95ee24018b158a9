"""What workers of the soak do: put, get, reduce and delete, at random from a seed; and what may come of each.

The books say of every object where it was put and what is in it. A fault can only make an object lost if it was put on
a machine that may count as dead since, or if it is a result: then an error about it has its reason, and so has a get
that waits in vain for somebody to put it again. Nor is there a result if a source was deleted while it was being made:
a reduction continues while its submitter does something else.
"""

from __future__ import annotations

import enum
import random
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.faults.injecting import Fault, FaultKind
from hoplite_ucx.bench.faults.worker_proxy import Answer, WorkerError

__all__ = ["Books", "Known", "Task", "TaskKind"]

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
GET_SECONDS = 12.0
_SEEDS = 12
_FEWEST, _MOST = 12, 48
_LOSSES = ("ObjectLostError", "PutAbortedError")


class TaskKind(enum.StrEnum):
    PUT = "put"
    GET = "get"
    CHECK = "check"
    REDUCE = "reduce"
    DELETE = "delete"


@dataclass(eq=False)
class Known:
    """An object that was put, or the target of a reduction of `count` sources."""

    ref: str
    size: int
    seeds: list[int]
    count: int
    home: int | None
    """The machine it was put on; None for a target."""
    born: float
    sources: list[Known] = field(default_factory=list)
    deleted: bool = False
    seen: bool = False
    """Somebody got it: of a target, it is made, and needs its sources no more."""


@dataclass
class Task:
    kind: TaskKind
    step: dict[str, Any]
    about: list[Known]
    machine: int
    ticket: int = 0
    began: float = field(default_factory=time.monotonic)


class Books:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.known: dict[str, Known] = {}
        self.strays: list[Known] = []
        """Objects that may or may not exist, because their maker failed or is gone."""
        self._faults: list[tuple[Fault, float]] = []
        self._busy: dict[str, int] = {}
        """How many tasks that are under way have to do with a ref: those are not deleted."""

    # --- tasks -------------------------------------------------------------------------------------------------

    def next_task(self, machine: int) -> Task:
        ready = list(self.known.values())
        if len(ready) < _FEWEST:
            return self._put(machine)
        if len(ready) > _MOST:
            return self._delete(machine) or self._put(machine)
        roll = self.dice.random()
        if roll < 0.30:
            return self._put(machine)
        if roll < 0.75:
            return self._get(machine, self.dice.choice(ready))
        if roll < 0.90:
            return self._reduce(machine) or self._put(machine)
        return self._delete(machine) or self._put(machine)

    def check(self, task: Task) -> Task:
        """What was got is compared next."""
        (object_,) = task.about
        step = {"ref": object_.ref, "size": object_.size, "seeds": object_.seeds}
        return self._begin(Task(TaskKind.CHECK, step, [object_], task.machine))

    def _put(self, machine: int) -> Task:
        size, seed = self.dice.choice(SIZES), 1 << self.dice.randrange(_SEEDS)
        object_ = Known(secrets.token_hex(16), size, [seed], 1, machine, time.monotonic())
        step = {"ref": object_.ref, "size": size, "seed": seed}
        return self._begin(Task(TaskKind.PUT, step, [object_], machine))

    def _get(self, machine: int, object_: Known) -> Task:
        step = {"refs": [object_.ref], "timeout": GET_SECONDS}
        return self._begin(Task(TaskKind.GET, step, [object_], machine))

    def _reduce(self, machine: int) -> Task | None:
        """Of puts of one size with different seeds, so that the sum says what is in it."""
        size = self.dice.choice(SIZES)
        by_seed = {o.seeds[0]: o for o in self.known.values() if o.size == size and o.home is not None}
        if len(by_seed) < 2:
            return None
        chosen = self.dice.sample(list(by_seed.values()), min(len(by_seed), self.dice.randint(2, 6)))
        count = self.dice.randint(max(1, len(chosen) - 1), len(chosen))
        seeds = [seed for object_ in chosen for seed in object_.seeds]
        target = Known(secrets.token_hex(16), size, seeds, count, None, time.monotonic(), chosen)
        sources = [object_.ref for object_ in chosen]
        everywhere = self.dice.random() < 0.4
        step = {"ref": target.ref, "sources": sources, "count": count, "everywhere": everywhere}
        return self._begin(Task(TaskKind.REDUCE, step, [target, *chosen], machine))

    def _delete(self, machine: int) -> Task | None:
        idle = [o for ref, o in self.known.items() if not self._busy.get(ref)]
        chosen = self.dice.sample(idle, min(len(idle), self.dice.randint(1, 4)))
        return self.forget(machine, chosen) if chosen else None

    def forget(self, machine: int, objects: list[Known]) -> Task:
        for object_ in objects:
            object_.deleted = True
            self.known.pop(object_.ref, None)
        return self._begin(Task(TaskKind.DELETE, {"refs": [object_.ref for object_ in objects]}, objects, machine))

    def _begin(self, task: Task) -> Task:
        for object_ in task.about:
            self._busy[object_.ref] = self._busy.get(object_.ref, 0) + 1
        return task

    # --- what came of them -------------------------------------------------------------------------------------

    def note_fault(self, fault: Fault) -> list[Known]:
        """Returns what may be lost because of it, and is not known any more: nobody is to begin anything with it."""
        self._faults.append((fault, time.monotonic()))
        if not fault.loses_copies:
            return []
        doubtful = [object_ for object_ in self.known.values() if object_.home in (None, fault.victim)]
        for object_ in doubtful:
            del self.known[object_.ref]
        return doubtful

    def end(self, task: Task, answer: Answer) -> str | None:
        """Take note of what came of a task; returns what is wrong with it."""
        for object_ in task.about:
            self._busy[object_.ref] -= 1
            if not self._busy[object_.ref]:
                del self._busy[object_.ref]
        if task.kind in (TaskKind.PUT, TaskKind.REDUCE) and answer.done is None:
            self.strays.append(task.about[0])
        if answer.silent:
            return f"a {task.kind} hangs"
        if answer.gone:
            return None if self._died(task) else f"a {task.kind} is gone with its worker, which nobody killed"
        if answer.error is not None:
            reason = self._unjustified(task, answer.error)
            return None if reason is None else f"a {task.kind}: {reason}: {answer}"
        assert answer.done is not None
        if task.kind in (TaskKind.PUT, TaskKind.REDUCE):
            self.known[task.about[0].ref] = task.about[0]
        if task.kind is TaskKind.GET:
            task.about[0].seen = True
        if task.kind is TaskKind.CHECK:
            return self._wrong(task.about[0], answer.done)
        return None

    def _wrong(self, object_: Known, checked: dict[str, Any]) -> str | None:
        if "wrong" in checked:
            return f"a wrong value: {checked['wrong']}"
        if len(checked["seeds"]) != object_.count:
            return f"{checked['seeds']} are in it, not {object_.count} of {object_.seeds}"
        return None

    def _died(self, task: Task) -> bool:
        """Its agent or worker was killed, before the task was over."""
        return any(
            fault.victim == task.machine and (fault.kills_agent or fault.kills_worker) and at >= task.began - 1.0
            for fault, at in self._faults
        )

    def _unjustified(self, task: Task, error: WorkerError) -> str | None:
        if not error.typed or not error.remedy:
            return "an error that is not typed, or has no remedy"
        if error.type == "ClosedError":
            return None if self._died(task) else "its agent lives"
        if error.type == "StoreFullError":
            filled = any(f.kind is FaultKind.FULL and f.victim == task.machine for f, _ in self._faults)
            return None if filled else "its store was not filled"
        if error.type == "ObjectDeletedError":
            return None if any(object_.deleted for object_ in task.about) else "nobody deleted it"
        if error.type in (*_LOSSES, "GetTimeoutError") and any(self._may_be_lost(o) for o in task.about):
            return None
        return "no fault explains this"

    def _may_be_lost(self, object_: Known) -> bool:
        lacks_sources = not object_.seen and any(source.deleted for source in object_.sources)
        return object_.deleted or lacks_sources or self._was_hit(object_)

    def _was_hit(self, object_: Known) -> bool:
        """Since it was made; or, of a target, what it was made of."""
        return any(
            fault.loses_copies and at >= object_.born - 1.0 and object_.home in (None, fault.victim)
            for fault, at in self._faults
        ) or any(self._was_hit(source) for source in object_.sources)
