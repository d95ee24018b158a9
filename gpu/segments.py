"""Device segments: the twin of `transports.shm` for memory of a GPU.

A segment is physical memory without a name. Whoever has its descriptor can map it, writable to fill it or read-only to
look at it, and it lives while a process maps it or holds its descriptor, past the death of its maker. Creating,
exporting and mapping need no CUDA context.

A write through a read-only mapping does not raise: the device reports an illegal address, and the whole context of the
process that wrote is lost. Unmapping waits for nothing, so a mapping is taken down only after the work that uses it.
"""

import contextlib
import ctypes as c
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu.driver import AccessDescription, AllocationProperties, Attribute, CudaError, Driver, Location

GRANULE = 2 << 20
"""Sizes of segments are multiples of this. What a device asks for is this or a divisor of it."""


class Window:
    """Bytes of a device: what a memoryview is for memory of the host, as far as streams and stores need it."""

    __slots__ = ("mapping", "nbytes", "pointer", "readonly")

    def __init__(self, mapping: "Mapping", pointer: int, nbytes: int, *, readonly: bool) -> None:
        self.mapping = mapping
        self.pointer = pointer
        self.nbytes = nbytes
        self.readonly = readonly

    @property
    def device(self) -> int:
        return self.mapping.device

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, part: slice) -> "Window":
        start, stop, step = part.indices(self.nbytes)
        if step != 1:
            raise ValueError(f"a window has no step of {step}")
        return Window(self.mapping, self.pointer + start, max(0, stop - start), readonly=self.readonly)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, self.readonly),
            "strides": None,
            "stream": None,
            "version": 3,
        }


class Mapping:
    """One mapping of a segment in this process. Windows and arrays keep it; it is taken down with the last of them."""

    __slots__ = ("__weakref__", "capacity", "device", "pointer", "readonly")

    def __init__(self, pointer: int, capacity: int, device: int, *, readonly: bool, unmap: Callable[[], None]) -> None:
        self.pointer = pointer
        self.capacity = capacity
        self.device = device
        self.readonly = readonly
        weakref.finalize(self, unmap).atexit = False  # a driver that ends takes it down itself

    def window(self) -> Window:
        return Window(self, self.pointer, self.capacity, readonly=self.readonly)


@dataclass(slots=True, eq=False)
class DeviceMemory:
    """One segment as its owner has it: the descriptor to pass on, and a writable mapping once it is asked for.

    The owner waits for its own work before it lets go."""

    fd: int
    capacity: int
    device: int
    _handle: int
    _mapping: Mapping | None = field(default=None)

    def window(self) -> Window:
        if self._mapping is None:
            pointer = _map(self._handle, self.capacity, self.device, cuda.READ_WRITE)
            unmap = partial(_unmap, pointer, self.capacity)
            self._mapping = Mapping(pointer, self.capacity, self.device, readonly=False, unmap=unmap)
        return self._mapping.window()

    def close(self) -> None:
        """Let go of the descriptor and the memory, which lives on in whatever maps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._mapping = None
            cuda.load().call("cuMemRelease", self._handle)


def size_class(size: int) -> int:
    """The capacity for an object: eight classes per doubling, whole granules."""
    step = max(GRANULE, 1 << max(0, (size - 1).bit_length() - 4))
    return max(GRANULE, -(-size // step) * step)


def unsupported(device: int) -> str | None:
    """Why segments cannot be made on a device; None if they can."""
    driver = cuda.load()
    if not driver.attribute(Attribute.VIRTUAL_MEMORY, device):
        return "the device has no virtual memory management (a MIG or vGPU profile, or too old a device)"
    if not driver.attribute(Attribute.POSIX_DESCRIPTORS, device):
        return "the device does not share memory by file descriptor"
    return None


def create(capacity: int, device: int) -> DeviceMemory:
    """A fresh segment that holds anything. Raises a `CudaError`, with `out_of_memory` if the device is full."""
    driver = cuda.load()
    gpu_direct = driver.attribute(Attribute.GPU_DIRECT_WITH_VIRTUAL_MEMORY, device)
    properties = AllocationProperties(
        type=1,  # CU_MEM_ALLOCATION_TYPE_PINNED
        handle_types=cuda.POSIX_DESCRIPTOR,
        location=Location.device(device),
        gpu_direct=gpu_direct,
    )
    with contextlib.ExitStack() as undo:
        handle = driver.value(c.c_uint64, "cuMemCreate", capacity, c.byref(properties), 0)
        undo.callback(driver.call, "cuMemRelease", handle)
        fd = driver.value(c.c_int, "cuMemExportToShareableHandle", handle, cuda.POSIX_DESCRIPTOR, 0)
        undo.pop_all()
    os.set_inheritable(fd, False)
    return DeviceMemory(fd, capacity, device, handle)


def map_descriptor(
    fd: int, capacity: int, device: int, *, writable: bool, on_unmapped: Callable[[], None] | None = None
) -> Mapping:
    """Map a segment that came from elsewhere. The caller still closes the descriptor.

    When the last array on it dies, whatever this process gave the device to do is waited for first: a kernel that reads
    the array may still run, as with memory that CUDA frees."""
    driver = cuda.load()
    handle = driver.value(c.c_uint64, "cuMemImportFromShareableHandle", fd, cuda.POSIX_DESCRIPTOR)
    try:
        pointer = _map(handle, capacity, device, cuda.READ_WRITE if writable else cuda.READ)
    finally:
        driver.call("cuMemRelease", handle)  # the mapping keeps the memory
    unmap = partial(_settle_and_unmap, pointer, capacity, device, on_unmapped)
    return Mapping(pointer, capacity, device, readonly=not writable, unmap=unmap)


def _map(handle: int, capacity: int, device: int, access: int) -> int:
    driver = cuda.load()
    with contextlib.ExitStack() as undo:
        pointer = driver.value(c.c_uint64, "cuMemAddressReserve", capacity, 0, 0, 0)
        undo.callback(driver.call, "cuMemAddressFree", pointer, capacity)
        driver.call("cuMemMap", pointer, capacity, 0, handle, 0)
        undo.callback(driver.call, "cuMemUnmap", pointer, capacity)
        _allow(driver, pointer, capacity, device, access)
        undo.pop_all()
    return int(pointer)


def _allow(driver: Driver, pointer: int, capacity: int, device: int, access: int) -> None:
    """The device itself, and its peers, which copy from here without a detour through the host."""
    able = [device, *(other for other in range(driver.count) if other != device and driver.reaches(other, device))]
    descriptions = (AccessDescription * len(able))(*(AccessDescription(Location.device(one), access) for one in able))
    driver.call("cuMemSetAccess", pointer, capacity, descriptions, len(able))


def _unmap(pointer: int, capacity: int) -> None:
    driver = cuda.load()
    driver.call("cuMemUnmap", pointer, capacity)
    driver.call("cuMemAddressFree", pointer, capacity)


def _settle_and_unmap(pointer: int, capacity: int, device: int, on_unmapped: Callable[[], None] | None) -> None:
    try:
        with contextlib.suppress(CudaError):  # a context that was lost runs nothing any more
            cuda.load().settle(device)
        _unmap(pointer, capacity)
    finally:
        if on_unmapped is not None:
            on_unmapped()
