"""A Dask cluster with hoplite installed, for the tests of a module; whoever kills something makes its own."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("distributed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Dask's own warnings are not ours to fix."""
    for item in items:
        if "tests/dask/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from tests.tools.dask_cluster import dask_cluster

    with dask_cluster() as made:
        yield made
