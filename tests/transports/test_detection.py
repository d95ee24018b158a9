"""RDMA devices as sysfs shows them, on made-up trees; and the UCX of this process."""

import resource
from importlib.util import find_spec
from pathlib import Path

import pytest

from hoplite_ucx.transports.detection import LinkHardware, UcxBuild, detect, rdma_devices, ucx_build
from hoplite_ucx.transports.ucx.locked_memory import lockable

NO_UCX = UcxBuild(failure="no UCX")
WHEEL = UcxBuild(version="1.22.0", transports=("posix", "self", "tcp"))
VERBS = UcxBuild(version="1.22.0", transports=("rc_mlx5", "self", "tcp"))


def add_device(
    root: Path,
    name: str,
    *,
    layer: str = "InfiniBand",
    state: str = "4: ACTIVE",
    rate: str = "100 Gb/sec (4X EDR)",
    numa: str = "1",
    ports: int = 1,
    net: str = "ib0",
) -> None:
    hardware = root / "sys/devices/pci0000:00" / f"0000:{len(name)}a:00.{name[-1]}"
    (hardware / "net" / net).mkdir(parents=True)
    (hardware / "numa_node").write_text(numa + "\n")
    device = root / "sys/class/infiniband" / name
    device.mkdir(parents=True)
    (device / "device").symlink_to(hardware)
    for number in range(1, ports + 1):
        port = device / "ports" / str(number)
        (port / "gids").mkdir(parents=True)
        (port / "gid_attrs" / "ndevs").mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "phys_state").write_text("5: LinkUp\n" if "ACTIVE" in state else "3: Disabled\n")
        (port / "rate").write_text(rate + "\n")
        (port / "link_layer").write_text(layer + "\n")
        (port / "gids" / "0").write_text("fe80:0000:0000:0000:506b:4b03:0012:3456\n")
        (port / "gids" / "1").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
        if layer == "Ethernet":
            (port / "gid_attrs" / "ndevs" / "0").write_text(net + "\n")


def machine(root: Path, ucx: UcxBuild) -> LinkHardware:
    return LinkHardware(tuple(rdma_devices(root)), ucx, 65536, -1)


def test_a_machine_without_rdma(tmp_path: Path) -> None:
    found = machine(tmp_path, WHEEL)
    assert found.devices == ()
    assert not found.rdma
    assert found.problems() == []


def test_infiniband_with_two_rails(tmp_path: Path) -> None:
    for number in (10, 2):
        add_device(tmp_path, f"mlx5_{number}")
    found = machine(tmp_path, VERBS)
    assert [device.name for device in found.devices] == ["mlx5_2", "mlx5_10"]
    assert found.active_ports == ["mlx5_2:1", "mlx5_10:1"]
    port = found.devices[0].ports[0]
    assert (port.state, port.physical_state, port.link_layer) == ("ACTIVE", "LinkUp", "InfiniBand")
    assert (port.rate, port.gids, port.net_devices) == (100e9, 1, ("ib0",))
    assert found.devices[0].numa_node == 1
    assert found.devices[0].pci == "0000:6a:00.2"
    assert found.rdma
    assert found.problems() == []


def test_roce(tmp_path: Path) -> None:
    add_device(tmp_path, "rocep1s0f0", layer="Ethernet", rate="25 Gb/sec (1X EDR)", numa="-1", net="enp1s0f0")
    (device,) = rdma_devices(tmp_path)
    assert device.numa_node == -1
    assert device.ports[0].link_layer == "Ethernet"
    assert device.ports[0].net_devices == ("enp1s0f0",)
    assert device.ports[0].rate == 25e9


@pytest.mark.parametrize(("layer", "remedy"), [("InfiniBand", "subnet manager"), ("Ethernet", "network interface")])
def test_a_port_that_is_down(tmp_path: Path, layer: str, remedy: str) -> None:
    add_device(tmp_path, "mlx5_0", state="1: DOWN", layer=layer)
    found = machine(tmp_path, VERBS)
    assert not found.rdma
    ((problem, what),) = found.problems()
    assert "port 1 of mlx5_0 is down (disabled)" in problem
    assert remedy in what


def test_one_port_of_two(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx4_0", ports=2)
    (tmp_path / "sys/class/infiniband/mlx4_0/ports/1/state").write_text("2: INIT\n")
    assert machine(tmp_path, VERBS).active_ports == ["mlx4_0:2"]


def test_hardware_and_a_ucx_without_verbs(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0")
    found = machine(tmp_path, WHEEL)
    assert not found.rdma
    assert "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY" in found.problems()[0][1]


def test_files_that_are_missing_or_make_no_sense(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0", rate="fast", numa="")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "state").unlink()
    (port / "link_layer").write_bytes(b"\xff\xfe")
    (tmp_path / "sys/class/infiniband/empty").mkdir()
    devices = {device.name: device for device in rdma_devices(tmp_path)}
    assert devices["empty"].ports == ()
    assert devices["mlx5_0"].ports[0].state == "UNKNOWN"
    assert devices["mlx5_0"].ports[0].rate == 0
    assert devices["mlx5_0"].numa_node == -1


def test_limits_that_stand_in_the_way(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0")
    tight = LinkHardware(tuple(rdma_devices(tmp_path)), VERBS, 1024, 8 << 20)
    problems = dict(tight.problems())
    assert any(f"only {8 << 20} bytes may be locked" in problem for problem in problems)
    assert any("descriptors" in problem for problem in problems)
    assert not tight.rdma


@pytest.mark.parametrize(
    ("users", "capabilities", "unlimited"),
    [
        ("0 0 4294967295", "000001ffffffffff", True),
        ("0 0 4294967295", "0000000000000000", False),
        ("0 1000 1", "000001ffffffffff", False),  # root of a user namespace is nobody's to the kernel's counting
    ],
)
def test_who_may_lock_any_memory(tmp_path: Path, users: str, capabilities: str, unlimited: bool) -> None:
    (tmp_path / "uid_map").write_text(f"         {users}\n")
    (tmp_path / "status").write_text(f"Name:\tagent\nCapEff:\t{capabilities}\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    little = min(1 << 20, hard) if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (little, hard))
    try:
        assert lockable(tmp_path) == (-1 if unlimited else little)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def test_no_ucx_says_how_to_get_it(tmp_path: Path) -> None:
    assert "pip install 'hoplite-ucx[ucx]'" in machine(tmp_path, NO_UCX).problems()[0][1]


@pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
def test_the_ucx_of_this_process() -> None:
    build = ucx_build()
    assert not build.failure
    assert {"tcp", "posix"} <= set(build.transports)
    assert "tcp/lo" in build.devices
    assert Path(build.path).name.startswith("libucp.so")


@pytest.mark.parametrize(("name", "told"), [("bbr", True), ("bbr2", True), ("cubic", False), ("dctcp", False)])
def test_a_congestion_control_that_stops_links_is_told(tmp_path: Path, name: str, told: bool) -> None:
    setting = tmp_path / "proc/sys/net/ipv4/tcp_congestion_control"
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{name}\n")
    machine = detect(tmp_path)
    assert machine.congestion_control == name
    assert any("BBR" in problem and "cubic" in remedy for problem, remedy in machine.problems()) is told
