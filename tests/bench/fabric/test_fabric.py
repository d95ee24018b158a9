"""`hoplite bench fabric`: which ways there are between machines, which is advised, and that its configuration works."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoplite_ucx.bench.fabric.machines import machines_of_slurm
from hoplite_ucx.bench.fabric.measuring import measure_fabric
from hoplite_ucx.bench.fabric.perftest import figure_of
from hoplite_ucx.bench.fabric.ways import Inventory, Way, advised, configuration, inventory, ways_between
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.cli import app
from hoplite_ucx.transports.configuration import Kind, load

TWO_RAILS = Inventory("a", ucx=True, devices=("mlx5_0:1", "mlx5_1:1"))


def report(*devices: str, lanes: tuple[str, ...] = (), rdma: bool = True, problem: str = "") -> dict[str, Any]:
    """What doctor says on a machine with these devices, all of them active but those whose name ends with `down`."""
    return {
        "rdma": rdma,
        "devices": [
            {
                "name": name.removesuffix("down"),
                "ports": [{"number": 1, "state": "DOWN" if "down" in name else "ACTIVE"}],
            }
            for name in devices
        ],
        "ucx": {"failure": "", "devices": ["tcp/eth0", *(f"rc_mlx5/{lane}" for lane in lanes)]},
        "problems": [{"problem": problem}] if problem else [],
    }


def test_only_ports_that_ucx_can_use_count() -> None:
    told = report("mlx5_0", "mlx5_1down", "mlx5_2", lanes=("mlx5_0:1", "mlx5_1:1"))
    assert inventory("a", told).devices == ("mlx5_0:1",)
    both = report("mlx5_0", "mlx5_1", lanes=("mlx5_0:1", "mlx5_1:1"))
    assert inventory("a", both, ["mlx5_1:1", "mlx5_9:1"]).devices == ("mlx5_1:1",)
    none = inventory("a", report(rdma=False, problem="only 8 MiB may be locked"))
    assert (none.devices, none.without_rdma) == ((), "only 8 MiB may be locked")


def test_ways_are_those_that_all_machines_have() -> None:
    ways, missing = ways_between([TWO_RAILS, Inventory("b", ucx=True, devices=("rx0:1", "rx1:1", "rx2:1"))])
    assert [way.name for way in ways] == ["tcp", "ucx over tcp", "rdma, 1 rail", "rdma, 2 rails"]
    assert [each["HOPLITE_UCX_NET_DEVICES"] for each in ways[-1].links] == ["mlx5_0:1,mlx5_1:1", "rx0:1,rx1:1"]
    assert not missing
    ways, missing = ways_between([TWO_RAILS, Inventory("b", ucx=True, without_rdma="its port is down")])
    assert [way.name for way in ways] == ["tcp", "ucx over tcp"]
    assert missing == {"rdma": "b: its port is down"}
    assert [way.name for way in ways_between([TWO_RAILS, Inventory("b", ucx=False)])[0]] == ["tcp"]


def test_more_to_configure_must_pay() -> None:
    ways, _ = ways_between([TWO_RAILS, TWO_RAILS])

    def best(**seconds: float) -> str:
        names = dict(zip(("tcp", "ucx", "one", "two"), (way.name for way in ways), strict=True))
        return advised(ways, {names[key]: {"broadcast": took, "reduce": took} for key, took in seconds.items()}).name

    assert best(tcp=1.0, ucx=0.99, one=0.5, two=0.49) == "rdma, 1 rail"
    assert best(tcp=1.0, ucx=0.99, one=0.5, two=0.3) == "rdma, 2 rails"
    assert best(tcp=1.0, ucx=0.8, one=2.0) == "ucx over tcp"
    assert best(tcp=1.0, ucx=0.97, two=1.1) == "tcp"


@pytest.mark.parametrize("number", range(4))
def test_the_configuration_is_one_that_we_read(number: int, tmp_path: Path) -> None:
    machines = [TWO_RAILS, Inventory("b", ucx=True, devices=("mlx5_0:1", "mlx5_1:1"))]
    way = ways_between(machines)[0][number]
    path = tmp_path / "hoplite.toml"
    path.write_text(configuration(way, machines))
    read = load(environment={"HOPLITE_CONFIG": str(path)})
    assert read.transport is (Kind.TCP, Kind.UCX, Kind.RDMA, Kind.RDMA)[number]
    assert len(read.ucx.net_devices) == way.rails


def test_machines_whose_devices_differ_get_a_part_each() -> None:
    machines = [TWO_RAILS, Inventory("b", ucx=True, devices=("rx0:1",)), Inventory("c", ucx=True, devices=("rx0:1",))]
    way: Way = ways_between(machines)[0][-1]
    text = configuration(way, machines)
    assert "# on a\n[links]" in text
    assert "# on b, c\n[links]" in text


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        (" 1048576    15346            0.00               96.21              0.011", 96.21e9 / 8),
        (" 1048576    15           0.000000            0.000000            0.000000", 15 * (1 << 20) / 3),
        (" 1048576    0           0.000000            0.000000            0.000000", None),
        ("Couldn't connect to 10.0.0.1:18515", None),
    ],
    ids=["a card", "no processor clock", "nothing moved", "no server"],
)
def test_what_perftest_prints(line: str, figure: float | None) -> None:
    text = f"---\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n{line}\n---\n"
    assert figure_of(text) == (None if figure is None else pytest.approx(figure))


def test_the_machines_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerError, match="not inside a Slurm job"):
        machines_of_slurm()
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames" ] && printf "node1\\nnode2\\n"\n')
    scontrol.chmod(0o755)
    assert [machine.host for machine in machines_of_slurm()] == ["node1", "node2"]


def test_what_the_command_refuses(tmp_path: Path) -> None:
    both = CliRunner().invoke(app, ["bench", "fabric"])
    assert both.exit_code == 2
    other = CliRunner().invoke(app, ["bench", "fabric", "--hosts-file", str(tmp_path / "none"), "--operation", "scan"])
    assert other.exit_code == 2
    missing = CliRunner().invoke(app, ["bench", "fabric", "--hosts-file", str(tmp_path / "none")])
    assert missing.exit_code == 1


@pytest.mark.usefixtures("emulated_hosts")
@pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
def test_collectives_over_each_way_between_emulated_hosts() -> None:
    with Cluster(2, None) as cluster:
        found = measure_fabric(cluster.hosts, size=1 << 20, repeat=1, operations=["broadcast"], memory=64 << 20)
    json.dumps(found)
    assert list(found["ways"]) == ["tcp", "ucx over tcp"]
    assert found["ways"]["tcp"]["lanes"] == []
    assert any(lane.startswith("tcp/") for lane in found["ways"]["ucx over tcp"]["lanes"])
    assert all(way["operations"]["broadcast"]["seconds"] > 0 for way in found["ways"].values())
    assert "rdma" in found["not_run"]
    assert found["advised"] in found["ways"]
    assert found["configuration"].startswith("[links]\n")
