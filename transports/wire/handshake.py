"""How two processes prove to each other that they belong together, before any other data. Sans-IO.

Both sides send a *hello* of fixed size (magic, protocol version, a fresh nonce). Then the client sends its *claims*
(what the connection is for, who it is, which cluster it belongs to) under a proof, and the server answers in the same
way. A proof is the HMAC-SHA256 of the role, both hellos and the claims so far, with the cluster's token as key: it is
valid for this connection and this role only, so a replayed or reflected proof is refused. The claims are parsed only
after their proof was verified, and no side reads more than a few kilobytes.

`client` and `server` are generators: they yield bytes to send or the number of bytes to read next (which the driver
sends in), and return the peer. They raise a `HandshakeError`; the driver then closes the connection.
"""

import enum
import hashlib
import hmac
import os
import socket
import time
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from hoplite_ucx.transports.errors import (
    ConnectionLostError,
    HandshakeError,
    HungUpError,
    UnreachableError,
    WrongClusterError,
    WrongPeerError,
    WrongTlsError,
    WrongTokenError,
    WrongVersionError,
)
from hoplite_ucx.transports.link_timers import HANDSHAKE_SECONDS
from hoplite_ucx.transports.wire.addresses import TOKEN_REMEDY

if TYPE_CHECKING:
    from hoplite_ucx.transports.wire.tls import Tls

__all__ = [
    "PROTOCOL_VERSION",
    "Identity",
    "Kind",
    "Peer",
    "client",
    "knock",
    "run_blocking",
    "server",
]

PROTOCOL_VERSION = 2

MAX_CLUSTER = 64
MAX_INFO = 2048

_MAGIC = b"hoplite\0"
_NONCE = 32
_PROOF = 32
_HELLO = Struct(f"<8sH{_NONCE}s")
_PROVEN = Struct(f"<{_PROOF}sH")
_CLAIMS = Struct("<B?QHH")
_MAX_CLAIMS = _CLAIMS.size + MAX_CLUSTER + MAX_INFO
_NODE_LIMIT = 1 << 64


class Kind(enum.IntEnum):
    """What a connection is for."""

    CONTROL = 1  # a node's session with the directory
    PEER = 2  # the session of two nodes
    BULK = 3  # the link on which a node receives from another
    READER = 4  # a worker's session with the directory, in which it asks for small objects and nothing else
    VIEWER = 5  # the session of a process that asks a node or the directory what goes on, and nothing else
    TRACER = 6  # the session of a process that records what a node or the directory does, and nothing else


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is, and what it expects of a peer.

    The cluster is empty while it is unknown (a process that joins by address alone); an empty one matches any. The peer
    gets `info` unchanged, for the layers above. With `tls`, the connection continues with TLS after the handshake.
    """

    node: int
    token: bytes = field(repr=False)
    cluster: bytes = b""
    info: bytes = b""
    version: int = PROTOCOL_VERSION
    tls: "Tls | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.node < _NODE_LIMIT:
            raise ValueError(f"a node's number must be in [0, 2**64), not {self.node}")
        if len(self.cluster) > MAX_CLUSTER or len(self.info) > MAX_INFO:
            raise ValueError(f"a cluster's id has at most {MAX_CLUSTER} bytes, and info {MAX_INFO}")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who the other side has proven to be; `address` is where its end of this connection is."""

    address: str
    node: int
    kind: Kind
    cluster: bytes
    info: bytes
    tls: bool = False


class _Status(enum.IntEnum):
    WELCOME = 0
    WRONG_TOKEN = 1
    WRONG_CLUSTER = 2
    WRONG_KIND = 3
    WRONG_TLS = 4


Steps: TypeAlias = Generator[bytes | int, bytes, Peer]


