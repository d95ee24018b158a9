"""A second process of an agent that closes its sockets when the agent is killed.

The kernel unmaps all memory of a dead process before it closes the first of its descriptors: 0.1 s a GiB on a machine
with nothing else to do, and several times that on a busy one. For that long its peers wait for bytes from the dead, and
its port still takes connections.

The warden shares the agent's table of descriptors and nothing else. It sleeps on a robust mutex that the agent's main
thread holds for life; the kernel gives that up before it touches the memory, however the thread ends. Then the warden
shuts down every socket in the table and ends. What was written to a socket still goes out. Sockets that the agent was
born with are others' too (where its messages go, under systemd or ssh), and stay as they are.

It needs no upkeep and no privileges, and nothing depends on it: without it, the agent's death is noticed as late as any
other process's. If it is stopped when the agent dies, that looks like a host gone silent.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import signal
import socket
import time
from struct import Struct

__all__ = ["post_warden"]

_CLONE_FILES = 0x400
_CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call, where its arguments are known to be in this order."""
_PR_SET_NAME = 15
_LAST_DATA = Struct("44xI4xI")
"""Of the kernel's `tcp_info`: how many milliseconds ago data was sent, and received."""
_BUSY_MILLISECONDS = 50
_MOMENT_SECONDS = 0.02
_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1
_LOOK_SECONDS = 5.0
"""How often the warden looks for itself whether the agent lives, should it never be told."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_held: list[mmap.mmap] = []  # the mutex must stay where it is for as long as the process lives


def post_warden() -> int | None:
    """Start this process's warden; returns its process id, or None if there can be none.

    To be called once, on the main thread, before other threads do anything: the warden begins as a copy of them.
    """
    number = _CLONE.get(platform.machine())
    if number is None or not os.path.isdir("/proc/self/fd"):
        return None
    mutex = _robust_mutex()
    if mutex is None or _libc.pthread_mutex_lock(mutex):
        return None
    agent, inherited = os.getpid(), {os.fstat(fd).st_ino for _, fd in _connections()}
    # The warden ends with the agent, and not before: it begins with all signals blocked, and stays so.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid: int = _libc.syscall(number, _CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        try:
            _watch(agent, mutex, inherited)
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid if pid > 0 else None


def _robust_mutex() -> ctypes.c_void_p | None:
    """In memory that two processes share; None if the C library cannot do it."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    mutex = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    attributes = ctypes.create_string_buffer(64)  # more than any C library needs
    refused = (
        _libc.pthread_mutexattr_init(attributes)
        or _libc.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED)
        or _libc.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST)
        or _libc.pthread_mutex_init(mutex, attributes)
    )
    if refused:
        return None
    _held.append(page)
    return mutex


# --- in the warden ----------------------------------------------------------------------------------------------


def _watch(agent: int, mutex: ctypes.c_void_p, inherited: set[int]) -> None:
    _libc.prctl(_PR_SET_NAME, b"hoplite-warden", 0, 0, 0)
    with contextlib.suppress(OSError):  # few may: a millisecond of work that cannot wait
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    _connections()  # the first time costs most of that
    status = errno.ETIMEDOUT
    while status == errno.ETIMEDOUT and os.getppid() == agent:
        until = _Timespec(int(time.time() + _LOOK_SECONDS), 0)
        status = _libc.pthread_mutex_timedlock(mutex, ctypes.byref(until))
    if status != errno.EOWNERDEAD and os.getppid() == agent:
        return  # it cannot wait, and the agent lives
    _hang_up(inherited)
    _stand_back(agent)
    _stand_back(os.getpid())


def _hang_up(inherited: set[int]) -> None:
    """Close every other socket: listeners first, so that no peer reconnects, then where bytes flow.

    The others follow a moment later, so that not all peers at once take the processor from those that must continue.
    """
    connections = sorted(each for each in _connections() if os.fstat(each[1]).st_ino not in inherited)
    for idle, fd in connections:
        if idle <= _BUSY_MILLISECONDS:
            _close(fd)
    time.sleep(_MOMENT_SECONDS)
    for idle, fd in connections:
        if idle > _BUSY_MILLISECONDS:
            _close(fd)


def _connections() -> list[tuple[int, int]]:
    """All sockets among the descriptors, with the milliseconds for which each has been idle."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # something else, or closed meanwhile
            held = socket.socket(fileno=fd)
            try:
                found.append((_idle_milliseconds(held), fd))
            finally:
                held.detach()  # it is the agent's
    return found


def _idle_milliseconds(held: socket.socket) -> int:
    """Less than any for a listener, and more for what is no TCP connection."""
    try:
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return -1
        return int(min(_LAST_DATA.unpack(held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size))))
    except OSError:
        return 1 << 32


def _close(fd: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=fd) as held:
        held.shutdown(socket.SHUT_RDWR)


def _stand_back(process: int) -> None:
    """What is left to be done for the dead is to free memory: let those who live go first."""
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{process}/task")):
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, thread, 19)
