"""Places the nodes that wait for an object in its tree, or lets them assemble it from stripes."""

from hoplite_ucx.protocol.directory.records import Record
from hoplite_ucx.protocol.directory.table import Table


def place(table: Table, record: Record) -> None:
    """Where receivers still have no sender, the table knows of it."""
    broadcast = record.broadcast
    if broadcast is not None and broadcast.waits():
        broadcast.place()
        _assemble(table, record)
        if broadcast.waits():
            table.starving[record.ref] = None
            return
    table.starving.pop(record.ref, None)


def _assemble(table: Table, record: Record) -> None:
    """Let the nodes that wait for a striped target assemble it: each is sent all stripes that it does not make, in the
    order of the ring."""
    target = record.broadcast
    members = target.assemble() if target is not None else []
    if target is None or not members:
        return
    seats = {node: seat for seat, node in enumerate(record.reduction.ring() if record.reduction is not None else ())}
    for stripe in target.stripes:
        output, tree = table.records[stripe.version.ref], table.live_tree(stripe.version.ref)
        end = seats.get(output.slot.prefers, 0) if output.slot is not None else 0
        distance = {node: (seat - end) % len(seats) for node, seat in seats.items()}
        behind = None if tree.getters() else tree.producer  # a late node is placed like any other
        for member in sorted(members, key=lambda member: distance.get(member.node, len(seats))):
            if tree.producer != member.node and member.node not in tree.copies:
                table.involve(output, member)
                tree.want(member, behind=behind)
                behind = member.node
