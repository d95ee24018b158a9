"""Processes that die in the middle of a broadcast or a reduce: the right value, or an error that a Ray user knows.

Each case is a job of its own, and reports how long after the fault all of its calls had ended, and how.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import exceptions

import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.bench.harness.contents import matches
from hoplite_ucx.bench.harness.json_lines import say
from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.ray.cases import Case
from hoplite_ucx.bench.ray.program import HANG, Bench, make, started

_PART = 0.4
"""Faults come when about so much of a transfer is done."""
_STRAGGLER = 300.0
_SEED = 7
_VICTIM = 1
"""The node that is hit."""

_DEAD = (exceptions.ActorDiedError, exceptions.ActorUnavailableError, exceptions.WorkerCrashedError)
_LOST = (exceptions.ObjectLostError, exceptions.RaySystemError)


@dataclass(frozen=True)
class Outcome:
    seconds: float
    """From the fault until the last call had ended."""
    ends: Counter[str]
    """How often calls ended right, wrong, or with which error."""
    right: bool

    @property
    def result(self) -> str:
        return ", ".join(f"{count} {end}" for end, count in self.ends.most_common())


def _ended(began: float, refs: Sequence[Any], least: int, allowed: Collection[type[BaseException]] = ()) -> Outcome:
    """All calls must end; at least so many right, and the others with one of these errors."""
    ends: Counter[str] = Counter()
    known = True
    for ref in refs:
        try:
            ends["right" if ray.get(ref, timeout=HANG) else "wrong"] += 1
        except exceptions.GetTimeoutError:
            ends["did not end"] += 1
        except Exception as error:
            is_known = isinstance(error, tuple(allowed))
            known = known and is_known
            ends[type(error).__name__ if is_known else f"{type(error).__name__}: {str(error)[-200:]}"] += 1
    right = known and ends["right"] >= least and not ends["wrong"] and not ends["did not end"]
    return Outcome(time.monotonic() - began, +ends, right)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _kill_node(pid: int) -> None:
    """Everything on the host of this process."""
    namespace_keeper.kill_all("", {os.stat(f"/proc/{pid}/ns/net").st_ino}, spared={os.getpid()})


def _wait_a_part(bench: Bench) -> float:
    time.sleep(_PART * bench.plan.limit)
    return time.monotonic()


Fault = Callable[[Bench, dict[str, Any]], None]
"""Its numbers of processes are asked for beforehand: nothing stands between the middle of a transfer and the fault."""


# --- broadcast --------------------------------------------------------------------------------------------------


def _broadcast(bench: Bench, fault: Fault, errors: Collection[type[BaseException]] = ()) -> Outcome:
    """Of the driver's array, to every actor. Calls on the victim may end with these errors, if any."""
    pids = bench.pids()
    ref = ray.put(make(bench.plan.count, [_SEED]))
    calls = [worker.verify.remote(ref, [_SEED]) for worker in bench.workers]
    began = _wait_a_part(bench)
    fault(bench, pids)
    outcome = _ended(began, calls, len(calls) - bool(errors), errors)
    return _and_afterwards(bench, outcome, [] if not errors else [_VICTIM])


def _and_afterwards(bench: Bench, outcome: Outcome, without: Collection[int]) -> Outcome:
    """The next broadcast and reduce work."""
    workers = [worker for number, worker in enumerate(bench.workers) if number not in without]
    ref = ray.put(make(bench.plan.count, [_SEED + 1]))
    seeds = list(range(len(workers)))
    made = [worker.make.remote(bench.plan.count, seed) for worker, seed in zip(workers, seeds, strict=True)]
    total = hoplite_ray.reduce(made).ref
    calls = [*(worker.verify.remote(ref, [_SEED + 1]) for worker in workers), workers[0].verify.remote(total, seeds)]
    after = _ended(time.monotonic(), calls, len(calls))
    if after.right:
        return outcome
    return Outcome(outcome.seconds, outcome.ends + Counter({f"afterwards {after.result}": 1}), right=False)


