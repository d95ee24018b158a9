"""The CUDA driver as far as device memory needs it: ctypes on libcuda.so.1, and errors with their names.

Memory, copies, streams and events; kernels are CuPy's business. Creating, exporting, importing and mapping memory needs
no context, so a process that only hands memory on has none; `enter` makes one for whoever moves bytes.

A machine without a driver, one whose driver finds no device, and one whose driver fails are told apart by
`UnavailableError.reason`. Nothing here is imported by a program that does not ask for a device.
"""

import contextlib
import ctypes as c
import enum
import functools
from collections.abc import Iterator
from typing import Any

READ, READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_*
POSIX_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING

OUT_OF_MEMORY = 2
_NO_DEVICE = 100


class Attribute(enum.IntEnum):
    """Those of `CUdevice_attribute` that are asked for here."""

    PCI_BUS_ID = 33
    PCI_DEVICE_ID = 34
    PCI_DOMAIN_ID = 50
    VIRTUAL_MEMORY = 102
    POSIX_DESCRIPTORS = 103
    GPU_DIRECT_WITH_VIRTUAL_MEMORY = 110
    DMA_BUF = 124


class Reason(enum.StrEnum):
    """Why there is no device to use."""

    NO_DRIVER = "no driver"
    NO_DEVICE = "no device"
    BROKEN = "broken driver"


