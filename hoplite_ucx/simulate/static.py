"""Static trees, for comparison with ours: chain, binomial, k-ary and star, run by the very same machines and messages.

Only the choice of the sender differs: the i-th node to ask takes seat i of a fixed tree, whichever node it is and
whenever it asks. A static tree does not repair itself, so it is run without failures. Where a node has several children
it may serve them one after the other or all at once; which is better depends on the size, so both ways exist.

A static reduction is ours with a fixed degree. A static allreduce is such a reduction with a static tree for its
result, or stripes whatever the size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hoplite_ucx.protocol import Directory
from hoplite_ucx.protocol.directory.records import Reduction
from hoplite_ucx.protocol.directory.reduce.reduction import Reductions
from hoplite_ucx.protocol.directory.sender_choice import Plan
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast, Receiver
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.simulate.cluster import VirtualCluster

# A stream planned with next to nothing always finds room beside the others, so a sender starts them all at once.
_TRICKLE = 1.0


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A shape of any size: `parent` gives the seat above a seat; seat 0 is the source."""

    name: str
    parent: Callable[[int], int]


def _k_ary(k: int) -> StaticTree:
    return StaticTree(f"{k}-ary", lambda seat: (seat - 1) // k)


STATIC_TREES = (
    StaticTree("chain", lambda seat: seat - 1),
    StaticTree("binomial", lambda seat: seat ^ 1 << (seat.bit_length() - 1)),
    *map(_k_ary, (2, 3, 4, 8)),
    StaticTree("star", lambda _: 0),
)


def _broadcast(tree: StaticTree, *, at_once: bool) -> type[Broadcast]:
    """Trees of this shape; `at_once`: a node serves all its children together."""

    class StaticBroadcast(Broadcast):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._seats: dict[int, NodeId] = {}

        def may_be_cut(self) -> bool:
            return False

        def _turn(self, receiver: Receiver) -> tuple[int, int, int]:
            return 0, 0, receiver.order

        def choose_sender(self, receiver: Receiver) -> Plan | None:
            if receiver.into:
                return super().choose_sender(receiver)
            member = receiver.member
            if not self._seats:
                self._seats[0] = self.nodes()[0]
            self._seats[receiver.order] = member.node
            sender = self._members[self._seats[tree.parent(receiver.order)]]
            rate = _TRICKLE if at_once else min(sender.nic.up, member.nic.down)
            return Plan(sender.node, rate, self._world.now + self.size / rate)

    return StaticBroadcast


def static_cluster(tree: StaticTree, *, at_once: bool) -> type[VirtualCluster]:
    """A virtual cluster whose directory builds this tree; `at_once`: a node serves all its children together."""

    class StaticDirectory(Directory):
        broadcast_type = _broadcast(tree, at_once=at_once)

    class StaticCluster(VirtualCluster):
        directory_machine = StaticDirectory

    return StaticCluster


STATIC_REDUCTIONS = {"chain": 1, "2-ary": 2, "3-ary": 3, "4-ary": 4, "8-ary": 8, "star": sys.maxsize}
"""How many terms each slot takes."""


def reducing_directory(degree: int) -> type[Directory]:
    """A directory that builds all reductions with this degree."""

    class StaticDirectory(Directory):
        reductions_type = _reductions(degree)

    return StaticDirectory


def reducing_cluster(degree: int) -> type[VirtualCluster]:
    """A virtual cluster with such a directory."""

    class StaticCluster(VirtualCluster):
        directory_machine = reducing_directory(degree)

    return StaticCluster


def _reductions(degree: int) -> type[Reductions]:
    class StaticReductions(Reductions):
        def choose_stripes(self, _: Reduction) -> int:
            return 1

        def _fits(self, reduction: Reduction, ref: bytes) -> bool:
            fits = super()._fits(reduction, ref)
            reduction.degree = degree
            return fits

    return StaticReductions


@dataclass(frozen=True, slots=True)
class StaticAllreduce:
    """A way to reduce and a tree to spread the result; or, without one, a ring in stripes."""

    name: str
    degree: int = 1
    tree: StaticTree | None = None


STATIC_ALLREDUCES = (
    StaticAllreduce("ring in stripes"),
    *(
        StaticAllreduce(f"{tree.name} + {tree.name}", STATIC_REDUCTIONS[tree.name], tree)
        for tree in STATIC_TREES
        if tree.name in STATIC_REDUCTIONS
    ),
)


def allreducing_cluster(scheme: StaticAllreduce, *, at_once: bool) -> type[VirtualCluster]:
    """A virtual cluster whose allreduces are all built in this way."""
    if scheme.tree is None:
        return _striping_cluster()
    spreading = _broadcast(scheme.tree, at_once=at_once)

    class StaticDirectory(Directory):
        reductions_type = _reductions(scheme.degree)
        broadcast_type = spreading

    class StaticCluster(VirtualCluster):
        directory_machine = StaticDirectory

    return StaticCluster


def _striping_cluster() -> type[VirtualCluster]:
    class StripingReductions(Reductions):
        def choose_stripes(self, reduction: Reduction) -> int:
            return reduction.spec.count

    class StripingDirectory(Directory):
        reductions_type = StripingReductions

    class StripingCluster(VirtualCluster):
        directory_machine = StripingDirectory

    return StripingCluster
