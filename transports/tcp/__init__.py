"""Links over TCP: the transport that is always there."""

from hoplite_ucx.transports.tcp.transport import TcpTransport

__all__ = ["TcpTransport"]
