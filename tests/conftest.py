"""Settings of the whole test run, and emulated hosts for the tests that need some."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator

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

# A shell's background jobs ignore ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def emulated_hosts() -> None:
    """Skips, with the reason, on a machine that lacks the tools or the rights."""
    try:
        with Cluster(hosts=1):
            pass
    except ClusterUnavailableError as unavailable:
        pytest.skip(str(unavailable))


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
