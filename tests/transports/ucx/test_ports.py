"""RDMA ports that go down and come back, made up in a directory; the links themselves go over UCX's tcp."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hoplite_ucx.transports.interface import Fault
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, filled, wait_until
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import engine as engine_module
from hoplite_ucx.transports.ucx import library
from hoplite_ucx.transports.ucx.library import Lane
from hoplite_ucx.transports.ucx.ports import Ports
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.worker import Worker
from tests.tools.waiting import HANG, eventually

SIZE = 300_000


class Shared(UcxSettings):
    """All links of a node share a worker, as over RDMA."""

    @property
    def private_workers(self) -> bool:
        return False


class SharedEndpoint(UcxEndpoint):
    settings = Shared()


def add_port(root: Path, device: str, number: int, state: str = "4: ACTIVE") -> Path:
    path = root / device / "ports" / str(number) / "state"
    path.parent.mkdir(parents=True)
    path.write_text(state)
    return path


def test_ports_of_lanes(tmp_path: Path) -> None:
    first, _ = add_port(tmp_path, "mlx5_0", 1), add_port(tmp_path, "mlx5_1", 2)
    lanes = [Lane("rc_mlx5", "mlx5_0:1"), Lane("ud_mlx5", "mlx5_0:1"), Lane("rc_mlx5", "mlx5_1:2")]
    ports = Ports([*lanes, Lane("tcp", "eth0"), Lane("tcp", "eth0:1"), Lane("self", "memory")], tmp_path)
    assert ports.down() == []
    first.write_text("1: DOWN\n")
    assert ports.down() == ["mlx5_0:1"]
    (tmp_path / "mlx5_1" / "ports" / "2" / "state").unlink()
    assert ports.down() == ["mlx5_0:1", "mlx5_1:2"]


@pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
def test_a_port_that_goes_down_ends_its_links_and_ucx_is_asked_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = add_port(tmp_path, "made_0", 1)
    monkeypatch.setattr(engine_module, "Ports", lambda _lanes: Ports([Lane("rc_verbs", "made_0:1")], tmp_path))
    connects: list[int] = []
    connect = Worker.connect

    def watched(self: Worker, address: bytes) -> object:
        connects.append(1)
        return connect(self, address)

    monkeypatch.setattr(Worker, "connect", watched)
    lost: list[str] = []
    with (
        SharedEndpoint(1, on_lost=lambda *_: None) as a,
        SharedEndpoint(2, on_lost=lambda *w: lost.append(str(w))) as b,
    ):
        source = filled(1, SIZE, watermark=100_000)
        Serving(a, 2, (2, 1), source, SIZE)
        stream = Receiving(b, 1, a.address, (2, 1), SIZE)
        eventually(lambda: stream.memory.watermark() == 100_000)
        state.write_text("1: DOWN")
        watermark, fault = stream.wait(HANG)
        assert (watermark, fault) == (100_000, Fault.BROKEN)
        assert "made_0:1 is down" in lost[0] or "connection broke" in lost[0], lost  # whichever end looked first
        made = len(connects)
        again = Receiving(b, 1, a.address, (2, 2), SIZE)
        assert again.wait(HANG) == (0, Fault.BROKEN)
        assert "made_0:1 is down" in lost[-1]
        assert len(connects) == made, "UCX was asked to connect over a port that is down"
        state.write_text("4: ACTIVE")
        Serving(a, 2, (2, 3), filled(3, SIZE), SIZE)
        Receiving(b, 1, a.address, (2, 3), SIZE).complete(3)


@pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
def test_wake_ups_that_ucx_loses_hold_up_no_transfer_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it loses all of them."""
    create = Worker.__init__

    def deaf(self: Worker, *arguments: Any) -> None:
        create(self, *arguments)
        self.descriptor = os.eventfd(0)

    monkeypatch.setattr(Worker, "__init__", deaf)
    with SharedEndpoint(1) as a, SharedEndpoint(2) as b:
        source = filled(1, SIZE, watermark=0)
        Serving(a, 2, (2, 1), source, SIZE)
        stream = Receiving(b, 1, a.address, (2, 1), SIZE)
        for watermark in (100_000, 200_000, SIZE):
            source.rise(watermark)
            wait_until(lambda watermark=watermark: stream.memory.watermark() == watermark, "it has come")
        stream.complete(1)


@pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
def test_a_peer_that_ucx_cannot_reach_is_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Worker, _address: bytes) -> object:
        raise library.load().error("Destination is unreachable")

    monkeypatch.setattr(Worker, "connect", refuse)
    lost: list[str] = []
    with UcxEndpoint(1) as a, UcxEndpoint(2, on_lost=lambda *w: lost.append(str(w))) as b:
        assert Receiving(b, 1, a.address, (2, 1), SIZE).wait(HANG) == (0, Fault.BROKEN)
    assert "UCX cannot connect to it over tcp" in lost[0]
    assert "net_devices" in lost[0]
    assert "still runs" not in lost[0]


@pytest.mark.parametrize("name", ["rc", "rc_verbs", "rc_mlx5", "dc_mlx5", "ud", "ud_verbs", "ud_mlx5", "ib"])
def test_every_name_of_rdma_shares_a_worker_and_can_connect(name: str) -> None:
    settings = UcxSettings(tls=(name,))
    assert not settings.private_workers
    brings_what_it_connects_with = {"rc_verbs": "rc_v", "rc_mlx5": "rc_x", "dc_mlx5": "dc_x"}
    asked = settings.for_ucx()["TLS"].split(",")
    assert asked[0] == brings_what_it_connects_with.get(name, asked[0])


def test_what_stays_locked_is_bounded_where_locking_is() -> None:
    rdma = UcxSettings(tls=("rc",))
    assert "RCACHE_MAX_SIZE" not in rdma.for_ucx()
    assert rdma.for_ucx(lockable=1 << 30)["RCACHE_MAX_SIZE"] == str(1 << 28)
    assert "RCACHE_MAX_SIZE" not in UcxSettings().for_ucx(lockable=1 << 30)
    assert (
        UcxSettings(tls=("rc",), options=(("RCACHE_MAX_SIZE", "inf"),)).for_ucx(lockable=1 << 30)["RCACHE_MAX_SIZE"]
        == "inf"
    )
