"""Objects that are cut into stripes for a crowd.

Many hosts that get one object together, along a chain, pay for every hop. In stripes, each with a tree of its own (see
`roles`), it is as quick along flat trees, and all network cards are busy in both directions.

A node that has all of the object has all stripes: it is told so (`Cut`), and serves them as windows of its copy. The
stripes belong to the version that they were cut from, and live while a node assembles from them; a crowd that comes
later is placed in the same trees. If a stripe has no root left, another node that has all of the object becomes one; if
there is none, the stripes end, and nodes that are not done get the object whole, or hear that it is lost.
"""

from collections.abc import Iterable

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.spread.stripe_senders import Seats
from hoplite_ucx.protocol.directory.spread.stripes import cuts
from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.directory.versions import Versions
from hoplite_ucx.protocol.messages import Cut


def cut(table: Table, versions: Versions, record: Record, count: int, holders: list[Member]) -> None:
    """Cut an object that some nodes have all of, and whose nodes will be asked to assemble it."""
    target = record.broadcast
    assert target is not None
    pieces = cuts(target.size, count)
    seats = Seats(len(pieces))
    made = []
    for _, size in pieces:
        stripe = versions.begin_stripe(target, size, seats)
        table.records[stripe.version.ref].stripe_of = record.ref
        made.append(stripe)
    target.stripes, target.cut = tuple(made), True
    table.world.tell(record.ref, "cut into {} stripes", len(made))
    share(table, target, holders[: len(made)])


def share(table: Table, target: Broadcast, holders: Iterable[Member]) -> bool:
    """Let these nodes, which have all of it, serve its stripes. False if there are none."""
    shared = False
    for member in holders:
        shared = True
        table.world.send(member.node, Cut(target.version, target.size, target.stripes))
        for stripe in target.stripes:
            table.involve(table.records[stripe.version.ref], member)
            table.live_tree(stripe.version.ref).add_copy(member)
    return shared


def share_if_placed(table: Table, target: Broadcast, member: Member) -> None:
    """A node has all of it, perhaps from before it heard that it should assemble it: then others may have been placed
    behind it, and it ignores what it was asked."""
    if any(member.node in table.live_tree(stripe.version.ref).receivers for stripe in target.stripes):
        share(table, target, [member])


def rescue(table: Table, target: Broadcast) -> bool:
    """A stripe has no root left. Whether a node that has all of the object serves it now: one that was not asked yet,
    or that came back without its windows."""
    sharing = {node for stripe in target.stripes for node in table.live_tree(stripe.version.ref).copies}
    able = [member for node, member in target.copies.items() if member.connected and node not in sharing]
    return target.cut and share(table, target, sorted(able, key=lambda member: not member.usable())[:1])
