"""Who asks once sees what is there, on this host and on others; a directory that is stopped or dead is called that."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import GetTimeoutError, ObjectDeletedError
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import directory_task
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.layouts import ArrayLayout, Leaf, describe_dtype, encode_layout
from hoplite_ucx.runtime.worker import calls
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref
from hoplite_ucx.transports.wire.addresses import parse_address
from tests.tools.live import TOKEN, Host, Live, live_cluster
from tests.tools.waiting import HANG, eventually

SIZES = {"inline": 100, "in the agent": 100_000, "large": 5 << 20}


def contributors_now(host: Host, target: ObjectRef) -> list[ObjectRef]:
    return host.client.carry_out(calls.contributors(target, 0))


# --- what is there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_own_puts_are_seen_at_once(live: Live, size: int) -> None:
    host = live.hosts[0]
    value = np.arange(size, dtype=np.uint8)
    for _ in range(50):
        ref = host.put(value)
        assert host.wait([ref], timeout=0) == ([ref], [])
        assert np.array_equal(host.get(host.put(value), timeout=0), value)
    named = new_ref()
    host.put(value, named)
    assert host.wait([named], timeout=0) == ([named], [])


def test_puts_are_seen_by_another_process_of_the_host(live: Live) -> None:
    host = live.hosts[0]
    other = Client(host.name)
    try:
        for number in range(50):
            ref = host.put(number)
            ready, _ = other.carry_out(calls.wait([ref], 1, 0))
            assert ready == [ref]
            assert values.decode(*other.get_one(ref.binary, 0)) == number
    finally:
        other.close()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_what_another_host_has_is_found_and_fetched(live: Live, size: int) -> None:
    putter, getter = live.hosts[:2]
    value = np.arange(size, dtype=np.uint8)
    for _ in range(10):
        ref = putter.put(value)
        putter.wait([ref])  # the directory has heard of it before it says so
        assert getter.wait([ref], timeout=0) == ([ref], [])
        assert np.array_equal(getter.get(ref, timeout=0), value)


def test_several_at_once(live: Live) -> None:
    putter, getter = live.hosts[:2]
    refs = [putter.put(number) for number in range(300)]
    putter.wait(refs, len(refs))
    missing = new_ref()
    assert getter.wait([*refs, missing], len(refs) + 1, timeout=0) == (refs, [missing])
    got = getter.client.get([ref.binary for ref in refs], 0)
    assert [values.decode(*each) for each in got] == list(range(300))
    with pytest.raises(GetTimeoutError, match="no node has it"):
        getter.client.get([*(ref.binary for ref in refs), missing.binary], 0)


def test_calls_made_of_others(live: Live) -> None:
    putter, getter = live.hosts[:2]
    with attached(getter):
        refs = [putter.put(number) for number in range(20)]
        putter.wait(refs, len(refs))
        assert {*hoplite.as_completed(refs, timeout=0)} == {*refs}
        assert hoplite.gather(refs, timeout=0) == list(range(20))
        assert hoplite.info(refs[0], timeout=0).state == "ready"
        assert hoplite.get(hoplite.put_many(range(20), timeout=0), timeout=0) == list(range(20))


def test_hardly_any_time_is_time_enough_to_ask(live: Live) -> None:
    putter, getter = live.hosts[:2]
    for number in range(20):
        ref = putter.put(number)
        putter.wait([ref])
        assert getter.wait([ref], timeout=1e-6) == ([ref], [])
        assert getter.get(ref, timeout=1e-6) == number


def test_in_a_loop(live: Live) -> None:
    with attached(live.hosts[0]):

        async def main() -> None:
            refs = [await aio.put(number) for number in range(50)]
            assert await aio.wait(refs, len(refs), timeout=0) == (refs, [])
            assert [await aio.get(ref, timeout=0) for ref in refs] == list(range(50))
            assert await aio.gather(refs, timeout=0) == list(range(50))
            with pytest.raises(GetTimeoutError, match="no node has it"):
                await aio.get(new_ref(), timeout=0)
            assert await aio.wait([new_ref()], timeout=0) != ([], [])

        asyncio.run(main())


@contextlib.contextmanager
def attached(host: Host) -> Iterator[None]:
    """The functions of the module use this host's agent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPLITE_TOKEN", TOKEN.decode())
        hoplite.init(host.client.greeting.directory, agent=host.agent.report["agent"])
        try:
            yield
        finally:
            hoplite.shutdown()


# --- what is not there ------------------------------------------------------------------------------------------


def test_what_nobody_put_is_said_to_be_missing(live: Live) -> None:
    host, ref = live.hosts[0], new_ref()
    assert host.wait([ref], timeout=0) == ([], [ref])
    for timeout in (0, 1e-6, 0.05):
        with pytest.raises(GetTimeoutError, match="no node has it") as caught:
            host.get(ref, timeout=timeout)
        assert caught.value.ref == ref


