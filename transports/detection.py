"""What this machine has for links: RDMA devices as the kernel shows them, and the UCX that this process really loads.

RDMA needs both: a card with an active port, and a UCX that was built for RDMA. The kernel is asked through /sys and
/proc (under a root that tests can set), UCX through the library in this process, since its own `ucx_info` may load
another one than Python does.

Tested on made-up sysfs trees, on machines without RDMA and with software RDMA (`ci/rdma`); never with a card.
"""

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import topology
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.topology import Distance, Gpus
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.ucx import library, locked_memory

__all__ = ["LinkHardware", "Port", "RdmaDevice", "UcxBuild", "detect", "hardware_of_agent", "rdma_devices", "ucx_build"]

VERBS_REMEDY = (
    "install UCX 1.19 or newer with verbs support (system package or conda), "
    "and set RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"
)

_CLASS = Path("sys/class/infiniband")
_CONGESTION_CONTROL = Path("proc/sys/net/ipv4/tcp_congestion_control")
_RDMA_TLS = frozenset({"rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5", "srd"})
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA device. The rate is in bits per second, 0 if the kernel does not tell."""

    number: int
    state: str
    physical_state: str
    link_layer: str
    rate: float
    gids: int
    net_devices: tuple[str, ...]

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """`mlx5_0` and the like. NUMA node -1 is none, or not known."""

    name: str
    numa_node: int
    pci: str
    ports: tuple[Port, ...]

    def ucx_names(self) -> list[str]:
        """Its active ports, as UCX's NET_DEVICES has them."""
        return [f"{self.name}:{port.number}" for port in self.ports if port.active]


@dataclass(frozen=True, slots=True)
class UcxBuild:
    """The loaded UCX; `failure` says why there is none. Transports are `tcp`, `posix`, `rc_mlx5`, and so on."""

    version: str = ""
    path: str = ""
    transports: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    failure: str = ""

    @property
    def rdma(self) -> bool:
        return not _RDMA_TLS.isdisjoint(self.transports)

    @property
    def cuda(self) -> bool:
        return any(name.startswith("cuda") for name in self.transports)


