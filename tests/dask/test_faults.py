"""Agents, directories and workers that die under a Dask program: it gets the right value, or Dask's own error."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hoplite_ucx.dask as hoplite_dask
from tests.tools import dask_tasks as tasks
from tests.tools.dask_cluster import dask_cluster
from tests.tools.waiting import HANG, eventually

SIZE = 100_000


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    """A cluster for this module's kills: after each of them it must be as good as new."""
    with dask_cluster() as client:
        yield client


def kill_agent(client: Any) -> None:
    """The host's only one, with every copy that there is."""
    _, agent = tasks.keeper_and_agent()
    gone = tasks.agent_name()
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: {gone, None}.isdisjoint([tasks.agent_name(), *client.run(tasks.agent_name).values()]))


def test_what_was_lost_with_an_agent_is_computed_again(own: Any) -> None:
    source = own.submit(tasks.make, SIZE, 2.0, pure=False)
    spread = hoplite_dask.broadcast(own, source, prefetch=True)
    numbers = [own.submit(tasks.make, SIZE, float(number), pure=False) for number in range(3)]
    reduced = hoplite_dask.reduce(numbers)
    result = own.submit(tasks.share_array, SIZE, 5.0, pure=False)
    assert own.gather([own.submit(tasks.total, handle) for handle in (spread, reduced)]) == [2.0 * SIZE, 3.0 * SIZE]
    assert own.submit(tasks.open_result, result).result(HANG) == 5.0 * SIZE
    kill_agent(own)
    assert own.submit(tasks.total, spread, pure=False).result(HANG) == 2.0 * SIZE
    assert own.submit(tasks.total, reduced, pure=False).result(HANG) == 3.0 * SIZE
    assert own.submit(tasks.total, hoplite_dask.value_of(result), pure=False).result(HANG) == 5.0 * SIZE
    kill_agent(own)
    assert reduced.result()[0] == 3.0  # without a task that takes it
    assert sorted(reduced.contributors()) == [0, 1, 2]


def test_a_clients_value_that_is_lost_is_cancelled_as_scattered_data_is(own: Any) -> None:
    from distributed.client import FutureCancelledError

    handle = hoplite_dask.broadcast(own, np.ones(SIZE))
    assert own.submit(tasks.total, handle).result(HANG) == SIZE
    kill_agent(own)
    with pytest.raises(FutureCancelledError):
        own.submit(tasks.total, handle, pure=False).result(HANG)
    with pytest.raises(FutureCancelledError):
        handle.result()
    again = hoplite_dask.broadcast(own, np.ones(SIZE))
    assert own.submit(tasks.total, again).result(HANG) == SIZE


def test_a_directory_that_is_killed_comes_back(own: Any) -> None:
    handle = hoplite_dask.broadcast(own, np.ones(SIZE))
    killed = own.run_on_scheduler(tasks.directory_pid)
    os.kill(killed, signal.SIGKILL)
    assert own.submit(tasks.total, handle).result(HANG) == SIZE
    assert hoplite_dask.broadcast(own, 3).result() == 3
    assert own.run_on_scheduler(tasks.directory_pid) not in (None, killed)


def test_a_worker_that_its_nanny_restarts_finds_the_same_agent(own: Any) -> None:
    handle = hoplite_dask.broadcast(own, np.ones(SIZE))
    before = own.run(tasks.agent_of_this_process)
    address, victim = next(iter(own.run(tasks.pid).items()))
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: address not in own.scheduler_info()["workers"] and len(own.run(tasks.pid)) == 2)
    after = own.run(tasks.agent_of_this_process)
    assert {name for name, *_ in after.values()} == {name for name, *_ in before.values()}
    assert own.gather([own.submit(tasks.total, handle, workers=[worker], pure=False) for worker in after]) == [SIZE] * 2


@pytest.mark.long(reason="Dask stops and starts every worker, one after the other")
def test_a_restart_of_the_cluster_forgets_and_goes_on(own: Any) -> None:
    from distributed.client import FutureCancelledError

    handle = hoplite_dask.broadcast(own, np.ones(SIZE))
    own.restart()
    with pytest.raises(FutureCancelledError):
        own.submit(tasks.total, handle).result(HANG)
    again = hoplite_dask.broadcast(own, np.full(SIZE, 2.0))
    assert own.submit(tasks.total, again).result(HANG) == 2.0 * SIZE
    del handle, again
    gc.collect()
    eventually(lambda: {objects for _, objects, _ in own.run(tasks.agent_of_this_process).values()} == {0})


def test_a_worker_that_comes_late_joins_by_itself(own: Any) -> None:
    handle = hoplite_dask.broadcast(own, np.ones(SIZE))
    known = set(own.scheduler_info()["workers"])
    own.cluster.scale(3)
    own.wait_for_workers(3, timeout=HANG)
    (late,) = set(own.scheduler_info()["workers"]) - known
    assert own.submit(tasks.total, handle, workers=[late]).result(HANG) == SIZE
    assert len({name for name, *_ in own.run(tasks.agent_of_this_process).values()}) == 1
