"""The async twin: many calls on one loop, and how they end."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import uvloop

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import GetTimeoutError, InvalidRequestError, ObjectDeletedError
from hoplite_ucx.runtime.launch import tracing
from hoplite_ucx.runtime.worker import async_api, default_cluster, loop_calls
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool
from tests.tools.waiting import HANG, eventually

pytestmark = pytest.mark.usefixtures("embedded")

BIG = 1 << 18
MANY = 300
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


def _bounded(run: Run) -> Run:
    """What hangs is cancelled by the loop: uvloop would not let pytest end it."""
    return lambda work: run(asyncio.wait_for(work, HANG))


both_loops = pytest.mark.parametrize("run", [_bounded(asyncio.run), _bounded(uvloop.run)], ids=["asyncio", "uvloop"])


async def under_way(count: int) -> loop_calls.LoopCalls:
    """So many calls have been sent."""
    calls = loop_calls.of_this_loop(default_cluster.client())
    while sum(len(session._calls) for session in calls._sessions) < count:
        await asyncio.sleep(0.01)
    return calls


def waiting(count: int) -> list["asyncio.Task[Any]"]:
    return [asyncio.create_task(aio.get(hoplite.new_ref(), timeout=HANG)) for _ in range(count)]


@both_loops
def test_every_call(run: Run) -> None:
    async def main() -> None:
        refs = await asyncio.gather(*(aio.put(np.full(BIG, index)) for index in range(3)))
        total = await aio.reduce(refs)
        assert (await aio.get(total))[0] == 3
        assert len(await aio.get(refs)) == len(await aio.gather(refs)) == 3
        ready, _ = await aio.wait(refs, count=3, timeout=HANG)
        assert ready == refs
        assert set(await aio.contributors(total)) == set(refs)
        async with aio.scope():
            inner = await aio.put(1)
        with pytest.raises(ObjectDeletedError):
            await aio.get(inner)
        later = aio.new_ref()
        waiting = asyncio.create_task(aio.get(later))
        await under_way(1)
        await aio.put("here", ref=later)
        assert await waiting == "here"
        await aio.delete(refs)
        with pytest.raises(ObjectDeletedError):
            await aio.get(refs[0])

    run(main())


@both_loops
def test_many_gets_wait_for_puts_of_the_same_program(run: Run) -> None:
    async def main() -> None:
        refs = [hoplite.new_ref() for _ in range(MANY)]
        gets = [asyncio.create_task(aio.get(ref, timeout=HANG)) for ref in refs]
        await under_way(MANY)
        await asyncio.gather(*(aio.put(index, ref=ref) for index, ref in enumerate(refs)))
        assert await asyncio.gather(*gets) == list(range(MANY))
        assert await aio.get(refs, timeout=HANG) == list(range(MANY))

    run(main())


@both_loops
def test_cancelled_gets_end_their_calls(run: Run) -> None:
    async def main() -> None:
        gets = waiting(MANY)
        calls = await under_way(MANY)
        assert len(calls._sessions) == -(-MANY // loop_calls.AT_ONCE)
        for get in gets:
            get.cancel()
        await asyncio.wait(gets)
        assert await aio.get(await aio.put(1), timeout=HANG) == 1
        async with asyncio.timeout(HANG):
            while default_cluster.client().status()["calls"]:
                await asyncio.sleep(0.01)
        (left,) = calls._sessions
        assert not left._calls

    run(main())


def test_a_late_value_of_a_cancelled_get_is_nobody_elses() -> None:
    async def main() -> None:
        refs = [await aio.put(np.full(BIG, index)) for index in range(20)]
        for index, ref in enumerate(refs):
            get = asyncio.create_task(aio.get(ref))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            get.cancel()
            other = (index + 1) % len(refs)
            assert (await aio.get(refs[other]))[0] == other

    asyncio.run(main())


@both_loops
def test_a_request_that_does_not_go_at_once(run: Run) -> None:
    async def main() -> None:
        refs = [hoplite.new_ref() for _ in range(100_000)]
        put = await aio.put(1)
        ready, rest = await aio.wait([*refs[1:], put], timeout=HANG)
        assert ready == [put]
        assert len(rest) == len(refs) - 1
        with pytest.raises(InvalidRequestError, match="100001 refs are more than the 100000"):
            await aio.wait([*refs, put])

    run(main())


def test_one_that_is_missing_fails_the_list() -> None:
    async def main() -> None:
        with pytest.raises(GetTimeoutError):
            await aio.get([await aio.put(1), hoplite.new_ref()], timeout=0.1)
        out = np.empty(BIG)
        assert await aio.get(await aio.put(np.full(BIG, 3.0)), out=out) is out
        assert out[-1] == 3

    asyncio.run(main())


def traces_run() -> bool:
    return any(thread.name == "hoplite-trace" for thread in threading.enumerate())


def test_a_trace_whose_task_is_cancelled_before_its_block_records_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to record for up to an hour."""
    path = tmp_path / "run.json"
    recording = threading.Event()

    async def look_for_nodes(_: tracing.ClusterTrace) -> None:
        recording.set()  # the directory records
        await asyncio.sleep(HANG)

    monkeypatch.setattr(tracing.ClusterTrace, "_look_for_nodes", look_for_nodes)

    async def main() -> None:
        async def trace(cluster: aio.AsyncCluster) -> None:
            async with cluster.trace(path):
                pytest.fail("the trace has not begun")

        async with await aio.connect(memory="64MiB") as cluster:
            tracing_it = asyncio.create_task(trace(cluster))
            assert await asyncio.to_thread(recording.wait, HANG)
            tracing_it.cancel()
            with pytest.raises(asyncio.CancelledError):
                await tracing_it
            await asyncio.to_thread(eventually, lambda: not traces_run(), HANG / 2)

    asyncio.run(main())
    assert not path.exists()


def test_a_trace_whose_task_is_cancelled_twice_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time, the task waits for a thread on which it can wait for the file."""
    path = tmp_path / "run.json"
    pool, busy, release = DaemonPool(1, "test"), threading.Event(), threading.Event()

    def block() -> None:
        busy.set()
        release.wait(HANG)

    async def main() -> None:
        inside = asyncio.Event()

        async def trace(cluster: aio.AsyncCluster) -> None:
            async with cluster.trace(path):
                await cluster.put(np.ones(1 << 17))
                monkeypatch.setattr(async_api, "_large_puts", pool)
                pool.submit(block)
                assert await asyncio.to_thread(busy.wait, HANG)
                inside.set()
                await asyncio.sleep(HANG)

        async with await aio.connect(memory="64MiB") as cluster:
            tracing_it = asyncio.create_task(trace(cluster))
            await inside.wait()
            tracing_it.cancel()
            while pool._work.empty():  # it waits for the file, behind others
                await asyncio.sleep(0.001)
            tracing_it.cancel()
            with pytest.raises(asyncio.CancelledError):
                await tracing_it
            await asyncio.to_thread(eventually, lambda: not traces_run(), HANG / 2)
            release.set()

    asyncio.run(main())
    assert json.loads(path.read_text())["traceEvents"]


def test_a_trace_of_what_async_code_does(tmp_path: Path) -> None:
    path = tmp_path / "run.json"

    async def main() -> None:
        async with await aio.connect(memory="64MiB") as cluster, cluster.trace(path):
            assert await cluster.get(await cluster.put(np.ones(1 << 17))) is not None

    asyncio.run(main())
    assert json.loads(path.read_text())["traceEvents"]
