"""GPUs and what is near them, from a made-up NVML and made-up sysfs trees: a DGX, one GPU, none, far NUMA nodes."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoplite_ucx.cli import app
from hoplite_ucx.gpu import topology
from hoplite_ucx.gpu.topology import Distance
from hoplite_ucx.transports.detection import detect

pytestmark = pytest.mark.skipif("MADE_UP_PYTHON" not in os.environ, reason="made-up GPUs only")
_libc = ctypes.CDLL(None)


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Write what NVML is to tell."""
    file = tmp_path / "nvml"
    _libc.setenv(b"MADE_UP_NVML", str(file).encode(), 1)
    yield file.write_text
    _libc.unsetenv(b"MADE_UP_NVML")


def pci(root: Path, path: str, numa_node: int) -> None:
    """A PCI device at a path below /sys/devices."""
    device = root / "sys/devices" / path
    device.mkdir(parents=True, exist_ok=True)
    (device / "numa_node").write_text(f"{numa_node}\n")
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / device.name).symlink_to(device)


DGX = "".join(
    f"gpu H100 0000:{bus:02x}:00.0 numa={index // 4} mem=81920\n"
    for index, bus in enumerate((0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB))
) + "".join(f"nvswitch {index}\n" * 18 for index in range(8))


def test_a_dgx_links_every_gpu_to_every_other(nvml: Callable[[str], None]) -> None:
    nvml(DGX)

    gpus = topology.find()

    assert gpus.failure == ""
    assert len(gpus.devices) == 8
    assert len({gpu.uuid for gpu in gpus.devices}) == 8
    first, *others = gpus.devices
    assert (first.name, first.bus_id, first.memory, first.numa_node) == ("H100", "0000:18:00.0", 80 << 30, 0)
    assert first.switch_links == 18
    assert all(first.linked_to(other) for other in others)
    assert set(first.peers) == {other.uuid for other in others}


def test_one_gpu(nvml: Callable[[str], None], tmp_path: Path) -> None:
    nvml("gpu RTX 0000:01:00.0 numa=-1 mem=24576\n")

    gpus = topology.find(tmp_path)

    (only,) = gpus.devices
    assert (only.nvlinks, only.switch_links, only.peers, only.numa_node) == ({}, 0, (), -1)
    assert not gpus.peer_memory


def test_no_gpu(nvml: Callable[[str], None]) -> None:
    nvml("")

    assert topology.find() == topology.Gpus()


def test_a_driver_that_is_not_loaded(tmp_path: Path) -> None:
    _libc.setenv(b"MADE_UP_NVML", str(tmp_path / "absent").encode(), 1)
    try:
        assert topology.find().failure == "NVML does not start: Driver Not Loaded"
    finally:
        _libc.unsetenv(b"MADE_UP_NVML")


def test_pairs_with_nvlinks_and_one_that_cannot_reach_the_others(nvml: Callable[[str], None]) -> None:
    nvml(
        "gpu A 0000:10:00.0 numa=0 mem=1024\ngpu B 0000:11:00.0 numa=0 mem=1024\ngpu C 0000:90:00.0 numa=1 mem=1024\n"
        "nvlink 0 1\nnvlink 0 1\nnop2p 0 2 1\nnop2p 1 2 1\n"
    )

    a, b, c = topology.find().devices

    assert a.nvlinks == {b.uuid: 2}
    assert a.linked_to(b)
    assert not a.linked_to(c)
    assert a.peers == (b.uuid,)
    assert c.peers == ()


def test_the_kernel_knows_the_numa_node_better(nvml: Callable[[str], None], tmp_path: Path) -> None:
    nvml("gpu A 0000:10:00.0 numa=0 mem=1024\n")
    pci(tmp_path, "pci0000:0f/0000:0f:01.0/0000:10:00.0", 1)

    assert topology.find(tmp_path).devices[0].numa_node == 1


