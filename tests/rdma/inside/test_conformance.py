"""The conformance kit over reliable connections."""

from collections.abc import Callable
from typing import Any

import pytest

from hoplite_ucx.transports.testing.conformance import CHECKS, Maker
from tests.rdma.inside.endpoints import RcEndpoint
from tests.tools.links import run_check

# The stream checks that take seconds even in software, and one kill.
_QUICK = ("order", "odd_sizes", "zero_length", "growing_source", "relay", "resume", "cancel_early", "sender_killed")


def _tiered(check: Callable[[Maker], None]) -> Any:
    name = check.__name__.removeprefix("check_")
    return pytest.param(check, id=name, marks=pytest.mark.tier("quick" if name in _QUICK else "default"))


@pytest.mark.parametrize("check", [_tiered(check) for check in CHECKS])
def test_conformance(monkeypatch: pytest.MonkeyPatch, check: Callable[[Maker], None]) -> None:
    run_check(monkeypatch, check, RcEndpoint)
