"""One Ray of two nodes with hoplite for all tests of this folder: it takes seconds to start. Every test leaves it as
good as new, also after it has killed something."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray's own warnings are not ours to fix."""
    for item in items:
        if "tests/ray/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    from tests.tools.ray_cluster import ray_with_hoplite

    with ray_with_hoplite() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def actors(ray_cluster: Any) -> Any:
    """One on each node, which have joined."""
    from tests.tools.ray_tasks import actors_on_all_nodes

    return actors_on_all_nodes()
