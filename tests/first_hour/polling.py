"""Asking once, and a directory that does not answer."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import GetTimeoutError
from tests.first_hour.findings import finding
from tests.tools.live import live_cluster
from tests.tools.waiting import eventually


@finding("2", "get and wait with timeout=0 of 100 small objects that were just put")
def own_puts() -> str:
    with embedded() as cluster:
        for number in range(100):
            ref = cluster.put(number)
            assert cluster.wait([ref], timeout=0) == ([ref], []), f"put {number} is not ready"
            assert cluster.get(cluster.put(number), timeout=0) == number
    return "all 100 are ready, and returned"


@finding("2b", "polls of another host's objects, small and large")
def polls_of_others() -> str:
    with live_cluster(2) as live:
        putter, getter = live.hosts
        for value in (b"small", bytes(1 << 20)):
            ref = putter.put(value)
            putter.wait([ref])  # the directory has heard of it
            assert getter.wait([ref], timeout=0) == ([ref], []), "it is not ready"
            assert getter.get(ref, timeout=0) == value
    return "each is found at the first poll, and fetched"


@finding("2c", "a poll of what nobody has put")
def poll_of_nothing() -> str:
    with embedded() as cluster:
        ref = hoplite.new_ref()
        assert cluster.wait([ref], timeout=0) == ([], [ref])
        return "not ready; " + text_of(lambda: cluster.get(ref, timeout=0), "no node has it")


@finding("6", "a get while the directory is stopped")
def stopped_directory() -> str:
    with live_cluster(1) as live, stopped(live.directory.process.pid):
        return text_of(lambda: live.hosts[0].get(hoplite.new_ref(), timeout=0), f"{live.address} has not answered for")


@finding("6b", "a put after the directory was killed")
def killed_directory() -> str:
    with live_cluster(1) as live:
        host = live.hosts[0]
        live.directory.process.kill()
        live.directory.stop()
        eventually(lambda: not host.status()["connected"])
        return text_of(lambda: host.put(1, timeout=0), f"{live.address} has not answered for")


def text_of(call: Callable[[], object], expected: str) -> str:
    """What the error says that this call must raise."""
    with pytest.raises(GetTimeoutError) as caught:
        call()
    text = str(caught.value)
    assert expected in text, text
    return text.partition("; ")[0]


@contextlib.contextmanager
def embedded() -> Iterator[hoplite.Cluster]:
    cluster = hoplite.connect(memory=64 << 20)
    try:
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)
