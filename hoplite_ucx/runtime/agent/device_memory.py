"""Memory of this host's GPUs for the store: which devices there are, how much of each may be used, and its recycling.

A device is named by its UUID between processes, and by its number in CUDA's order within one. Whatever cannot be had
(no GPU, no memory left, a device that shares none) is not an error: the store takes memory of the host instead, and
`hoplite status` tells why.

Nothing here makes a CUDA context.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.driver import CudaError, UnavailableError
from hoplite_ucx.gpu.segments import DeviceMemory

_SHARE = 4
"""Without a setting, the store uses this part of a device's memory: a quarter."""


@dataclass(slots=True, eq=False)
class _Device:
    uuid: bytes
    name: str
    limit: int
    refusal: str = ""
    """Why the last one who asked got memory of the host."""
    lost: bool = False
    used: int = 0
    pooled: int = 0
    free: deque[DeviceMemory] = field(default_factory=deque)  # oldest first


class DeviceMemories:
    """All devices of the host. On the loop's thread, save `find`."""

    def __init__(self, limit: int | None = None) -> None:
        """The limit is for each device."""
        self._limit = limit
        self._devices: list[_Device] = []
        self._unavailable = "the agent has not looked for devices"

    def find(self) -> None:
        """Load the driver and look for devices. It may take a second, so not on the loop."""
        try:
            driver = cuda.load()
            self._devices = [self._look_at(driver, number) for number in range(driver.count)]
            self._unavailable = ""
        except (UnavailableError, CudaError) as error:
            self._unavailable = str(error)

    @property
    def found(self) -> bool:
        """Whether there are any."""
        return bool(self._devices)

    def number(self, uuid: bytes) -> int | None:
        return next((number for number, device in enumerate(self._devices) if device.uuid == uuid), None)

    def uuid(self, number: int) -> bytes:
        return self._devices[number].uuid

    def take(self, number: int, size: int) -> DeviceMemory | None:
        """Memory of a device; None if memory of the host must do."""
        device = self._devices[number]
        capacity = segments.size_class(size)
        for memory in reversed(device.free):
            if memory.capacity == capacity:
                device.free.remove(memory)
                device.pooled -= capacity
                device.used += capacity
                return memory
        if device.lost or (device.limit == 0 and device.refusal):
            return None
        self._trim(device, capacity)
        if device.used + capacity > device.limit:
            device.refusal = f"its {device.limit} bytes for the store are in use"
            return None
        created = self._create(number, capacity)
        if created is not None:
            device.used += capacity
        return created

    def give_back(self, memory: DeviceMemory) -> None:
        """Nobody uses it any more: it is kept for the next one."""
        device = self._devices[memory.device]
        device.used -= memory.capacity
        device.free.append(memory)
        device.pooled += memory.capacity
        self._trim(device, 0)

    def drop(self, memory: DeviceMemory) -> None:
        """Somebody may still use it: it goes with the last mapping."""
        self._devices[memory.device].used -= memory.capacity
        self._close(memory)

    def lose(self, number: int, why: CudaError) -> None:
        """The device failed: nothing more is put on it."""
        device = self._devices[number]
        device.lost = True
        device.refusal = f"the device failed: {why}"

    def close(self) -> None:
        for device in self._devices:
            while device.free:
                self._close(device.free.popleft())

    def status(self) -> dict[str, Any]:
        devices = [
            {
                "uuid": device.uuid.hex(),
                "name": device.name,
                "limit": device.limit,
                "used": device.used,
                "pooled": device.pooled,
                "host_memory_instead": device.refusal,
            }
            for device in self._devices
        ]
        return {"devices": devices, "none_because": self._unavailable}

    def _look_at(self, driver: cuda.Driver, number: int) -> _Device:
        problem = segments.unsupported(number) or ""
        limit = self._limit if self._limit is not None else driver.total_memory(number) // _SHARE
        return _Device(driver.uuid(number), driver.name(number), 0 if problem else limit, problem)

    def _create(self, number: int, capacity: int) -> DeviceMemory | None:
        device = self._devices[number]
        while True:
            try:
                return segments.create(capacity, number)
            except (CudaError, OSError) as error:
                device.refusal = str(error)
                if not device.free:
                    return None
                self._close_oldest(device)  # others use the device too: what is kept for later goes first

    def _trim(self, device: _Device, wanted: int) -> None:
        while device.free and device.used + device.pooled + wanted > device.limit:
            self._close_oldest(device)

    def _close_oldest(self, device: _Device) -> None:
        memory = device.free.popleft()
        device.pooled -= memory.capacity
        self._close(memory)

    def _close(self, memory: DeviceMemory) -> None:
        try:
            memory.close()
        except CudaError as error:
            self.lose(memory.device, error)
