"""Which runs there are. A run is one application in one setting, with both systems in turns on the same Ray nodes.

Kinds of runs are kept apart. *Learning* runs compute for real, on few nodes: losses, answers and sums count, times do
not, since all nodes share this machine's cores. *Timing* runs send real tensors, and a timer stands for the
accelerator: a host is idle while its GPU works. One of them computes for real, to show what that does on few cores.
*Failure* runs are timing runs in which a worker is killed with -9, and weight sync has engines that join and leave.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hoplite_ucx.bench.apps.bounds import MODELS, SpeedModel
from hoplite_ucx.bench.apps.job import AT_ONCE, Job

__all__ = ["GRIDS", "PARAMETERS", "PLAIN_AND_OURS", "Grid", "Kind", "Run", "Timings", "runs"]

MIB = 1 << 20
GBIT = 125e6
PLAIN_AND_OURS = ("plain", "hoplite")
"""The systems, and the names of their programs."""

PARAMETERS = {"small-cnn": 23_976, "resnet50": 102_228_128, "alexnet": 244_403_360, "vgg16": 553_430_176}
"""Bytes of each model's parameters; tests compare them with the models."""


class Kind(enum.StrEnum):
    LEARNING = "learning"
    TIMING = "timing"
    FAILURE = "failure"


@dataclass(frozen=True)
class Run:
    kind: Kind
    application: str
    """A key of `MODELS`."""
    task: str
    nodes: int
    rate: float
    size: int
    """Bytes of what is broadcast or reduced."""
    rounds: int
    compute: float | None = None
    turns: int = 1
    seconds: float = 0.0
    """For how long rounds begin, of which there are fewer then; 0 for all of them."""
    kill: float | None = None
    """Seconds until a worker is killed."""
    load: float = 0.0
    """Queries a second, as they come by themselves."""

    @property
    def program(self) -> str:
        """A3C is SGD whose gradients come from playing."""
        return "sgd" if self.application == "a3c" else self.application

    @property
    def model(self) -> SpeedModel:
        return MODELS[self.application]

    @property
    def title(self) -> str:
        compute = "real compute" if self.compute is None else f"compute {self.compute:.2f} s"
        link = f"{self.size / MIB:.3g} MiB, {self.nodes} nodes at {self.rate * 8e-6:g} Mbit/s"
        more = f", {self.load:g} queries/s" if self.load else ""
        return f"{self.kind}: {self.application}, {self.task}, {link}, {compute}{more}"

    @property
    def key(self) -> str:
        """The same for what is the same to measure, so that a run can go on where another one ended."""
        return f"{self.title} #{hashlib.blake2b(repr(self).encode(), digest_size=4).hexdigest()}"

    @property
    def at_once(self) -> int:
        """How many objects of the size a store holds at most: parameters and gradients of two rounds, or queries."""
        return AT_ONCE if self.load else 6

    @property
    def memory(self) -> int:
        """Of a node's store, with some room."""
        return max(256 * MIB, self.at_once * self.size + 64 * MIB)

    @property
    def estimate(self) -> float:
        """About how many seconds it takes on two cores, once Ray runs."""
        loads_torch = self.application != "serving"
        start = 5.0 + (1.3 if loads_torch else 0.8) * self.nodes
        ours = self.model.transfer_seconds(self.size, self.rate)
        if self.seconds:
            both = 2 * self.seconds
        elif self.load:
            both = 2 * self.rounds / self.load
        elif self.application == "weight_sync":
            both = 2 * self.rounds * (self.compute or 0.0)
        else:
            real = 0.15 if self.task in _SMALL else 3.0
            compute = real if self.compute is None else self.compute
            both = self.rounds * (2 * compute + (1.2 + self.model.bound(self.nodes)) * ours)
        return self.turns * (2 * start + both)

    def job(self, address: str, nodes: list[str], turn: int) -> Job:
        own = self.task in PARAMETERS
        return Job(
            address=address,
            nodes=nodes,
            rounds=self.rounds,
            task=self.task,
            compute=self.compute,
            size=0 if own else self.size,
            seconds=self.seconds,
            kill=self.kill,
            patience=None if self.kill is None else _PATIENCE,
            load=self.load,
            memory=self.memory,
            rate=self.rate,
            seed=turn,
        )