def _broadcast_from(bench: Bench, ref: Any, errors: Collection[type[BaseException]] = ()) -> Outcome:
    """Of an actor's array, while that actor dies."""
    others = [worker for number, worker in enumerate(bench.workers) if number != _VICTIM]
    calls = [worker.verify.remote(ref, [_SEED]) for worker in others]
    began = _wait_a_part(bench)
    _kill(bench.worker_pids[_VICTIM])
    outcome = _ended(began, calls, 0 if errors else len(calls), errors)
    _await_restart(bench)
    return _and_afterwards(bench, outcome, [])


def _broadcast_maker(bench: Bench) -> Outcome:
    """The driver owns what a call returned."""
    ref = bench.workers[_VICTIM].make.remote(bench.plan.count, _SEED)
    ray.wait([ref], timeout=HANG, fetch_local=False)
    return _broadcast_from(bench, ref)


def _broadcast_putter(bench: Bench) -> Outcome:
    """What it put has no owner any more. Receivers that have its handle get the array; who asks later gets an
    `OwnerDiedError`, as with plain Ray."""
    (ref,) = ray.get(bench.workers[_VICTIM].put.remote(bench.plan.count, _SEED), timeout=HANG)
    return _broadcast_from(bench, ref, (exceptions.OwnerDiedError,))


def _only_copy(bench: Bench) -> Outcome:
    """The agent that has it is killed before anybody asks."""
    pids = bench.pids()
    (ref,) = ray.get(bench.workers[_VICTIM].put.remote(bench.plan.count, _SEED), timeout=HANG)
    began = time.monotonic()
    _kill(pids["agents"][_VICTIM])
    calls = [worker.verify.remote(ref, [_SEED]) for worker in bench.workers]
    outcome = _ended(began, calls, 0, (exceptions.RayTaskError, *_LOST))
    return _and_afterwards(bench, outcome, [])


# --- reduce -----------------------------------------------------------------------------------------------------


def _reduce(bench: Bench, fault: Fault, errors: Collection[type[BaseException]] = (), lost: bool = False) -> Outcome:
    """Of one array of every actor. If a source is `lost`, the result may be so too."""
    pids = bench.pids()
    seeds = [_SEED + each for each in range(len(bench.workers))]
    made = [worker.make.remote(bench.plan.count, seed) for worker, seed in zip(bench.workers, seeds, strict=True)]
    ray.wait(made, num_returns=len(made), timeout=HANG, fetch_local=False)
    total = hoplite_ray.reduce(made).ref
    call = bench.workers[0].verify.remote(total, seeds)
    began = _wait_a_part(bench)
    fault(bench, pids)
    outcome = _ended(began, [call], 0 if lost else 1, (exceptions.RayTaskError, *_LOST) if lost else errors)
    if not errors:
        _await_restart(bench)
    return _and_afterwards(bench, outcome, [_VICTIM] if errors else [])


def _straggler(bench: Bench) -> Outcome:
    """All but one, which would take minutes."""
    *quick, late = bench.workers
    seeds = [_SEED + each for each in range(len(quick))]
    refs = [worker.make.remote(bench.plan.count, seed) for worker, seed in zip(quick, seeds, strict=True)]
    began = time.monotonic()
    reduced = hoplite_ray.reduce([late.make.remote(bench.plan.count, 1, _STRAGGLER), *refs], count=len(quick))
    outcome = _ended(began, [quick[0].verify.remote(reduced.ref, seeds)], 1)
    contributors = sorted(ref.hex() for ref in reduced.contributors)
    return Outcome(outcome.seconds, outcome.ends, outcome.right and contributors == sorted(ref.hex() for ref in refs))


# --- tasks and actors that come again ---------------------------------------------------------------------------


def _die_once(count: int, mark: str) -> Any:
    """After a put, the first time."""
    array = make(count, [_SEED])
    if not Path(mark).exists():
        _held = ray.put(array)
        Path(mark).touch()
        os._exit(1)
    return array


def _task(bench: Bench) -> Outcome:
    flaky = ray.remote(num_cpus=0, max_retries=2)(_die_once)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        began = time.monotonic()
        place = bench.places[0]  # whose files this process sees
        ref = flaky.options(scheduling_strategy=place).remote(bench.plan.count, f"{folder}/ran")
        return _ended(began, [worker.verify.remote(ref, [_SEED]) for worker in bench.workers], len(bench.workers))