def client(me: Identity, kind: Kind, address: str, expect: int | None = None) -> Steps:
    """The side that connects; `expect` is the node that should answer, if it is known."""
    hello = _hello(me)
    yield hello
    their_hello = yield _HELLO.size
    _check_hello(their_hello, me, address)
    claims = _claims(me, kind)
    yield _PROVEN.pack(_proof(me, b"client", hello, their_hello, claims), len(claims)) + claims
    _check_status((yield 1)[0], me, kind, address)
    proof, length = _PROVEN.unpack((yield _PROVEN.size))
    their_claims = yield _claims_length(length, address)
    if not hmac.compare_digest(proof, _proof(me, b"server", hello, their_hello, claims, their_claims)):
        raise _wrong_token(me, address)
    peer = _parse_claims(their_claims, address)
    _check_cluster(peer, me)
    _check_tls(peer.tls, me, address)
    if expect is not None and peer.node != expect:
        raise WrongPeerError(
            f"node {peer.node:x} answers where node {expect:x} was expected", address, "look the address up again"
        )
    return peer


def server(me: Identity, kinds: Collection[Kind], address: str) -> Steps:
    """The side that was connected to, which takes these kinds of connections."""
    magic = yield len(_MAGIC)
    if magic != _MAGIC:
        raise _not_ours(address)  # the peer gets no answer, and its claims are not needed
    their_hello = magic + (yield _HELLO.size - len(_MAGIC))
    hello = _hello(me)
    yield hello
    _check_hello(their_hello, me, address)
    proof, length = _PROVEN.unpack((yield _PROVEN.size))
    their_claims = yield _claims_length(length, address)
    if not hmac.compare_digest(proof, _proof(me, b"client", their_hello, hello, their_claims)):
        yield bytes([_Status.WRONG_TOKEN])
        raise WrongTokenError("the peer did not prove this cluster's token", address, _JOINER_REMEDY)
    peer = _parse_claims(their_claims, address)
    try:
        _check_cluster(peer, me)
    except WrongClusterError:
        yield bytes([_Status.WRONG_CLUSTER])
        raise
    try:
        _check_tls(peer.tls, me, address)
    except WrongTlsError:
        yield bytes([_Status.WRONG_TLS])
        raise
    if peer.kind not in kinds:
        yield bytes([_Status.WRONG_KIND])
        raise WrongPeerError(
            f"this port does not accept connections for {peer.kind.name.lower()}", address, _ADDRESS_REMEDY
        )
    claims = _claims(me, peer.kind)
    proof = _proof(me, b"server", their_hello, hello, their_claims, claims)
    yield bytes([_Status.WELCOME]) + _PROVEN.pack(proof, len(claims)) + claims
    return peer


def knock(address: str) -> Generator[bytes | int, bytes, None]:
    """The beginning of a client's side, until the process there has answered. If the process is stopped or dying, its
    kernel accepts the connection, but no hello comes."""
    yield _HELLO.pack(_MAGIC, PROTOCOL_VERSION, bytes(_NONCE))
    if not (yield _HELLO.size).startswith(_MAGIC):
        raise _not_ours(address)


def run_blocking(steps: Steps, sock: socket.socket, address: str, seconds: float = HANDSHAKE_SECONDS) -> Peer:
    """Drive a handshake on a socket of a thread; afterwards the socket blocks without a limit."""
    deadline = time.monotonic() + seconds
    answer: bytes | None = None
    try:
        while True:
            step = steps.send(answer) if answer is not None else next(steps)
            sock.settimeout(max(deadline - time.monotonic(), 1e-3))
            if isinstance(step, bytes):
                sock.sendall(step)
                answer = b""
            else:
                answer = _read(sock, step, deadline)
                if len(answer) < step:
                    raise closed_early(address, answer)
    except StopIteration as done:
        sock.settimeout(None)
        peer: Peer = done.value
        return peer
    except TimeoutError:
        raise too_slow(address, seconds) from None
    except OSError as error:
        raise ConnectionLostError(
            f"the connection broke during the handshake: {error}", address, "try again"
        ) from error
    finally:
        steps.close()


