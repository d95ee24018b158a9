"""Directories and agents that a program starts for itself, and what a process does when its agent is replaced."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, InvalidRequestError, ObjectDeletedError
from hoplite_ucx.runtime.launch.owned_processes import OwnedProcess
from hoplite_ucx.runtime.settings import ProcessSettings
from tests.runtime.test_faults import alive, without_address
from tests.tools.waiting import HANG, eventually

PROGRAM = """
import os, sys, threading
import hoplite_ucx as hoplite
parts = []
def start():
    directory = hoplite.start_directory()
    parts.extend([directory, hoplite.start_agent(directory.address, token=directory.token, memory="64MiB")])
thread = threading.Thread(target=start)  # whose end must not end the processes
thread.start()
thread.join()
print(*(part.pid for part in parts), flush=True)
sys.stdin.read()
"""
OWNER = """
import sys
import hoplite_ucx as hoplite
hoplite.init(sys.argv[1], agent=sys.argv[2])
refs = [hoplite.ObjectRef.fromhex(name) for name in sys.argv[3:]]
hoplite.own(refs)
for ref in refs:
    hoplite.put(b"x" * 300_000, ref=ref)
print("put", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory() -> Iterator[hoplite.DirectoryProcess]:
    with hoplite.start_directory() as started:
        yield started


def agent_of(directory: hoplite.DirectoryProcess, **options: object) -> hoplite.AgentProcess:
    return hoplite.start_agent(directory.address, token=directory.token, memory="64MiB", **options)  # type: ignore[arg-type]


def test_a_program_starts_a_cluster_of_its_own(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory) as agent, hoplite.connect(directory.address, agent=agent.agent) as cluster:
        assert cluster.cluster_id == directory.cluster_id == agent.cluster_id
        assert cluster.address == directory.address
        ref = cluster.put(np.arange(100_000))
        assert cluster.info(ref).where == (agent.address,)
        assert not cluster.info(hoplite.new_ref()).exists
        assert agent.running
        assert not agent.wait(0)
    assert agent.wait(0)
    assert not agent.running
    assert not alive(agent.pid)


def test_a_directory_that_was_killed_is_back_at_its_address(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory) as agent, hoplite.connect(directory.address, agent=agent.agent) as cluster:
        ref = cluster.put(np.arange(100_000))
        address, killed = directory.address, directory.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: directory.pid not in (None, killed))
        assert directory.running
        assert directory.address == address
        assert cluster.info(ref, timeout=HANG).exists


def test_closing_a_directory_while_it_is_started_again_leaves_nothing(directory: hoplite.DirectoryProcess) -> None:
    assert directory.pid is not None
    os.kill(directory.pid, signal.SIGKILL)
    directory.close()
    assert directory.wait(HANG)
    assert directory.pid is None


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_what_a_program_started_ends_with_it(end: str) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=without_address()
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert all(map(alive, pids))
        if end == "kill":
            program.kill()
        else:
            program.stdin.close()
        program.wait(HANG)
    eventually(lambda: not any(map(alive, pids)))


def test_what_cannot_be_meant_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidRequestError, match="port"):
        hoplite.start_directory(port=70_000)
    with pytest.raises(InvalidRequestError, match="token"):
        hoplite.start_agent("127.0.0.1:1", token=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="rate"):
        hoplite.start_agent("127.0.0.1:1", token="x", rate=-1.0)
    with pytest.raises(InvalidRequestError, match="memory"):
        hoplite.start_agent("127.0.0.1:1", token="x", memory="much")


def test_a_wrong_token_is_named(directory: hoplite.DirectoryProcess) -> None:
    with pytest.raises(ClosedError, match="token"):
        hoplite.start_agent(directory.address, token="another")


def test_an_agent_ends_some_time_after_its_directory(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory, patience=0.2) as agent:
        directory.close()
        assert agent.wait(HANG)


def test_a_wrong_address_is_told_which_clusters_have_agents_here(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory), pytest.raises(ClosedError, match=rf"agents here belong to .*{directory.address}"):
        hoplite.connect("127.0.0.1:9")


