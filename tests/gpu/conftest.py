"""Made-up GPUs for tests: a driver of ours under the real CuPy and the real UCX."""

import os

import pytest

from tests.gpu.made_up.build import Made, MissingError, build


@pytest.fixture(scope="session")
def made_up_gpus() -> Made:
    """Skips, with the one reason, where the driver cannot be built; on CI that is a failure."""
    try:
        return build()
    except MissingError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
