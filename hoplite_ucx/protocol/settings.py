"""The numbers a cluster agrees on: how long to wait, how much to take, what a link costs before it is measured.

The directory holds them and gives them to every node in its welcome, so that there is one value per cluster.
"""

from msgspec import Struct

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class Settings(Struct, frozen=True, array_like=True):
    # Liveness. A node is suspected after `suspicion` of silence and declared dead after `lease`.
    heartbeat: float = 0.25
    suspicion: float = 0.75
    lease: float = 2.0
    # A link that failed is avoided this long, unless there is no other.
    cooldown: float = 1.0
    # Siblings that lost the same sender are gathered this long, so that the most advanced is placed first.
    regroup: float = 0.05
    # How long a request for a version that is still on its way to the sender may wait there.
    park: float = 0.75
    # Deleted refs are remembered this long.
    tombstone: float = 60.0
    # Reconnecting to the directory backs off from here to a quarter of the lease.
    reconnect: float = 0.02

    inline_limit: int = 32 * KIB
    inline_total: int = 256 * MIB
    max_object: int = 1 << 42
    max_refs: int = 100_000

    # The cost of a link until it is measured: latency, hand-over delay of a chunk, processor time a chunk
    # takes from the sender (see `cost`).
    latency: float = 100e-6
    handover: float = 150e-6
    sender_cost: float = 0.0
    min_granule: int = 32 * KIB
    max_granule: int = MIB
