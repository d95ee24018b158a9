"""High descriptor numbers for sockets, so that a killed process closes its sockets first.

The kernel closes the highest descriptor first, and frees what it held before it comes to the next one: for shared
memory every page, which takes hundreds of milliseconds for some GiB. Until then a listener with a lower number still
accepts connections for the dead process, and peers wait for the end of theirs. So sockets get numbers above those that
memory is likely to have.
"""

import fcntl
import resource
import socket

__all__ = ["lifted", "raise_descriptor_limit"]

# High enough for as many segments as hosts have, and low enough to keep the kernel's table small.
_HIGH = 1 << 16


def lifted(sock: socket.socket) -> socket.socket:
    """The same socket under a high descriptor, or unchanged if none is free."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = min(soft // 4 * 3, _HIGH)
    if sock.fileno() >= lowest:
        return sock
    try:
        fd = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, lowest)
    except OSError:
        return sock
    high = socket.socket(sock.family, sock.type, sock.proto, fileno=fd)
    high.settimeout(sock.gettimeout())
    sock.close()
    return high


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as this process may have: each connection needs one, and each shared segment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
