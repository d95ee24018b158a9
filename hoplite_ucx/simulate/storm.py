"""The phase of a run in which users and faults act: as a seed draws it, or as it was recorded."""

from __future__ import annotations

from typing import Protocol

from hoplite_ucx.protocol.ids import NodeId, Version
from hoplite_ucx.protocol.messages import ToDirectory, ToNode
from hoplite_ucx.simulate.actions import Action
from hoplite_ucx.simulate.ambushes import Ambushes
from hoplite_ucx.simulate.cluster import Call
from hoplite_ucx.simulate.drawing import STORM, Ambush, Draw
from hoplite_ucx.simulate.faults import Faults
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.stage import Stage
from hoplite_ucx.simulate.users import Users

__all__ = ["DrawnStorm", "RecordedStorm", "Storm"]


class Storm(Protocol):
    def begin(self) -> None: ...
    def end(self) -> None: ...


class DrawnStorm:
    def __init__(self, draw: Draw, stage: Stage) -> None:
        self._draw = draw
        self._stage = stage
        self._users = Users(draw, stage)
        self._faults = Faults(draw, stage)
        self._ambushes = Ambushes(draw, stage, self._users, self._faults)
        stage.cluster.observers.append(self)

    def begin(self) -> None:
        draw, users, rng, clock = self._draw, self._users, self._draw.random, self._stage.cluster.clock
        start = clock.now
        # Slots are taken over where sources have other copies: these are made first.
        slots = draw.ambush is Ambush.SLOT
        for target, made_of in draw.targets.items():
            reduce = users.reduce_when_put if made_of.everywhere else users.reduce
            clock.at(start + rng.random() * rng.choice((0.05, 0.3)) + 0.3 * slots, reduce, target)
        for ref in draw.refs:
            if ref in draw.homes:
                clock.at(start + rng.random() * 0.05, users.put, ref, draw.homes[ref])
            elif ref not in draw.targets:
                clock.at(start + rng.random() * rng.choice((0.1, 0.6)), users.put, ref)
            for index, spread in self._some_askers(ref):
                clock.at(start + rng.random() * (0.1 + spread), users.get, ref, index)
        for _ in range(rng.randint(2, 14)):
            clock.at(start + rng.random() * STORM, rng.choice(users.actions()))
        for _ in range(rng.randint(1, draw.nodes) if draw.ambush is Ambush.LEAVING else 0):
            clock.at(start + 0.1 + rng.random() * (STORM - 0.2), self._faults.retire)
        if draw.stormy:
            for _ in range(rng.randint(1, 6)):
                clock.at(start + rng.random() * STORM, rng.choice(self._faults.actions()))
        for ref in draw.rushed:
            moment = start + draw.crowds.random() * (STORM - 0.4)
            clock.at(moment, users.put, ref, draw.crowds.randrange(draw.nodes))
            clock.at(moment + draw.crowds.choice((0.1, 0.3)), users.rush, ref)
        for _ in range(draw.raises):
            clock.at(start + draw.traps.random() * STORM, self._faults.raise_somewhere)

    def _some_askers(self, ref: int) -> list[tuple[int, float]]:
        """Who gets an object, and over how long they are spread."""
        draw, rng = self._draw, self._draw.random
        few = ref in draw.sources and rng.random() < 0.7  # else every source would be everywhere
        least = draw.nodes if ref in draw.targets and draw.targets[ref].everywhere else 1
        askers = rng.sample(range(draw.nodes), 0 if few else rng.randint(least, draw.nodes))
        if draw.ambush is Ambush.SLOT and ref in draw.sources:
            askers = rng.sample(range(draw.nodes), rng.randint(1, 2))
        spread = rng.choice((0.0, 0.05, 0.5))
        return [(index, spread) for index in askers]

    def end(self) -> None:
        self._ambushes.waiting = None
        self._faults.raging = False

    def answered(self, call: Call) -> None:
        self._users.answered(call)

    def directory_says(self, node: NodeId, message: ToNode) -> None:
        self._ambushes.directory_says(node, message)

    def directory_combines(self, version: Version) -> None:
        """Nobody lies in wait for that."""

    def node_says(self, node: VirtualNode, message: ToDirectory) -> None:
        self._ambushes.node_says(node, message)


class RecordedStorm:
    def __init__(self, steps: tuple[tuple[float, Action], ...], stage: Stage) -> None:
        self._steps = steps
        self._stage = stage

    def begin(self) -> None:
        for when, action in self._steps:
            self._stage.cluster.clock.at(when, self._stage.perform, action)

    def end(self) -> None:
        """What it still has to do, as to heal a link, it does at its time."""
