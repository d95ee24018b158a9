"""What the tests of measurements share: emulated hosts, where this machine can have them."""

import os

import pytest

from hoplite_ucx.bench.cluster import Cluster, ClusterUnavailableError


@pytest.fixture(scope="session", autouse=True)
def _emulated_hosts() -> None:
    """Without emulated hosts these tests are skipped with the reason; but root must be able to have them."""
    try:
        with Cluster(hosts=1):
            pass
    except ClusterUnavailableError as unavailable:
        if os.geteuid() == 0 and not os.environ.get("HOPLITE_WITHOUT_CLUSTER"):
            raise
        pytest.skip(str(unavailable))
