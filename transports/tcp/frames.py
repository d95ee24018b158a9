"""The bytes of a TCP link: data frames to the receiver, short records to the sender; both have fixed headers.

The receiver numbers the streams of a connection (*channels*, from 1 up, never used twice). It opens each with a limit
on the bytes it takes, and raises that limit by credits. A data frame continues its channel exactly where the last one
ended.
"""

import enum
import socket
from struct import Struct

__all__ = ["DATA", "RECORD", "SOCKET_SECONDS", "Record", "set_timeouts"]

DATA = Struct("<IIQ")
"""Channel, length, offset; the bytes follow."""

RECORD = Struct("<B3xIQQQ")
"""What, channel, limit, and for `OPEN` the stream's key."""

SOCKET_SECONDS = 0.1
"""A system call on a link's socket takes no longer, so that a thread which is in it notices a cancelled stream."""


class Record(enum.IntEnum):
    OPEN = 1
    CREDIT = 2
    CANCEL = 3


def set_timeouts(sock: socket.socket) -> None:
    """Let the kernel end calls that move nothing: unlike Python's own timeouts, that costs no other system call."""
    timeval = Struct("@ll").pack(0, int(SOCKET_SECONDS * 1e6))
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
