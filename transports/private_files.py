"""Files that hold a secret: the cluster's token, a private key. Read whole, or refused before anything is read.

Refused is what everybody on the host can read or change, since it is no secret any more; what is no regular file, since
a pipe may never end; and what is too long to be meant.
"""

import os
import stat
from pathlib import Path

__all__ = ["PrivateFileError", "read_private"]

MAX_BYTES = 64 << 10
_OTHERS = stat.S_IRWXO


class PrivateFileError(Exception):
    """What is wrong with the file, and the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{str(path)!r} {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def read_private(path: Path) -> bytes:
    try:
        # A pipe that nobody writes to would block; the open file is looked at, so that it cannot change meanwhile.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PrivateFileError(path, f"cannot be read: {reason}", "check the path and whose file it is") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PrivateFileError(path, "is no regular file", "write it to one")
        if found.st_mode & _OTHERS:
            raise PrivateFileError(path, "is open to every user of this host", f"run chmod o-rwx {path}")
        content = os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > MAX_BYTES:
        raise PrivateFileError(path, f"has more than {MAX_BYTES} bytes", "check the path")
    if not content.strip():
        raise PrivateFileError(path, "is empty", "write the secret into it")
    return content
