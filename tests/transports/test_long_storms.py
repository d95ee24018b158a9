"""Storms that last: everything that streams can do and suffer, in whatever order."""

from importlib.util import find_spec

import pytest

from hoplite_ucx.transports.testing.conformance import Maker
from hoplite_ucx.transports.testing.conformance.faults import check_storm
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint
from hoplite_ucx.transports.testing.ucx_endpoint import SharedMemoryEndpoint, UcxEndpoint

NEEDS_UCX = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")


@pytest.mark.long(reason="ten times as long as the storms of the gate")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        TcpEndpoint,
        pytest.param(UcxEndpoint, marks=NEEDS_UCX),
        pytest.param(SharedMemoryEndpoint, marks=NEEDS_UCX),
    ],
    ids=["tcp", "ucx-tcp", "ucx-posix"],
)
def test_a_long_storm(make: Maker, seed: int) -> None:
    check_storm(make, seed, steps=1200)
