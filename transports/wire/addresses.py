"""Addresses as people write them: `host:port`, with IPv6 hosts in brackets."""

import ipaddress
import socket

from hoplite_ucx.transports.errors import RefusedError, TransportError, UnreachableError, WrongTokenError

__all__ = [
    "TOKEN_REMEDY",
    "check_token",
    "connect_failure",
    "format_address",
    "is_loopback",
    "is_unspecified",
    "parse_address",
    "socket_address",
    "tune",
]


TOKEN_REMEDY = (
    "copy the token file that `hoplite start --head` prints on its host to the same path here, or set HOPLITE_TOKEN or "
    "HOPLITE_TOKEN_FILE"
)


def parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    valid = colon and host and port.isascii() and port.isdecimal() and int(port) < 65536
    if not valid or (":" in host and not bracketed):
        raise ValueError(f"{address!r} is not an address; write host:port, such as 198.18.0.1:7777 or [::1]:7777")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_address(name: object) -> str:
    """The address in what `accept`, `getpeername` or `getsockname` return."""
    match name:
        case (str(host), int(port), *_):
            return format_address(host, port)
        case _:
            return "unknown"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """0.0.0.0 or ::, which mean every address of this host, and cannot be reached from another."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_token(token: bytes, host: str) -> None:
    """Refuse to listen where other hosts can connect without proving a token."""
    if not token and not is_loopback(host):
        raise WrongTokenError("listening beyond loopback needs a cluster token", host, TOKEN_REMEDY)


def tune(sock: socket.socket) -> None:
    """Set what all our connections have: small messages go at once, and a host that vanished does not hold a connection
    for ever (this does not judge liveness)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)


def connect_failure(error: OSError, address: str, seconds: float) -> TransportError:
    """Why a connection could not be made: refused by the peer's host, or anything else."""
    if isinstance(error, ConnectionRefusedError):
        return RefusedError("nothing listens there", address, "check that the process there runs")
    if isinstance(error, TimeoutError):
        return UnreachableError(f"no answer within {seconds:g} s", address, "check the network and the address")
    return UnreachableError(f"no connection: {error}", address, "check the network and the address")
