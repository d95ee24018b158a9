"""Objects in stripes: pieces, each of which is spread, and perhaps made, as an object of its own.

*For a crowd*, a complete object is cut, so that each stripe has a flat tree of its own (see `cutting`).

*For an allreduce*, a target that all hosts get is made in stripes. A reduction in one chain sends every byte over every
link twice, once to combine it and once to spread it. With stripes, each of which has its own chain along one ring, and
chains that end at every host or at every second, all links carry only 2(n-1)/n of the bytes. The reduction owns the
choice of sources, the slots of all stripes and the seal. Its root is a slot that *gathers*: its parts are the stripes,
and it has no host, since every node that gets the target assembles it itself. A node that waits for the target is told
to assemble it, and becomes a receiver of every stripe (see `placing`).

Rules kept for both:

- A node that assembles counts as a receiver of the target that might turn out to have it all, until it says otherwise.
- Stripes of a decided target are ordinary objects, while a node still assembles from them. If one is lost then, they
  all end: a node that has not finished reports that, and gets the target whole from one that has.
"""

from itertools import pairwise

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.ids import NodeId
from hoplite_ucx.protocol.messages import BIND_ALIGNMENT, Drop, Sealed


def cuts(size: int, count: int) -> list[tuple[int, int]]:
    """The offset and size of each stripe, as equal as alignment lets them be; none of them is empty."""
    units = -(-size // BIND_ALIGNMENT)
    count = min(count, units)
    edges = [min(size, index * units // count * BIND_ALIGNMENT) for index in range(count + 1)]
    return [(low, high - low) for low, high in pairwise(edges)]


def leave(table: Table, target: Broadcast, member: Member, number: int) -> None:
    """The node does not assemble the target any more: its bytes of the stripes are gone, unless it makes them."""
    if not target.is_assembling(member.node) or target.receivers[member.node].number != number:
        return
    for stripe in target.stripes:
        output = table.records[stripe.version.ref]
        tree = table.live_tree(stripe.version.ref)
        makes_it = output.slot is not None and output.slot.host is member
        if not makes_it and (member.node in tree.copies or member.node in tree.receivers):
            tree.remove(member.node)
            table.world.send(member.node, Drop(stripe.version))


def outlive(table: Table, record: Record) -> list[bytes]:
    """The target is decided. If a node still assembles it, its stripes become ordinary objects, and are returned;
    otherwise they end with the reduction."""
    target = record.broadcast
    assert target is not None
    refs = [stripe.version.ref for stripe in target.stripes]
    if not target.has_assemblers() or not all(table.has_copy(ref) for ref in refs):
        target.stripes = ()
        return []
    for stripe in target.stripes:
        output, tree = table.records[stripe.version.ref], table.live_tree(stripe.version.ref)
        output.reduction = output.slot = None
        output.stripe_of = record.ref
        output.decided = stripe.version
        tree.sealed = True
        for node in tree.nodes():
            table.world.send(node, Sealed(stripe.version))
    return refs


def is_used(table: Table, record: Record, node: NodeId) -> bool:
    """Whether the record is a stripe that outlived the seal, and the node puts the target together with its copy; or it
    was cut, and the node serves stripes of it."""
    if record.broadcast is not None and record.broadcast.cut:
        return any(node in table.live_tree(stripe.version.ref).copies for stripe in record.broadcast.stripes)
    target = table.records[record.stripe_of].broadcast if record.stripe_of is not None else None
    return target is not None and target.is_assembling(node)


def end_if_unused(table: Table, record: Record) -> None:
    """Stripes that outlived the seal end when no node assembles from them any more."""
    target = record.broadcast
    if target is not None and target.stripes and record.reduction is None and not target.has_assemblers():
        end(table, target)


def end(table: Table, target: Broadcast) -> None:
    """The stripes of a decided target are over. Nodes that still assemble from them are notified, and report to the
    target."""
    stripes, target.stripes, target.cut = target.stripes, (), False
    if stripes:
        table.world.mark(target.version.ref)  # without them, and without a copy, it is lost
    for stripe in stripes:
        output = table.records[stripe.version.ref]
        table.reset(output)
        output.stripe_of = output.decided = None