class UnavailableError(RuntimeError):
    """There is no CUDA device here, and why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class CudaError(RuntimeError):
    """A driver call that failed. `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call} failed with {name} ({code}): {text}")
        self.call = call
        self.code = code

    @property
    def out_of_memory(self) -> bool:
        return self.code == OUT_OF_MEMORY


class Location(c.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c.c_int), ("id", c.c_int))

    @classmethod
    def device(cls, device: int) -> "Location":
        return cls(1, device)  # CU_MEM_LOCATION_TYPE_DEVICE


class AllocationProperties(c.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("windows_attributes", c.c_void_p),
        ("compression", c.c_ubyte),
        ("gpu_direct", c.c_ubyte),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 4),
    )


class AccessDescription(c.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c.c_int))


_POINTER = c.c_uint64  # CUdeviceptr
_HANDLE = c.c_uint64  # CUmemGenericAllocationHandle
_OBJECT = c.c_void_p  # CUcontext, CUstream, CUevent

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c.c_uint,),
    "cuDeviceGetCount": (c.POINTER(c.c_int),),
    "cuDeviceGetName": (c.c_char_p, c.c_int, c.c_int),
    "cuDeviceGetUuid_v2": (c.c_char_p, c.c_int),
    "cuDeviceGetPCIBusId": (c.c_char_p, c.c_int, c.c_int),
    "cuDeviceTotalMem_v2": (c.POINTER(c.c_size_t), c.c_int),
    "cuDeviceGetAttribute": (c.POINTER(c.c_int), c.c_int, c.c_int),
    "cuDeviceCanAccessPeer": (c.POINTER(c.c_int), c.c_int, c.c_int),
    "cuDevicePrimaryCtxRetain": (c.POINTER(_OBJECT), c.c_int),
    "cuDevicePrimaryCtxGetState": (c.c_int, c.POINTER(c.c_uint), c.POINTER(c.c_int)),
    "cuCtxSetCurrent": (_OBJECT,),
    "cuCtxPushCurrent_v2": (_OBJECT,),
    "cuCtxPopCurrent_v2": (c.POINTER(_OBJECT),),
    "cuCtxGetCurrent": (c.POINTER(_OBJECT),),
    "cuCtxSynchronize": (),
    "cuMemCreate": (c.POINTER(_HANDLE), c.c_size_t, c.POINTER(AllocationProperties), c.c_uint64),
    "cuMemRelease": (_HANDLE,),
    "cuMemExportToShareableHandle": (c.POINTER(c.c_int), _HANDLE, c.c_int, c.c_uint64),
    "cuMemImportFromShareableHandle": (c.POINTER(_HANDLE), c.c_void_p, c.c_int),
    "cuMemAddressReserve": (c.POINTER(_POINTER), c.c_size_t, c.c_size_t, _POINTER, c.c_uint64),
    "cuMemAddressFree": (_POINTER, c.c_size_t),
    "cuMemMap": (_POINTER, c.c_size_t, c.c_size_t, _HANDLE, c.c_uint64),
    "cuMemUnmap": (_POINTER, c.c_size_t),
    "cuMemSetAccess": (_POINTER, c.c_size_t, c.POINTER(AccessDescription), c.c_size_t),
    "cuMemHostAlloc": (c.POINTER(c.c_void_p), c.c_size_t, c.c_uint),
    "cuMemcpyAsync": (_POINTER, _POINTER, c.c_size_t, _OBJECT),
    "cuStreamCreate": (c.POINTER(_OBJECT), c.c_uint),
    "cuStreamSynchronize": (_OBJECT,),
    "cuEventCreate": (c.POINTER(_OBJECT), c.c_uint),
    "cuEventRecord": (_OBJECT, _OBJECT),
    "cuEventSynchronize": (_OBJECT,),
    "cuEventDestroy_v2": (_OBJECT,),
    "cuPointerGetAttribute": (c.c_void_p, c.c_int, _POINTER),
    "cuGetErrorName": (c.c_int, c.POINTER(c.c_char_p)),
    "cuGetErrorString": (c.c_int, c.POINTER(c.c_char_p)),
}


class Driver:
    """The driver of this process. `call` raises what a call reports; `value` returns what a call writes to its first
    argument."""

    def __init__(self, library: c.CDLL) -> None:
        self._library = library
        try:
            for name, arguments in _SIGNATURES.items():
                getattr(library, name).argtypes = arguments
        except AttributeError as missing:
            detail = f"the CUDA driver is too old: {missing}. Version 11.3 or newer is needed"
            raise UnavailableError(Reason.BROKEN, detail) from None

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise self.error(name, code)

    def value(self, kind: Any, name: str, *arguments: Any) -> Any:
        value = kind()
        self.call(name, c.byref(value), *arguments)
        return value.value

    def error(self, call: str, code: int) -> CudaError:
        name, text = c.c_char_p(), c.c_char_p()
        self._library.cuGetErrorName(code, c.byref(name))
        self._library.cuGetErrorString(code, c.byref(text))
        return CudaError(call, code, (name.value or b"an unknown error").decode(), (text.value or b"").decode())

    # --- devices -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def count(self) -> int:
        return int(self.value(c.c_int, "cuDeviceGetCount"))

    def attribute(self, attribute: Attribute, device: int) -> int:
        return int(self.value(c.c_int, "cuDeviceGetAttribute", attribute, device))

    def name(self, device: int) -> str:
        room = c.create_string_buffer(256)
        self.call("cuDeviceGetName", room, len(room), device)
        return room.value.decode(errors="replace")

    def uuid(self, device: int) -> bytes:
        """What names a device in every process, whatever CUDA_VISIBLE_DEVICES makes of its number."""
        room = c.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", room, device)
        return room.raw

    def bus_id(self, device: int) -> str:
        room = c.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", room, len(room), device)
        return room.value.decode().lower()

    def total_memory(self, device: int) -> int:
        return int(self.value(c.c_size_t, "cuDeviceTotalMem_v2", device))

    @functools.cache  # noqa: B019 - a driver lives as long as the process
    def reaches(self, device: int, other: int) -> bool:
        """Whether a device may read and write another one's memory."""
        return device == other or bool(self.value(c.c_int, "cuDeviceCanAccessPeer", device, other))

    def enter(self, device: int) -> None:
        """Make the device's primary context, which CuPy and torch use too, the current one of a thread of ours."""
        context = self._context(device)
        if self.value(_OBJECT, "cuCtxGetCurrent") != context:
            self.call("cuCtxSetCurrent", context)

    @contextlib.contextmanager
    def current(self, device: int) -> Iterator[None]:
        """The same for a while, on a thread that is the user's."""
        self.call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", c.byref(_OBJECT()))

    def settle(self, device: int) -> None:
        """Wait for all that this process gave the device to do."""
        flags, active = c.c_uint(), c.c_int()
        self.call("cuDevicePrimaryCtxGetState", device, c.byref(flags), c.byref(active))
        if active.value:
            with self.current(device):
                self.call("cuCtxSynchronize")

    @functools.cache  # noqa: B019 - a driver lives as long as the process
    def _context(self, device: int) -> int:
        return int(self.value(_OBJECT, "cuDevicePrimaryCtxRetain", device))


@functools.cache
def load() -> Driver:
    """The driver, initialised. Raises an `UnavailableError` if there is no device, every time it is asked."""
    try:
        library = c.CDLL("libcuda.so.1")
    except OSError as error:
        detail = f"the CUDA driver is not installed ({error}): install NVIDIA's driver, or use host memory"
        raise UnavailableError(Reason.NO_DRIVER, detail) from None
    driver = Driver(library)
    code = library.cuInit(0)
    if code == _NO_DEVICE:
        detail = "the CUDA driver finds no device: check CUDA_VISIBLE_DEVICES and nvidia-smi, or use host memory"
        raise UnavailableError(Reason.NO_DEVICE, detail)
    if code:
        detail = f"the CUDA driver does not start: {driver.error('cuInit', code)}. Check nvidia-smi"
        raise UnavailableError(Reason.BROKEN, detail)
    return driver


def unavailable() -> UnavailableError | None:
    """Why there is no device here; None if there is one."""
    try:
        load()
    except UnavailableError as error:
        return error
    return None