def test_a_process_goes_on_with_the_agent_that_was_started_again(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory) as first, hoplite.connect(directory.address) as cluster:
        mine = cluster.get(cluster.put(np.arange(100_000)))
        cluster.rejoin()  # nothing is wrong
        assert cluster.agent == first.agent
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(HANG)
        with pytest.raises(ClosedError):
            cluster.put(b"x")
        with pytest.raises(ClosedError, match="no agent"):
            cluster.rejoin(timeout=0)
        rejoining = [threading.Thread(target=cluster.rejoin, kwargs={"timeout": HANG}) for _ in range(3)]
        for thread in rejoining:
            thread.start()
        with agent_of(directory) as second:
            for thread in rejoining:
                thread.join(HANG)
            assert cluster.agent == second.agent
            assert cluster.get(cluster.put(7)) == 7
            assert mine[-1] == 99_999
            asyncio.run(cluster.aio.rejoin())
            with pytest.raises(InvalidRequestError, match="None"):
                cluster.rejoin(timeout=None)  # type: ignore[arg-type]


def test_a_private_cluster_cannot_be_rejoined() -> None:
    with hoplite.connect(memory="64MiB") as cluster:
        assert cluster._of.attachment is not None
        cluster._of.attachment.children[1].stop()
        with pytest.raises(InvalidRequestError, match="private"):
            cluster.rejoin()


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_what_a_process_owns_is_deleted_when_it_ends(directory: hoplite.DirectoryProcess, end: str) -> None:
    with agent_of(directory) as agent, hoplite.connect(directory.address, agent=agent.agent) as cluster:
        refs = [hoplite.new_ref() for _ in range(2)]
        command = [sys.executable, "-c", OWNER, directory.address, agent.agent, *(ref.hex() for ref in refs)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            assert owner.stdin is not None
            assert owner.stdout.readline() == "put\n"
            assert all(known.exists for known in cluster.info(refs))
            if end == "kill":
                owner.kill()
            else:
                owner.stdin.close()
            owner.wait(HANG)
        eventually(lambda: [known.state for known in cluster.info(refs)] == [hoplite.ObjectState.DELETED] * 2)
        with pytest.raises(ObjectDeletedError):
            cluster.get(refs[0])


def test_what_a_cluster_owns_is_deleted_when_it_is_closed(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory) as agent, hoplite.connect(directory.address, agent=agent.agent) as other:
        with hoplite.connect(directory.address, agent=agent.agent) as cluster:
            owned, left = cluster.put(b"owned"), cluster.put(b"left")
            asyncio.run(cluster.aio.own(owned))
        eventually(lambda: other.info(owned).state is hoplite.ObjectState.DELETED)
        assert other.get(left) == b"left"


def test_an_agent_that_is_closed_hands_over_what_only_it_has(directory: hoplite.DirectoryProcess) -> None:
    with agent_of(directory) as stays, hoplite.connect(directory.address, agent=stays.agent) as cluster:
        leaver = agent_of(directory)
        with hoplite.connect(directory.address, agent=leaver.agent) as other:
            refs = [other.put(np.full(100_000, number)) for number in range(3)]
        assert cluster.info(refs[0]).where == (leaver.address,)
        leaver.close(hand_over=HANG)
        assert {known.where for known in cluster.info(refs)} == {(stays.address,)}
        assert [int(array[0]) for array in cluster.gather(refs, timeout=HANG)] == [0, 1, 2]


def test_an_agent_alone_does_not_wait_for_somebody_to_take_over(directory: hoplite.DirectoryProcess) -> None:
    agent = agent_of(directory)
    with hoplite.connect(directory.address, agent=agent.agent) as cluster:
        cluster.put(np.ones(100_000))
    began = time.monotonic()
    agent.close(hand_over=10 * HANG)
    assert time.monotonic() - began < HANG


def test_whoever_closes_a_process_returns_when_it_is_gone() -> None:
    """Also the second of two threads, and one that was interrupted and closes again."""
    may_end = threading.Event()

    class Slow(OwnedProcess):
        def __init__(self) -> None:
            super().__init__("slow one", ProcessSettings())
            self._start()

        def _begin(self) -> None:
            pass

        def _watch(self) -> None:
            while self._await(None, HANG):
                pass

        def _end(self) -> None:
            may_end.wait(HANG)

    process = Slow()
    was_running: list[bool] = []

    def close() -> None:
        process.close()
        was_running.append(process.running)

    closing = [threading.Thread(target=close) for _ in range(2)]
    for thread in closing:
        thread.start()
    eventually(lambda: process._closing)
    closing[1].join(0.2)  # the second would return at once
    may_end.set()
    for thread in closing:
        thread.join(HANG)
    assert was_running == [False, False]
