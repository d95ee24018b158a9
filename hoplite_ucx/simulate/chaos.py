"""Random runs: a cluster, a workload and faults, all from one seed, judged by the oracle.

A run has three parts. In the *storm* users put, get, wait, delete and give up at random while processes are killed,
stopped and restarted, links cut one way, sessions and streams broken. In the *calm* everything is healed; what is still
wanted and lost is put again, and every wait must end within a constant times the limit plus detection. In the *end*
everything is deleted and nothing may be left.

`drawing` makes a run from a seed; `users`, `faults` and `ambushes` choose the actions, and `stage` performs them; this
module has the order of the phases. A run can be kept as a recording, and replayed without a seed.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from hoplite_ucx.protocol import Directory, NodeState
from hoplite_ucx.protocol.events import GetCall, Got, WaitCall
from hoplite_ucx.simulate.actions import Put, Recording, Reduce, Resume
from hoplite_ucx.simulate.cluster import VirtualCluster
from hoplite_ucx.simulate.drawing import BANDWIDTH, STORM, Ambush, Draw
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.oracle import BrokenPromiseError, refs_of
from hoplite_ucx.simulate.sabotage import disarm
from hoplite_ucx.simulate.stage import DivergedError, Stage
from hoplite_ucx.simulate.storm import DrawnStorm, RecordedStorm, Storm

_LOOK_EVERY = 0.1
_PUTS_AGAIN = 3
_MAX_EVENTS = 400_000


@dataclass(slots=True)
class Outcome:
    seed: int
    problem: str | None = None
    diverged: bool = False
    """The replay differed from the recorded run, so it shows nothing."""
    story: list[str] = field(default_factory=list)
    events: int = 0
    """Of the machines."""
    faults: int = 0
    gets: int = 0
    processor_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.problem is None


def run_seed(
    seed: int,
    cluster_type: type[VirtualCluster] = VirtualCluster,
    *,
    tell: bool = False,
    reductions: bool = True,
    focus: Ambush | None = None,
) -> Outcome:
    """One run; whatever goes wrong in it is the outcome, not an exception. With `tell`, print its story even if all
    went well. With a `focus` every run has that ambush, and the setup that it needs."""
    return _drawn(seed, cluster_type, reductions, focus).judge(seed, tell=tell)


def record_seed(
    seed: int,
    cluster_type: type[VirtualCluster] = VirtualCluster,
    *,
    reductions: bool = True,
    focus: Ambush | None = None,
) -> tuple[Outcome, Recording]:
    """The same, with a recording of its actions."""
    chaos = _drawn(seed, cluster_type, reductions, focus)
    outcome = chaos.judge(seed, tell=True)
    stage = chaos.stage
    return outcome, Recording(seed=seed, problem=outcome.problem, setup=stage.setup, steps=tuple(stage.steps))


def replay(recording: Recording, cluster_type: type[VirtualCluster] = VirtualCluster, *, tell: bool = False) -> Outcome:
    """Replay the actions: the same run as long as the machines behave as they did."""
    stage = Stage(recording.setup, cluster_type)
    return Chaos(stage, RecordedStorm(recording.steps, stage)).judge(recording.seed, tell=tell)


def _drawn(seed: int, cluster_type: type[VirtualCluster], reductions: bool, focus: Ambush | None) -> Chaos:
    draw = Draw(seed, reductions=reductions, focus=focus)
    stage = Stage(draw.setup, cluster_type)
    return Chaos(stage, DrawnStorm(draw, stage))


class Chaos:
    def __init__(self, stage: Stage, storm: Storm) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.oracle = stage.oracle
        self._storm = storm
        # Not the generator that draws the storm: a replay has none.
        self._random = random.Random(stage.setup.seed)

    def judge(self, seed: int, *, tell: bool) -> Outcome:
        began = time.process_time()
        outcome = Outcome(seed)
        try:
            self.run()
        except BrokenPromiseError as broken:
            outcome.problem = str(broken)
            outcome.story = self.story(broken.ref)
        except DivergedError as diverged:
            outcome.problem = str(diverged)
            outcome.diverged = True
            outcome.story = self.story(None)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.problem = f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            outcome.story = self.story(None)
        if tell and outcome.ok:
            outcome.story = self.story(None)
        outcome.events = self.cluster.events
        outcome.faults = self.stage.faults
        outcome.processor_seconds = time.process_time() - began
        outcome.gets = sum(isinstance(call.answer, Got) for call in self.cluster.calls.values())
        return outcome

    def run(self) -> None:
        self._quiet_start()
        self._storm.begin()
        self._run_for(STORM)
        self._storm.end()
        self._calm()
        self._end()

    def story(self, ref: bytes | None) -> list[str]:
        machines: list[Directory | NodeState] = [node.machine for node in self.cluster.nodes.values()]
        machines.append(self.cluster.directory.machine)
        refs = [ref] if ref is not None else self._refs()
        told = [entry for r in refs for machine in machines for entry in machine.story(r)]
        told += self.stage.log
        return [f"{when:.6f} {what}" for when, what in sorted(told, key=lambda entry: entry[0])]

    def _refs(self) -> list[bytes]:
        """Objects before targets: what is deleted first makes a difference."""
        return [self.stage.refs[number] for number in (*self.stage.setup.sizes, *self.stage.setup.targets)]

    # --- the parts of a run ------------------------------------------------------------------------------------

    def _quiet_start(self) -> None:
        self.cluster.clock.run(until=0.05)
        for a, b, seconds in self.stage.setup.latencies:
            self.cluster.network.set_latency(self._host(a), self._host(b), seconds)

    def _calm(self) -> None:
        cluster, nodes = self.cluster, range(len(self.cluster.slots))
        disarm(cluster.directory.machine)
        for index in nodes:
            disarm(cluster.slots[index].machine)
            cluster.network.restore(self._host(index))
            node = cluster.slots[index]
            if node.alive and node.stopped:
                self.stage.perform(Resume(index))
            for serving in list(node.serving.values()):
                serving.stuck = False
                serving.pump()
            for other in [*(self._host(i) for i in nodes), "directory"]:
                if other != self._host(index):
                    cluster.network.heal(self._host(index), other)
                    cluster.network.heal(other, self._host(index))
        self._restart_the_dead()
        if self.stage.retiring:
            self._run_until(lambda: not self._leaving())
            self.oracle.judge_leaving(self._leaving())
            self._restart_the_dead()
        self._run_until(self._everybody_is_back)
        # A wanted object that exists must arrive now; one that does not exist is put again, and once more if the
        # first put met a tombstone that a node which was away has not heard of.
        for _ in range(_PUTS_AGAIN):
            self._run_until(self._only_the_absent_are_missing)
            for (
                target
            ) in self.stage.setup.targets:  # the node that asked for it may have died before its request arrived
                self.stage.perform(Reduce(self._random.choice(nodes), target))
            for number in self.stage.needed_for(self._wanted()):
                self.stage.perform(Put(self._random.choice(nodes), number, self.stage.sizes[number]))
        self._run_until(lambda: not any(call.open for call in cluster.calls.values()))
        self.oracle.judge_liveness()
        self._run_for(4 * cluster.settings.heartbeat)
        self._run_until(self.oracle.agrees)
        self.oracle.judge_agreement()

    def _restart_the_dead(self) -> None:
        for index, node in enumerate(self.cluster.slots):
            if not node.alive:
                self.cluster.restart(index)

    def _leaving(self) -> list[VirtualNode]:
        """Those that were to leave and have not."""
        return [node for node in self.cluster.slots if node.alive and node.identity in self.stage.retiring]

    def _wanted(self) -> set[int]:
        refs = {ref for call in self.cluster.calls.values() if call.open for ref in refs_of(call)}
        return {number for ref in refs if (number := self.stage.number_of(ref)) is not None}

    def _end(self) -> None:
        cluster = self.cluster
        for call in list(cluster.calls.values()):
            if call.open:
                cluster.cancel(call)
            elif isinstance(call.answer, Got) and call.node.alive:
                cluster.unpin(call)
        for ref in self._refs():
            self.oracle.expect_delete(ref)
        delete = cluster.delete(0, *self._refs())
        self._run_until(lambda: not delete.open)
        self._run_for(cluster.settings.tombstone)
        self._run_until(self.oracle.at_rest)
        self.oracle.judge_rest()

    def _everybody_is_back(self) -> bool:
        directory = self.cluster.directory
        return directory.alive and self.cluster.everyone_joined() and not directory.machine.world.recovering

    def _only_the_absent_are_missing(self) -> bool:
        records = self.cluster.directory.machine.records
        return all(
            isinstance(call.event, GetCall | WaitCall)
            and not any(ref in records and records[ref].broadcast for ref in refs_of(call))
            for call in self.cluster.calls.values()
            if call.open
        )

    def _patience(self) -> float:
        """How long anything may take once faults have stopped: a constant times the limit plus detection."""
        settings = self.cluster.settings
        slowest = min([BANDWIDTH, *self.cluster.shape.rates.values()])
        limit = sum(self.stage.sizes.values()) * len(self.cluster.slots) / slowest
        return 3 * limit + 4 * (2 * settings.lease + settings.cooldown + settings.suspicion)

    def _run_until(self, done: Callable[[], bool]) -> None:
        """Let time pass until `done`, or patience ends; the oracle judges what is then not as it should be."""
        end = self.cluster.clock.now + self._patience()
        self._run_for(_LOOK_EVERY)
        while not done() and self.cluster.clock.now < end:
            self._run_for(_LOOK_EVERY)

    def _run_for(self, duration: float) -> None:
        events = self.cluster.clock.run(until=self.cluster.clock.now + duration, max_events=_MAX_EVENTS)
        if events >= _MAX_EVENTS:
            raise BrokenPromiseError(f"more than {_MAX_EVENTS} events within {duration:.3f} s: a storm of messages")

    def _host(self, index: int) -> str:
        return self.cluster.slots[index].host
