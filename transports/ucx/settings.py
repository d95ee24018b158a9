"""What both ends of a UCX link must agree on, and how they exchange it: one greeting each way, over the socket.

UCX checks none of it: two sides with different TCP segment sizes corrupt each other's memory. So the sender compares
before it answers, and neither side connects UCX before that. The greeting travels on the link's TCP connection, whose
handshake has authenticated the peer. It also contains the version of the records (`RECORDS`), since two releases of
this package may meet: if the versions differ, the link uses TCP.
"""

import hashlib
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Any

import msgspec

from hoplite_ucx.settings.kinds import Names, Size, Table
from hoplite_ucx.transports.errors import HandshakeError
from hoplite_ucx.transports.ucx import locked_memory

__all__ = ["GREETING_LENGTH", "MARK", "MAX_GREETING", "RECORDS", "DisagreementError", "Greeting", "UcxSettings"]

RECORDS = 3
"""The version of the link's records and of what they mean (see `frames`): raise it with every change of them. Greetings
without it are older, from when each rise of a source took three messages."""

MARK = b"ucx"
"""The handshake's info of a connection that belongs to a UCX link."""

# UCX's names of its RDMA transports, each with the one that brings along what it connects with: `rc_verbs` alone names
# a transport without the `ud_verbs` over which its two ends find each other, and cannot connect to anybody.
RDMA = {
    **{name: name for name in ("dc", "dc_x", "ib", "rc", "rc_v", "rc_x", "ud", "ud_v", "ud_x")},
    "dc_mlx5": "dc_x",
    "rc_mlx5": "rc_x",
    "rc_verbs": "rc_v",
    "ud_mlx5": "ud_x",
    "ud_verbs": "ud_v",
}

GREETING_LENGTH = Struct("<I")
MAX_GREETING = 64 << 10
_REMEDY = "give both hosts the same [ucx] settings and the same releases of UCX and hoplite-ucx"


class DisagreementError(HandshakeError):
    """The two sides cannot be connected by UCX as they are set up."""


@dataclass(frozen=True, slots=True)
class UcxSettings:
    """How UCX is used. The defaults were the fastest over tcp here."""

    tls: Annotated[
        tuple[str, ...],
        Names("Transports in UCX's words: `tcp`, `posix`, `rc`, `dc`. `rdma` uses rc unless this is given."),
    ] = ("tcp",)
    net_devices: Annotated[
        tuple[str, ...],
        Names(
            "Devices in UCX's words, such as `eth0` or `mlx5_0:1`; several are rails. Empty is all. Each end has its "
            "own."
        ),
    ] = ()
    segment: Annotated[
        int,
        Size(
            "The size of UCX's TCP segments. UCX's own default (8 KiB) is several times slower; larger ones take "
            "memory for each link. Both ends must have the same.",
            8 << 10,
            16 << 20,
        ),
    ] = 1 << 20
    options: Annotated[
        tuple[tuple[str, str], ...],
        Table(
            "Any other setting of UCX, without the `UCX_` in front. Both ends must have the same.",
            {
                "TLS": "tls",
                "NET_DEVICES": "net_devices",
                "TCP_TX_SEG_SIZE": "segment",
                "TCP_RX_SEG_SIZE": "segment",
            },
            "UCX_",
        ),
    ] = ()

    def for_ucx(self, *, devices: bool = False, lockable: int = -1) -> dict[str, str]:
        """`devices` adds what moves memory of GPUs, where this machine has some: each end for itself. Over TCP alone
        the older protocols are used (below), which do not know it. `lockable` is how many bytes the process may lock,
        if that is limited.

        `self` is what a worker reaches itself with. Rails: ucxx sets them to one by default.

        Over its TCP, large messages are put straight into the memory of the receive: its own choice copies them out of
        its segments, and was a fifth slower. What fits into a segment is sent at once, without asking first. The older
        choice of protocols does as well there and spares 5 ms for each new worker. Over RDMA the choice is UCX's, where
        the receiver reads.
        """
        over_tcp = {"RNDV_SCHEME": "put_zcopy", "RNDV_THRESH": str(self.segment), "PROTO_ENABLE": "n"}
        scheme = over_tcp if self.only_tcp else {}
        named = [RDMA.get(name, name) for name in self.tls]
        added = ("self", *(("cuda",) if devices and not scheme else ()))
        kept = None if self.private_workers else locked_memory.cached(lockable)
        return {
            "TLS": ",".join(dict.fromkeys((*named, *added))),
            "TCP_TX_SEG_SIZE": str(self.segment),
            "TCP_RX_SEG_SIZE": str(self.segment),
            "MM_ERROR_HANDLING": "y",
            **scheme,
            "NET_DEVICES": ",".join(self.net_devices) or "all",
            "MAX_RNDV_RAILS": str(max(1, len(self.net_devices))),
            **({} if kept is None else {"RCACHE_MAX_SIZE": str(kept)}),
            **dict(self.options),
        }

    @property
    def only_tcp(self) -> bool:
        return set(self.tls) == {"tcp"}

    @property
    def private_workers(self) -> bool:
        """Whether each link needs a worker of its own: see `engine`."""
        return not RDMA.keys() >= set(self._between_hosts())

    def agreed(self) -> dict[str, Any]:
        """What must be the same on both sides."""
        return {"tls": sorted(self._between_hosts()), "segment": self.segment, "options": dict(self.options)}

    def _between_hosts(self) -> list[str]:
        """Without what moves memory of devices within a host."""
        return [name for name in self.tls if not name.startswith("cuda")]

    def digest(self) -> bytes:
        """Names what must be agreed on, for the handshake."""
        return hashlib.sha256(msgspec.json.encode(self.agreed(), order="sorted")).digest()[:8]


class Greeting(msgspec.Struct, frozen=True):
    """Who speaks: its UCX, its settings, and where its worker is reached. The receiver's has the link's tag."""

    version: tuple[int, ...]
    settings: dict[str, Any]
    address: bytes
    tag: int = 0
    refusal: str = ""
    records: int = 1
    """The version of a greeting that names none."""

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return GREETING_LENGTH.pack(len(body)) + body

    @classmethod
    def decode(cls, body: bytes, peer: str) -> "Greeting":
        try:
            greeting = msgspec.msgpack.decode(body, type=cls)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # not text; nested too deeply
            raise DisagreementError(
                f"the peer's greeting is invalid: {error}", peer, "install the same release on both hosts"
            ) from error
        if greeting.refusal:
            raise DisagreementError(f"the peer refused: {greeting.refusal[:500]}", peer, _REMEDY)
        return greeting

    def check(self, mine: "Greeting", peer: str) -> None:
        """Raises a `DisagreementError` that names the first thing on which the two differ."""
        keys = sorted({*self.settings, *mine.settings})
        settings = [(f"setting ucx.{key}", self.settings.get(key), mine.settings.get(key)) for key in keys]
        versions = [
            ("version of the link's records", self.records, mine.records),
            ("UCX release", self.version[:2], mine.version[:2]),
        ]
        for what, theirs, ours in (*versions, *settings):
            if theirs != ours:
                raise DisagreementError(f"{what} is {theirs} there and {ours} here", peer, _REMEDY)
        if not self.address or not 0 <= self.tag < 1 << 32:
            raise DisagreementError(
                "the peer's greeting has no address, or a wrong tag", peer, "install the same release on both hosts"
            )
