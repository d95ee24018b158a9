"""The UCX transport keeps what every transport must, over UCX's TCP and its shared memory."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from hoplite_ucx.transports.conformance import CHECKS, Maker
from hoplite_ucx.transports.ucx.endpoint import SharedMemoryEndpoint, UcxEndpoint

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")


@pytest.mark.parametrize("make", [UcxEndpoint, SharedMemoryEndpoint], ids=["tcp", "posix"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Maker], None], make: Maker) -> None:
    check(make)
