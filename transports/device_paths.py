"""How memory of GPUs travels on a link: as it is, or staged through the host, and why.

It is known before a stream starts, from what the loaded UCX can do, from the kernel, and from where GPUs and cards are.
A UCX without CUDA would not refuse such memory in a way that could be handled later.

Tried on made-up machines; never on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hoplite_ucx.gpu.topology import Distance
from hoplite_ucx.transports.detection import LinkHardware
from hoplite_ucx.transports.link_measures import Estimate, Way

__all__ = ["DevicePath", "device_path", "supposed_for_devices"]

# Before any measurement. A copy to the host or from it, over PCIe; the time until the first piece has been copied; and
# what is left of a card's rate for a GPU behind another processor.
_COPY_RATE = 1e10
_FIRST_PIECE = 2e-4
_FAR = 0.5


@dataclass(frozen=True, slots=True)
class DevicePath:
    """`direct`: UCX gets the memory as it is. Else it is copied to the host first, and from there."""

    direct: bool
    why: str
    far: bool = False
    """Whether some GPU is on another NUMA node than the card nearest to it."""

    def __str__(self) -> str:
        return f"{'direct' if self.direct else 'staged'}: {self.why}"


def device_path(way: Way, machine: LinkHardware) -> DevicePath:
    """That of streams which use a transport in this way."""
    ucx = machine.ucx
    if way is None:
        return DevicePath(False, "sockets take memory of the host")
    if not ucx.cuda:
        return DevicePath(False, f"UCX {ucx.version} has no CUDA")
    if way.only_tcp:
        return DevicePath(False, "over TCP alone, UCX takes memory of the host")
    if way.private_workers:
        return DevicePath(True, "copied by UCX")
    cards = dict.fromkeys(f"{card} ({far})" for _, card, far in machine.nearest_cards)
    far = any(far == Distance.SYS.name for _, _, far in machine.nearest_cards)
    if not machine.gpu_direct:
        return DevicePath(True, "copied by UCX, since cards do not reach GPUs here", far)
    return DevicePath(True, f"GPUDirect by {', '.join(cards) or 'UCX'}", far)


def supposed_for_devices(way: Way, supposed: Estimate, machine: LinkHardware) -> Estimate:
    """What such streams are taken to reach until they are measured, where those of the host reach so much."""
    path = device_path(way, machine)
    rate = supposed.bytes_per_second * (_FAR if path.far else 1)
    if path.direct:
        return replace(supposed, bytes_per_second=rate)
    if way is not None:  # the sender copies a piece, then sends it; over TCP it does both at the same time
        rate = 1 / (1 / rate + 1 / _COPY_RATE)
    return replace(supposed, bytes_per_second=min(rate, _COPY_RATE), delay=supposed.delay + _FIRST_PIECE)
