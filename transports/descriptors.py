"""Which descriptors a process lets go of first when it is killed: its sockets.

The kernel closes the highest descriptor first, and before it comes to the next one it frees what that held: for shared
memory every page, which takes hundreds of milliseconds for some GiB. A listener below all that still takes connections
for the dead, and peers wait for the end of theirs. So sockets get numbers above those that memory is likely to have.
"""

import fcntl
import resource
import socket

__all__ = ["lifted", "raise_descriptor_limit"]

# High enough for as many segments as hosts have, and low enough to keep the kernel's table small.
_HIGH = 1 << 16


def lifted(sock: socket.socket) -> socket.socket:
    """The same socket under a high descriptor, or as it is if there is none to be had."""
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
    """As many descriptors as this process may have: each connection needs one, and each segment that is shared."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
