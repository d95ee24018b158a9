"""The numbers a cluster agrees on: how long to wait, how much to take, what a link costs before it is measured.

The directory holds them and gives them to every node in its welcome, so that there is one value per cluster. Operators
set them on the directory's host, in `[cluster]` of its configuration. Each field says what a larger or smaller value
does.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

from msgspec import Meta, Struct, structs

from hoplite_ucx.settings.kinds import Bandwidth, Count, Duration, Size, settings_of

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
_MINUTE = 60.0
_HOUR = 3600.0

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Amount: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Rate: TypeAlias = Annotated[float, Meta(ge=1, le=1e15)]


class Settings(Struct, frozen=True, array_like=True):
    """On the wire the fields are in this order: a new one comes last, and raises `messages.PROTOCOL`."""

    # --- liveness ----------------------------------------------------------------------------------------------
    heartbeat: Annotated[
        Seconds,
        Duration(
            "Nodes and the directory exchange a message this often. A shorter time costs messages, one from each "
            "node; a longer one makes every other timer of liveness coarser.",
            0.005,
            _MINUTE,
        ),
    ] = 0.25
    suspicion: Annotated[
        Seconds,
        Duration(
            "A node, stream or directory that is silent for this long is suspected: it is probed, and its receivers "
            "continue from other senders. If it is too short, busy hosts are suspected for nothing, and streams move "
            "without need. If it is too long, transfers stand still behind a host that was unplugged.",
            0.01,
            10 * _MINUTE,
        ),
    ] = 0.75
    lease: Annotated[
        Seconds,
        Duration(
            "A node that is silent for this long is declared dead, and its copies are lost. If it is too short, a "
            "host that pauses loses its objects. If it is too long, calls that depend on a dead host fail late, and "
            "a new directory waits longer for nodes that do not come back.",
            0.05,
            _HOUR,
        ),
    ] = 2.0
    cooldown: Annotated[
        Seconds,
        Duration(
            "A sender that failed a receiver again and again is avoided by it for this long, unless there is no "
            "other. A longer time spares broken links; a shorter one uses them again sooner after they recover.",
            0.001,
            _HOUR,
        ),
    ] = 1.0
    regroup: Annotated[
        Seconds,
        Duration(
            "Receivers that lost the same sender are gathered for this long, so that the most advanced is placed "
            "first. Each recovery takes that much longer; with too little, trees after a failure are deeper than "
            "they need be.",
            0.0,
            _MINUTE,
        ),
    ] = 0.05
    park: Annotated[
        Seconds,
        Duration(
            "A request for an object that is still on its way to the sender waits there for this long. If it is too "
            "short, receivers are sent elsewhere for nothing; if it is too long, they wait behind a sender that gets "
            "nothing.",
            0.001,
            _HOUR,
        ),
    ] = 0.75
    tombstone: Annotated[
        Seconds,
        Duration(
            "A deleted ref is remembered for this long, so that a get of it fails at once instead of waiting for a "
            "put. A longer time takes memory of the directory, up to 100,000 refs.",
            0.0,
            24 * _HOUR,
        ),
    ] = 60.0
    reconnect: Annotated[
        Seconds,
        Duration(
            "A node that lost the directory tries to reach it after this long, and doubles the pause up to a quarter "
            "of the lease. A shorter time finds a restarted directory sooner; a longer one spares it a rush.",
            0.001,
            _MINUTE,
        ),
    ] = 0.02

    # --- limits ------------------------------------------------------------------------------------------------
    inline_limit: Annotated[
        Amount,
        Size(
            "Objects up to this size are kept in the directory, which answers a get with their bytes. Larger ones "
            "would be a load for the directory's one network card; smaller ones would need a stream that costs more "
            "than they do.",
            0,
            256 * KIB,
        ),
    ] = 32 * KIB
    inline_total: Annotated[
        Amount,
        Size("How many bytes of small objects the directory keeps; further ones stay with their nodes.", 0, 64 * GIB),
    ] = 256 * MIB
    max_object: Annotated[
        Amount, Size("The largest object that is accepted: a put of a larger one is refused.", MIB, 1 << 61)
    ] = 1 << 42
    max_refs: Annotated[
        Amount,
        Count(
            "How many refs one call may name. More would keep the directory busy with one caller, while nodes are "
            "waiting.",
            1,
            1_000_000,
        ),
    ] = 100_000

    # --- costs: where the model of trees starts, until links are measured (see `cost`) ---------------------------
    latency: Annotated[
        Seconds,
        Duration(
            "The latency of a link, until it is measured. It decides between deep and shallow trees.", 0, 1, False
        ),
    ] = 100e-6
    handover: Annotated[
        Seconds,
        Duration(
            "How long a relay takes from having a chunk to sending it, until that is measured. A larger value makes "
            "larger chunks and shallower trees.",
            0,
            1,
            False,
        ),
    ] = 150e-6
    sender_cost: Annotated[
        Seconds,
        Duration(
            "Time of the sender that each chunk takes from its network card. It is 0 where sending is free, and "
            "makes larger chunks otherwise.",
            0,
            1,
            False,
        ),
    ] = 0.0
    min_granule: Annotated[
        Amount,
        Size(
            "The smallest chunk that a relay waits for before it sends. Smaller ones fill a chain sooner and cost "
            "more processor time.",
            4 * KIB,
            16 * MIB,
        ),
    ] = 32 * KIB
    max_granule: Annotated[
        Amount, Size("The largest chunk that a relay waits for. Larger ones make each hop later.", 4 * KIB, 16 * MIB)
    ] = MIB
    slot_cost: Annotated[
        Seconds,
        Duration(
            "What a part of a reduction costs the directory and its host, in time that everybody waits. It decides "
            "from which size an allreduce uses stripes: with more, stripes begin at larger objects. The "
            "default was measured with 8 hosts of 1 Gbit/s that share two cores, where stripes pay from 8 MiB. Hosts "
            "with cores of their own have less to wait for: at 10 Gbit/s, 8 hosts begin at 64 MiB with 0.7ms, and at "
            "2 MiB with 0.1ms.",
            0,
            1,
            False,
        ),
    ] = 0.7e-3

    # --- more of liveness --------------------------------------------------------------------------------------
    probe: Annotated[
        Seconds,
        Duration(
            "How long the directory waits for the port of a suspected node to answer. A refusal proves that the node "
            "is dead; silence proves nothing, and its lease decides.",
            0.001,
            _MINUTE,
        ),
    ] = 0.5
    probe_again: Annotated[
        Seconds,
        Duration(
            "A suspected node whose stream broke, and whose port still answered, is probed again after this long: a "
            "process that is dying closes its streams before its port. A shorter time finds the death sooner.",
            0.001,
            _MINUTE,
        ),
    ] = 0.03
    first_cooldown: Annotated[
        Seconds,
        Duration(
            "A sender that failed a receiver for the first time is avoided by it for this long; each further failure "
            "doubles it, up to `cooldown`.",
            0.001,
            _HOUR,
        ),
    ] = 0.05
    declined: Annotated[
        Seconds,
        Duration(
            "A node that had no room for a part of a reduction is not asked again for this long. A shorter time asks "
            "full nodes for nothing; a longer one leaves reductions waiting although there is room.",
            0.001,
            _MINUTE,
        ),
    ] = 0.2

    # --- more costs and limits ---------------------------------------------------------------------------------
    chunk_work: Annotated[
        Seconds,
        Duration(
            "Processor time that a chunk costs a relay, whatever its size. Chunks do not become so small that this "
            "is more than the time that small chunks save.",
            0,
            1,
            False,
        ),
    ] = 40e-6
    put_rate: Annotated[
        Rate,
        Bandwidth("How fast a put copies into shared memory: a first guess for who is placed behind it.", 1e6, 1e13),
    ] = 4e9
    introductions: Annotated[
        Amount,
        Count(
            "A node that joins is introduced to the others if they are not more than this, and opens sessions and "
            "links to them at once. Each costs two sessions and two links with their threads on both sides; without "
            "them, the first stream between two nodes takes several round trips longer. 0 introduces none.",
            0,
            1024,
        ),
    ] = 16
    crowd: Annotated[
        Amount,
        Count(
            "So many hosts that ask for one object at about the same time get it in stripes, if that is quicker: along "
            "trees in which each of them sends one stripe to others. Fewer hosts are placed one behind the other. In "
            "clusters with more hosts than this, requests that follow another one closely wait for more, for up to 1 % "
            "of the transfer.",
            2,
            1_000_000,
        ),
    ] = 24
    stripes: Annotated[
        Amount,
        Count(
            "Into how many stripes such an object is cut, and how many hosts each of them sends its stripe to. More "
            "make trees flatter and each hop slower. 1 cuts none.",
            1,
            64,
        ),
    ] = 8
    depth_cost: Annotated[
        Amount,
        Count(
            "What the hops of a chain or a tree may cost a crowd, in percent of the transfer, before its object is cut "
            "into stripes. 0 cuts it for every crowd, even if that is slower.",
            0,
            100,
        ),
    ] = 3

    def scaled(self, factor: float) -> Settings:
        """All timers shorter or longer together; costs and limits as they are."""
        return structs.replace(self, **{name: getattr(self, name) * factor for name in TIMERS})


TIMERS = tuple(
    name for name, setting in settings_of(Settings).items() if isinstance(setting, Duration) and setting.scales
)


class Conflict(NamedTuple):
    """Two settings whose values do not fit each other."""

    key: str
    other: str
    problem: str
    remedy: str


def conflicts(settings: Settings) -> list[Conflict]:
    """What can only be judged of several settings together."""
    orders = (
        ("heartbeat", "suspicion", 2.0, "one heartbeat that is late would be enough for suspicion"),
        ("suspicion", "lease", 1.0, "a node must be suspected, and asked, before it is declared dead"),
        ("probe_again", "suspicion", 1.0, "a second probe would come when the node is suspected for its silence"),
        ("reconnect", "lease", 4.0, "pauses between attempts grow up to a quarter of the lease"),
        ("first_cooldown", "cooldown", 1.0, "the pause grows from the first to the second"),
        ("min_granule", "max_granule", 1.0, "no chunk would be allowed"),
        ("inline_limit", "inline_total", 1.0, "a single small object must fit"),
    )
    found = []
    kinds = settings_of(Settings)
    for key, other, factor, reason in orders:
        low, high = getattr(settings, key), getattr(settings, other)
        if low * factor > high:
            times = f"{factor:g} × " if factor != 1 else ""
            problem = (
                f"{times}{key} ({kinds[key].show(low)}) is more than {other} ({kinds[other].show(high)}): {reason}"
            )
            found.append(Conflict(key, other, problem, f"lower cluster.{key}, or raise cluster.{other}"))
    return found
