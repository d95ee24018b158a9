"""The records of a UCX link's TCP connection, and the connection itself. Bytes of objects never travel here.

The receiver opens streams on channels, posts receives for the next pieces of each, and only then pulls them (`PULL`),
whether the sender has their bytes yet or not. The sender answers a pull as soon as it has all of it, in order, with one
UCX message under the link's tag and the number of the pull. So every message has a receive posted for it, the receiver
bounds what is in flight, and a rise of a source costs one message.

A source may stop in the middle of a piece. Then the sender says how much it has (`PART`), and the receiver puts two
pulls in the place of the one (`SPLIT`), since UCX would not report that a message was short.

`CANCEL` stops further messages; `END` says up to which pull a channel was answered, and that no more will be.

`ASK` is answered at once, by `ANSWER`: how many transfers of the link have ended there, and what the slowest took (see
`standstill`).
"""

import enum
import socket
from contextlib import suppress
from struct import Struct

from hoplite_ucx.transports.errors import ConnectionLostError, OverloadError

__all__ = ["RECORD", "Connection", "Record", "pull_tag"]

RECORD = Struct("<B3xIQQQ")
"""What, channel, and three numbers. `OPEN` key; `PULL` number, offset, length; `PART` number of the pull, length;
`SPLIT` number of the first of the two pulls, which follow one another; `END` offset; `ANSWER` count, microseconds."""

MAX_UNSENT = 1 << 20
_READ = 64 << 10
_RESET = Struct("@ii").pack(1, 0)


class Record(enum.IntEnum):
    OPEN = 1
    PULL = 2
    CANCEL = 3
    PART = 4
    SPLIT = 5
    END = 6
    ASK = 7
    ANSWER = 8


def pull_tag(link: int, number: int) -> int:
    """The link's random bits and the number of the pull: it comes once in the life of a link."""
    return link << 32 | number & 0xFFFF_FFFF


class Connection:
    """A socket that never blocks, with records that wait for it. Used by the engine's thread alone."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self._unsent = bytearray()
        self._unread = b""
        self._reset = True

    def put(self, what: Record, channel: int, first: int = 0, second: int = 0, third: int = 0) -> None:
        """Records wait until `flush`, so that those of one moment cost one system call."""
        self._unsent += RECORD.pack(what, channel, first, second, third)

    def put_bytes(self, data: bytes) -> None:
        self._unsent += data

    def flush(self) -> bool:
        """Send what the kernel takes. True if nothing is left."""
        if self._unsent:
            with suppress(BlockingIOError):
                del self._unsent[: self.sock.send(self._unsent)]
            if len(self._unsent) > MAX_UNSENT:
                raise OverloadError(
                    "the peer does not read its control messages",
                    self.peer,
                    "check whether the process there is stopped",
                )
        return not self._unsent

    def read(self) -> None:
        """Take what the kernel has."""
        try:
            data = self.sock.recv(_READ)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionLostError(
                "the peer closed the link", self.peer, "check whether the process there still runs"
            )
        self._unread += data

    def take(self, count: int) -> bytes | None:
        """That many bytes, once they are there."""
        if len(self._unread) < count:
            return None
        taken, self._unread = self._unread[:count], self._unread[count:]
        return taken

    def take_records(self) -> list[tuple[int, int, int, int, int]]:
        whole = len(self._unread) - len(self._unread) % RECORD.size
        records = list(RECORD.iter_unpack(self._unread[:whole]))
        self._unread = self._unread[whole:]
        return records

    def hang_up(self) -> None:
        """Send nothing more, but let the peer read what was sent."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self._reset = False

    def close(self) -> None:
        """With a reset, so that the peer notices at once."""
        with suppress(OSError):
            if self._reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()
