"""Shared memory within a host: memfd segments, their seals, their mappings, and how descriptors travel.

A segment has no name and leaves nothing behind: it lives while a process maps it or holds its descriptor. Its writer
maps it writable before it is sealed; from then on the kernel refuses every other writable mapping, and every change
of its length, so a mapping handed to a stranger can neither be written through nor cut short under a reader. Pages
of which the writer's user may still hold views become private in place (see `Workspace`). Readers' mappings are
private too: arrays that cannot be read-only are written to on pages of their own (see `writable`).

Descriptors travel by SCM_RIGHTS on plain Unix sockets; the kernel reports the peer's uid, not the peer.

Mappings are made by the C library, since those of Python's `mmap` hold a descriptor each: a process may have many
objects mapped, and descriptors are scarce.
"""

import ctypes
import fcntl
import mmap
import os
import socket
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; the fcntl module does not have it

_PAGE = mmap.PAGESIZE
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True, eq=False)
class SharedMemory:
    """One segment as its owner has it: the descriptor to pass on, and a writable mapping."""

    fd: int
    capacity: int
    array: npt.NDArray[np.uint8]

    def close(self) -> None:
        """Close the descriptor; the mapping ends with the last array on it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create(capacity: int) -> SharedMemory:
    """A fresh segment, mapped writable here, whose length is final."""
    fd = os.memfd_create("hoplite", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, capacity)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return SharedMemory(fd, capacity, map_writable(fd, capacity))
    except BaseException:
        os.close(fd)
        raise


def seal(memory: SharedMemory) -> None:
    """From now on no process can create a writable mapping; existing mappings stay as they are."""
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)


def prefault(memory: SharedMemory) -> None:
    """Let the kernel find and clear the pages now, before anything waits for them."""
    os.posix_fallocate(memory.fd, 0, memory.capacity)


def map_writable(fd: int, capacity: int) -> npt.NDArray[np.uint8]:
    mapped = _map(fd, capacity, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.frombuffer(memoryview(mapped).cast("B"), np.uint8)


def map_read_only(fd: int, capacity: int, on_unmapped: Callable[[], None]) -> memoryview:
    """The mapping lives while any view of it does; `on_unmapped` is called after the last, on whichever thread that
    happens, so it must not block. It is not called at the end of the process."""
    mapped = _map(fd, capacity, mmap.PROT_READ, mmap.MAP_PRIVATE | _MAP_NORESERVE)
    weakref.finalize(mapped, on_unmapped).atexit = False
    return memoryview(mapped).cast("B").toreadonly()


class NotWritableError(OSError):
    """The kernel does not promise this process so much memory of its own."""


def writable(memory: memoryview) -> memoryview:
    """The same bytes, for their user to write to: nobody else sees what is written.

    What `map_read_only` mapped, or a part of it, stays where it is: the kernel gives this process a page of its own
    when it first writes to one. The mapping must hold no version that may still change. Anything else that is read-only
    is copied. Raises `NotWritableError` if the kernel refuses."""
    if not memory.readonly:
        return memory
    mapped = memory.obj
    if not isinstance(mapped, ctypes.Array):
        return memoryview(bytearray(memory))
    begin = ctypes.addressof(mapped)
    if _libc.mprotect(begin, len(mapped), mmap.PROT_READ | mmap.PROT_WRITE):
        error = ctypes.get_errno()
        raise NotWritableError(error, os.strerror(error))
    start = np.frombuffer(memory, np.uint8).ctypes.data - begin if len(memory) else 0
    return memoryview(mapped).cast("B")[start : start + len(memory)]


class Workspace:
    """A segment that a user fills from its beginning on: shared where it is yet to be filled, private where it is done.

    Private pages have the same address and the same bytes, but what is written to them stays in this process: no
    remaining view can change what other processes see. Threads that read or write there meanwhile notice nothing. A
    child made by fork before that has a shared mapping of its own, and keeps it.
    """

    def __init__(self, fd: int, array: npt.NDArray[np.uint8]) -> None:
        """Of the whole segment, mapped writable. The descriptor is closed when this object goes, and not sooner: a
        thread may be at work with it."""
        self.array = array
        self._fd = fd
        self._private = 0
        weakref.finalize(self, os.close, fd).atexit = False

    def settle(self, end: int) -> int:
        """Every whole page below `end` is final. Returns how many bytes these are; an OSError if it cannot be done, and
        then nothing has changed."""
        start, end = self._private, end - end % _PAGE
        if end > start:
            _make_private(self._fd, self.array.ctypes.data, start, end)
            self._private = end
        return max(start, end)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2  # linux/mman.h
_MAP_NORESERVE = 0x4000  # asm-generic/mman.h: pages that may never be written to are not set aside
_FAILED = ctypes.c_void_p(-1).value


def _map(fd: int, capacity: int, protection: int, flags: int = mmap.MAP_SHARED) -> "ctypes.Array[ctypes.c_ubyte]":
    address = _libc.mmap(None, capacity, protection, flags, fd, 0)
    if address == _FAILED:
        raise _error()
    mapped = (ctypes.c_ubyte * capacity).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, capacity).atexit = False
    return mapped


def _make_private(fd: int, address: int, start: int, end: int) -> None:
    """What can fail fails elsewhere: a mapping that cannot be made over another one may leave nothing there."""
    size = end - start
    private = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, start)
    if private == _FAILED:
        raise _error()
    if _libc.mremap(private, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, address + start) == _FAILED:
        error = _error()
        _libc.munmap(private, size)
        raise error


def _error() -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))


def size_class(size: int) -> int:
    """The capacity for an object: eight classes per doubling, so that objects of about one size share segments."""
    step = max(_PAGE, 1 << max(0, (size - 1).bit_length() - 4))
    return max(_PAGE, -(-size // step) * step)


def peer_uid(connection: socket.socket) -> int:
    return peer_credentials(connection)[1]


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """The process id and the user id at the other end of a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid
