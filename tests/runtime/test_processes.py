"""Directory and agent as child processes: how they end, whatever else the program does."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime import cluster, processes


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (cluster.ADDRESS, cluster.AGENT, cluster.TOKEN):
        monkeypatch.delenv(name, raising=False)
    yield
    hoplite.shutdown()


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_a_forked_child_does_not_hold_up_the_end() -> None:
    hoplite.init(memory=64 << 20)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    try:
        began = time.monotonic()
        hoplite.shutdown()
        assert time.monotonic() - began < 2.5
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


def test_a_signal_handler_may_shut_down_in_the_middle_of_init() -> None:
    heard: list[str] = []

    def handle(*_: object) -> None:
        hoplite.shutdown()
        with pytest.raises(InvalidRequestError):
            hoplite.init()
        heard.append("signal")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        hoplite.init(memory=64 << 20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard
    assert hoplite.get(hoplite.put(1), timeout=10) == 1
