"""The TCP transport keeps what every transport must."""

from collections.abc import Callable

import pytest

from hoplite_ucx.transports.conformance import CHECKS, Maker
from hoplite_ucx.transports.tcp.endpoint import TcpEndpoint


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Maker], None]) -> None:
    check(TcpEndpoint)
