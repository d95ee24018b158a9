"""The cover of ucx-py makes ucx-py's calls, on a made-up `ucp`. The real one has never been tried: see `ucx_py`."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from hoplite_ucx.bench.hardware import ucx_py_checks
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import library, ucx_py
from hoplite_ucx.transports.ucx.ucx_py import UcxPyLibrary
from tests.tools import made_up_ucp

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made = made_up_ucp.install(monkeypatch)
    monkeypatch.setattr(library, "load", UcxPyLibrary)
    return made


_CHECKS = [
    check
    for check in CHECKS
    if check.__name__.removeprefix("check_")
    in {"order", "odd_sizes", "relay", "many_streams", "resume", "cancel_receive", "cancel_serve", "close"}
]


@pytest.mark.parametrize("check", _CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_what_every_transport_must_do(check: Callable[[Maker], None], calls: list[str]) -> None:
    check(UcxEndpoint)
    assert {"UCXContext", "UCXEndpoint", "tag_send_nb", "tag_recv_nb"} <= set(calls)


def test_ci_hardware_runs_the_kit_over_it(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    """All but what needs another process (`receiver_killed`), whose UCX might be another."""
    monkeypatch.setattr(library, "load", library.load)  # so that what it replaces comes back
    found = ucx_py_checks.check_here("check_re")
    assert {check["check"]: check["failure"] for check in found} == {"relay": "", "resume": ""}
    assert "UCXEndpoint" in calls


def test_ci_hardware_says_that_it_is_not_installed() -> None:
    if find_spec("ucp") is None:
        assert "not installed" in ucx_py_checks.ucx_py_report()["not_run"]


def test_it_is_used_only_where_ucxx_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(*names: str) -> None:
        monkeypatch.setattr(library, "find_spec", lambda name: name if name in names else None)
        library.load.cache_clear()

    made_up_ucp.install(monkeypatch)
    try:
        for names, wanted in ((("ucxx", "ucp"), library.Library), (("ucp",), ucx_py.UcxPyLibrary)):
            installed(*names)
            assert type(library.load()) is wanted
    finally:
        library.load.cache_clear()
