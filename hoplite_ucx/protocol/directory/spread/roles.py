"""The roles of a crowd: hosts that ask for an object together, and get it in stripes.

Every stripe has a tree. A host is interior in one of the trees, where it sends its stripe to as many others as there
are stripes, and a leaf in the rest: so it sends as many bytes as it receives, and the trees are flat. Interior hosts
come first, breadth first, then leaves. The root of each tree keeps a seat for the root of the next crowd.

If the crowd cannot be divided evenly, some trees have too few seats, and others have seats left at hosts that are not
interior in the former: leaves without a place go there, behind a host that gets that stripe already. So nothing can
form a ring: each host comes after its sender.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hoplite_ucx.protocol.ids import NodeId


class Seat(NamedTuple):
    """A host in the tree of a stripe, and who sends it to it; None for the root."""

    node: NodeId
    behind: NodeId | None


def lay(crowd: Sequence[NodeId], relays: Sequence[NodeId], stripes: int) -> list[list[Seat]]:
    """The trees of all stripes, each in an order in which every host comes after its sender. Only `relays`, some of the
    crowd, are interior."""
    left = dict.fromkeys(relays, stripes)
    trees: list[list[Seat]] = []
    without: list[tuple[int, NodeId]] = []
    for stripe in range(stripes):
        interior = _interior(relays, stripe, stripes)
        others = set(crowd).difference(interior)
        tree = [Seat(interior[0], None)]
        left[interior[0]] -= 1
        places = deque(interior[:1])
        # Seats are left at the last ones: these are placed first, since only who gets a stripe can forward it.
        for node in (*interior[1:], *(node for node in reversed(crowd) if node in others)):
            while places and left[places[0]] <= 0:
                places.popleft()
            if not places:
                without.append((stripe, node))
                continue
            tree.append(Seat(node, places[0]))
            left[places[0]] -= 1
            if node not in others:
                places.append(node)
        trees.append(tree)
    _place_others(trees, without, {node: seats for node, seats in left.items() if seats > 0})
    return trees


def _interior(relays: Sequence[NodeId], stripe: int, stripes: int) -> list[NodeId]:
    """The hosts that send a stripe to others, the root first. Of fewer hosts than stripes, each has several."""
    step = min(stripes, len(relays))
    interior = relays[stripe % step :: step]
    turn = stripe // step % len(interior)
    return [*interior[turn:], *interior[:turn]]


def _place_others(trees: list[list[Seat]], without: list[tuple[int, NodeId]], room: dict[NodeId, int]) -> None:
    """Leaves that found no place behind an interior host of their stripe. Those with seats come first, since others can
    then be placed behind them. If there are no seats left, because many hosts are too slow to be interior, the others
    send more."""
    placed = [{seat.node: None for seat in tree} for tree in trees]
    senders = [itertools.cycle(list(dict.fromkeys(seat.behind or seat.node for seat in tree))) for tree in trees]
    for stripe, node in sorted(without, key=lambda each: each[1] not in room):
        behind = next((other for other in room if other in placed[stripe]), None)
        if behind is None:
            behind = next(senders[stripe])
        elif room[behind] > 1:
            room[behind] -= 1
        else:
            del room[behind]
        trees[stripe].append(Seat(node, behind))
        placed[stripe][node] = None
