"""The bare peers get right results (they compare them themselves), and fail in time and with a reason."""

from collections.abc import Iterator

import pytest

from hoplite_ucx.bench.bare.driver import OPERATIONS, BarePeers, measure_bare
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster

pytestmark = pytest.mark.usefixtures("emulated_hosts")

RATE = 125e6


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    with Cluster(hosts=3, rate=RATE) as cluster:
        yield cluster


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_runs(trio: Cluster, operation: str) -> None:
    hosts = 2 if operation == "echo" else 3
    size = 1024 if operation == "echo" else (4 << 20) + 12  # no whole number of chunks, nor of parts
    measured = measure_bare(operation, hosts=hosts, size=size, rate=RATE, repeat=3, cluster=trio)
    assert len(measured.runs) == 3
    if operation == "echo":
        assert measured.ratio is None
        assert measured.seconds > 1e-6
    else:
        assert measured.limit_seconds is not None
        assert measured.fastest / measured.limit_seconds > 0.9, "faster than the rate allows"


@pytest.mark.long(reason="judges speed")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_runs_in_about_its_limit(trio: Cluster, operation: str) -> None:
    if operation == "echo":
        assert measure_bare("echo", hosts=2, size=1024, rate=RATE, repeat=3, cluster=trio).seconds < 0.1
    else:
        measured = measure_bare(operation, hosts=3, size=4 << 20, rate=RATE, repeat=3, cluster=trio)
        assert measured.limit_seconds is not None
        assert measured.fastest / measured.limit_seconds < 3


@pytest.mark.parametrize("operation", ["reduce", "allreduce"])
def test_less_than_a_number_for_each_host(trio: Cluster, operation: str) -> None:
    with BarePeers(trio.hosts, operation, 8) as peers:
        assert peers.run().seconds > 0


def test_what_cannot_be_is_refused(trio: Cluster) -> None:
    for size in (0, -4, 6, 2 << 30):
        with pytest.raises(PeerError, match="whole float32 numbers"):
            BarePeers(trio.hosts, "reduce", size)
    with pytest.raises(PeerError, match="not a bare operation"):
        BarePeers(trio.hosts, "scatter", 4)
    with pytest.raises(PeerError, match="two or more hosts"):
        BarePeers(trio.hosts[:1], "reduce", 4)


def test_a_dead_peer_and_a_silent_one_are_told(trio: Cluster) -> None:
    with BarePeers(trio.hosts, "broadcast", 1 << 20) as peers:
        peers.run()
        peers._peers[1].kill()
        with pytest.raises(PeerError, match="of the bare broadcast failed"):
            peers.run()
    with BarePeers(trio.hosts, "broadcast", 1 << 20) as peers:
        peers.run()
        trio.cut(1)
        try:
            peers._patience = 1.5
            with pytest.raises(PeerError, match="of the bare broadcast did not answer"):
                peers.run()
        finally:
            trio.heal(1)
