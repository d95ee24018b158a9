"""Shared objects as arguments of every kind of task: the task's function receives the value itself."""

import gc
from typing import Any

import numpy as np
import pytest

import hoplite_ucx.dask as hoplite_dask
from tests.tools import dask_tasks as tasks
from tests.tools.waiting import HANG, eventually

SIZE = 100_000


@pytest.fixture(scope="module")
def shared(client: Any) -> hoplite_dask.Shared:
    handle: hoplite_dask.Shared = hoplite_dask.broadcast(client, np.full(SIZE, 2.0))
    return handle


def test_submit_map_keywords_and_nested_structures(client: Any, shared: hoplite_dask.Shared) -> None:
    assert client.submit(tasks.kind, shared).result(HANG) == "ndarray"
    assert client.submit(tasks.total, shared).result(HANG) == 2.0 * SIZE
    assert client.submit(tasks.add_first, 1, array=shared).result(HANG) == 3.0
    assert client.submit(tasks.nested, {"arrays": [0, shared], "number": 5}).result(HANG) == 7.0
    assert client.gather(client.map(tasks.add_first, range(4), array=shared)) == [2.0, 3.0, 4.0, 5.0]
    assert client.gather(client.map(tasks.total, [shared, shared], pure=False)) == [2.0 * SIZE] * 2


def test_delayed_and_arrays_and_bags(client: Any, shared: hoplite_dask.Shared) -> None:
    import dask
    import dask.array as da
    import dask.bag as db

    lazy = [dask.delayed(tasks.add_first)(number, shared) for number in range(3)]
    assert dask.compute(*lazy, scheduler=client) == (2.0, 3.0, 4.0)
    blocks = da.zeros(8, chunks=4).map_blocks(lambda block, weights: block + weights[0], shared, dtype=float)
    assert client.compute(blocks.sum()).result(HANG) == 16.0
    bag = db.from_sequence(range(4), npartitions=2).map(tasks.add_first, shared)
    assert client.compute(bag.sum()).result(HANG) == 14.0


def test_partitions_of_frames(client: Any, shared: hoplite_dask.Shared) -> None:
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"x": range(4)}), npartitions=2)
    added = frame.map_partitions(lambda part, weights: part.x + weights[0], shared, meta=("x", float))
    assert client.compute(added.sum()).result(HANG) == 14.0


def test_a_future_is_broadcast_from_the_worker_that_has_it(client: Any) -> None:
    future = client.submit(tasks.make, SIZE, 3.0, pure=False)
    handle = hoplite_dask.broadcast(client, future, prefetch=True)
    assert handle.future.status == "finished"
    assert client.gather([client.submit(tasks.total, handle, pure=False) for _ in range(4)]) == [3.0 * SIZE] * 4
    assert handle.result()[0] == 3.0


def test_reduce_and_allreduce(client: Any) -> None:
    futures = [client.submit(tasks.make, SIZE, float(number), pure=False) for number in range(4)]
    handle = hoplite_dask.reduce(futures)
    assert client.submit(tasks.total, handle).result(HANG) == 6.0 * SIZE
    assert sorted(handle.contributors()) == [0, 1, 2, 3]
    everywhere = hoplite_dask.allreduce(futures, "max")
    assert client.gather([client.submit(tasks.total, everywhere, pure=False) for _ in range(3)]) == [3.0 * SIZE] * 3
    chained = hoplite_dask.reduce([handle, everywhere], "prod")
    assert chained.result()[-1] == 18.0


def test_reduce_of_the_first_that_are_ready(client: Any) -> None:
    from distributed import Event

    event = Event("let the straggler go", client=client)
    straggler = client.submit(tasks.make_after, event.name, SIZE, pure=False)
    others = [client.submit(tasks.make, SIZE, float(number), pure=False) for number in (1, 2)]
    handle = hoplite_dask.reduce([straggler, *others], count=2)
    assert client.submit(tasks.total, handle).result(HANG) == 3.0 * SIZE
    assert sorted(handle.contributors()) == [1, 2]
    event.set()


def test_sources_go_in_though_the_program_drops_them_at_once(client: Any) -> None:
    from distributed import Event

    event = Event("let the sources go", client=client)
    sources = [client.submit(tasks.make_after, event.name, SIZE, pure=False) for _ in range(2)]
    used = client.submit(tasks.total, hoplite_dask.reduce(sources, count=1))  # the result's handle is dropped here
    del sources
    gc.collect()
    event.set()
    assert used.result(HANG) == 100.0 * SIZE


def test_share_in_a_task(client: Any) -> None:
    future = client.submit(tasks.share_array, SIZE, 5.0, pure=False)
    assert isinstance(future.result(HANG), hoplite_dask.SharedResult)
    assert client.submit(tasks.kind, hoplite_dask.value_of(future)).result(HANG) == "ndarray"
    assert client.submit(tasks.total, hoplite_dask.value_of(future)).result(HANG) == 5.0 * SIZE
    assert client.submit(tasks.total, future).result(HANG) == 5.0 * SIZE  # as an array
    assert client.submit(tasks.open_result, future).result(HANG) == 5.0 * SIZE


def test_a_pickled_value_is_decoded_once_per_process(client: Any) -> None:
    handle = hoplite_dask.broadcast(client, tasks.Counted(7))
    told = client.gather([client.submit(tasks.loads_of, handle, pure=False) for _ in range(8)])
    assert {number for _, number, _ in told} == {7}
    assert {loads for _, _, loads in told} == {1}
    del handle
    gc.collect()
    eventually(lambda: not any(kept for _, _, kept in client.run(tasks.agent_of_this_process).values()))


def test_objects_are_deleted_when_dask_forgets_their_tasks(client: Any) -> None:
    def objects() -> set[int]:
        return {objects for _, objects, _ in client.run(tasks.agent_of_this_process).values()}

    def only_the_fixture_is_left() -> bool:
        gc.collect()
        keys = client.run_on_scheduler(_keys_of_hoplite)
        return len(keys) <= 1 and objects() == {len(keys)}

    eventually(only_the_fixture_is_left)
    handle = hoplite_dask.broadcast(client, np.ones(SIZE))
    futures = [client.submit(tasks.make, SIZE, float(number), pure=False) for number in range(3)]
    reduced = hoplite_dask.reduce(futures)
    result = client.submit(tasks.share_array, SIZE, 1.0, pure=False)
    used = client.submit(tasks.total, reduced)
    del reduced  # the task that takes it keeps it
    assert used.result(HANG) == 3.0 * SIZE
    client.gather([handle.future, result])
    assert min(objects()) >= 2
    del handle, futures, result, used
    eventually(only_the_fixture_is_left)


def _keys_of_hoplite(dask_scheduler: Any) -> list[str]:
    return [key for key in dask_scheduler.tasks if str(key).startswith("hoplite-")]