_PATIENCE = 0.2
"""Of an ensemble, where models die."""
_SMALL = ("small-cnn", "exact", "random", "cart-pole", "votes")
"""Tasks that two cores compute in a moment."""


@dataclass(frozen=True)
class Timings:
    """Timing runs of all applications, on so many nodes."""

    nodes: int
    scale: float = 1.0
    """Of sizes and rates together, so that S/B stays; 1 is 1 Gbit/s and full size."""
    models: tuple[str, ...] = ("resnet50",)
    """Of SGD. Where sizes are scaled, parameters of that size stand for a model."""
    sweep: tuple[float, ...] = (0.0,)
    """Compute, in units of the paper's."""
    turns: int = 1
    rounds: int = 6
    """The first two do not count."""
    applications: tuple[str, ...] = ("sgd", "impala", "a3c", "serving", "weight_sync")


@dataclass(frozen=True)
class Grid:
    name: str
    timings: tuple[Timings, ...]
    scene: Timings
    """Nodes and scale of open-loop serving, and of failures."""
    learning_rounds: int
    failure_seconds: float
    loads: tuple[float, ...]
    """Of open-loop serving, in units of what plain Ray can answer at most."""
    queries: int
    learning: tuple[str, ...] = ("small-cnn", "exact", "random", "a3c", "impala", "serving")
    failing: tuple[str, ...] = ("serving", "sgd", "weight_sync")
    real_compute: bool = True
    """Whether one timing run computes for real."""


QUICK = Grid(
    "quick",
    timings=(Timings(5, 0.25, rounds=4, applications=("sgd", "impala", "serving", "weight_sync")),),
    scene=Timings(5, 0.25),
    learning_rounds=8,
    failure_seconds=8.0,
    loads=(0.9,),
    queries=8,
    learning=("small-cnn", "exact"),
    failing=("serving",),
    real_compute=False,
)
DEFAULT = Grid(
    "default",
    timings=(
        Timings(4),
        Timings(8, sweep=(0.0, 1.0), rounds=8),
        Timings(16, 0.15, sweep=(1.0,)),
    ),
    scene=Timings(8),
    learning_rounds=60,
    failure_seconds=30.0,
    loads=(0.5, 0.9),
    queries=40,
)
_ALL_MODELS = ("resnet50", "alexnet", "vgg16")
_WHOLE_SWEEP = (0.0, 1.0, 2.0)
FULL = Grid(
    "full",
    timings=(
        Timings(4, 1.0, _ALL_MODELS, _WHOLE_SWEEP, turns=2, rounds=8),
        Timings(8, 1.0, _ALL_MODELS, _WHOLE_SWEEP, turns=2, rounds=8),
        Timings(16, 0.15, _ALL_MODELS, _WHOLE_SWEEP, turns=2, rounds=8),
    ),
    scene=Timings(8),
    learning_rounds=150,
    failure_seconds=60.0,
    loads=(0.3, 0.5, 0.7, 0.9, 1.2),
    queries=100,
)
GRIDS = {grid.name: grid for grid in (QUICK, DEFAULT, FULL)}

_LEARNING_NODES = 5
"""A server and four workers: a sum is one of two gradients."""


def runs(grid: Grid) -> list[Run]:
    """All of a grid, those with the same nodes beside each other: they share the Ray nodes."""
    found = [*_learning(grid), *(run for timings in grid.timings for run in _timing(timings))]
    found += [*_open_loop(grid), *_failures(grid)]
    if grid.real_compute:
        found.append(Run(Kind.TIMING, "sgd", "resnet50", 4, GBIT, PARAMETERS["resnet50"], rounds=6))
    return sorted(dict.fromkeys(found), key=lambda run: (run.nodes, -run.rate))


