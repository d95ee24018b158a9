"""Random runs: a cluster, a workload and faults, all from one seed, judged by the oracle.

A run has three parts. In the *storm* users put, get, wait, delete and give up at random while processes are killed,
stopped and restarted, links cut one way, sessions and streams broken. In the *calm* everything is healed; what is still
wanted and lost is put again, and every wait must end within a constant times the limit plus detection. In the *end*
everything is deleted and nothing may be left.
"""

from __future__ import annotations

import enum
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from hoplite_ucx.protocol import Directory, NodeState, Settings
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import GetCall, Got, PutCall, WaitCall
from hoplite_ucx.protocol.ids import NodeId, identity_of
from hoplite_ucx.protocol.messages import Bind, Bound, Completed, Place, ToDirectory, ToNode
from hoplite_ucx.protocol.settings import KIB
from hoplite_ucx.simulate.cluster import Call, Shape, VirtualCluster
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.oracle import BrokenPromiseError, Oracle, refs_of

_BANDWIDTH = 125e6
_GRANULE = 512 * KIB
_STORM = 1.2
_LOOK_EVERY = 0.1
_PUTS_AGAIN = 3
_MAX_EVENTS = 400_000


class Ambush(enum.Enum):
    """Faults that wait for the moment at which they hurt most."""

    COMPLETION = "completion"
    PLACEMENT = "placement"
    TRANSFER = "transfer"
    SLOT = "slot"
    STRIPE = "stripe"
    DIRECTORY = "directory"


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
    chaos = Chaos(seed, cluster_type, reductions=reductions, focus=focus)
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
    def __init__(
        self,
        seed: int,
        cluster_type: type[VirtualCluster],
        *,
        reductions: bool = True,
        focus: Ambush | None = None,
    ) -> None:
        self._random = rng = random.Random(seed)
        self._nodes = rng.randint(3, 8)
        self._granule = rng.choice((_GRANULE, _GRANULE // 4))
        self._largest = self._granule * rng.choice((2, 5, 12))
        tight = rng.random() < 0.3
        self._stormy = rng.random() < 0.8
        ambush = rng.choice([*Ambush, Ambush.PLACEMENT, Ambush.DIRECTORY])
        self._ambush = ambush if self._stormy and rng.random() < 0.6 else None
        if focus is not None:
            self._stormy, self._ambush = True, focus
        if self._ambush is Ambush.SLOT:
            self._largest = 12 * self._granule  # long enough to die in the middle, with room for other copies
            tight = False
        rates = {i: _BANDWIDTH * rng.choice((0.25, 0.5)) for i in range(self._nodes) if rng.random() < 0.15}
        shape = Shape(
            nodes=self._nodes,
            bandwidth=_BANDWIDTH,
            latency=rng.choice((100e-6, 1e-3)),
            handover=rng.choice((150e-6, 2e-3)),
            rates=rates if self._stormy else {},  # with chunks this large, many stripes on a slow host look stalled
            memory=int(self._largest * rng.choice((1.2, 2.5, 4))) if tight else 1 << 40,
            streams=rng.choice((1, 2, 4, 256)),
            # A transfer's ambush hurts most where memory is taken again at once, and streams are slow to close.
            put_rate=4e9 if self._ambush in (Ambush.TRANSFER, Ambush.SLOT) else rng.choice((4e9, 50e6, 5e6)),
            put_pieces=4,
            jitter=rng.choice((0.0, 1e-3, 10e-3)),
            close_delay=20e-3 if self._ambush is Ambush.TRANSFER else rng.choice((200e-6, 20e-3)),
            tight=tight,
        )
        settings = Settings(
            heartbeat=0.05,
            suspicion=0.15,
            lease=rng.choice((0.4, 1.0)),
            cooldown=0.2,
            regroup=0.02,
            park=rng.choice((0.02, 0.15)),
            tombstone=rng.choice((0.3, 5.0)),
            inline_total=rng.choice((64 * KIB, 1 << 30)),
            latency=shape.latency,
            handover=shape.handover,
            min_granule=self._granule,
            max_granule=self._granule,
        )
        self.cluster = cluster_type(shape, rng.getrandbits(32), settings, checked=True)
        self.oracle = Oracle(self.cluster, fair_weather=not self._stormy)
        self.cluster.observers.append(self)
        self.faults = 0
        self._raging = True
        self._victims_left = 3  # of an ambush of slots
        self.events = 0
        self._log: list[str] = []
        self._plain = [self.cluster.new_ref() for _ in range(rng.randint(1, 4))]
        self._sizes = {ref: self._some_size() for ref in self._plain}
        self._homes: dict[bytes, int] = {}  # sources of an allreduce, and where each is put first
        self._allreduces: dict[bytes, None] = {}
        often = 1.0 if self._ambush in (Ambush.SLOT, Ambush.STRIPE) else 0.7
        self._reductions = self._some_reductions() if reductions and rng.random() < often else {}
        self._sources = [ref for ref in self._sizes if ref not in self._plain]
        self._refs = [*self._plain, *self._sources, *self._reductions]
        self._crashes = rng.choice((0, 0, 2))
        # Users put again what was lost, at once; without that these ambushes have no second act.
        self._retries = self._ambush in (Ambush.PLACEMENT, Ambush.TRANSFER) or rng.random() < 0.7

    def _some_reductions(self) -> dict[bytes, tuple[tuple[bytes, ...], int]]:
        """Targets, and what they are made of: a second one shares sources with the first or is made from it."""
        rng = self._random
        slots = self._ambush is Ambush.SLOT
        size = self._largest if slots else self._some_size()
        everywhere = self._ambush is Ambush.STRIPE or (not slots and rng.random() < 0.4)
        least = 3 if slots else 1
        number = rng.randint(3, self._nodes) if everywhere else rng.randint(least, 7)
        sources = [self.cluster.new_ref() for _ in range(number)]
        self._sizes |= dict.fromkeys(sources, size)
        count = rng.randint(number - 1 if everywhere else least, number)
        reductions = {self.cluster.new_ref(): (tuple(sources), count)}
        if everywhere:
            self._homes = dict(zip(sources, rng.sample(range(self._nodes), len(sources)), strict=True))
            self._allreduces = dict.fromkeys(reductions)
        if rng.random() < 0.4:
            others = [
                *rng.sample(sources, rng.randint(0, len(sources))),
                *rng.sample(list(reductions), rng.randint(0, 1)),
            ]
            others += [self.cluster.new_ref() for _ in range(rng.randint(0 if others else 1, 2))]
            self._sizes |= dict.fromkeys(others, size)
            reductions[self.cluster.new_ref()] = (tuple(others), rng.randint(1, len(others)))
        for target in reductions:
            self._sizes.pop(target, None)
        return reductions

    def run(self) -> None:
        self._quiet_start()
        self._storm()
        self._calm()
        self._end()

    def story(self, ref: bytes | None) -> list[str]:
        machines: list[Directory | NodeState] = [node.machine for node in self.cluster.nodes.values()]
        machines.append(self.cluster.directory.machine)
        refs = [ref] if ref is not None else self._refs
        told = [entry for r in refs for machine in machines for entry in machine.story(r)]
        told += [(float(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in self._log]
        return [f"{when:.6f} {what}" for when, what in sorted(told, key=lambda entry: entry[0])]

    # --- the parts of a run ------------------------------------------------------------------------------------

    def _quiet_start(self) -> None:
        self.cluster.clock.run(until=0.05)
        rng = self._random
        for a in range(self._nodes):
            for b in range(self._nodes):
                if a != b and rng.random() < 0.1:
                    self.cluster.network.set_latency(self._host(a), self._host(b), rng.choice((50e-6, 5e-3)))

    def _storm(self) -> None:
        rng, clock = self._random, self.cluster.clock
        start = clock.now
        # Slots are taken over where sources have other copies: these are made first.
        slots = self._ambush is Ambush.SLOT
        for target in self._reductions:
            begin = self._reduce_when_put if target in self._allreduces else self._reduce
            clock.at(start + rng.random() * rng.choice((0.05, 0.3)) + 0.3 * slots, begin, target)
        for ref in self._refs:
            if ref in self._homes:
                clock.at(start + rng.random() * 0.05, self._put, ref, self._homes[ref])
            elif ref not in self._reductions:
                clock.at(start + rng.random() * rng.choice((0.1, 0.6)), self._put, ref)
            few = ref in self._sources and rng.random() < 0.7  # else every source would be everywhere
            least = self._nodes if ref in self._allreduces else 1
            askers = rng.sample(range(self._nodes), 0 if few else rng.randint(least, self._nodes))
            if slots and ref in self._sources:
                askers = rng.sample(range(self._nodes), rng.randint(1, 2))
            spread = rng.choice((0.0, 0.05, 0.5))
            for index in askers:
                clock.at(start + rng.random() * (0.1 + spread), self._get, ref, index)
        for _ in range(rng.randint(2, 14)):
            clock.at(start + rng.random() * _STORM, rng.choice(self._user_actions()))
        if self._stormy:
            for _ in range(rng.randint(1, 6)):
                clock.at(start + rng.random() * _STORM, rng.choice(self._fault_actions()))
        self._run_for(_STORM)

    def _calm(self) -> None:
        cluster = self.cluster
        self._ambush = None
        self._raging = False
        for index in range(self._nodes):
            cluster.network.restore(self._host(index))
            node = cluster.slots[index]
            if node.alive and node.stopped:
                self._say("resume", index)
                node.resume()
            for serving in list(node.serving.values()):
                serving.stuck = False
                serving.pump()
            for other in [*(self._host(i) for i in range(self._nodes)), "directory"]:
                if other != self._host(index):
                    cluster.network.heal(self._host(index), other)
                    cluster.network.heal(other, self._host(index))
        for index in range(self._nodes):
            if not cluster.slots[index].alive:
                cluster.restart(index)
        self._run_until(self._everybody_is_back)
        # What is waited for and exists somewhere must come now; what exists nowhere is put again, and once more if the
        # first put met a tombstone that a node which was away has not heard of.
        for _ in range(_PUTS_AGAIN):
            self._run_until(self._only_the_absent_are_missing)
            for target in self._reductions:
                self._reduce(target)  # whoever asked for it may have died before it was heard
            wanted = {ref for call in cluster.calls.values() if call.open for ref in refs_of(call)}
            for ref in sorted(self._needed_for(wanted)):
                self._put(ref)
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
        for ref in self._refs:
            self.oracle.expect_delete(ref)
        delete = cluster.delete(0, *self._refs)
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

    def _needed_for(self, refs: set[bytes]) -> set[bytes]:
        """The refs to put so that these can be had."""
        needed: set[bytes] = set()
        pending = list(refs)
        while pending:
            ref = pending.pop()
            if ref in self._reductions:
                pending.extend(self._reductions[ref][0])
            else:
                needed.add(ref)
        return needed

    def _patience(self) -> float:
        """How long anything may take once faults have stopped: a constant times the limit plus detection."""
        settings = self.cluster.settings
        slowest = min([_BANDWIDTH, *self.cluster.shape.rates.values()])
        limit = sum(self._sizes.values()) * self._nodes / slowest
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

    # --- what it watches for -----------------------------------------------------------------------------------

    def answered(self, call: Call) -> None:
        """A user whose get failed does something about it: puts the lost object again, or goes on with another."""
        if not (self._retries and self.cluster.clock.now < _STORM and isinstance(call.event, GetCall)):
            return
        failure, ref = call.failure, call.event.ref
        index = int(call.node.host[1:])
        delay = self._random.choice((0.0, 0.002, 0.1))
        if failure is not None and failure.kind in (FailureKind.LOST, FailureKind.ABORTED):
            for needed in sorted(self._needed_for({ref})):
                self.cluster.clock.after(delay, self._put, needed, self._random.choice((index, None)))
            self.cluster.clock.after(delay, self._get, ref, index)
        elif failure is not None and failure.kind is FailureKind.DELETED:
            self.cluster.clock.after(delay, self._put, self._some_putable_ref(), index)

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        if self._ambush is Ambush.DIRECTORY and isinstance(message, Place | Bind) and self._random.random() < 0.2:
            self._ambush_directory(self.cluster.nodes[identity_of(node)], message)
        if self._ambush is Ambush.PLACEMENT and isinstance(message, Place):
            self._ambush_placement(self.cluster.nodes[identity_of(node)], message)
        elif self._ambush is Ambush.TRANSFER and isinstance(message, Place) and message.version.ref in self._refs:
            self._ambush = None
            transfer = message.size / _BANDWIDTH
            self.cluster.clock.after(self._random.random() * transfer, self._delete, message.version.ref)

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        if self._ambush is Ambush.COMPLETION and isinstance(message, Completed):
            self._ambush_completion(node, message)
        elif self._ambush in (Ambush.SLOT, Ambush.STRIPE) and isinstance(message, Bound):
            self._ambush_slot(node, message)

    def _ambush_completion(self, node: VirtualNode, message: Completed) -> None:
        """The one other complete copy dies, and the word of the new one is held up: is the object taken for lost?"""
        others = self._complete_elsewhere(message.version.ref, node)
        if len(others) == 1:
            self._ambush = None
            self._cut(node.host, "directory", for_seconds=self._random.choice((0.01, 0.1)))
            self.cluster.clock.after(0.0, self._kill_node, others[0])

    def _ambush_placement(self, node: VirtualNode, message: Place) -> None:
        """The receiver is cut off with its request on the way, and the object is lost and put again meanwhile: when
        the request arrives, its sender has another version."""
        sender = self.cluster.nodes[identity_of(message.sender)]
        roots = self._complete_elsewhere(message.version.ref, node)
        if not roots or sender in roots:
            return
        self._ambush = None
        absence = 1.3 * self.cluster.settings.lease + 0.2
        clock, network = self.cluster.clock, self.cluster.network
        self._fault(f"cut off {node.host} for {absence:.3f}", None)
        clock.after(1.5 * self.cluster.shape.latency, network.isolate, node.host)
        clock.after(absence, network.restore, node.host)
        for root in roots:
            clock.after(2 * self.cluster.shape.latency, self._kill_node, root)

    def _ambush_slot(self, node: VirtualNode, message: Bound) -> None:
        """The host of a slot, or of one of the parts it lacks, dies while they are being combined; and of a slot that
        was taken over in the middle, whoever has the beginning."""
        record = self.cluster.directory.machine.records.get(message.version.ref)
        slot = record.slot if record is not None else None
        taken_over = slot is not None and slot.start > 0
        if self._random.random() < 0.5 and not taken_over:
            return
        victims = [node]
        if slot is not None and slot.parent is not None and slot.parent.host is not None:
            victims.append(self.cluster.nodes[identity_of(slot.parent.host.node)])
        for part in message.missing if not taken_over else ():
            victims += self._complete_elsewhere(part.ref, node)
        delay = self._random.random() * (2 * self._largest / _BANDWIDTH + 0.02)
        self.cluster.clock.after(delay, self._kill_node, self._random.choice(victims))
        self._victims_left -= 1
        if not self._victims_left:
            self._ambush = None

    def _ambush_directory(self, node: VirtualNode, message: Place | Bind) -> None:
        """The directory dies while bytes flow, and perhaps somebody who sends or combines them with it."""
        self._ambush = None
        moment = self._random.random() * message.size / _BANDWIDTH
        self.cluster.clock.after(moment, self._crash_directory, 0.001)
        if self._random.random() < 0.3:
            victims = [node, *([self.cluster.nodes[identity_of(message.sender)]] if isinstance(message, Place) else [])]
            self.cluster.clock.after(moment, self._kill_node, self._random.choice(victims))

    def _complete_elsewhere(self, ref: bytes, node: VirtualNode) -> list[VirtualNode]:
        return [
            other
            for other in self.cluster.slots
            if other.alive and other is not node and other.machine.memory.complete_copy(ref)
        ]

    # --- users -------------------------------------------------------------------------------------------------

    def _user_actions(self) -> list[Callable[[], None]]:
        return [
            *[lambda: self._get(self._some_ref(), self._some_node())] * 5,
            *[lambda: self._put(self._some_putable_ref())] * 2,
            *[self._ask] * (2 if self._reductions else 0),
            *[self._wait] * 2,
            *[self._unpin_some] * 2,
            self._cancel_some,
            self._delete,
        ]

    def _put(self, ref: bytes, index: int | None = None) -> None:
        if index is None:
            index = self._some_living_node()
        if index is None or not self.cluster.slots[index].alive:
            return
        if self._random.random() < 0.2 and ref in self._plain:
            self._sizes[ref] = self._some_size()  # put again with other bytes
        size = self._sizes[ref]
        inline = size <= self.cluster.settings.inline_limit
        self._say(f"put {ref.hex()[:8]} {size}", index)
        self.cluster.put(index, ref, size, inline=inline)

    def _get(self, ref: bytes, index: int) -> None:
        if self.cluster.slots[index].alive:
            self._say(f"get {ref.hex()[:8]}", index)
            self.cluster.get(index, ref)

    def _reduce(self, target: bytes) -> None:
        index = self._some_living_node()
        if index is not None:
            sources, count = self._reductions[target]
            everywhere = target in self._allreduces
            what = "allreduce" if everywhere else "reduce"
            self._say(f"{what} {count} of {len(sources)} into {target.hex()[:8]}", index)
            self.cluster.reduce(index, target, sources, count, everywhere=everywhere)

    def _reduce_when_put(self, target: bytes) -> None:
        """Stripes are laid for sources that are there together: wait a while for all of them."""
        sources = set(self._reductions[target][0])
        pending = any(isinstance(c.event, PutCall) and c.event.ref in sources and c.open for c in self._all_calls())
        if pending and self.cluster.clock.now < _STORM / 2:
            self.cluster.clock.after(0.02, self._reduce_when_put, target)
        else:
            self._reduce(target)

    def _ask(self) -> None:
        index = self._some_living_node()
        if index is not None:
            self.cluster.contributors(index, self._random.choice(list(self._reductions)))

    def _wait(self) -> None:
        index = self._some_living_node()
        if index is not None:
            refs = tuple(self._random.sample(self._refs, self._random.randint(1, len(self._refs))))
            self.cluster.wait(index, refs, self._random.randint(1, len(refs)), timeout=self._random.choice((None, 0.3)))

    def _delete(self, ref: bytes | None = None) -> None:
        index = self._some_living_node()
        if index is not None:
            ref = ref or self._some_ref()
            self._say(f"delete {ref.hex()[:8]}", index)
            self.oracle.expect_delete(ref)
            self.cluster.delete(index, ref)

    def _unpin_some(self) -> None:
        for call in self._all_calls():
            if isinstance(call.answer, Got) and call.node.alive and self._random.random() < 0.5:
                self.cluster.unpin(call)

    def _cancel_some(self) -> None:
        """A user's process dies: its calls are cancelled, its puts cut off."""
        calls = [call for call in self._all_calls() if call.open]
        if not calls:
            return
        call = self._random.choice(calls)
        if isinstance(call.event, PutCall):
            self.oracle.expect_abort(call.event.ref)
        self._say(f"cancel {call.event.call}", int(call.node.host[1:]))
        self.cluster.cancel(call)

    # --- faults ------------------------------------------------------------------------------------------------

    def _fault_actions(self) -> list[Callable[[], None]]:
        return [
            self._kill,
            self._kill,
            self._power_off,
            self._restart,
            self._stop_for_a_while,
            self._stop_for_a_while,
            self._cut_one_way,
            self._cut_from_directory,
            self._lose_directory,
            *[self._crash_directory] * self._crashes,
            self._lose_peer,
            self._break_stream,
            self._stall_stream,
        ]

    def _kill(self) -> None:
        index = self._some_living_node()
        if index is not None:
            self._kill_node(self.cluster.slots[index])

    def _kill_node(self, node: VirtualNode) -> None:
        if node.alive and self._raging:
            self._fault("kill", int(node.host[1:]))
            node.kill()

    def _power_off(self) -> None:
        """The host is gone and says nothing: no reset, no refusal."""
        index = self._some_living_node()
        if index is not None:
            self._fault("power off", index)
            self.cluster.network.isolate(self._host(index))
            self.cluster.slots[index].kill()

    def _restart(self) -> None:
        dead = [index for index in range(self._nodes) if not self.cluster.slots[index].alive]
        if dead:
            index = self._random.choice(dead)
            self._fault("restart", index)
            self.cluster.restart(index)

    def _stop_for_a_while(self) -> None:
        index = self._some_living_node()
        if index is None or self.cluster.slots[index].stopped:
            return
        self._fault("stop", index)
        node = self.cluster.slots[index]
        node.stop()

        def resume() -> None:
            if node.alive and node.stopped:
                self._say("resume", index)
                node.resume()

        self.cluster.clock.after(self._random.choice((0.05, 0.3, 1.5)), resume)

    def _cut_one_way(self) -> None:
        a, b = self._random.sample(range(self._nodes), 2)
        self._cut(self._host(a), self._host(b), for_seconds=self._random.choice((0.1, 0.5, 2.0)))

    def _cut_from_directory(self) -> None:
        ends = [self._host(self._some_node()), "directory"]
        self._random.shuffle(ends)
        self._cut(*ends, for_seconds=self._random.choice((0.1, 0.5, 2.0)))

    def _cut(self, source: str, target: str, *, for_seconds: float) -> None:
        self._fault(f"cut {source} → {target}", None)
        self.cluster.network.cut(source, target)
        self.cluster.clock.after(for_seconds, self.cluster.network.heal, source, target)

    def _lose_directory(self) -> None:
        index = self._some_living_node()
        if index is not None and not self.cluster.slots[index].stopped:
            self._fault("lose the directory's session", index)
            self.cluster.slots[index].lose_directory()

    def _crash_directory(self, absence: float | None = None) -> None:
        if not (self.cluster.directory.alive and self._raging):
            return
        self._fault("crash of the directory", None)
        self.cluster.crash_directory()

        def restart() -> None:
            self._say("restart of the directory", None)
            self.cluster.restart_directory()

        self.cluster.clock.after(absence or self._random.choice((0.001, 0.05, 0.3)), restart)

    def _lose_peer(self) -> None:
        index = self._some_living_node()
        if index is None or self.cluster.slots[index].stopped:
            return
        node = self.cluster.slots[index]
        if node.peers:
            self._fault("lose a peer's session", index)
            node.lose_peer(self._random.choice(sorted(node.peers)))

    def _break_stream(self) -> None:
        index = self._some_living_node()
        if index is not None and self.cluster.slots[index].serving:
            self._fault("break a stream", index)
            node = self.cluster.slots[index]
            node.break_stream(self._random.choice(list(node.serving)))

    def _stall_stream(self) -> None:
        """A connection that neither moves nor breaks, while its sender is alive and says so."""
        index = self._some_living_node()
        if index is not None and self.cluster.slots[index].serving:
            self._fault("stall a stream", index)
            self._random.choice(list(self.cluster.slots[index].serving.values())).stuck = True

    # --- choices -----------------------------------------------------------------------------------------------

    def _some_size(self) -> int:
        kind = self._random.random()
        if kind < 0.15:
            return self._random.choice((0, 8, 1000, 32 * KIB))
        if kind < 0.3:
            return 32 * KIB + 1
        return self._random.randint(self._granule // 2, self._largest)

    def _some_ref(self) -> bytes:
        return self._random.choice(self._refs)

    def _some_putable_ref(self) -> bytes:
        return self._random.choice([*self._plain, *self._sources])

    def _some_node(self) -> int:
        return self._random.randrange(self._nodes)

    def _some_living_node(self) -> int | None:
        living = [index for index in range(self._nodes) if self.cluster.slots[index].alive]
        return self._random.choice(living) if living else None

    def _host(self, index: int) -> str:
        return self.cluster.slots[index].host

    def _all_calls(self) -> list[Call]:
        return list(self.cluster.calls.values())

    def _fault(self, what: str, index: int | None) -> None:
        self.faults += 1
        self._say(what, index)

    def _say(self, what: str, index: int | None) -> None:
        who = "network" if index is None else f"h{index} (n{self.cluster.slots[index].identity:x})"
        self._log.append(f"{self.cluster.clock.now:.6f} {who}: {what}")
