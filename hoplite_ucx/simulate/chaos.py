"""Random runs: a cluster, a workload and faults, all from one seed, judged by the oracle.

A run has three parts. In the *storm* users put, get, wait, delete and give up at random while processes are killed,
stopped and restarted, links cut one way, sessions and streams broken. In the *calm* everything is healed; what is still
wanted and lost is put again, and every wait must end within a constant times the limit plus detection. In the *end*
everything is deleted and nothing may be left.

What a seed makes is drawn in `drawing`; `users`, `faults` and `ambushes` do it; here is the order of things.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from hoplite_ucx.protocol import Directory, NodeState
from hoplite_ucx.protocol.events import GetCall, Got, WaitCall
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.messages import ToDirectory, ToNode
from hoplite_ucx.simulate.ambushes import Ambushes
from hoplite_ucx.simulate.cluster import Call, VirtualCluster
from hoplite_ucx.simulate.drawing import BANDWIDTH, STORM, Ambush, Draw
from hoplite_ucx.simulate.faults import Faults
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.oracle import BrokenPromiseError, Oracle, refs_of
from hoplite_ucx.simulate.users import Users

_LOOK_EVERY = 0.1
_PUTS_AGAIN = 3
_MAX_EVENTS = 400_000


@dataclass(slots=True)
class Outcome:
    seed: int
    problem: str | None = None
    story: list[str] = field(default_factory=list)
    events: int = 0
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
    """One run; whatever goes wrong in it is the outcome, not an exception. `tell` its story even if all went well. With
    a `focus` every run has that ambush, and what it takes for it."""
    began = time.process_time()
    chaos = Chaos(Draw(seed, cluster_type, reductions=reductions, focus=focus))
    outcome = Outcome(seed)
    try:
        chaos.run()
    except BrokenPromiseError as broken:
        outcome.problem = str(broken)
        outcome.story = chaos.story(broken.ref)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.problem = f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
        outcome.story = chaos.story(None)
    if tell and outcome.ok:
        outcome.story = chaos.story(None)
    outcome.events = chaos.events
    outcome.faults = chaos.faults
    outcome.processor_seconds = time.process_time() - began
    outcome.gets = sum(isinstance(call.answer, Got) for call in chaos.cluster.calls.values())
    return outcome


class Chaos:
    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.cluster = draw.cluster
        self.oracle = Oracle(draw.cluster, fair_weather=not draw.stormy)
        self._users = Users(draw, self.oracle)
        self._faults = Faults(draw)
        self._ambushes = Ambushes(draw, self._users, self._faults)
        self.cluster.observers.append(self)
        self.events = 0

    @property
    def faults(self) -> int:
        return self._faults.count

    def run(self) -> None:
        self._quiet_start()
        self._storm()
        self._calm()
        self._end()

    def story(self, ref: bytes | None) -> list[str]:
        machines: list[Directory | NodeState] = [node.machine for node in self.cluster.nodes.values()]
        machines.append(self.cluster.directory.machine)
        refs = [ref] if ref is not None else self._draw.refs
        told = [entry for r in refs for machine in machines for entry in machine.story(r)]
        told += [(float(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in self._draw.log]
        return [f"{when:.6f} {what}" for when, what in sorted(told, key=lambda entry: entry[0])]

    # --- the parts of a run ------------------------------------------------------------------------------------

    def _quiet_start(self) -> None:
        self.cluster.clock.run(until=0.05)
        rng = self._draw.random
        for a in range(self._draw.nodes):
            for b in range(self._draw.nodes):
                if a != b and rng.random() < 0.1:
                    self.cluster.network.set_latency(self._draw.host(a), self._draw.host(b), rng.choice((50e-6, 5e-3)))

    def _storm(self) -> None:
        rng, clock = self._draw.random, self.cluster.clock
        start = clock.now
        # Slots are taken over where sources have other copies: these are made first.
        slots = self._draw.ambush is Ambush.SLOT
        for target in self._draw.reductions:
            begin = self._users.reduce_when_put if target in self._draw.allreduces else self._users.reduce
            clock.at(start + rng.random() * rng.choice((0.05, 0.3)) + 0.3 * slots, begin, target)
        for ref in self._draw.refs:
            if ref in self._draw.homes:
                clock.at(start + rng.random() * 0.05, self._users.put, ref, self._draw.homes[ref])
            elif ref not in self._draw.reductions:
                clock.at(start + rng.random() * rng.choice((0.1, 0.6)), self._users.put, ref)
            few = ref in self._draw.sources and rng.random() < 0.7  # else every source would be everywhere
            least = self._draw.nodes if ref in self._draw.allreduces else 1
            askers = rng.sample(range(self._draw.nodes), 0 if few else rng.randint(least, self._draw.nodes))
            if slots and ref in self._draw.sources:
                askers = rng.sample(range(self._draw.nodes), rng.randint(1, 2))
            spread = rng.choice((0.0, 0.05, 0.5))
            for index in askers:
                clock.at(start + rng.random() * (0.1 + spread), self._users.get, ref, index)
        for _ in range(rng.randint(2, 14)):
            clock.at(start + rng.random() * STORM, rng.choice(self._users.actions()))
        if self._draw.stormy:
            for _ in range(rng.randint(1, 6)):
                clock.at(start + rng.random() * STORM, rng.choice(self._faults.actions()))
        self._run_for(STORM)

    def _calm(self) -> None:
        cluster = self.cluster
        self._ambushes.waiting = None
        self._faults.raging = False
        for index in range(self._draw.nodes):
            cluster.network.restore(self._draw.host(index))
            node = cluster.slots[index]
            if node.alive and node.stopped:
                self._draw.say("resume", index)
                node.resume()
            for serving in list(node.serving.values()):
                serving.stuck = False
                serving.pump()
            for other in [*(self._draw.host(i) for i in range(self._draw.nodes)), "directory"]:
                if other != self._draw.host(index):
                    cluster.network.heal(self._draw.host(index), other)
                    cluster.network.heal(other, self._draw.host(index))
        for index in range(self._draw.nodes):
            if not cluster.slots[index].alive:
                cluster.restart(index)
        self._run_until(self._everybody_is_back)
        # What is waited for and exists somewhere must come now; what exists nowhere is put again, and once more if the
        # first put met a tombstone that a node which was away has not heard of.
        for _ in range(_PUTS_AGAIN):
            self._run_until(self._only_the_absent_are_missing)
            for target in self._draw.reductions:
                self._users.reduce(target)  # whoever asked for it may have died before it was heard
            wanted = {ref for call in cluster.calls.values() if call.open for ref in refs_of(call)}
            for ref in sorted(self._draw.needed_for(wanted)):
                self._users.put(ref)
        self._run_until(lambda: not any(call.open for call in cluster.calls.values()))
        self.oracle.judge_liveness()
        self._run_for(4 * cluster.settings.heartbeat)
        self._run_until(self.oracle.agrees)
        self.oracle.judge_agreement()

    def _end(self) -> None:
        cluster = self.cluster
        for call in list(cluster.calls.values()):
            if call.open:
                cluster.cancel(call)
            elif isinstance(call.answer, Got) and call.node.alive:
                cluster.unpin(call)
        for ref in self._draw.refs:
            self.oracle.expect_delete(ref)
        delete = cluster.delete(0, *self._draw.refs)
        self._run_until(lambda: not delete.open)
        self._run_for(cluster.settings.tombstone)
        self._run_until(self.oracle.at_rest)
        self.oracle.judge_rest()

    def _everybody_is_back(self) -> bool:
        directory = self.cluster.directory
        members = directory.machine.members
        here = all(members.get(node.machine.node) is not None for node in self.cluster.slots)
        return directory.alive and here and not directory.machine.world.recovering

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
        limit = sum(self._draw.sizes.values()) * self._draw.nodes / slowest
        return 3 * limit + 4 * (2 * settings.lease + settings.cooldown + settings.suspicion)

    def _run_until(self, done: Callable[[], bool]) -> None:
        """Let time pass until `done`, or patience ends; the oracle judges what is then not as it should be."""
        end = self.cluster.clock.now + self._patience()
        self._run_for(_LOOK_EVERY)
        while not done() and self.cluster.clock.now < end:
            self._run_for(_LOOK_EVERY)

    def _run_for(self, duration: float) -> None:
        events = self.cluster.clock.run(until=self.cluster.clock.now + duration, max_events=_MAX_EVENTS)
        self.events += events
        if events >= _MAX_EVENTS:
            raise BrokenPromiseError(f"more than {_MAX_EVENTS} events within {duration:.3f} s: a storm of messages")

    # --- what is watched -----------------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        self._users.answered(call)

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        self._ambushes.directory_says(node, message)

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        self._ambushes.node_says(node, message)
