"""The numbers a cluster agrees on: how long to wait, how much to take, what a link costs before it is measured.

The directory holds them and gives them to every node in its welcome, so that there is one value per cluster.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Settings(Struct, frozen=True, array_like=True):
    # Liveness. A node is suspected after `suspicion` of silence and declared dead after `lease`.
    heartbeat: Seconds = 0.25
    suspicion: Seconds = 0.75
    lease: Seconds = 2.0
    # A link that failed is avoided this long, unless there is no other.
    cooldown: Seconds = 1.0
    # Siblings that lost the same sender are gathered this long, so that the most advanced is placed first.
    regroup: Seconds = 0.05
    # How long a request for a version that is still on its way to the sender may wait there.
    park: Seconds = 0.75
    # Deleted refs are remembered this long.
    tombstone: Seconds = 60.0
    # Reconnecting to the directory backs off from here to a quarter of the lease.
    reconnect: Seconds = 0.02

    inline_limit: Amount = 32 * KIB
    inline_total: Amount = 256 * MIB
    max_object: Amount = 1 << 42
    max_refs: Amount = 100_000

    # The cost of a link until it is measured: latency, hand-over delay of a chunk, processor time a chunk
    # takes from the sender (see `cost`).
    latency: Seconds = 100e-6
    handover: Seconds = 150e-6
    sender_cost: Seconds = 0.0
    min_granule: Amount = 32 * KIB
    max_granule: Amount = MIB
    # What laying a slot costs the directory and its host, in time that everybody waits; the simulator charges nothing.
    slot_cost: Seconds = 0.0