def test_what_is_being_put_is_not_there_yet(live: Live) -> None:
    putter, getter = live.hosts[:2]
    ref = new_ref()
    leaf = Leaf(describe_dtype(np.dtype(np.uint8)), (5 << 20,))
    draft = putter.client.begin_put(ref.binary, 5 << 20, encode_layout(ArrayLayout(leaf)), HANG)
    for host in (putter, getter):
        assert host.wait([ref], timeout=0) == ([], [ref])
        with pytest.raises(GetTimeoutError, match="still being put"):
            host.get(ref, timeout=0)
    draft.finish()
    putter.wait([ref])
    assert len(getter.get(ref, timeout=0)) == 5 << 20


def test_a_reduction_that_is_not_decided(live: Live) -> None:
    host = live.hosts[0]
    sources = [host.put(np.ones(10)), new_ref()]
    target = host.client.carry_out(
        calls.reduce(sources, "sum", None, None, 0, everywhere=False, is_near=host.client.reader.is_near)
    )
    assert host.wait([target], timeout=0) == ([], [target])
    with pytest.raises(GetTimeoutError, match="or reduced"):
        host.get(target, timeout=0)
    with pytest.raises(GetTimeoutError, match="not sealed yet"):
        contributors_now(host, target)
    host.put(np.ones(10), sources[1])
    host.wait([target])
    assert contributors_now(host, target) == sources
    assert host.get(target, timeout=0)[0] == 2


def test_requests_without_time_are_carried_out(live: Live) -> None:
    host, ref = live.hosts[0], new_ref()
    host.put("there", ref, timeout=0)
    host.put(np.zeros(5 << 20, np.uint8), timeout=0)
    assert host.get(ref, timeout=0) == "there"
    host.client.carry_out(calls.delete(ref, 0))
    assert host.wait([ref], timeout=0) == ([ref], []), "a get answers at once"
    with pytest.raises(ObjectDeletedError):
        host.get(ref, timeout=0)


# --- a silent directory -----------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Host, ObjectRef], Any]] = {
    "get": lambda host, ref: host.get(ref, timeout=0.1),
    "get once": lambda host, ref: host.get(ref, timeout=0),
    "wait": lambda host, ref: host.wait([ref], timeout=0.1),
    "wait once": lambda host, ref: host.wait([ref], timeout=0),
    "contributors": lambda host, ref: host.client.carry_out(calls.contributors(ref, 0.1)),
    "delete": lambda host, ref: host.client.carry_out(calls.delete(ref, 0.1)),
    "reduce": lambda host, ref: host.client.carry_out(
        calls.reduce([ref], "sum", None, None, 0.1, everywhere=False, is_near=host.client.reader.is_near)
    ),
    "put under a ref": lambda host, ref: host.put(1, ref, timeout=0.1),
    "put of much": lambda host, _: host.put(np.zeros(1 << 20), timeout=0.1),
}


def assert_directory_is_named(live: Live, host: Host, call: Callable[[Host, ObjectRef], Any]) -> None:
    with pytest.raises(GetTimeoutError) as caught:
        call(host, new_ref())
    text = str(caught.value)
    assert f"the directory at {live.address} has not answered for " in text
    assert "no node" not in text


def test_a_stopped_directory_is_not_a_missing_object() -> None:
    with live_cluster(1) as live:
        host = live.hosts[0]
        ref = host.put(np.zeros(1 << 20))
        os.kill(live.directory.process.pid, signal.SIGSTOP)
        try:
            assert_directory_is_named(live, host, CALLS["get once"])  # in a session that nobody has given up
            eventually(lambda: not host.status()["connected"])
            for call in CALLS.values():
                assert_directory_is_named(live, host, call)
            assert len(host.get(ref, timeout=0)) == 1 << 20, "what is here needs no directory"
            assert host.wait([ref], timeout=0) == ([ref], [])
        finally:
            os.kill(live.directory.process.pid, signal.SIGCONT)
        assert host.get(host.put("there again"), timeout=HANG) == "there again"


def test_a_put_that_no_directory_hears_of_does_not_pretend() -> None:
    with live_cluster(2) as live, ThreadPoolExecutor(1) as pool:
        host, other = live.hosts
        live.directory.process.kill()
        live.directory.stop()
        eventually(lambda: not host.status()["connected"])
        assert_directory_is_named(live, host, lambda at, _: at.put("small, and under a new ref", timeout=0.1))
        waiting = pool.submit(host.put, "waits for the next directory", None, HANG)
        eventually(lambda: host.status()["calls"] == 1)
        cluster, port = live.directory.report["cluster"], parse_address(live.address)[1]
        task = directory_task(TOKEN, port=port, cluster=cluster, successor=True)
        live.directory = processes.spawn("directory", task, tied_to_thread=True)
        ref = waiting.result(HANG)
        assert other.get(ref) == "waits for the next directory"
