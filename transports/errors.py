"""What can go wrong between two processes, as exceptions that name the peer and the remedy.

Transports know nothing of the layers above, which translate these exceptions into their own.
"""


class TransportError(Exception):
    """The base: what happened, with whom, and the remedy."""

    def __init__(self, detail: str, peer: str, remedy: str) -> None:
        super().__init__(f"{detail} (peer {peer}); {remedy}")
        self.detail = detail
        self.peer = peer
        self.remedy = remedy


class RefusedError(TransportError):
    """The peer's host answered, and nothing listens on the port."""


class UnreachableError(TransportError):
    """No connection could be made in time."""


class ConnectionLostError(TransportError):
    """The connection ended: the peer closed it, died, or could not be reached any more."""


def connection_broke(error: OSError, peer: str) -> ConnectionLostError:
    """What the kernel says of a connection that broke, with the peer's name."""
    lost = ConnectionLostError(f"the connection broke: {error}", peer, "check whether the process there still runs")
    lost.__cause__ = error
    return lost


class HandshakeError(TransportError):
    """The peer is not what it should be; nothing that it said was used."""


class HungUpError(HandshakeError):
    """The peer hung up between two steps of the handshake, as a process does that only checks the port."""


class WrongTokenError(HandshakeError):
    """One side does not have the cluster's token."""


class WrongVersionError(HandshakeError):
    """The two sides speak different versions of the protocol."""


class WrongClusterError(HandshakeError):
    """The peer belongs to another cluster."""


class WrongTlsError(HandshakeError):
    """One side uses TLS and the other does not, or a certificate is not accepted."""


class WrongPeerError(HandshakeError):
    """Another node than expected answers at the address, or it does not want this kind of connection."""


class ViolationError(TransportError):
    """The peer proved the token, but violates the protocol: a frame that is too long, or invalid."""


class OverloadError(TransportError):
    """The peer does not read what it is sent, and the bound on waiting data is reached."""
