"""An async client, with workers that are threads of its own process."""

import asyncio

import numpy as np

import hoplite_ucx.dask as hoplite_dask
from tests.runtime.test_faults import alive
from tests.tools import dask_tasks as tasks
from tests.tools.waiting import eventually

SIZE = 100_000


def test_an_async_client_and_the_end_of_everything() -> None:
    """Workers as threads of one process share one lease; keeper, agent and directory end with the cluster."""
    from distributed import Client

    async def program() -> list[int | None]:
        async with Client(asynchronous=True, processes=False, n_workers=2, dashboard_address=":0") as client:
            await hoplite_dask.install(client, memory="64MiB")
            await hoplite_dask.install(client)
            handle = await hoplite_dask.broadcast(client, np.ones(SIZE), prefetch=True)
            assert await client.submit(tasks.total, handle) == SIZE
            assert (await handle)[0] == 1.0
            futures = client.map(tasks.make, [SIZE] * 3, [1.0, 2.0, 3.0], pure=False)
            reduced = await hoplite_dask.reduce(futures, count=2)
            assert (await reduced.result())[0] in (3.0, 4.0, 5.0)
            assert len(await reduced.contributors()) == 2
            processes = [*tasks.keeper_and_agent(), await client.run_on_scheduler(tasks.directory_pid)]
            assert all(pid is not None and alive(pid) for pid in processes)
        return processes

    processes = asyncio.run(program())
    eventually(lambda: not any(pid is not None and alive(pid) for pid in processes))
