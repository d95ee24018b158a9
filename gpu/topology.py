"""The GPUs of a machine and what lies near them: NVLinks, peers, NUMA nodes, and how far each is from a network card.

NVML tells of GPUs (through nvidia-ml-py, if it is installed), the kernel of PCI paths (through /sys, under a root that
tests give). NVML numbers devices in its own order, and CUDA_VISIBLE_DEVICES changes CUDA's, so a device is named by its
UUID here. Nothing of this needs a CUDA context.

Tried on a made-up NVML and made-up sysfs trees; never on hardware.
"""

import enum
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DEVICES = Path("sys/bus/pci/devices")
_PEER_MEMORY = Path("sys/module/nvidia_peermem")
_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which nvidia-ml-py 13.615 has as a tuple by mistake
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH


class Distance(enum.IntEnum):
    """Between two PCI devices, in nvidia-smi's words: the nearer, the less."""

    PIX = 1  # below one PCI switch or bridge
    PXB = 2  # below several switches
    PHB = 3  # below one host bridge
    NODE = 4  # on one NUMA node
    SYS = 5  # across NUMA nodes, or not known


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `nvlinks` counts the links to each other GPU, by UUID; `switch_links` those to a switch, which reaches
    all GPUs that have such links. `peers` are those whose memory it can read."""

    uuid: str
    name: str
    bus_id: str
    memory: int
    numa_node: int
    nvlinks: dict[str, int]
    switch_links: int
    peers: tuple[str, ...]

    def linked_to(self, other: "Gpu") -> bool:
        return other.uuid in self.nvlinks or bool(self.switch_links and other.switch_links)


@dataclass(frozen=True, slots=True)
class Gpus:
    """All of them; `failure` says why NVML shows none. `peer_memory` is whether the kernel lets RDMA devices reach them
    through nvidia_peermem (dma-buf is the driver's other way)."""

    devices: tuple[Gpu, ...] = ()
    failure: str = ""
    peer_memory: bool = False


def find(root: Path = Path("/")) -> Gpus:
    """Look for GPUs. Never raises: a machine without any, or without NVML, says so."""
    peer_memory = (root / _PEER_MEMORY).is_dir()
    try:
        import pynvml
    except ImportError:
        return Gpus((), "nvidia-ml-py is not installed: pip install 'hoplite-ucx[gpu]'", peer_memory)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus((), f"NVML does not start: {error}", peer_memory)
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return Gpus(tuple(_gpu(pynvml, handle, handles, root) for handle in handles), "", peer_memory)
    except pynvml.NVMLError as error:
        return Gpus((), f"NVML does not describe the GPUs: {error}", peer_memory)
    finally:
        pynvml.nvmlShutdown()


def distance(a: str, b: str, root: Path = Path("/")) -> Distance:
    """How far two PCI devices, named like 0000:3b:00.0, are from each other."""
    ours, theirs = (root / _DEVICES / name for name in (a, b))
    if not (ours.exists() and theirs.exists()):
        return Distance.SYS
    first, second = (Path(os.path.realpath(path)).parts for path in (ours, theirs))
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    common = first[shared - 1]
    if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", common):
        return Distance.PHB
    if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", common):
        # A switch is a bridge with bridges below it: two devices of one have one bridge each between them and it.
        return Distance.PIX if max(len(first), len(second)) - shared <= 2 else Distance.PXB
    nodes = {_numa_node(path) for path in (ours, theirs)}
    return Distance.NODE if len(nodes) == 1 and nodes != {-1} else Distance.SYS


def nearest(gpu: Gpu, cards: list[str], root: Path = Path("/")) -> list[tuple[Distance, str]]:
    """PCI devices by their distance from a GPU, the nearest first."""
    return sorted((distance(gpu.bus_id, card, root), card) for card in cards)


def kernel_bus_id(nvml: str) -> str:
    """NVML writes 00000000:3B:00.0 where the kernel has 0000:3b:00.0."""
    domain, _, rest = nvml.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _gpu(nvml: Any, handle: Any, handles: list[Any], root: Path) -> Gpu:
    bus_id = kernel_bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    uuids = {kernel_bus_id(_text(nvml.nvmlDeviceGetPciInfo(one).busId)): _uuid(nvml, one) for one in handles}
    links: Counter[str] = Counter()
    switch_links = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH:
                switch_links += 1
            else:
                peer = kernel_bus_id(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
                if peer in uuids:
                    links[uuids[peer]] += 1
        except nvml.NVMLError:  # this link does not exist, or is not up
            continue
    peers = [
        _uuid(nvml, other)
        for other in handles
        if _uuid(nvml, other) != _uuid(nvml, handle) and nvml.nvmlDeviceGetP2PStatus(handle, other, _READ) == 0
    ]
    numa_node = _numa_node(root / _DEVICES / bus_id)
    if numa_node < 0:
        with suppress(nvml.NVMLError):
            numa_node = int(nvml.nvmlDeviceGetNumaNodeId(handle))
    return Gpu(
        uuid=_uuid(nvml, handle),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        bus_id=bus_id,
        memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        numa_node=numa_node,
        nvlinks=dict(links),
        switch_links=switch_links,
        peers=tuple(peers),
    )


def _uuid(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(handle))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _numa_node(path: Path) -> int:
    try:
        return int((path / "numa_node").read_text())
    except (OSError, ValueError):
        return -1