def _learning(grid: Grid) -> list[Run]:
    rounds, rate = grid.learning_rounds, grid.scene.scale * GBIT
    small = Run(Kind.LEARNING, "sgd", "small-cnn", _LEARNING_NODES, rate, PARAMETERS["small-cnn"], rounds)
    pole = replace(small, task="cart-pole", size=2 * MIB, rounds=2 * rounds)
    every = {
        "small-cnn": small,
        "exact": replace(small, task="exact", size=4 * MIB, rounds=8),
        "random": replace(small, task="random", size=4 * MIB, rounds=8),
        "a3c": replace(pole, application="a3c"),
        "impala": replace(pole, application="impala"),
        "serving": replace(small, application="serving", task="votes", size=8 * MIB, rounds=20),
    }
    return [every[name] for name in grid.learning]


def _timing(timings: Timings) -> Iterator[Run]:
    rate, scale = timings.scale * GBIT, timings.scale
    settings = [("sgd", model, PARAMETERS[model]) for model in timings.models]
    if scale != 1.0:
        settings = [("sgd", "cart-pole", int(scale * size)) for _, _, size in settings]
    settings += [
        ("impala", "cart-pole", int(scale * 64 * MIB)),
        ("a3c", "cart-pole", int(scale * 64 * MIB)),
        ("serving", "votes", int(scale * 48 * MIB)),
    ]
    for application, task, size in settings:
        if application not in timings.applications:
            continue
        for times in timings.sweep:
            compute = round(_compute(MODELS[application], times, size, rate), 3)
            yield Run(Kind.TIMING, application, task, timings.nodes, rate, size, timings.rounds, compute, timings.turns)
    if "weight_sync" in timings.applications:
        yield _weight_sync(timings, int(scale * 32 * MIB))


def _compute(model: SpeedModel, times: float, size: int, rate: float) -> float:
    """So many times the paper's. Where the paper's figure leaves no compute, twice that is a time as long as the
    transfers."""
    if not model.paper_share and times > 1.0:
        return model.transfer_seconds(size, rate)
    return times * model.compute_like_the_papers(size, rate)


def _weight_sync(timings: Timings, size: int) -> Run:
    """Versions come so slowly that plain Ray has time for each."""
    rate = timings.scale * GBIT
    pause = round(1.2 * (timings.nodes - 1) * MODELS["weight_sync"].transfer_seconds(size, rate), 3)
    return Run(Kind.TIMING, "weight_sync", "versions", timings.nodes, rate, size, timings.rounds, pause)


def _open_loop(grid: Grid) -> Iterator[Run]:
    timings = grid.scene
    rate, size = timings.scale * GBIT, int(timings.scale * 8 * MIB)
    model = MODELS["serving"]
    compute = round(model.compute_like_the_papers(size, rate), 3)
    most = 1 / max(compute, model.bound(timings.nodes) * model.transfer_seconds(size, rate))
    for times in grid.loads:
        load = round(times * most, 2)
        yield Run(Kind.TIMING, "serving", "votes", timings.nodes, rate, size, grid.queries, compute, load=load)


def _failures(grid: Grid) -> list[Run]:
    timings, seconds = grid.scene, grid.failure_seconds
    rate, size = timings.scale * GBIT, int(timings.scale * 16 * MIB)
    kill = round(max(seconds / 4, _BEFORE_A_DEATH), 1)
    serving = Run(
        Kind.FAILURE, "serving", "votes", timings.nodes, rate, size, _ENDLESS, 0.1, seconds=seconds, kill=kill
    )
    sync = _weight_sync(timings, size)
    assert sync.compute is not None
    every = {
        "serving": serving,
        "sgd": replace(serving, application="sgd", task="cart-pole"),
        "weight_sync": replace(sync, kind=Kind.FAILURE, rounds=int(seconds / sync.compute) + 1, kill=kill),
    }
    return [every[name] for name in grid.failing]


_BEFORE_A_DEATH = 3.2
"""Seconds at least, in which plain Ray has rounds that count, to compare the one with the death with."""
_ENDLESS = 10_000
"""Rounds, where the seconds end them."""
