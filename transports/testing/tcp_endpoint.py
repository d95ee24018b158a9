"""A node's TCP links with a port of their own: for tests and measurements."""

from hoplite_ucx.transports.configuration import load
from hoplite_ucx.transports.interface import LinkLost
from hoplite_ucx.transports.tcp.transport import TcpTransport
from hoplite_ucx.transports.testing.endpoint import LOOPBACK, ListeningEndpoint
from hoplite_ucx.transports.wire.handshake import Identity
from hoplite_ucx.transports.wire.tls import Tls, open_tls

__all__ = ["TcpEndpoint", "TlsEndpoint"]


class TcpEndpoint(ListeningEndpoint[TcpTransport]):
    def __init__(
        self,
        node: int,
        token: bytes = b"",
        host: str = LOOPBACK,
        on_lost: LinkLost | None = None,
        tls: Tls | None = None,
    ) -> None:
        me = Identity(node, token, tls=tls)
        super().__init__(me, TcpTransport(me, on_lost), host)


class TlsEndpoint(TcpEndpoint):
    """With the certificates that the configuration names."""

    def __init__(self, node: int, token: bytes = b"", host: str = LOOPBACK, on_lost: LinkLost | None = None) -> None:
        super().__init__(node, token, host, on_lost, open_tls(load().certificates))
