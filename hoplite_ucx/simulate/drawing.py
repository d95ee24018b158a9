"""What a seed makes of a run of chaos: a cluster, its objects and reductions, and every choice that comes later.

All of them come from one generator, in the order in which they are asked for: one more draw, or an earlier one, changes
the runs of all seeds. A run that must not change is kept as a `Recording`.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.settings import KIB
from hoplite_ucx.simulate.actions import Setup, Target
from hoplite_ucx.simulate.cluster import Shape

__all__ = ["BANDWIDTH", "STORM", "Ambush", "Draw"]

BANDWIDTH = 125e6
STORM = 1.2
"""For how long, in virtual seconds, users and faults go on."""
_GRANULE = 512 * KIB
_HASTE = 0.2
"""All timers are this much shorter than in a live cluster, so that they fire in the same order."""

T = TypeVar("T")


class Ambush(enum.Enum):
    """Faults that wait for the moment at which they hurt most."""

    COMPLETION = "completion"
    PLACEMENT = "placement"
    TRANSFER = "transfer"
    SLOT = "slot"
    STRIPE = "stripe"
    DIRECTORY = "directory"
    LEAVING = "leaving"
    """No fault: nodes leave on purpose. Only where it is asked for, so that seeds keep their meaning."""
    CROWD = "crowd"
    """Hosts of stripes that were cut for a crowd. Likewise only where it is asked for."""
    SMALL = "small"
    """No fault either: all objects are small, and stores have room for few of them. Likewise."""


_DRAWN = [ambush for ambush in Ambush if ambush not in (Ambush.LEAVING, Ambush.CROWD, Ambush.SMALL)]


class Draw:
    def __init__(self, seed: int, *, reductions: bool = True, focus: Ambush | None = None) -> None:
        self.random = rng = random.Random(seed)
        self.nodes = rng.randint(3, 8)
        self.granule = rng.choice((_GRANULE, _GRANULE // 4))
        self.largest = self.granule * rng.choice((2, 5, 12))
        tight = rng.random() < 0.3
        self.stormy = rng.random() < 0.8
        ambush: Ambush = rng.choice([*_DRAWN, Ambush.PLACEMENT, Ambush.DIRECTORY])
        self.ambush: Ambush | None = ambush if self.stormy and rng.random() < 0.6 else None
        if focus is Ambush.LEAVING:
            self.ambush, tight = focus, False  # where there is no room, nobody can take anything over
        elif focus is not None:
            self.stormy, self.ambush = True, focus
        if self.ambush in (Ambush.SLOT, Ambush.CROWD):
            self.largest = 12 * self.granule  # long enough to die in the middle, with room for other copies
            tight = False
        elif self.ambush is Ambush.SMALL:
            self.largest, tight = 64 * KIB, True
        rates = {i: BANDWIDTH * rng.choice((0.25, 0.5)) for i in range(self.nodes) if rng.random() < 0.15}
        # From a generator of their own: all else is drawn as it was before there were crowds.
        self.crowds = random.Random(f"crowds {seed}")
        rushes = 3 if self.ambush is Ambush.CROWD else self.crowds.choice((0, 0, 1, 2))
        if self.ambush is Ambush.SMALL:
            rushes = 0  # what is small is not cut
        if not self.stormy or (rushes and self.granule == _GRANULE):
            rates = {}  # with chunks this large, many stripes on a slow host look stalled
        shape = Shape(
            nodes=self.nodes,
            bandwidth=BANDWIDTH,
            latency=rng.choice((100e-6, 1e-3)),
            handover=rng.choice((150e-6, 2e-3)),
            rates=rates,
            memory=int(self.largest * rng.choice((1.2, 2.5, 4))) if tight else 1 << 40,
            streams=rng.choice((1, 2, 4, 256)),
            # A transfer's ambush hurts most where memory is taken again at once, and streams are slow to close.
            put_rate=4e9
            if self.ambush in (Ambush.TRANSFER, Ambush.SLOT, Ambush.CROWD)
            else rng.choice((4e9, 50e6, 5e6)),
            put_pieces=4,
            jitter=rng.choice((0.0, 0.0, 1e-3) if self.ambush is Ambush.CROWD else (0.0, 1e-3, 10e-3)),
            close_delay=20e-3 if self.ambush is Ambush.TRANSFER else rng.choice((200e-6, 20e-3)),
            tight=tight,
            # From a generator of its own: all else is drawn as it was when every directory could.
            combines=random.Random(f"combines {seed}").random() < 0.7,
        )
        settings = msgspec.structs.replace(
            Settings().scaled(_HASTE),
            lease=rng.choice((0.4, 1.0)),
            park=rng.choice((0.02, 0.15)),
            tombstone=rng.choice((0.3, 5.0)),
            inline_total=rng.choice((64 * KIB, 1 << 30)),
            latency=shape.latency,
            handover=shape.handover,
            min_granule=self.granule,
            max_granule=self.granule,
            slot_cost=0.0,
        )
        if rushes:
            settings = msgspec.structs.replace(
                settings, crowd=2, stripes=self.crowds.choice((2, 3, 4)), depth_cost=0, regroup=0.05
            )
        seed_of_cluster = rng.getrandbits(32)
        self._refs = 0
        self.plain = [self._new_ref() for _ in range(rng.randint(1, 4))]
        self._sizes = {ref: self.some_size() for ref in self.plain}
        self.homes: dict[int, int] = {}  # sources of an allreduce, and where each is put first
        often = 1.0 if self.ambush in (Ambush.SLOT, Ambush.STRIPE, Ambush.SMALL) else 0.7
        self.targets = self._some_targets() if reductions and rng.random() < often else {}
        self.sources = [ref for ref in self._sizes if ref not in self.plain]
        self.refs = [*self.plain, *self.sources, *self.targets]
        self.rushed = [self._new_ref() for _ in range(rushes)]  # objects that many nodes get at one moment
        self._sizes |= {ref: self.crowds.randint(self.granule, self.largest) for ref in self.rushed}
        self.crashes = rng.choice((0, 0, 2))
        # Users put again what was lost, at once; without that these ambushes have no second act.
        self.retries = self.ambush in (Ambush.PLACEMENT, Ambush.TRANSFER, Ambush.CROWD) or rng.random() < 0.7
        # From a generator of their own: all else is drawn as it was before machines were made to raise.
        self.traps = random.Random(f"traps {seed}")
        self.raises = self.traps.choice((0, 0, 0, 1, 2, 4)) if self.stormy else 0
        self.setup = Setup(
            shape=shape,
            settings=msgspec.structs.asdict(settings),
            seed=seed_of_cluster,
            latencies=tuple(self._some_latencies()),
            sizes=self._sizes,
            targets=self.targets,
            fair_weather=not self.stormy,
        )

    def _new_ref(self) -> int:
        self._refs += 1
        return self._refs

    def _some_latencies(self) -> Iterator[tuple[int, int, float]]:
        for a in range(self.nodes):
            for b in range(self.nodes):
                if a != b and self.random.random() < 0.1:
                    yield a, b, self.random.choice((50e-6, 5e-3))

    def _some_targets(self) -> dict[int, Target]:
        """Targets, and what they are made of: a second one shares sources with the first or is made from it."""
        rng = self.random
        slots = self.ambush is Ambush.SLOT
        size = self.largest if slots else self.some_size()
        everywhere = self.ambush is Ambush.STRIPE or (not slots and rng.random() < 0.4)
        least = 3 if slots else 1
        number = rng.randint(3, self.nodes) if everywhere else rng.randint(least, 7)
        sources = [self._new_ref() for _ in range(number)]
        self._sizes |= dict.fromkeys(sources, size)
        count = rng.randint(number - 1 if everywhere else least, number)
        targets = {self._new_ref(): Target(tuple(sources), count, everywhere)}
        if everywhere:
            self.homes = dict(zip(sources, rng.sample(range(self.nodes), len(sources)), strict=True))
        if rng.random() < 0.4:
            others = [
                *rng.sample(sources, rng.randint(0, len(sources))),
                *rng.sample(list(targets), rng.randint(0, 1)),
            ]
            others += [self._new_ref() for _ in range(rng.randint(0 if others else 1, 2))]
            self._sizes |= dict.fromkeys(others, size)
            targets[self._new_ref()] = Target(tuple(others), rng.randint(1, len(others)))
        for target in targets:
            self._sizes.pop(target, None)
        return targets

    def some_size(self) -> int:
        kind = self.random.random()
        if kind < 0.15 or self.ambush is Ambush.SMALL:
            return self.random.choice((0, 8, 1000, 32 * KIB))
        if kind < 0.3:
            return 32 * KIB + 1
        return self.random.randint(self.granule // 2, self.largest)

    def some_ref(self) -> int:
        return self.random.choice(self.refs)

    def some_putable_ref(self) -> int:
        return self.random.choice([*self.plain, *self.sources])

    def some_node(self) -> int:
        return self.random.randrange(self.nodes)

    def one_of(self, candidates: Sequence[T]) -> T | None:
        """None if there are none: then nothing is drawn."""
        return self.random.choice(candidates) if candidates else None
