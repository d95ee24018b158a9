"""Handshakes and sessions with the limits that they have."""

import pytest


@pytest.fixture(autouse=True)
def _patient() -> None:
    """Unlike tests of links: here it is tested that a handshake ends in time."""
