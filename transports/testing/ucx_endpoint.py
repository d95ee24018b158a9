"""A node's UCX links with a port of their own: for tests and measurements."""

from hoplite_ucx.transports.interface import LinkLost
from hoplite_ucx.transports.testing.endpoint import LOOPBACK, ListeningEndpoint
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.transport import UcxTransport
from hoplite_ucx.transports.wire.handshake import Identity

__all__ = ["SharedMemoryEndpoint", "UcxEndpoint"]


class UcxEndpoint(ListeningEndpoint[UcxTransport]):
    """Over UCX's own TCP by default."""

    settings = UcxSettings()

    def __init__(self, node: int, token: bytes = b"", host: str = LOOPBACK, on_lost: LinkLost | None = None) -> None:
        me = Identity(node, token)
        super().__init__(me, UcxTransport(me, on_lost, self.settings), host)


class SharedMemoryEndpoint(UcxEndpoint):
    """Over UCX's shared memory, between processes of one host."""

    settings = UcxSettings(tls=("posix",))