@dataclass(frozen=True, slots=True)
class LinkHardware:
    """What this host has for links: devices, UCX, and limits."""

    devices: tuple[RdmaDevice, ...]
    ucx: UcxBuild
    open_files: int
    locked_memory: int
    """Limits of this process: descriptors, and bytes it may lock; -1 is no limit."""
    congestion_control: str = ""
    """Of TCP, unless a route has another; empty if the kernel does not tell."""
    gpus: Gpus = field(default_factory=Gpus)
    nearest_cards: tuple[tuple[str, str, str], ...] = ()
    """For each GPU, by UUID: the nearest RDMA device with an active port, and how far it is, in nvidia-smi's words."""

    dma_buf: bool = False
    """Whether the driver of the GPUs offers their memory to other devices as dma-buf."""

    @property
    def gpu_direct(self) -> bool:
        """Whether RDMA devices can reach memory of the GPUs, as far as the kernel and the driver tell."""
        return bool(self.gpus.devices) and (self.gpus.peer_memory or self.dma_buf)

    @property
    def active_ports(self) -> list[str]:
        return [name for device in self.devices for name in device.ucx_names()]

    @property
    def rdma(self) -> bool:
        return self.without_rdma() is None

    def without_rdma(self) -> tuple[str, str] | None:
        """Why links cannot use RDMA here, and the remedy; None if they can."""
        if self.ucx.failure:
            return f"no UCX here: {self.ucx.failure}", "pip install 'hoplite-ucx[ucx]'"
        if not self.active_ports:
            return "no RDMA device with an active port here", "run `hoplite doctor`"
        if not self.ucx.rdma:
            return f"UCX {self.ucx.version} was built without RDMA (as the pip wheels are)", VERBS_REMEDY
        if 0 <= self.locked_memory < locked_memory.LEAST:
            return (
                f"only {self.locked_memory} bytes may be locked (`ulimit -l`), and RDMA needs {locked_memory.LEAST}",
                "raise it: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the service",
            )
        return None

    def problems(self) -> list[tuple[str, str]]:
        """What prevents faster links, each with its remedy. Nothing here stops TCP."""
        found: list[tuple[str, str]] = []
        for device in self.devices:
            found += [
                (
                    f"port {port.number} of {device.name} is {port.state.lower()} ({port.physical_state.lower()})",
                    "check the cable and the subnet manager"
                    if port.link_layer == "InfiniBand"
                    else "bring its network interface up",
                )
                for port in device.ports
                if not port.active
            ]
        if self.ucx.failure:
            found.append((self.ucx.failure, "pip install 'hoplite-ucx[ucx]'; without it links use TCP"))
        elif self.active_ports and (missing := self.without_rdma()) is not None:
            found.append((f"this host has RDMA hardware, but {missing[0]}", missing[1]))
        if self.gpus.devices and self.active_ports and not self.gpu_direct:
            what = (
                "RDMA devices do not reach memory of the GPUs: the kernel has no nvidia_peermem, the driver no dma-buf"
            )
            found.append((what, "`modprobe nvidia_peermem`"))
        found += [
            (
                f"GPUs {one.uuid} and {other.uuid} do not reach each other: copies between them go through the host",
                "look at `nvidia-smi topo -p2p r`; virtual machines and ACS often prevent it",
            )
            for index, one in enumerate(self.gpus.devices)
            for other in self.gpus.devices[:index]
            if other.uuid not in one.peers
        ]
        if self.gpus.devices and not self.ucx.failure and not self.ucx.cuda:
            what = f"there are GPUs, but UCX {self.ucx.version} has no CUDA: their memory is staged through the host"
            found.append((what, "install a UCX with CUDA, such as the pip wheels of ucxx-cu12 with a working driver"))
        found += [
            (
                f"the nearest RDMA device of GPU {uuid}, {card}, is on another NUMA node",
                "bind programs of that GPU to its own node, or move the card",
            )
            for uuid, card, far in self.nearest_cards
            if far == Distance.SYS.name
        ]
        if 0 <= self.open_files < 4096:
            found.append((f"only {self.open_files} file descriptors may be open", "raise it: `ulimit -n 65536`"))
        if self.congestion_control.startswith("bbr"):
            what = "TCP uses BBR, which almost stops each connection for 0.2 s every 10 s"
            remedy = "use another within a cluster: `sysctl -w net.ipv4.tcp_congestion_control=cubic`"
            found.append((what, remedy))
        return found


def detect(root: Path = Path("/")) -> LinkHardware:
    """Look at everything. Loads UCX, and NVML where there is one, into this process."""
    devices = tuple(rdma_devices(root))
    gpus = topology.find(root)
    return LinkHardware(
        devices,
        ucx_build(),
        _limit(resource.RLIMIT_NOFILE),
        _limit(resource.RLIMIT_MEMLOCK),
        _read(root / _CONGESTION_CONTROL),
        gpus,
        tuple(_nearest_cards(gpus, devices, root)),
        dma_buf(),
    )


def hardware_of_agent(*, with_ucx: bool, without: str) -> LinkHardware:
    """The same, as far as an agent chooses by it; `without` says why it uses no UCX, which then is not loaded."""
    devices = tuple(rdma_devices())
    gpus = topology.find() if cuda.unavailable() is None else Gpus()
    ucx = ucx_build() if with_ucx else UcxBuild(failure=without)
    cards = tuple(_nearest_cards(gpus, devices, Path("/")))
    return LinkHardware(devices, ucx, -1, locked_memory.lockable(), "", gpus, cards, dma_buf())


def dma_buf() -> bool:
    """Whether every GPU's driver offers its memory as dma-buf."""
    if cuda.unavailable() is not None:
        return False
    driver = cuda.load()
    try:
        return all(driver.attribute(cuda.Attribute.DMA_BUF, device) for device in range(driver.count))
    except CudaError:  # too old to know of it
        return False


