"""Real agents whose links use what their configuration says: objects and reductions over UCX, over TCP, over both."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from hoplite_ucx.errors import HopliteError
from tests.tools.live import Host, live_cluster

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")

COUNT = 1 << 20


def received(host: Host) -> list[dict[str, Any]]:
    return [link for link in host.status()["links"] if link["side"] == "receiving" and link["bytes"]]


def exchange(hosts: list[Host], seed: int) -> None:
    """Everyone puts an array, they are summed, and everyone gets the sum and the first array."""
    arrays = [np.random.default_rng(seed + number).integers(0, 1000, COUNT) for number in range(len(hosts))]
    refs = [host.put(array) for host, array in zip(hosts, arrays, strict=True)]
    target = hosts[0].reduce(refs)
    for host in hosts:
        assert np.array_equal(host.get(target), sum(arrays))
        assert np.array_equal(host.get(refs[0]), arrays[0])


@pytest.mark.parametrize(("tls", "lanes"), [("tcp", ["tcp/lo"]), ("posix", ["posix/memory"])])
def test_everything_over_ucx(monkeypatch: pytest.MonkeyPatch, tls: str, lanes: list[str]) -> None:
    monkeypatch.setenv("HOPLITE_LINKS_TRANSPORT", "ucx")
    monkeypatch.setenv("HOPLITE_UCX_TLS", tls)
    with live_cluster(3) as live:
        for seed in range(3):
            exchange(live.hosts, seed)
        links = [link for host in live.hosts for link in received(host)]
        assert {link["transport"] for link in links} == {"ucx"}
        assert all(link["lanes"] == lanes for link in links)
        assert all("HOPLITE_LINKS_TRANSPORT" in link["reason"] for link in links)


def test_some_links_over_ucx_and_some_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_LINKS_TRANSPORT", "ucx")
    with live_cluster(2) as live:
        monkeypatch.setenv("HOPLITE_LINKS_TRANSPORT", "tcp")
        live.add_host()
        live.add_host()
        for seed in range(4):
            exchange(live.hosts, seed)
        used = {link["transport"] for host in live.hosts for link in received(host)}
        assert used == {"ucx", "tcp"}


def test_a_host_that_dies_over_ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_LINKS_TRANSPORT", "ucx")
    with live_cluster(3) as live:
        data = np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8)
        first, second, third = live.hosts
        ref = first.put(data)
        assert np.array_equal(second.get(ref), data)
        second.kill()
        assert np.array_equal(third.get(ref), data)


def test_what_is_required_and_missing_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_LINKS_REQUIRE", "rdma")
    with pytest.raises(HopliteError, match=r"links\.require"), live_cluster(1):
        pass
