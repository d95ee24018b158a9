"""Directory and agent as child processes: how they end, whatever else the program does."""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, InvalidRequestError
from hoplite_ucx.runtime.launch import cluster, processes
from hoplite_ucx.runtime.settings import ProcessSettings
from hoplite_ucx.runtime.worker import default_cluster
from tests.tools.waiting import HANG


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (cluster.ADDRESS, cluster.AGENT, cluster.TOKEN):
        monkeypatch.delenv(name, raising=False)
    yield
    hoplite.shutdown()


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_a_forked_child_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_PROCESSES_STOP", f"{HANG}s")
    hoplite.init(memory=64 << 20)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    try:
        cluster_here = default_cluster.membership.attachment
        assert cluster_here is not None
        hoplite.shutdown()
        assert [ended.process.returncode for ended in cluster_here.children] == [0, 0], "they had to be killed"
    finally:
        child.terminate()
        child.join()


@pytest.mark.parametrize("role", ["directory", "agent"])
def test_an_interrupted_init_leaves_no_process(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_report = processes._read_report

    def interrupted(which: str, process: "subprocess.Popen[bytes]", seconds: float) -> dict[str, Any]:
        if which == role:
            raise KeyboardInterrupt
        return read_report(which, process, seconds)

    before = children()
    monkeypatch.setattr(processes, "_read_report", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hoplite.init(memory=64 << 20)
    assert children() == before
    assert not hoplite.is_initialized()
    monkeypatch.undo()
    hoplite.init(memory=64 << 20)


def test_a_signal_handler_may_shut_down_in_the_middle_of_init(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    read_report = processes._read_report

    def signalled(*of: Any) -> dict[str, Any]:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return read_report(*of)

    def handle(*_: object) -> None:
        hoplite.shutdown()
        with pytest.raises(InvalidRequestError):
            hoplite.init()
        heard.append("signal")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        monkeypatch.setattr(processes, "_read_report", signalled)
        hoplite.init(memory=64 << 20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard
    assert hoplite.get(hoplite.put(1), timeout=HANG) == 1


def test_how_long_a_process_may_take_to_start_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    never_ready = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(processes, "module", lambda _: never_ready)
    monkeypatch.setenv("HOPLITE_PROCESSES_START", "100ms")
    with pytest.raises(ClosedError, match=r"not ready after 0.1 s.*HOPLITE_PROCESSES_START"):
        hoplite.init(memory=64 << 20)


def test_a_child_that_became_ready_while_this_process_was_paused_is_ready() -> None:
    """As after ctrl-Z and `fg` while a cluster starts."""
    with subprocess.Popen(["echo", "{}"], stdout=subprocess.PIPE) as ready:
        ready.wait(HANG)
        assert processes.await_ready("agent", ready, ProcessSettings(start=0.0)).report == {}


def test_a_child_that_says_something_else_for_ever_is_given_up() -> None:
    with subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE) as babbling:
        with pytest.raises(ClosedError, match="it was not ready after"):
            processes.await_ready("agent", babbling, ProcessSettings(start=0.05))
        assert babbling.poll() is not None
