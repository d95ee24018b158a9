"""Memory of GPUs in a user's process: mapped to be filled by a put, or to be looked at after a get."""

from collections.abc import Callable

from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.objects.device_values import visible_devices


class Unmapped:
    """Is called when a mapping is gone, and dies then. The release of the memory follows its death: the last array on
    the memory dies earlier, while work that reads it may still run."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def __call__(self) -> None:
        self._tell()


def map_to_fill(fd: int, space: wire.Space) -> Window:
    """Its bytes are written before the put ends, and it is unmapped before that too: it is dropped with the window."""
    try:
        number = visible_devices()[space.device]
        return segments.map_descriptor(fd, space.capacity, number, writable=True).window()
    except CudaError as error:
        raise _not_mapped(error) from error


def map_to_read(fd: int, value: wire.Value, unmapped: Unmapped) -> Window:
    try:
        number = visible_devices()[value.device]
        mapping = segments.map_descriptor(fd, value.capacity, number, writable=False, on_unmapped=unmapped)
    except CudaError as error:
        raise _not_mapped(error) from error
    return mapping.window()[: value.size]


def _not_mapped(error: CudaError) -> HopliteError:
    detail = f"memory of the GPU could not be mapped: {error}"
    return Failure(
        FailureKind.STORE_FULL, detail, "drop arrays that came from get, or get it without device="
    ).exception()