def _actor(bench: Bench) -> Outcome:
    """What it receives after its restart, and what it makes."""
    ref = ray.put(make(bench.plan.count, [_SEED]))
    victim, other = bench.workers[_VICTIM], bench.workers[0]
    began = time.monotonic()
    _kill(bench.worker_pids[_VICTIM])
    _await_restart(bench)
    made = victim.make.remote(bench.plan.count, _SEED + 1)
    return _ended(began, [victim.verify.remote(ref, [_SEED]), other.verify.remote(made, [_SEED + 1])], 2)


def _await_restart(bench: Bench) -> None:
    ends = time.monotonic() + HANG
    while time.monotonic() < ends:
        try:
            ray.get(bench.workers[_VICTIM].pid.remote(), timeout=HANG)
            return
        except _DEAD:
            time.sleep(0.1)


def _receiver(bench: Bench) -> Outcome:
    outcome = _broadcast(bench, lambda bench, _: _kill(bench.worker_pids[_VICTIM]), _DEAD)
    _await_restart(bench)
    ref = ray.put(make(bench.plan.count, [_SEED]))
    again = matches(np.asarray(ray.get(ref)), [_SEED]) and ray.get(
        bench.workers[_VICTIM].verify.remote(ref, [_SEED]), timeout=HANG
    )
    return Outcome(outcome.seconds, outcome.ends, outcome.right and again)


def _kill_all_of_ours(_bench: Bench, pids: dict[str, Any]) -> None:
    for pid in (pids["head"], pids["directory"], *pids["agents"][1:]):
        _kill(pid)


CASES: dict[Case, Callable[[Bench], Outcome]] = {
    Case.BROADCAST_RECEIVER: _receiver,
    Case.BROADCAST_MAKER: _broadcast_maker,
    Case.BROADCAST_PUTTER: _broadcast_putter,
    Case.BROADCAST_AGENT: lambda bench: _broadcast(bench, lambda _, pids: _kill(pids["agents"][_VICTIM])),
    Case.BROADCAST_AGENT_ACTOR: lambda bench: _broadcast(bench, lambda _, pids: _kill(pids["agent_actors"][_VICTIM])),
    Case.BROADCAST_DIRECTORY: lambda bench: _broadcast(bench, lambda _, pids: _kill(pids["directory"])),
    Case.BROADCAST_HEAD: lambda bench: _broadcast(bench, lambda _, pids: _kill(pids["head"])),
    Case.BROADCAST_NODE: lambda bench: _broadcast(
        bench, lambda _, pids: _kill_node(pids["agents"][_VICTIM]), (*_DEAD, exceptions.RayError)
    ),
    Case.REDUCE_SOURCE: lambda bench: _reduce(bench, lambda bench, _: _kill(bench.worker_pids[_VICTIM])),
    Case.REDUCE_AGENT: lambda bench: _reduce(bench, lambda _, pids: _kill(pids["agents"][_VICTIM]), lost=True),
    Case.REDUCE_DIRECTORY: lambda bench: _reduce(bench, lambda _, pids: _kill(pids["directory"])),
    Case.REDUCE_HEAD: lambda bench: _reduce(bench, lambda _, pids: _kill(pids["head"])),
    Case.REDUCE_NODE: lambda bench: _reduce(
        bench, lambda _, pids: _kill_node(pids["agents"][_VICTIM]), _DEAD, lost=True
    ),
    Case.STRAGGLER: _straggler,
    Case.ONLY_COPY: _only_copy,
    Case.TASK: _task,
    Case.ACTOR: _actor,
    Case.ALL: lambda bench: _broadcast(bench, _kill_all_of_ours),
}


def main() -> None:
    with started() as bench:
        case = Case(bench.plan.more["case"])
        bench.warm_up()
        outcome = CASES[case](bench)
        say(case=case.value, seconds=outcome.seconds, right=outcome.right, result=outcome.result)


if __name__ == "__main__":
    main()
