"""Settings of the whole test run, and emulated hosts for the tests that need some."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterUnavailableError

# Timing on shared machines says nothing about an example; pytest-timeout bounds each test. The same examples every
# time: what fails, fails because of a change. ci/long looks for new ones.
settings.register_profile("hoplite", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("TEST_EXAMPLES", "hoplite"))

# Tests neither use nor make the token of whoever runs them.
_configuration = tempfile.TemporaryDirectory()
os.environ["XDG_CONFIG_HOME"] = _configuration.name

# A shell's background jobs ignore ctrl-C, those of nohup SIGHUP, and so would the processes that tests start and end.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.fixture(scope="session")
def emulated_hosts() -> None:
    """Skips, with the reason, on a machine that lacks the tools or the rights."""
    try:
        with Cluster(hosts=1):
            pass
    except ClusterUnavailableError as unavailable:
        pytest.skip(str(unavailable))


_TOGETHER = ("tests/ray/", "tests/view/")
"""Folders whose tests share what takes long to start: a Ray, a browser."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of such a folder run in one process, all others wherever there is time. (The marks of xdist for that
    have no effect with pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in _TOGETHER if nodeid.startswith(folder)), nodeid)

    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (mark := item.get_closest_marker("long")) is not None and "reason" not in mark.kwargs:
            raise pytest.UsageError(f"{item.nodeid} is marked as long without a reason")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """What was skipped was not tested, and is the last that a reader sees."""
    yield
    reasons = Counter(report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    for reason, count in reasons.most_common():
        tests = "1 test was" if count == 1 else f"{count} tests were"
        terminalreporter.write_line(f"NOT TESTED: {tests} skipped: {reason.removeprefix('Skipped: ')}", yellow=True)
