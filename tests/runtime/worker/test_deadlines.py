"""No call lasts much longer than its time limit, whatever the agent does: here it is stopped, as by SIGSTOP."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import msgspec
import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import ClosedError, GetTimeoutError, InvalidRequestError
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.runtime.worker import async_api, client, connection, default_cluster, loop_calls
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool
from tests.tools.waiting import HANG, eventually

LIMIT = 0.1
GRACE = 0.2
"""What a stopped agent has beyond a call's time: the usual grace would only make these tests longer."""
MANY = [hoplite.new_ref() for _ in range(100_000)]
LARGE = np.zeros(1 << 18)

CALLS: dict[str, Callable[[], object]] = {
    "get": lambda: hoplite.get(hoplite.new_ref(), timeout=LIMIT),
    "get at once": lambda: hoplite.get(hoplite.new_ref(), timeout=0),
    "gather": lambda: hoplite.gather(MANY[:500], timeout=LIMIT),
    "put": lambda: hoplite.put(1, timeout=LIMIT),
    "put of much": lambda: hoplite.put(LARGE, timeout=LIMIT),
    "create": lambda: hoplite.create(LARGE.shape, timeout=LIMIT),
    "wait": lambda: hoplite.wait(MANY[:2], timeout=LIMIT),
    "wait for more than fits into the socket": lambda: hoplite.wait(MANY, timeout=LIMIT),
    "delete": lambda: hoplite.delete(MANY[:3000], timeout=LIMIT),
    "reduce": lambda: hoplite.reduce(MANY[:2], timeout=LIMIT),
    "contributors": lambda: hoplite.contributors(MANY[0], timeout=LIMIT),
}


