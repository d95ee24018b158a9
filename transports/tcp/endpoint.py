"""A node's TCP links with a port of their own: for tests and measurements."""

from hoplite_ucx.transports.endpoint import LOOPBACK, ListeningEndpoint
from hoplite_ucx.transports.handshake import Identity
from hoplite_ucx.transports.interface import LinkLost
from hoplite_ucx.transports.tcp.transport import TcpTransport

__all__ = ["TcpEndpoint"]


class TcpEndpoint(ListeningEndpoint[TcpTransport]):
    def __init__(self, node: int, token: bytes = b"", host: str = LOOPBACK, on_lost: LinkLost | None = None) -> None:
        me = Identity(node, token)
        super().__init__(me, TcpTransport(me, on_lost), host)
