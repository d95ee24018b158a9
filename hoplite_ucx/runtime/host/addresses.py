"""Which address of this host other hosts see, and the rate of its network card."""

import fcntl
import socket
import struct
from contextlib import suppress
from pathlib import Path

from hoplite_ucx.transports.wire.addresses import is_loopback, parse_address

LOOPBACK_RATE = 2e9
DEFAULT_RATE = 1.25e9
"""The rate of a NIC, in bytes per second, if neither the user nor the system says it."""

_SIOCGIFADDR = 0x8915


def resolved(address: str) -> str:
    """One form for all spellings of an address. Raises ValueError or OSError if it is not an address."""
    host, port = parse_address(address)
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4])


def host_towards(address: str) -> str:
    """The address of this host as seen from there. Connecting a datagram socket sends nothing."""
    host, port = parse_address(address)
    family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as looking:
        looking.connect(name)
        return str(looking.getsockname()[0])


def measured_rate(host: str) -> float:
    """The rate of the network card with this address, in bytes per second, if the system knows it."""
    if is_loopback(host):
        return LOOPBACK_RATE
    for _, interface in socket.if_nameindex():
        with suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
            if socket.inet_ntoa(answer[20:24]) == host and megabits > 0:
                return megabits * 1e6 / 8
    return DEFAULT_RATE