@pytest.fixture(scope="module")
def agent() -> Iterator[int]:
    """The process of an embedded cluster's agent."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
            patch.delenv(name, raising=False)
        hoplite.init(memory=64 << 20)
        cluster = default_cluster.membership.attachment
        assert cluster is not None
        yield cluster.children[1].process.pid
        hoplite.shutdown()


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    ours = default_cluster.client()
    usual = ours.grace
    os.kill(process, signal.SIGSTOP)
    ours.grace = GRACE
    try:
        yield
    finally:
        ours.grace = usual
        os.kill(process, signal.SIGCONT)


def assert_late(call: Callable[[], object]) -> None:
    """Nothing else than its time limit would end it."""
    with pytest.raises(GetTimeoutError, match="did not answer in time"):
        call()


def test_a_stopped_agent_holds_no_call_up(agent: int) -> None:
    """The first of each waits for a reply, or for room to ask; the second for a greeting."""
    warm, are_stopped = threading.Barrier(len(CALLS) + 1), threading.Event()

    def call_twice(what: str) -> None:
        hoplite.get(hoplite.put(LARGE))  # this thread has a connection now
        warm.wait(HANG)
        assert are_stopped.wait(HANG)
        for _ in range(2):
            assert_late(CALLS[what])

    with ThreadPoolExecutor(len(CALLS)) as pool:
        calling = {what: pool.submit(call_twice, what) for what in CALLS}
        warm.wait(HANG)
        with stopped(agent):
            are_stopped.set()
            wait(calling.values())
    assert {what: called.exception() for what, called in calling.items()} == dict.fromkeys(CALLS)
    assert hoplite.get(hoplite.put("there again"), timeout=HANG) == "there again"


def drafted() -> hoplite.Draft:
    """The agent has little time for what comes now, and had enough until then."""
    draft = hoplite.create(LARGE.shape, timeout=HANG)
    assert draft._put is not None
    draft._put._allowance = client.Allowance(LIMIT, GRACE)
    return draft


def test_a_stopped_agent_holds_no_draft_up(agent: int) -> None:
    draft = drafted()
    with stopped(agent):
        assert_late(draft.seal)
    eager = drafted()
    with stopped(agent):
        assert_late(lambda: [eager.advance(8) for _ in range(100_000)])  # more than fits into the socket
    with pytest.raises(InvalidRequestError, match="abandoned"):
        eager.seal()


@pytest.mark.parametrize("value", ["small", LARGE])
def test_a_stopped_agent_holds_no_task_up(value: Any, agent: int) -> None:
    async def main() -> None:
        async def late(call: Any) -> None:
            with pytest.raises(GetTimeoutError, match="did not answer in time"):
                await call

        await aio.put("a connection")
        with stopped(agent):
            patient = asyncio.create_task(aio.get(hoplite.new_ref(), timeout=None))
            await late(aio.put(value, timeout=LIMIT))
            await late(aio.get(hoplite.new_ref(), timeout=0))
            assert not patient.done()  # whoever has more time goes on waiting
        patient.cancel()
        ref = await aio.put("there again")
        assert await aio.get(ref, timeout=HANG) == "there again"

    asyncio.run(main())


def test_tasks_without_a_connection_are_held_up_no_longer(agent: int) -> None:
    async def main() -> None:
        with stopped(agent):
            gets = [aio.get(hoplite.new_ref(), timeout=LIMIT) for _ in range(10)]
            for outcome in await asyncio.gather(*gets, return_exceptions=True):
                assert isinstance(outcome, GetTimeoutError)

    asyncio.run(main())


@pytest.mark.usefixtures("agent")
def test_a_loop_that_is_held_up_while_it_connects_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = hoplite.put("there")
    connected = threading.Event()
    connect = client.Client.connect_watched

    def connect_watched(of: client.Client) -> connection.Connection:
        made = connect(of)
        connected.set()
        return made

    monkeypatch.setattr(client.Client, "connect_watched", connect_watched)

    async def main() -> None:
        get = asyncio.create_task(aio.get(ref, timeout=0))
        for _ in range(2):
            await asyncio.sleep(0)
        assert connected.wait(HANG)
        time.sleep(default_cluster.client().grace + 0.1)
        assert await get == "there"

    asyncio.run(main())


def test_a_put_that_has_to_queue_is_not_held_up_by_others(agent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = DaemonPool(1, "test")
    monkeypatch.setattr(async_api, "_large_puts", pool)

    async def main() -> None:
        with stopped(agent):
            first = asyncio.create_task(aio.put(LARGE, timeout=HANG))
            while not pool._threads or not pool._work.empty():
                await asyncio.sleep(0.001)
            with pytest.raises(GetTimeoutError):
                await aio.put(LARGE, timeout=LIMIT)
            assert not first.done()
        await first

    asyncio.run(main())


def test_without_a_limit_a_stopped_agent_is_noticed(agent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hoplite.put(1)
    with stopped(agent):
        ours = default_cluster.client()
        monkeypatch.setattr(ours._local.connection, "quiet", 0.6)
        monkeypatch.setattr(ours, "greeting", msgspec.structs.replace(ours.greeting, quiet=0.6))
        for call in (lambda: hoplite.get(hoplite.new_ref(), timeout=None), lambda: hoplite.wait(MANY, timeout=60)):
            with pytest.raises(ClosedError, match="does not answer"):
                call()
        monkeypatch.undo()


def test_a_shutdown_ends_what_other_threads_wait_for() -> None:
    cluster = hoplite.connect(memory=64 << 20)  # beside the one that the other tests share
    draft = cluster.create(LARGE.shape)
    ended: list[BaseException] = []

    def get() -> None:
        try:
            cluster.get(hoplite.new_ref(), timeout=None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    eventually(lambda: cluster._of.client.status()["calls"] == 2)  # the draft, and the get
    cluster.close()
    thread.join(HANG)
    [error] = ended
    assert isinstance(error, ClosedError)
    assert "shut down" in str(error)
    assert "agent" not in str(error)
    with pytest.raises(ClosedError, match="shut down"):
        draft.seal()


def test_a_call_that_a_shutdown_finds_connecting_does_not_blame_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = hoplite.connect(memory=64 << 20)
    reach = connection.Connection._reach

    def close_first(self: connection.Connection, name: str) -> None:
        monkeypatch.setattr(connection.Connection, "_reach", reach)
        cluster.close()
        raise ClosedError(Failure(FailureKind.CLOSED, "the agent is gone", "start it again"))

    monkeypatch.setattr(connection.Connection, "_reach", close_first)
    with ThreadPoolExecutor(1) as another, pytest.raises(ClosedError, match="shut down"):
        another.submit(cluster.put, 1).result(HANG)


class Clock:
    """A clock that stands still unless it is set forward."""

    forward = 0.0

    def monotonic(self) -> float:
        return self.forward


SLOW_CALLS: dict[str, Callable[[], object]] = {
    "get": lambda: hoplite.get(THERE, timeout=60),
    "get many": lambda: hoplite.get([THERE, THERE], timeout=60),
    "put": lambda: hoplite.put(1, timeout=60),
    "put of much": lambda: hoplite.put(LARGE, timeout=60),
    "create": lambda: hoplite.create(LARGE.shape, timeout=60),
    "wait": lambda: hoplite.wait([THERE], timeout=60),
    "delete": lambda: hoplite.delete(hoplite.new_ref(), timeout=60),
    "reduce": lambda: hoplite.reduce([hoplite.new_ref()], timeout=60),
    "aio get": lambda: asyncio.run(aio.get(THERE, timeout=60)),
    "aio put": lambda: asyncio.run(aio.put(1, timeout=60)),
    "aio wait": lambda: asyncio.run(aio.wait([THERE], timeout=60)),
}
THERE = hoplite.new_ref()


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("what", SLOW_CALLS)
def test_an_agent_is_given_what_is_left_of_the_time(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 50 s to greet: then it may take 10 s for the rest, and not a minute once more."""
    hoplite.put(1, ref=THERE)
    clock, asked = Clock(), []
    connect, frames = client.Client._connect, client.Client.with_releases

    def connect_slowly(*arguments: Any) -> connection.Connection:
        made = connect(*arguments)
        clock.forward += 50
        return made

    def note(ours: Any, on: Any, call: int, request: Any) -> bytes:
        if hasattr(request, "timeout"):
            asked.append(request.timeout)
        return frames(ours, on, call, request)

    monkeypatch.setattr(client, "time", clock)
    monkeypatch.setattr(loop_calls, "time", clock)
    monkeypatch.setattr(client.Client, "_connect", connect_slowly)
    monkeypatch.setattr(client.Client, "with_releases", note)
    monkeypatch.setattr(default_cluster.client().reader, "look", lambda *_: None)
    thread = threading.Thread(target=SLOW_CALLS[what])  # without a connection
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive()
    assert asked
    assert all(0 < seconds <= 10 for seconds in asked), asked
