"""What an application can gain from hoplite: its transfers, and the speed-up that follows from them and its compute.

In a round of SGD, half of the workers send their gradients to a server and get its new parameters. With plain Ray, the
server's link carries each of them apart; with hoplite it carries one sum and one copy. So a link that is the bottleneck
carries `bound` times as much in plain Ray. With compute of c seconds in a round,

    speed-up(c) = (c + T_plain) / (c + T_ours),    T_ours = transfers · S / B,    T_plain = bound · T_ours

where S is the object's size, B what of a link's rate carries objects, and `transfers` counts those that follow each
other in a round: gradients in and parameters out are two, a batch or parameters alone are one. The model adds compute
and transfers. Where half of the workers compute while the gradients of the other half travel, both systems hide some of
it, and the speed-up may be above the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MODELS", "SpeedModel", "half"]

_USABLE = 0.95
"""The part of a link's rate that carries an object's bytes; the rest are headers."""
_PAPER_NODES = 16
_PAPER_RATE = 10e9 / 8


def half(nodes: int) -> int:
    """How many of the workers a round waits for. One node has the server, each other one a worker."""
    return max(1, (nodes - 1) // 2)


@dataclass(frozen=True)
class SpeedModel:
    transfers: int
    """How many times a round passes an object of the full size, one after the other, with hoplite."""
    bound: Callable[[int], int]
    """How many times as long they take with plain Ray, by the number of nodes."""
    paper: float | None
    """The speed-up of the paper's abstract, which gives one figure for reinforcement learning as a whole; None for what
    the paper does not have."""
    paper_size: int
    """The size of the paper's objects, in bytes."""
    goal: float | None
    """What share of the model is wanted on 8 nodes."""
    computes: bool = True
    """Whether a round has the compute in it; weight sync counts from the moment when new weights are there."""

    def transfer_seconds(self, size: int, rate: float) -> float:
        return self.transfers * size / (_USABLE * rate)

    def round_seconds(self, nodes: int, size: int, rate: float, compute: float) -> tuple[float, float]:
        """Of a round with plain Ray and with hoplite: c + T_plain and c + T_ours."""
        ours = self.transfer_seconds(size, rate)
        compute = compute if self.computes else 0.0
        return compute + self.bound(nodes) * ours, compute + ours

    def speed_up(self, nodes: int, size: int, rate: float, compute: float) -> float:
        plain, ours = self.round_seconds(nodes, size, rate, compute)
        return plain / ours

    @property
    def paper_share(self) -> float:
        """The paper's compute in a round, in units of T: what makes the formula give the paper's figure.

        It is 0 where the paper's figure is above the bound: its plain Ray was slower than its links.
        """
        if self.paper is None:
            return 0.0
        return max(0.0, (self.bound(_PAPER_NODES) - self.paper) / (self.paper - 1))

    @property
    def paper_compute(self) -> float:
        """The same in seconds, at the paper's own size and rate."""
        return self.paper_share * self.transfer_seconds(self.paper_size, _PAPER_RATE)

    def compute_like_the_papers(self, size: int, rate: float) -> float:
        """The compute that has the paper's share of a round, at another size and rate."""
        return self.paper_share * self.transfer_seconds(size, rate)


MODELS = {
    "sgd": SpeedModel(transfers=2, bound=half, paper=7.8, paper_size=233 << 20, goal=0.9),
    "impala": SpeedModel(transfers=1, bound=half, paper=3.9, paper_size=64 << 20, goal=0.9),
    "a3c": SpeedModel(transfers=2, bound=half, paper=3.9, paper_size=64 << 20, goal=0.9),
    "serving": SpeedModel(transfers=1, bound=lambda nodes: nodes - 1, paper=3.3, paper_size=48 << 20, goal=0.8),
    "weight_sync": SpeedModel(
        transfers=1, bound=lambda nodes: nodes - 1, paper=None, paper_size=64 << 20, goal=None, computes=False
    ),
}
