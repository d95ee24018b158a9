"""The TCP connections of another process, how busy they are, and how one of them is broken without the process.

A descriptor of another process is duplicated (`pidfd_getfd`) and shut down here: both ends then see a connection that
was reset in the middle, as when a switch forgets it, while the processes themselves are well. Root may do that, and
the process's parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = ["Connection", "break_connection", "busiest", "connections"]

_PIDFD_GETFD = 438
_BYTES_ACKED = struct.Struct("120xQ")  # in the kernel's tcp_info: what has been sent and acknowledged


@dataclass(frozen=True)
class Connection:
    pid: int
    descriptor: int
    here: tuple[str, int]
    there: tuple[str, int]
    sent: int
    """Bytes that the peer has acknowledged."""


def connections(pid: int) -> list[Connection]:
    """Those that are established, to other sockets over IPv4."""
    found = []
    with _opened(pid) as process:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError), _borrowed(process, int(name)) as borrowed:
                if borrowed.family == socket.AF_INET and borrowed.type == socket.SOCK_STREAM:
                    info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
                    (sent,) = _BYTES_ACKED.unpack(info)
                    there = borrowed.getpeername()
                    found.append(Connection(pid, int(name), borrowed.getsockname(), there, sent))
    return found


def busiest(
    pids: Collection[int], before: Collection[Connection] = (), *, except_ports: Collection[int] = ()
) -> tuple[Connection, int]:
    """The connection on which these processes have sent the most since it was looked at before, and how much.

    Ports are left out that are not meant, at either end. Raises `LookupError` if there is none.
    """
    earlier = {(each.pid, each.here, each.there): each.sent for each in before}
    found = [
        (each, each.sent - earlier.get((each.pid, each.here, each.there), 0))
        for pid in pids
        for each in connections(pid)
        if each.here[1] not in except_ports and each.there[1] not in except_ports
    ]
    if not found:
        raise LookupError("none of these processes has such a connection")
    return max(found, key=lambda each: each[1])


def break_connection(connection: Connection) -> None:
    with _opened(connection.pid) as process, _borrowed(process, connection.descriptor) as borrowed:
        borrowed.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    process = os.pidfd_open(pid)
    try:
        yield process
    finally:
        os.close(process)


def _borrowed(process: int, descriptor: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    duplicate = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    if duplicate < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