def _read(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Read that many bytes, or fewer at the end of the connection. The deadline is for all of them together."""
    got = b""
    while len(got) < count and (piece := sock.recv(count - len(got))):
        got += piece
        sock.settimeout(max(deadline - time.monotonic(), 1e-3))
    return got


def closed_early(address: str, piece: bytes) -> HandshakeError:
    """`piece` is what arrived of the unfinished step."""
    kind = HandshakeError if piece else HungUpError
    return kind("the connection was closed during the handshake", address, "see the other side's log for the reason")


def too_slow(address: str, seconds: float) -> UnreachableError:
    return UnreachableError(
        f"the handshake was not complete after {seconds:g} s",
        address,
        "check that the process there runs, and that it belongs to hoplite",
    )


_ADDRESS_REMEDY = "check the address and the port"
_JOINER_REMEDY = "if the peer belongs here, copy this cluster's token file to the same path on its host"


def _hello(me: Identity) -> bytes:
    return _HELLO.pack(_MAGIC, me.version, os.urandom(_NONCE))


def _check_hello(hello: bytes, me: Identity, address: str) -> None:
    magic, version, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise _not_ours(address)
    if version != me.version:
        raise WrongVersionError(
            f"the peer speaks version {version} of the protocol, and this process version {me.version}",
            address,
            "install the same release on all hosts",
        )


def _claims(me: Identity, kind: Kind) -> bytes:
    return _CLAIMS.pack(kind, me.tls is not None, me.node, len(me.cluster), len(me.info)) + me.cluster + me.info


def _claims_length(length: int, address: str) -> int:
    if not _CLAIMS.size <= length <= _MAX_CLAIMS:
        raise _not_ours(address)
    return length


def _parse_claims(claims: bytes, address: str) -> Peer:
    kind, tls, node, cluster_length, info_length = _CLAIMS.unpack_from(claims)
    info_at = _CLAIMS.size + cluster_length
    if len(claims) != info_at + info_length or kind not in Kind._value2member_map_:
        raise _not_ours(address)
    return Peer(address, node, Kind(kind), claims[_CLAIMS.size : info_at], claims[info_at:], tls)


def _proof(me: Identity, role: bytes, client_hello: bytes, server_hello: bytes, *claims: bytes) -> bytes:
    """All parts but the claims have a fixed size, and claims contain their lengths: no two messages have the same
    bytes."""
    return hmac.digest(me.token, b"".join((role, client_hello, server_hello, *claims)), hashlib.sha256)


def _check_status(status: int, me: Identity, kind: Kind, address: str) -> None:
    """A refusal is not proven, and only tells people where to look."""
    if status == _Status.WELCOME:
        return
    if status == _Status.WRONG_TOKEN:
        raise _wrong_token(me, address)
    if status == _Status.WRONG_CLUSTER:
        raise WrongClusterError(f"the peer does not belong to cluster {_text(me.cluster)}", address, _ADDRESS_REMEDY)
    if status == _Status.WRONG_KIND:
        raise WrongPeerError(f"the peer does not accept connections for {kind.name.lower()}", address, _ADDRESS_REMEDY)
    if status == _Status.WRONG_TLS:
        _check_tls(me.tls is None, me, address)
    raise _not_ours(address)


def _check_cluster(peer: Peer, me: Identity) -> None:
    if peer.cluster and me.cluster and peer.cluster != me.cluster:
        raise WrongClusterError(
            f"the peer belongs to cluster {_text(peer.cluster)}, and this process to {_text(me.cluster)}",
            peer.address,
            _ADDRESS_REMEDY,
        )


def _text(cluster: bytes) -> str:
    return cluster.decode("ascii", "backslashreplace")


def _check_tls(theirs: bool, me: Identity, address: str) -> None:
    if theirs != (me.tls is not None):
        one, other = ("the peer", "this process") if theirs else ("this process", "the peer")
        raise WrongTlsError(
            f"{one} uses TLS, and {other} does not", address, "give all hosts and commands the same [tls] settings"
        )


def _not_ours(address: str) -> HandshakeError:
    return HandshakeError("the other side does not speak hoplite's protocol", address, _ADDRESS_REMEDY)


def _wrong_token(me: Identity, address: str) -> WrongTokenError:
    detail = "the two sides do not have the same cluster token" if me.token else "no cluster token was found here"
    return WrongTokenError(detail, address, TOKEN_REMEDY)
