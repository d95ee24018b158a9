"""Settings of the whole test run, and emulated hosts for the tests that need some."""

import os
import signal
import tempfile

import pytest
from hypothesis import settings

from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterUnavailableError

# Timing on shared machines says nothing about an example; pytest-timeout bounds each test.
settings.register_profile("hoplite", deadline=None)
settings.load_profile("hoplite")

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
