"""What the tests of measurements share: emulated hosts, where this machine can have them."""

import pytest

from hoplite_ucx.bench.cluster import Cluster, ClusterUnavailableError


@pytest.fixture(scope="session")
def emulated_hosts() -> None:
    """Skips, with the reason, on a machine that lacks the tools or the rights."""
    try:
        with Cluster(hosts=1):
            pass
    except ClusterUnavailableError as unavailable:
        pytest.skip(str(unavailable))
