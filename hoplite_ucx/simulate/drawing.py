"""What a seed makes of a run of chaos: a cluster, its objects and reductions, and every choice that comes later.

All of them come from one generator, in the order in which they are asked for: whoever draws once more, or earlier,
makes other runs of all seeds.
"""

from __future__ import annotations

import enum
import random

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.settings import KIB
from hoplite_ucx.simulate.cluster import Call, Shape, VirtualCluster

__all__ = ["BANDWIDTH", "STORM", "Ambush", "Draw"]

BANDWIDTH = 125e6
STORM = 1.2
"""For how long, in virtual seconds, users and faults go on."""
_GRANULE = 512 * KIB


class Ambush(enum.Enum):
    """Faults that wait for the moment at which they hurt most."""

    COMPLETION = "completion"
    PLACEMENT = "placement"
    TRANSFER = "transfer"
    SLOT = "slot"
    STRIPE = "stripe"
    DIRECTORY = "directory"


class Draw:
    def __init__(
        self,
        seed: int,
        cluster_type: type[VirtualCluster],
        *,
        reductions: bool = True,
        focus: Ambush | None = None,
    ) -> None:
        self.random = rng = random.Random(seed)
        self.nodes = rng.randint(3, 8)
        self.granule = rng.choice((_GRANULE, _GRANULE // 4))
        self.largest = self.granule * rng.choice((2, 5, 12))
        tight = rng.random() < 0.3
        self.stormy = rng.random() < 0.8
        ambush = rng.choice([*Ambush, Ambush.PLACEMENT, Ambush.DIRECTORY])
        self.ambush = ambush if self.stormy and rng.random() < 0.6 else None
        if focus is not None:
            self.stormy, self.ambush = True, focus
        if self.ambush is Ambush.SLOT:
            self.largest = 12 * self.granule  # long enough to die in the middle, with room for other copies
            tight = False
        rates = {i: BANDWIDTH * rng.choice((0.25, 0.5)) for i in range(self.nodes) if rng.random() < 0.15}
        shape = Shape(
            nodes=self.nodes,
            bandwidth=BANDWIDTH,
            latency=rng.choice((100e-6, 1e-3)),
            handover=rng.choice((150e-6, 2e-3)),
            rates=rates if self.stormy else {},  # with chunks this large, many stripes on a slow host look stalled
            memory=int(self.largest * rng.choice((1.2, 2.5, 4))) if tight else 1 << 40,
            streams=rng.choice((1, 2, 4, 256)),
            # A transfer's ambush hurts most where memory is taken again at once, and streams are slow to close.
            put_rate=4e9 if self.ambush in (Ambush.TRANSFER, Ambush.SLOT) else rng.choice((4e9, 50e6, 5e6)),
            put_pieces=4,
            jitter=rng.choice((0.0, 1e-3, 10e-3)),
            close_delay=20e-3 if self.ambush is Ambush.TRANSFER else rng.choice((200e-6, 20e-3)),
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
            min_granule=self.granule,
            max_granule=self.granule,
        )
        self.cluster = cluster_type(shape, rng.getrandbits(32), settings, checked=True)
        self.log: list[str] = []
        self.plain = [self.cluster.new_ref() for _ in range(rng.randint(1, 4))]
        self.sizes = {ref: self.some_size() for ref in self.plain}
        self.homes: dict[bytes, int] = {}  # sources of an allreduce, and where each is put first
        self.allreduces: dict[bytes, None] = {}
        often = 1.0 if self.ambush in (Ambush.SLOT, Ambush.STRIPE) else 0.7
        self.reductions = self._some_reductions() if reductions and rng.random() < often else {}
        self.sources = [ref for ref in self.sizes if ref not in self.plain]
        self.refs = [*self.plain, *self.sources, *self.reductions]
        self.crashes = rng.choice((0, 0, 2))
        # Users put again what was lost, at once; without that these ambushes have no second act.
        self.retries = self.ambush in (Ambush.PLACEMENT, Ambush.TRANSFER) or rng.random() < 0.7

    def _some_reductions(self) -> dict[bytes, tuple[tuple[bytes, ...], int]]:
        """Targets, and what they are made of: a second one shares sources with the first or is made from it."""
        rng = self.random
        slots = self.ambush is Ambush.SLOT
        size = self.largest if slots else self.some_size()
        everywhere = self.ambush is Ambush.STRIPE or (not slots and rng.random() < 0.4)
        least = 3 if slots else 1
        number = rng.randint(3, self.nodes) if everywhere else rng.randint(least, 7)
        sources = [self.cluster.new_ref() for _ in range(number)]
        self.sizes |= dict.fromkeys(sources, size)
        count = rng.randint(number - 1 if everywhere else least, number)
        reductions = {self.cluster.new_ref(): (tuple(sources), count)}
        if everywhere:
            self.homes = dict(zip(sources, rng.sample(range(self.nodes), len(sources)), strict=True))
            self.allreduces = dict.fromkeys(reductions)
        if rng.random() < 0.4:
            others = [
                *rng.sample(sources, rng.randint(0, len(sources))),
                *rng.sample(list(reductions), rng.randint(0, 1)),
            ]
            others += [self.cluster.new_ref() for _ in range(rng.randint(0 if others else 1, 2))]
            self.sizes |= dict.fromkeys(others, size)
            reductions[self.cluster.new_ref()] = (tuple(others), rng.randint(1, len(others)))
        for target in reductions:
            self.sizes.pop(target, None)
        return reductions

    def some_size(self) -> int:
        kind = self.random.random()
        if kind < 0.15:
            return self.random.choice((0, 8, 1000, 32 * KIB))
        if kind < 0.3:
            return 32 * KIB + 1
        return self.random.randint(self.granule // 2, self.largest)

    def some_ref(self) -> bytes:
        return self.random.choice(self.refs)

    def some_putable_ref(self) -> bytes:
        return self.random.choice([*self.plain, *self.sources])

    def some_node(self) -> int:
        return self.random.randrange(self.nodes)

    def some_living_node(self) -> int | None:
        living = [index for index in range(self.nodes) if self.cluster.slots[index].alive]
        return self.random.choice(living) if living else None

    def host(self, index: int) -> str:
        return self.cluster.slots[index].host

    def all_calls(self) -> list[Call]:
        return list(self.cluster.calls.values())

    def needed_for(self, refs: set[bytes]) -> set[bytes]:
        """The refs to put so that these can be had."""
        needed: set[bytes] = set()
        pending = list(refs)
        while pending:
            ref = pending.pop()
            if ref in self.reductions:
                pending.extend(self.reductions[ref][0])
            else:
                needed.add(ref)
        return needed

    def say(self, what: str, index: int | None) -> None:
        who = "network" if index is None else f"h{index} (n{self.cluster.slots[index].identity:x})"
        self.log.append(f"{self.cluster.clock.now:.6f} {who}: {what}")
