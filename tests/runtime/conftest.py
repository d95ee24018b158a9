"""Clusters that the tests of a module share; whoever kills something makes its own."""

from collections.abc import Iterator

import pytest

import hoplite_ucx as hoplite
from tests.tools.live import Live, live_cluster


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Three hosts."""
    with live_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def embedded() -> Iterator[None]:
    """`init()` without an address."""
    hoplite.init(memory=512 << 20)
    yield
    hoplite.shutdown()
