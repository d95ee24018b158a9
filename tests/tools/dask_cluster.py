"""A Dask cluster of real processes on loopback, with hoplite installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client, LocalCluster

import hoplite_ucx.dask as hoplite_dask


@contextmanager
def dask_cluster(*, workers: int = 2, memory: str = "256MiB", **options: Any) -> Iterator[Client]:
    settings: dict[str, Any] = {"threads_per_worker": 2, "memory_limit": 0, "dashboard_address": None} | options
    with LocalCluster(n_workers=workers, **settings) as cluster, Client(cluster) as client:
        hoplite_dask.install(client, memory=memory)
        yield client
