"""The async twin when its agent or the runtime ends: every call that is open does too."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import ClosedError
from hoplite_ucx.runtime import current, looped
from tests.runtime.test_aio import Run, both_loops, under_way


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Gives the agent's process."""
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hoplite.init(memory=64 << 20)
    cluster = current._here.cluster
    assert cluster is not None
    yield cluster.children[1].process.pid
    hoplite.shutdown()


def waiting(count: int, timeout: float | None) -> list["asyncio.Task[Any]"]:
    return [asyncio.create_task(aio.get(hoplite.new_ref(), timeout=timeout)) for _ in range(count)]


@both_loops
def test_open_calls_end_with_the_agent(run: Run, own_cluster: int) -> None:
    async def main() -> None:
        gets = waiting(3, timeout=None)
        await under_way(3)
        os.kill(own_cluster, signal.SIGKILL)
        for outcome in await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), 10):
            assert isinstance(outcome, ClosedError)
        with pytest.raises(ClosedError):
            await aio.get(hoplite.new_ref())

    run(main())


@both_loops
@pytest.mark.usefixtures("own_cluster")
def test_open_calls_end_with_the_runtime(run: Run) -> None:
    async def main() -> None:
        gets = waiting(3, timeout=None)
        await under_way(3)
        await aio.shutdown()
        for outcome in await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), 10):
            assert isinstance(outcome, ClosedError)
            assert "shut down" in str(outcome)

    run(main())


def test_a_stopped_agent_holds_nobody_up(own_cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        (first,) = waiting(1, timeout=None)
        await under_way(1)
        os.kill(own_cluster, signal.SIGSTOP)
        monkeypatch.setattr(looped, "GRACE", 0.3)
        try:
            began = time.monotonic()
            for get in (*waiting(1, timeout=0.1), first):
                with pytest.raises(ClosedError, match="does not answer"):
                    await asyncio.wait_for(get, 20)
            assert time.monotonic() - began < 4  # less than the usual grace
        finally:
            os.kill(own_cluster, signal.SIGCONT)
            monkeypatch.undo()
        ref = await aio.put("there again")
        assert await aio.get(ref, timeout=20) == "there again"

    asyncio.run(main())


def test_an_agent_that_stops_is_noticed_without_a_time_limit(own_cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looped, "QUIET", 2.0)

    async def main() -> None:
        (get,) = waiting(1, timeout=None)
        await under_way(1)
        await asyncio.sleep(5)  # it is asked, and answers
        assert not get.done()
        os.kill(own_cluster, signal.SIGSTOP)
        try:
            with pytest.raises(ClosedError, match="does not answer"):
                await asyncio.wait_for(get, 30)
        finally:
            os.kill(own_cluster, signal.SIGCONT)

    asyncio.run(main())
