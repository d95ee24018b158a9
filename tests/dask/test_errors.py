"""What a Dask user hears when something is wrong, in Dask's words and with a remedy."""

import contextlib
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Event, wait

import hoplite_ucx.dask as hoplite_dask
from hoplite_ucx.errors import ClosedError, GetTimeoutError, InvalidRequestError
from tests.tools import dask_tasks as tasks
from tests.tools.dask_cluster import dask_cluster
from tests.tools.waiting import HANG, eventually

SIZE = 100_000


def test_without_install(client: Any) -> None:
    from distributed import Client

    with Client(client.scheduler.address) as other:
        with pytest.raises(ClosedError, match=r"not installed in this Dask client.*install\(client\)"):
            hoplite_dask.broadcast(other, 1)
        hoplite_dask.install(other)
        assert hoplite_dask.broadcast(other, 1).result() == 1
        future = other.submit(tasks.make, 10, 1.0, pure=False)
        with pytest.raises(InvalidRequestError, match="another Dask client"):
            hoplite_dask.broadcast(client, future)
    assert hoplite_dask.broadcast(client, 2).result() == 2  # the other one left, this one did not


def test_bad_arguments(client: Any) -> None:
    future = client.submit(tasks.make, 10, 1.0, pure=False)
    with pytest.raises(InvalidRequestError, match="list of futures"):
        hoplite_dask.reduce(future)
    with pytest.raises(InvalidRequestError, match="list of futures"):
        hoplite_dask.reduce([])
    with pytest.raises(InvalidRequestError, match="not a future"):
        hoplite_dask.reduce([future, 1])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="count"):
        hoplite_dask.reduce([future], count=2)
    with pytest.raises(InvalidRequestError, match="operation"):
        hoplite_dask.reduce([future], "median")
    with pytest.raises(InvalidRequestError, match="memory"):
        hoplite_dask.install(client, memory="much")
    with pytest.raises(InvalidRequestError, match="needs a future"):
        hoplite_dask.value_of(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not what share"):
        client.submit(tasks.total, hoplite_dask.value_of(future), pure=False).result(HANG)
    with pytest.raises(ClosedError, match="outside a Dask task"):
        hoplite_dask.share(1)


def test_a_prefetch_to_a_worker_that_there_is_not(client: Any) -> None:
    with pytest.raises(ClosedError, match="nobody says: there is no such worker"):
        hoplite_dask.broadcast(client, np.ones(SIZE), prefetch=True, workers=["nobody"])


def test_a_broadcast_that_fails_leaves_nothing_behind(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_is_left() -> bool:
        gc.collect()
        return {objects for _, objects, _ in client.run(tasks.agent_of_this_process).values()} == {0}

    eventually(nothing_is_left)
    with monkeypatch.context() as broken:
        broken.setattr(client, "submit", tasks.fail)
        with pytest.raises(ZeroDivisionError):
            hoplite_dask.broadcast(client, np.ones(SIZE))
    eventually(nothing_is_left)


def test_a_source_that_fails(client: Any) -> None:
    good = client.submit(tasks.make, SIZE, 1.0, pure=False)
    bad = client.submit(tasks.fail, pure=False)
    handle = hoplite_dask.reduce([good, bad])
    with pytest.raises(ZeroDivisionError, match="own exception"):
        client.submit(tasks.total, handle).result(HANG)
    with pytest.raises(ZeroDivisionError, match="own exception"):
        handle.result()
    with pytest.raises(ZeroDivisionError, match="own exception"):
        hoplite_dask.broadcast(client, bad, prefetch=True)
    first = hoplite_dask.reduce([good, bad], count=1)
    assert first.result()[0] == 1.0
    neither = hoplite_dask.reduce([bad, client.submit(tasks.fail, 1, pure=False)], count=1)
    with pytest.raises(ZeroDivisionError, match="own exception"):
        neither.result()


def test_a_source_that_raises_a_time_out_of_its_own(client: Any) -> None:
    handle = hoplite_dask.broadcast(client, client.submit(tasks.time_out, pure=False))
    with pytest.raises(TimeoutError, match="of the user's"):
        handle.result()


def test_a_result_is_asked_for_without_waiting(client: Any) -> None:
    handle = hoplite_dask.broadcast(client, np.ones(SIZE), prefetch=True)
    wait(handle.future)
    assert handle.result(timeout=0)[0] == 1.0
    go_on = Event("let the source go", client=client)
    unfinished = hoplite_dask.broadcast(client, client.submit(tasks.make_after, go_on.name, 1, pure=False))
    with pytest.raises(GetTimeoutError, match="have not finished"):
        unfinished.result(timeout=0)
    go_on.set()
    assert unfinished.result()[0] == 100.0


def test_sources_that_differ(client: Any) -> None:
    futures = [client.submit(tasks.make, SIZE + number, 1.0, pure=False) for number in range(2)]
    handle = hoplite_dask.reduce(futures)
    with pytest.raises(InvalidRequestError):
        client.submit(tasks.total, handle).result(HANG)
    with pytest.raises(InvalidRequestError):
        handle.result()


def test_a_handle_of_another_cluster(client: Any) -> None:
    handle = hoplite_dask.broadcast(client, np.ones(SIZE))
    foreign = hoplite_dask.Shared(None, handle.func, "another", *handle.args[1:])
    with pytest.raises(ClosedError, match="another Dask cluster"):
        client.submit(tasks.total, foreign).result(HANG)
    travelled = pickle.loads(pickle.dumps(handle))
    with pytest.raises(ClosedError, match="travelled with a task graph"):
        travelled.result()


def test_a_handle_whose_future_is_forgotten(client: Any) -> None:
    from distributed.client import FutureCancelledError

    handle = hoplite_dask.broadcast(client, np.ones(SIZE))
    handle.future.cancel()
    with pytest.raises(FutureCancelledError):
        client.submit(tasks.total, handle).result(HANG)


def test_a_worker_in_which_hoplite_is_not_installed() -> None:
    with dask_cluster(workers=1) as client:
        handle = hoplite_dask.broadcast(client, np.ones(SIZE))
        client.unregister_worker_plugin("hoplite")
        for task in (client.submit(tasks.total, handle), client.submit(tasks.share_array, SIZE, 1.0)):
            with pytest.raises(ClosedError, match=r"not installed in the Dask worker tcp://.*install\(client\)"):
                task.result(HANG)
        hoplite_dask.install(client)
        assert client.submit(tasks.total, handle, pure=False).result(HANG) == SIZE


@pytest.mark.parametrize("where", ["scheduler", "worker"])
def test_a_scheduler_or_a_worker_without_the_package(where: str, tmp_path: Path) -> None:
    from distributed import Client

    missing = tmp_path / "missing" / "hoplite_ucx"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'hoplite_ucx'\")\n")
    place = tmp_path / "scheduler.json"
    commands = {
        "scheduler": ["dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
        "worker": ["dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1"],
    }
    with contextlib.ExitStack() as stack:
        for part, (module, *options) in commands.items():
            command = [sys.executable, "-m", f"distributed.cli.{module}", *options, "--scheduler-file", str(place)]
            without = {"PYTHONPATH": str(missing.parent)} if part == where else {}
            process = subprocess.Popen(command, env=os.environ | without, stderr=subprocess.DEVNULL, cwd=tmp_path)
            stack.callback(process.wait, HANG)
            stack.callback(process.terminate)
        eventually(place.exists)
        client = stack.enter_context(Client(scheduler_file=str(place), timeout=HANG))
        client.wait_for_workers(1, timeout=HANG)
        with pytest.raises(ClosedError, match=rf"the Dask {where}|a Dask {where}") as told:
            hoplite_dask.install(client)
        assert "install hoplite-ucx" in told.value.remedy