def test_distances_to_network_cards(nvml: Callable[[str], None], tmp_path: Path) -> None:
    nvml("gpu A 0000:12:00.0 numa=0 mem=1024\n")
    switch = "pci0000:0f/0000:0f:01.0/0000:10:00.0"
    pci(tmp_path, f"{switch}/0000:11:00.0/0000:12:00.0", 0)  # the GPU
    pci(tmp_path, f"{switch}/0000:11:01.0/0000:13:00.0", 0)  # a card of the same switch
    pci(tmp_path, f"{switch}/0000:11:02.0/0000:14:00.0/0000:15:00.0/0000:16:00.0", 0)  # behind a second switch
    pci(tmp_path, "pci0000:0f/0000:0f:02.0/0000:20:00.0", 0)  # of the same host bridge
    pci(tmp_path, "pci0000:30/0000:30:01.0/0000:31:00.0", 0)  # of the same NUMA node
    pci(tmp_path, "pci0000:80/0000:80:01.0/0000:81:00.0", 1)  # of the other one
    (gpu,) = topology.find(tmp_path).devices
    cards = ["0000:81:00.0", "0000:31:00.0", "0000:20:00.0", "0000:16:00.0", "0000:13:00.0", "0000:ff:00.0"]

    assert topology.nearest(gpu, cards, tmp_path) == [
        (Distance.PIX, "0000:13:00.0"),
        (Distance.PXB, "0000:16:00.0"),
        (Distance.PHB, "0000:20:00.0"),
        (Distance.NODE, "0000:31:00.0"),
        (Distance.SYS, "0000:81:00.0"),
        (Distance.SYS, "0000:ff:00.0"),
    ]


def test_numa_nodes_that_nobody_knows_are_far(tmp_path: Path) -> None:
    pci(tmp_path, "pci0000:30/0000:30:01.0/0000:31:00.0", -1)
    pci(tmp_path, "pci0000:80/0000:80:01.0/0000:81:00.0", -1)

    assert topology.distance("0000:31:00.0", "0000:81:00.0", tmp_path) is Distance.SYS


def test_peer_memory_of_the_kernel(nvml: Callable[[str], None], tmp_path: Path) -> None:
    nvml("")
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)

    assert topology.find(tmp_path).peer_memory


def test_nvml_writes_bus_ids_in_its_own_way() -> None:
    assert topology.kernel_bus_id("00000000:3B:00.0") == "0000:3b:00.0"
    assert topology.kernel_bus_id("00010000:3B:00.0") == "10000:3b:00.0"


def card(root: Path, name: str, path: str, numa_node: int) -> None:
    """An RDMA device with an active port."""
    pci(root, path, numa_node)
    device = root / "sys/devices" / path
    port = device / "infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (device / "infiniband" / name / "device").symlink_to(device)
    (root / "sys/class/infiniband").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/infiniband" / name).symlink_to(device / "infiniband" / name)


def test_doctor_shows_gpus_and_their_nearest_cards(nvml: Callable[[str], None], tmp_path: Path) -> None:
    nvml("gpu A 0000:12:00.0 numa=0 mem=1024\ngpu B 0000:90:00.0 numa=1 mem=1024\nnvlink 0 1\n")
    pci(tmp_path, "pci0000:0f/0000:0f:01.0/0000:12:00.0", 0)
    pci(tmp_path, "pci0000:8f/0000:8f:01.0/0000:90:00.0", 1)
    card(tmp_path, "mlx5_0", "pci0000:0f/0000:0f:02.0/0000:20:00.0", 0)

    machine = detect(tmp_path)
    shown = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path)], terminal_width=200)

    first, second = machine.gpus.devices
    assert machine.nearest_cards == ((first.uuid, "mlx5_0", "PHB"), (second.uuid, "mlx5_0", "SYS"))
    problems = " ".join(problem for problem, _ in machine.problems())
    assert f"of GPU {second.uuid}, mlx5_0, is on another NUMA node" in problems
    assert first.uuid not in problems
    assert "no nvidia_peermem" in problems
    assert "mlx5_0 (PHB)" in shown.output
    assert "memory of GPUs over tcp: staged: sockets take memory of the host" in shown.output
