"""The memory of drafts and arrays, and when it is free again."""

import os
import signal
import time
from typing import Any
from unittest import mock

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.errors import GetTimeoutError, StoreFullError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.worker import client, default_cluster
from tests.first_hour.findings import finding


@finding("4", "writing to a sealed draft through a view from before the seal")
def late_write() -> str:
    cluster = hoplite.connect(memory=64 << 20)
    try:
        draft = cluster.create(1 << 20, np.uint8)
        view = draft.array[:]
        view[:] = 1
        ref = draft.seal()
        got = cluster.get(ref)
        view[:] = 2
        assert (got == 1).all(), "others see it"
        assert (cluster.get(ref) == 1).all(), "whoever gets it later sees it"
        assert (view == 2).all()
        assert not draft.array.flags.writeable
    finally:
        cluster.close()
    return "only the writer sees it"


@finding("5", "a put right after the last array of a deleted object was dropped, 100 times")
def room_at_once() -> str:
    value, failed = np.zeros(3 << 20, np.uint8), 0
    cluster = hoplite.connect(memory=4 << 20)  # room for one
    try:
        ref = cluster.put(value)
        for _ in range(100):
            array = cluster.get(ref)
            cluster.delete(ref)
            del array
            try:
                ref = cluster.put(value)
            except StoreFullError:
                failed += 1
                ref = cluster.put(value)
    finally:
        cluster.close()
    assert not failed, f"{failed} of 100 puts found no room"
    return "all 100 puts find room"


@finding("10b", "create(timeout=60) that takes the agent a minute, which is then stopped before seal()")
def one_time_limit() -> str:
    real, answer = time.monotonic, client.Client._reply

    class Clock:
        forward = 0.0

        def monotonic(self) -> float:
            return real() + self.forward

    def answer_late(*arguments: Any) -> wire.Reply:
        reply = answer(*arguments)
        Clock.forward = 60.0
        return reply

    hoplite.init(memory=64 << 20)
    try:
        with mock.patch.object(client, "time", Clock()), mock.patch.object(client.Client, "_reply", answer_late):
            draft = hoplite.create(1 << 20, np.uint8, timeout=60)
        attachment = default_cluster.membership.attachment
        assert attachment is not None
        os.kill(attachment.children[1].process.pid, signal.SIGSTOP)
        began = real()
        try:
            draft.seal()
        except GetTimeoutError:
            took = real() - began
        finally:
            os.kill(attachment.children[1].process.pid, signal.SIGCONT)
    finally:
        hoplite.shutdown()
    assert took < 30, "it waited for another minute"
    return f"seal() gives up after {took:.1f} s, not after another minute"
