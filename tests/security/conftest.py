"""One authority and one certificate for all tests that need no other."""

import pytest

from hoplite_ucx.transports.configuration import TlsFiles
from tests.tools.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def files(authority: Authority) -> TlsFiles:
    return authority.issue("node")
