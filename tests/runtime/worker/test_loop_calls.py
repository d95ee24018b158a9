"""The async twin when its agent or the runtime ends: every call that is open does too."""

import asyncio
import gc
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import ClosedError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.worker import default_cluster, loop_calls
from hoplite_ucx.runtime.worker.connection import PING
from tests.runtime.worker.test_async_api import Run, both_loops, under_way
from tests.tools.waiting import HANG, eventually


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Gives the agent's process."""
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hoplite.init(memory=64 << 20)
    cluster = default_cluster.membership.attachment
    assert cluster is not None
    yield cluster.children[1].process.pid
    hoplite.shutdown()


@pytest.fixture
def hasty_cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """The same, where a program that hears nothing for a second asks whether the agent still runs."""
    monkeypatch.setenv("HOPLITE_PROCESSES_QUIET", "1s")
    agent: int = request.getfixturevalue("own_cluster")
    return agent


def waiting(count: int, timeout: float | None) -> list["asyncio.Task[Any]"]:
    return [asyncio.create_task(aio.get(hoplite.new_ref(), timeout=timeout)) for _ in range(count)]


@both_loops
def test_open_calls_end_with_the_agent(run: Run, own_cluster: int) -> None:
    async def main() -> None:
        gets = waiting(3, timeout=None)
        await under_way(3)
        os.kill(own_cluster, signal.SIGKILL)
        for outcome in await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), HANG):
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
        for outcome in await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), HANG):
            assert isinstance(outcome, ClosedError)
            assert "shut down" in str(outcome)

    run(main())


def test_an_agent_that_stops_is_noticed_without_a_time_limit(
    hasty_cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        (get,) = waiting(1, timeout=None)
        (session,) = (await under_way(1))._sessions
        send, asked = session._send, asyncio.Event()

        def noted(frames: bytes) -> None:
            if frames == wire.frame(wire.Ping(PING)):
                asked.set()
            send(frames)

        monkeypatch.setattr(session, "_send", noted)
        await asyncio.wait_for(asked.wait(), HANG)
        while session._pinged is not None:  # until it has answered
            await asyncio.sleep(0.01)
        assert not get.done()
        os.kill(hasty_cluster, signal.SIGSTOP)
        try:
            with pytest.raises(ClosedError, match="does not answer"):
                await asyncio.wait_for(get, HANG)
        finally:
            os.kill(hasty_cluster, signal.SIGCONT)

    asyncio.run(main())


@both_loops
@pytest.mark.usefixtures("hasty_cluster")
def test_a_loop_that_was_held_up_blames_nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_cluster.client(), "grace", 0.3)

    async def main() -> None:
        refs = [await aio.put(np.full(1 << 16, index)) for index in range(20)]
        later = hoplite.new_ref()
        await aio.get(refs[0])  # the loop has a connection now
        gets = [asyncio.create_task(aio.get(ref, timeout=0.1)) for ref in refs]
        waits = asyncio.create_task(aio.get(later, timeout=None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # The last one waits, so the agent has answered all others, and nobody here has read that.
        eventually(lambda: default_cluster.client().status()["calls"] == 1)
        time.sleep(1.2)
        assert [int(value[0]) for value in await asyncio.gather(*gets)] == list(range(20))
        time.sleep(1.2)
        await aio.put("there", ref=later)
        assert await waits == "there"

    run(main())


@pytest.mark.usefixtures("own_cluster")
def test_an_error_for_a_caller_that_was_just_cancelled_is_not_logged() -> None:
    async def main() -> None:
        logged: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        (get,) = waiting(1, timeout=None)
        await under_way(1)
        (session,) = loop_calls.of_this_loop(default_cluster.client())._sessions
        session._fail(session.connection.silent())
        get.cancel()
        await asyncio.wait([get])
        del get, session
        gc.collect()
        assert not logged

    asyncio.run(main())


def pins() -> int:
    return sum(each["pins"] for each in default_cluster.client().status()["largest"])


def test_what_a_closed_connection_never_read_is_not_held(own_cluster: int) -> None:
    """The agent learns at the same time of the last request and of the end, and of the end only once."""
    ref = hoplite.put(np.zeros(1 << 17))
    client = default_cluster.client()
    kept = hoplite.get(ref)
    for ask_more in (False, True):
        connection = client.connect_watched()
        connection.send(wire.GetRequest(connection.next_call(), ref.binary, HANG))
        assert select.select([connection], [], [], HANG)[0]
        assert pins() == 2
        os.kill(own_cluster, signal.SIGSTOP)
        if ask_more:
            connection.send(wire.Cancel(connection.next_call()))
        connection.close()
        os.kill(own_cluster, signal.SIGCONT)
        eventually(lambda: pins() <= 1)
    assert not kept.any()


@pytest.mark.usefixtures("own_cluster")
def test_what_a_closed_connection_did_read_is_held() -> None:
    """The agent asks, since it cannot know."""
    ref = hoplite.put(np.ones(1 << 17))
    client = default_cluster.client()
    connection = client.connect_watched()
    connection.send(wire.GetRequest(connection.next_call(), ref.binary, HANG))
    value = connection.receive(time.monotonic() + HANG)
    assert isinstance(value, wire.Value)
    kept = client.open_value(connection, value)
    connection.close()
    for _ in range(10):
        assert pins() == 1
        time.sleep(0.05)
    del kept
    eventually(lambda: not pins())