def _nearest_cards(gpus: Gpus, devices: tuple[RdmaDevice, ...], root: Path) -> Iterator[tuple[str, str, str]]:
    cards = {device.pci: device.name for device in devices if device.pci and device.ucx_names()}
    for gpu in gpus.devices if cards else ():
        far, card = topology.nearest(gpu, list(cards), root)[0]
        yield gpu.uuid, cards[card], far.name


def rdma_devices(root: Path = Path("/")) -> list[RdmaDevice]:
    """The RDMA devices of the kernel, by name. What cannot be read is left at its default."""
    there = root / _CLASS
    if not there.is_dir():
        return []
    return [_device(path) for path in sorted(there.iterdir(), key=lambda path: _natural(path.name))]


def ucx_build() -> UcxBuild:
    """Ask the UCX of this process what it can use here, by making a context with everything."""
    try:
        loaded = library.load()
        found = loaded.resources(loaded.context({"TLS": "all"}))
    except TransportError as error:
        return UcxBuild(failure=error.detail)
    except Exception as error:  # UCX refuses to start: its own words say why
        return UcxBuild(failure=f"UCX does not start: {error}")
    return UcxBuild(
        version=".".join(map(str, loaded.version)),
        path=_mapped("libucp.so"),
        transports=tuple(sorted({lane.transport for lane in found})),
        devices=tuple(sorted({f"{lane.transport}/{lane.device}" for lane in found})),
    )


def _device(path: Path) -> RdmaDevice:
    ports = sorted((path / "ports").glob("[0-9]*"), key=lambda port: _natural(port.name))
    hardware = path / "device"
    numa = _read(hardware / "numa_node")
    return RdmaDevice(
        name=path.name,
        numa_node=int(numa) if re.fullmatch(r"-?\d+", numa) else -1,
        pci=os.path.realpath(hardware).rsplit("/", 1)[-1] if hardware.exists() else "",
        ports=tuple(_port(port, hardware) for port in ports),
    )


def _port(path: Path, hardware: Path) -> Port:
    gids = [_read(gid) for gid in (path / "gids").glob("*")]
    by_gid = {_read(name) for name in (path / "gid_attrs" / "ndevs").glob("*")} - {""}
    net = hardware / "net"
    names = by_gid or ({name.name for name in net.iterdir()} if net.is_dir() else set())
    return Port(
        number=int(path.name),
        state=_after_colon(_read(path / "state")) or "UNKNOWN",
        physical_state=_after_colon(_read(path / "phys_state")) or "UNKNOWN",
        link_layer=_read(path / "link_layer") or "unknown",
        rate=_rate(_read(path / "rate")),
        gids=sum(1 for gid in gids if gid and gid != _NO_GID and not gid.endswith(":0000:0000:0000:0000")),
        net_devices=tuple(sorted(names)),
    )


def _rate(text: str) -> float:
    """`100 Gb/sec (4X EDR)` in bits per second."""
    match = re.match(r"([\d.]+)\s*Gb/sec", text)
    return float(match[1]) * 1e9 if match else 0.0


def _after_colon(text: str) -> str:
    """`4: ACTIVE` → `ACTIVE`."""
    return text.partition(":")[2].strip()


def _read(path: Path) -> str:
    """A sysfs file in one line; empty if it is not there. Reading an absent gid fails with EINVAL."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _natural(name: str) -> tuple[str, int]:
    """mlx5_2 comes before mlx5_10."""
    match = re.search(r"\d+$", name)
    return (name[: match.start()], int(match[0])) if match else (name, -1)


def _mapped(name: str) -> str:
    """Which file a library was loaded from."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(maxsplit=5)[-1] for line in lines if f"/{name}" in line), "")


def _limit(what: int) -> int:
    soft, _ = resource.getrlimit(what)
    return -1 if soft == resource.RLIM_INFINITY else soft
