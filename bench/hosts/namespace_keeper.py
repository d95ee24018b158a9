"""The process that keeps a cluster's network namespaces, and ends everything in them when it ends.

A namespace lives as long as a process holds it. Here one small process, the keeper, holds a cluster's namespaces as
open files and gives them no names in the file system, so that nothing can be left behind: links vanish with their
namespaces, and these with the keeper. It ends on SIGTERM or when its owner is gone, for any reason, and first kills
everything that still runs in its hosts. That is why no process needs signal handlers or PR_SET_PDEATHSIG, which would
fire when the *thread* that started a process ends.

Its name is an abstract Unix socket, which a second cluster cannot take and which vanishes with the keeper as well; a
process that connects gets its `Record`. Without the right to make network namespaces it makes them in a user namespace
of its own.

The keeper runs as a script of its own (`python -I keeper.py`), so this module imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace

__all__ = ["MARK", "Record", "ask", "is_kept", "kill_all", "mark_of", "marked", "names"]

# The variable that every process started in a host inherits. Its value names the cluster and the keeper's process.
MARK = "HOPLITE_BENCH_CLUSTER"

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_LONGEST_RECORD = 1 << 20
_PATIENCE = 5.0


@dataclass(frozen=True)
class Record:
    """What a keeper tells about its cluster. Rates are those of the start, in bytes per second."""

    name: str
    hosts: int
    rate: float | None
    owner: int | None
    pid: int = 0
    descriptors: tuple[int, ...] = ()  # the keeper's, of the switch's namespace and then of each host's
    user: int | None = None  # its descriptor of the user namespace, where there is one

    @property
    def mark(self) -> str:
        return mark_of(self.name, self.pid)

    def path(self, descriptor: int) -> str:
        """A name of one of the namespaces, good for as long as the keeper lives."""
        return f"/proc/{self.pid}/fd/{descriptor}"

    @classmethod
    def read(cls, text: str | bytes) -> Record:
        fields = json.loads(text)
        return cls(**{**fields, "descriptors": tuple(fields.get("descriptors", ()))})


def mark_of(name: str, keeper: int) -> str:
    return f"{name}/{keeper}"


# --- from outside ----------------------------------------------------------------------------------------------


def _prefix() -> str:
    return f"hoplite-bench/{os.getuid()}/"


def names() -> list[str]:
    """The clusters of this user whose keepers live."""
    prefix = f"@{_prefix()}"
    with open("/proc/net/unix") as table:
        return sorted({line.rstrip("\n").partition(prefix)[2] for line in table if f" {prefix}" in line})


def ask(name: str) -> Record | None:
    """The record of a cluster; None if no such cluster of this user is up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(f"\0{_prefix()}{name}")
        except ConnectionRefusedError:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.getuid():
            return None  # anybody may take an abstract name
        try:
            return _read_record(connection)
        except ConnectionResetError:
            return None  # its keeper was killed before it answered


def _read_record(connection: socket.socket) -> Record:
    told = bytearray()
    while piece := connection.recv(1 << 16):
        told += piece
        if len(told) > _LONGEST_RECORD:
            raise ValueError("the answer of a keeper is too long")
    return Record.read(bytes(told))


def marked(variable: str = MARK) -> dict[int, str]:
    """The processes that were started in some host and can be seen from here, with their marks."""
    found = {}
    wanted = f"{variable}=".encode()
    for pid in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
            for each in environment.read().split(b"\0"):
                if each.startswith(wanted):
                    found[pid] = each[len(wanted) :].decode(errors="replace")
    return found


def is_kept(mark: str) -> bool:
    """Whether the keeper that a mark names still lives."""
    try:
        with open(f"/proc/{int(mark.rpartition('/')[2])}/cmdline", "rb") as command:
            return os.path.basename(__file__).encode() in command.read()
    except (OSError, ValueError):
        return False


def kill_all(mark: str, namespaces: Collection[int], spared: Collection[int]) -> bool:
    """Kill what bears the mark or is in one of the namespaces (inodes), until nothing is left; False if it stays."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        # A process may fork between the look and the kill, so look again.
        inside = {pid for pid in _pids() if _namespace_of(pid) in namespaces}
        inside |= {pid for pid, its_mark in marked().items() if its_mark == mark}
        inside -= set(spared)
        if not inside:
            return True
        if time.monotonic() > deadline:
            return False
        for pid in inside:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _namespace_of(pid: int) -> int | None:
    """None for a process that is ending, or that is none of ours."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


# --- the keeper itself -----------------------------------------------------------------------------------------


def main() -> None:
    """Take the name, make the namespaces, tell the record on standard output, and keep them."""
    asked = Record.read(sys.argv[1])
    if asked.owner is None and os.fork():
        os._exit(0)  # nobody waits for a keeper without an owner, so it is nobody's child
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the owner's business
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    owner = _watch_owner(asked.owner)
    try:
        # The name belongs to the network the keeper was started in, hence before the first namespace.
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{_prefix()}{asked.name}")
        listener.listen()
    except OSError:
        _refuse("taken")
    try:
        record = _make_namespaces(replace(asked, pid=os.getpid()))
    except OSError as error:
        _refuse(os.strerror(error.errno or 0))
    told = json.dumps(asdict(record))
    inodes = {os.fstat(descriptor).st_ino for descriptor in record.descriptors}
    try:
        print(told, flush=True)  # noqa: T201
        os.close(sys.stdout.fileno())
        _serve(listener, owner, told.encode())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_all(record.mark, inodes, spared={os.getpid(), record.owner or 0})
        os._exit(0)  # standard output is closed, and there is nothing to flush


def _refuse(why: str) -> None:
    print(json.dumps({"refused": why}), flush=True)  # noqa: T201
    raise SystemExit(1)


def _watch_owner(owner: int | None) -> int | None:
    if owner is None:
        return None
    watched = os.pidfd_open(owner)
    if os.getppid() != owner:  # it was gone before, and the number may be somebody else's by now
        raise SystemExit(1)
    return watched


def _make_namespaces(record: Record) -> Record:
    user = None
    ids = os.geteuid(), os.getegid()
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        # Only root keeps its capabilities over the exec of `ip`: the user is root in there, and nobody else exists.
        for file, text in ("setgroups", "deny"), ("uid_map", f"0 {ids[0]} 1"), ("gid_map", f"0 {ids[1]} 1"):
            with open(f"/proc/self/{file}", "w") as mapping:
                mapping.write(text)
        user = os.open("/proc/self/ns/user", os.O_RDONLY)
    descriptors = [os.open("/proc/self/ns/net", os.O_RDONLY)]
    for _ in range(record.hosts):
        _unshare(_CLONE_NEWNET)
        descriptors.append(os.open("/proc/self/ns/net", os.O_RDONLY))
    return replace(record, descriptors=tuple(descriptors), user=user)


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _serve(listener: socket.socket, owner: int | None, told: bytes) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        if owner is not None:
            selector.register(owner, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if owner in ready:
                return
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), connection:
                connection.sendall(told)  # it fits into the socket's buffer, so nobody can hold the keeper up


if __name__ == "__main__":
    main()
