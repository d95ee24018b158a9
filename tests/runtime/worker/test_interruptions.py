"""Calls that are interrupted wherever they are, by ctrl-C or by what a signal handler raises: nothing is left behind,
and what comes after them works."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import GetTimeoutError
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.runtime.objects.values import Encoded
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.connection import Connection
from hoplite_ucx.transports import shm
from tests.tools.waiting import HANG, eventually

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]

ROOM = 16 << 20
LARGE = np.arange(1 << 19)
SMALL = np.arange(30 << 10)
"""It goes by copy, and is more than a socket takes at once."""


@pytest.fixture(autouse=True)
def no_cluster_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cluster() -> Iterator[hoplite.Cluster]:
    with hoplite.connect(memory="128MiB") as made:
        yield made


def client_of(cluster: hoplite.Cluster) -> Client:
    return cluster._of.client


def processes_of(cluster: hoplite.Cluster) -> list[int]:
    attachment = cluster._of.attachment
    assert attachment is not None
    return [child.process.pid for child in attachment.children]


def interrupted() -> None:
    raise KeyboardInterrupt


def test_puts_that_are_interrupted_leave_no_memory_behind(
    cluster: hoplite.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = client_of(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(Encoded, "copy_into", lambda *_: interrupted())
        for _ in range(10):
            with pytest.raises(KeyboardInterrupt):
                cluster.put(LARGE, timeout=HANG)
    eventually(lambda: not ours._mine)
    assert (cluster.get(cluster.put(LARGE)) == LARGE).all()


def test_a_get_that_is_interrupted_while_it_maps_leaves_nothing_pinned(
    cluster: hoplite.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = cluster.put(LARGE)
    ours = client_of(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(shm, "map_read_only", lambda *_: interrupted())
        with pytest.raises(KeyboardInterrupt):
            cluster.get(ref, timeout=HANG)
    assert not ours._releases._held
    assert (cluster.get(ref, timeout=HANG) == LARGE).all()


def test_an_array_that_dies_while_its_user_interrupts_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the finalizers are, who would tell of it. What is raised in them goes nowhere."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(Client, "_tell_releases", lambda _: None)
    seen: list[int] = []

    def interrupt(frame: FrameType, event: str, _: object) -> TraceFunction:
        if event == "line" and frame.f_code.co_filename != __file__ and len(seen) < lines:
            seen.append(frame.f_lineno)
            if len(seen) == lines:
                raise KeyboardInterrupt
        return interrupt

    with hoplite.connect(memory=ROOM) as cluster:
        whole, lines, before = np.zeros(ROOM, np.uint8), 0, sys.gettrace()
        while len(seen) == lines:
            lines += 1
            seen.clear()
            ref = cluster.put(whole, timeout=HANG)
            arrays = [cluster.get(ref, timeout=HANG)]
            cluster.delete(ref)
            sys.settrace(interrupt)
            arrays.clear()
            sys.settrace(before)
        assert lines > 2


def test_an_error_of_a_signal_handler_in_the_middle_of_a_message_does_not_garble_what_follows(
    cluster: hoplite.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one of hoplite's own, such as a call that the handler makes may raise."""
    _, agent = processes_of(cluster)
    cluster.put(0)  # the connection is there

    def handle(number: int, frame: FrameType | None) -> None:
        os.kill(agent, signal.SIGCONT)
        raise Failure(FailureKind.TIMEOUT, "the handler's own", "").exception()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        os.kill(agent, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            # It is half sent, and the rest does not go.
            patch.setattr(Connection, "_await_room", lambda *_: signal.raise_signal(signal.SIGALRM))
            with pytest.raises(GetTimeoutError, match="the handler's own"):
                cluster.put(SMALL, timeout=HANG)
    finally:
        signal.signal(signal.SIGALRM, before)
        os.kill(agent, signal.SIGCONT)
    for _ in range(3):
        assert (cluster.get(cluster.put(SMALL, timeout=HANG), timeout=HANG) == SMALL).all()


def test_an_error_of_a_signal_handler_in_the_middle_of_a_reply_does_not_garble_what_follows(
    cluster: hoplite.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = cluster.put(SMALL)
    ours = client_of(cluster)
    monkeypatch.setattr(ours.reader, "look", lambda *_: None)
    receive = Connection.receive

    def torn(connection: Connection, *args: object, **kwargs: object) -> object:
        receive(connection, *args, **kwargs)  # type: ignore[arg-type]
        raise Failure(FailureKind.TIMEOUT, "the handler's own", "").exception()

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "receive", torn)
        with pytest.raises(GetTimeoutError, match="the handler's own"):
            cluster.get(ref, timeout=HANG)
    assert ours._local.connection.broken
    assert (cluster.get(ref, timeout=HANG) == SMALL).all()


def test_a_refusal_keeps_the_connection(cluster: hoplite.Cluster) -> None:
    cluster.put(0)
    connection = client_of(cluster)._local.connection
    with pytest.raises(GetTimeoutError):
        cluster.get([hoplite.new_ref(), hoplite.new_ref()], timeout=0)
    assert client_of(cluster)._local.connection is connection
    assert not connection.broken


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_shutdown_that_is_interrupted_leaves_nothing_for_the_next_init_to_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hoplite.init(memory="16MiB")
    address, processes = hoplite.cluster().address, processes_of(hoplite.cluster())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", lambda *_: interrupted())
        with pytest.raises(KeyboardInterrupt):
            hoplite.shutdown()
    assert not [process for process in processes if os.path.exists(f"/proc/{process}")]
    hoplite.init(memory="16MiB")
    assert hoplite.cluster().address != address
    hoplite.shutdown()


def test_a_process_that_does_not_end_is_not_left_behind_by_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = hoplite.connect(memory="16MiB")
    directory, agent = processes_of(cluster)
    os.kill(agent, signal.SIGSTOP)
    wait = subprocess.Popen.wait

    def wait_interrupted(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if process.pid == agent and timeout is not None:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.close()
    assert not os.path.exists(f"/proc/{agent}")
    assert not os.path.exists(f"/proc/{directory}")


def test_a_finalizer_on_the_janitor_can_close_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays and cycles die on any thread."""
    cluster = hoplite.connect(memory="16MiB")
    processes = processes_of(cluster)
    failed: list[BaseException] = []
    closed = threading.Event()

    def close(_: Client) -> None:
        try:
            cluster.close()
        except BaseException as error:
            failed.append(error)
        closed.set()

    monkeypatch.setattr(Client, "_tell_releases", close)
    client_of(cluster)._poke()
    assert closed.wait(HANG)
    assert not failed
    assert not [process for process in processes if os.path.exists(f"/proc/{process}")]


def test_a_cluster_is_closed_while_other_threads_connect() -> None:
    """Their connections appear while all are told of the end."""
    cluster = hoplite.connect(memory="16MiB")
    ours, processes = client_of(cluster), processes_of(cluster)
    kept = [Connection(ours._name, ours._identity, background=False) for _ in range(3)]
    for connection in kept[:2]:
        ours._connections.add(connection)

    def connect_meanwhile(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        name = (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name)
        if name not in (("_weakrefset.py", "__iter__"), ("client.py", "all")):
            return None
        if event == "return":  # or yields
            ours._connections.add(kept[2])
        return connect_meanwhile

    before = sys.gettrace()
    sys.settrace(connect_meanwhile)
    try:
        cluster.close()
    finally:
        sys.settrace(before)
    assert not [process for process in processes if os.path.exists(f"/proc/{process}")]
