"""Copies between pieces of memory, of the host or of a device, that are done when they return."""

import ctypes as c
import threading

import numpy as np

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu.segments import Window


class _Streams(threading.local):
    """A stream for each thread and device: threads do not wait for each other's copies."""

    def __init__(self) -> None:
        self._streams: dict[int, int] = {}

    def __getitem__(self, device: int) -> int:
        """The device's context is current."""
        if device not in self._streams:
            self._streams[device] = cuda.load().value(c.c_void_p, "cuStreamCreate", cuda.NON_BLOCKING)
        return self._streams[device]


_streams = _Streams()


def copy(to: memoryview | Window, source: memoryview | Window) -> None:
    """As many bytes as both have; through the host, if they are on devices that do not reach each other. On a thread of
    ours: it leaves the device's context current there."""
    size = min(to.nbytes, source.nbytes)
    if isinstance(to, memoryview) and isinstance(source, memoryview):
        to[:size] = source[:size]
        return
    if isinstance(to, Window) and isinstance(source, Window) and not cuda.load().reaches(to.device, source.device):
        through = memoryview(bytearray(size))
        copy(through, source)
        copy(to, through)
        return
    device = to.device if isinstance(to, Window) else source.device  # type: ignore[union-attr]  # one of them is
    driver = cuda.load()
    driver.enter(device)
    stream = _streams[device]
    driver.call("cuMemcpyAsync", address(to), address(source), size, stream)
    driver.call("cuStreamSynchronize", stream)


def address(memory: memoryview | Window) -> int:
    return memory.pointer if isinstance(memory, Window) else int(np.frombuffer(memory, np.uint8).ctypes.data)
