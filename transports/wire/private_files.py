"""Files that hold a secret: the cluster's token, a private key. Read whole, or refused before anything is read.

A file is refused if every user of the host can read or change it, since it is then not a secret; if it is not a regular
file, since a pipe may never end; and if it is too long for a secret. A file that this user must have created (`own`) is
also refused if another user created it, or if it is a symbolic link.
"""

import errno
import os
import shlex
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["PrivateFileError", "create_private", "read_private"]

MAX_BYTES = 64 << 10
_OTHERS = stat.S_IRWXO


class PrivateFileError(Exception):
    """What is wrong with the file, and the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{str(path)!r} {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def read_private(path: Path, *, own: bool = False) -> bytes:
    follow = os.O_NOFOLLOW if own else 0
    try:
        # A pipe without a writer would block; the open file is checked, so that it cannot change meanwhile.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | follow)
    except (OSError, ValueError) as error:
        if own and isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise PrivateFileError(path, "is a symbolic link", "remove it") from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise PrivateFileError(path, f"cannot be read: {reason}", "check the path and the file's owner") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PrivateFileError(path, "is not a regular file", "use a regular file")
        if own and found.st_uid != os.geteuid():
            raise PrivateFileError(path, f"belongs to another user ({found.st_uid})", "remove it")
        if found.st_mode & _OTHERS:
            raise PrivateFileError(
                path, "is open to every user of this host", f"run `chmod o-rwx {shlex.quote(str(path))}`"
            )
        content = os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > MAX_BYTES:
        raise PrivateFileError(path, f"has more than {MAX_BYTES} bytes", "check the path")
    if not content.strip():
        raise PrivateFileError(path, "is empty", "write the secret into it")
    return content


def create_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read. It appears whole, or not at all; an existing one stays as it is."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent)  # for this user alone, and never somebody else's
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise PrivateFileError(
            path, f"cannot be created: {error.strerror}", "make sure that you can write to its directory"
        ) from error
