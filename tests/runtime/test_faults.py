"""Processes that die or stop in the middle of things: every wait ends, in a value or in a typed error."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, HopliteError, ObjectLostError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.worker import default_cluster
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref
from hoplite_ucx.runtime.worker.scopes import note_made
from tests.runtime.test_cluster import random_bytes
from tests.tools.live import Host, live_cluster
from tests.tools.loopback import own_address
from tests.tools.waiting import HANG, eventually

WRITER = """
import os, sys, time
import numpy as np
import hoplite_ucx as hoplite
hoplite.init(sys.argv[1], agent=sys.argv[2])
draft = hoplite.create(4 << 20, ref=hoplite.ObjectRef(bytes.fromhex(sys.argv[3])))
draft.array[: 1 << 20] = 1
draft.advance(8 << 20)
print("half", flush=True)
time.sleep(60)
"""


def start_writer(address: str, host: Host, ref: ObjectRef) -> "subprocess.Popen[str]":
    """A worker that has written a quarter of an object, and goes no further."""
    command = [sys.executable, "-c", WRITER, address, host.agent.report["agent"], ref.hex()]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    writer.stdout.close()
    return writer


def in_background(function: object) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function())  # type: ignore[operator]
        except HopliteError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


@contextlib.contextmanager
def half_put(host: Host, value: np.ndarray) -> Iterator[ObjectRef]:
    """An object of which the first half is there; the second half comes when the block ends."""
    encoded = values.encode(value)
    data, ref = encoded.to_bytes(), new_ref()
    draft = host.client.begin_put(ref.binary, len(data), encoded.layout, HANG)
    half = len(data) // 2
    draft.memory[:half] = data[:half]
    draft.advance(half)
    yield ref
    draft.memory[half:] = data[half:]
    draft.finish()


def positions(host: Host) -> list[int]:
    """How far the streams to this host are."""
    return [stream["position"] for stream in host.status()["streams"]]


def test_a_worker_killed_in_the_middle_of_a_put() -> None:
    with live_cluster(2) as live:
        ref = new_ref()
        used = live.hosts[0].status()["memory"]["used"]
        writer = start_writer(live.address, live.hosts[0], ref)
        thread, outcome = in_background(lambda: live.hosts[1].get(ref))
        eventually(lambda: any(link["bytes"] >= 8 << 20 for link in live.hosts[1].status()["links"]))
        writer.kill()
        writer.wait()
        thread.join(HANG)
        assert isinstance(outcome[0], ObjectLostError), outcome
        assert outcome[0].ref == ref
        for host in live.hosts:
            eventually(lambda host=host: host.status()["memory"]["used"] <= used)
        data = random_bytes(1 << 20)
        live.hosts[0].put(data, ref)
        assert np.array_equal(live.hosts[1].get(ref), data)


def test_the_only_holder_dies() -> None:
    with live_cluster(2) as live:
        ref = live.hosts[0].put(random_bytes(1 << 20))
        live.hosts[0].kill()
        with pytest.raises(HopliteError):
            live.hosts[1].get(ref, timeout=2)
        with pytest.raises(ClosedError) as caught:
            live.hosts[0].put(1)
        assert "hoplite start" in caught.value.remedy


def test_a_call_under_way_ends_when_the_agent_dies() -> None:
    with live_cluster(1) as live:
        thread, outcome = in_background(lambda: live.hosts[0].get(new_ref(), timeout=None))
        eventually(lambda: live.hosts[0].status()["calls"])
        live.hosts[0].kill()
        thread.join(HANG)
        assert isinstance(outcome[0], ClosedError)


def test_a_relay_dies_in_the_middle_of_a_broadcast() -> None:
    """It is in the middle until the source goes on."""
    data = random_bytes(16 << 20)
    with live_cluster(4) as live:
        with half_put(live.hosts[0], data) as ref:
            waits = [in_background(lambda host=host: np.array_equal(host.get(ref), data)) for host in live.hosts[1:]]
            for host in live.hosts[1:]:
                eventually(lambda host=host: positions(host) == [8 << 20])
            live.hosts[1].kill()
        for thread, _ in waits:
            thread.join(HANG)
        assert [outcome for _, outcome in waits[1:]] == [[True], [True]]


def test_a_source_dies_in_the_middle_of_a_reduce() -> None:
    arrays = [np.random.default_rng(seed).integers(0, 100, 6 << 20) for seed in range(4)]
    with live_cluster(4) as live:
        refs = [host.put(array) for host, array in zip(live.hosts, arrays, strict=True)]
        target = live.hosts[0].reduce(refs, count=3)
        thread, outcome = in_background(lambda: live.hosts[0].get(target))
        # It does not wait for us, and may be over before we look: then the result must be right all the same.
        eventually(lambda: outcome or any(positions(host) for host in live.hosts))
        live.hosts[3].kill()
        thread.join(HANG)
        assert isinstance(outcome[0], np.ndarray), outcome
        chosen = [refs.index(ref) for ref in live.hosts[0].contributors(target)]
        assert len(chosen) == 3
        assert np.array_equal(outcome[0], sum(arrays[index] for index in chosen))


def phases(host: Host) -> list[str]:
    return [holding["phase"] for holding in host.status()["largest"]]


def test_the_host_that_makes_a_mean_dies() -> None:
    """The getter has much of it, and goes on with the rest: what it had was divided, and what comes will be."""
    arrays = [np.random.default_rng(seed).random(8 << 20) for seed in range(3)]
    with live_cluster(5) as live:
        refs = [host.put(array) for host, array in zip(live.hosts[:3], arrays, strict=True)]
        live.hosts[3].get(refs[2])
        target = live.hosts[4].reduce(refs, Operation.MEAN)
        thread, outcome = in_background(lambda: live.hosts[4].get(target))
        # As above, it may be over before we look.
        eventually(lambda: outcome or ("reducing" in phases(live.hosts[2]) and "receiving" in phases(live.hosts[4])))
        live.hosts[2].kill()
        thread.join(HANG)
        assert isinstance(outcome[0], np.ndarray), outcome
        np.testing.assert_allclose(outcome[0], sum(arrays) / 3, rtol=1e-12)


def test_what_outlives_the_agent_touches_no_other_file(tmp_path: Path) -> None:
    """An array is let go of after its agent died, while the program has opened files of its own."""
    with live_cluster(1) as live:
        [host] = live.hosts
        array = host.get(host.put(random_bytes(1 << 20)))
        host.kill()
        host.client._janitor.join(HANG)
        assert not host.client._janitor.is_alive()
        files = [(tmp_path / str(number)).open("wb", buffering=0) for number in range(16)]
        del array
        host.client.close()
        for file in files:
            file.close()
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 16


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupted_get_leaves_nothing_for_the_next(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the answer is there, and its memory has not been mapped yet."""
    with live_cluster(1) as live:
        [host] = live.hosts
        first, second = (host.put(np.full(1 << 20, number)) for number in (1, 2))
        opening = host.client.open_value

        def interrupted(*_: object) -> memoryview:
            monkeypatch.setattr(host.client, "open_value", opening)
            raise KeyboardInterrupt

        monkeypatch.setattr(host.client, "open_value", interrupted)
        with pytest.raises(KeyboardInterrupt):
            host.client.get([first.binary] * (1 + many), 10)
        assert host.get(second)[0] == 2


def test_a_stopped_agent_is_passed_by() -> None:
    data = random_bytes(32 << 20)
    with live_cluster(3) as live:
        ref = live.hosts[0].put(data)
        assert np.array_equal(live.hosts[1].get(ref), data)
        os.kill(live.hosts[0].agent.process.pid, signal.SIGSTOP)
        try:
            assert np.array_equal(live.hosts[2].get(ref), data)
        finally:
            os.kill(live.hosts[0].agent.process.pid, signal.SIGCONT)
        other = random_bytes(1 << 20, 5)
        assert np.array_equal(live.hosts[0].get(live.hosts[1].put(other)), other)


def test_the_directory_is_restarted() -> None:
    data = random_bytes(4 << 20)
    with live_cluster(2, host=own_address()) as live:
        ref = live.hosts[0].put(data)
        live.kill_directory()
        thread, outcome = in_background(lambda: np.array_equal(live.hosts[1].get(ref), data))
        eventually(lambda: live.hosts[1].status()["calls"])
        live.restart_directory()
        thread.join(HANG)
        assert outcome == [True]
        assert live.hosts[0].get(live.hosts[1].put("new")) == "new"


def children_of(parent: int) -> list[int]:
    listing = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in listing]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("where", ["main", "thread"])
def test_an_embedded_cluster_ends_with_its_process(where: str) -> None:
    start = {"main": "hoplite.init()", "thread": "t = threading.Thread(target=hoplite.init); t.start(); t.join()"}[
        where
    ]
    code = f"import hoplite_ucx as hoplite, threading, time\n{start}\nprint(hoplite.get(hoplite.put(5)), flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.PIPE, text=True, env=without_address()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "5\n"
    children = children_of(process.pid)
    assert len(children) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: not any(alive(child) for child in children))


def without_address() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}


def test_use_before_init_and_after_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ClosedError, match="init"):
        hoplite.put(1)
    hoplite.init(memory=64 << 20)
    array = hoplite.get(hoplite.put(np.arange(1 << 18)))
    hoplite.shutdown()
    hoplite.shutdown()
    assert array[100] == 100
    assert not hoplite.is_initialized()
    assert "HOPLITE_ADDRESS" not in os.environ
    with pytest.raises(ClosedError, match="init"):
        hoplite.get(hoplite.new_ref())
    with hoplite.scope():
        pass


def test_a_program_ends_although_calls_are_open() -> None:
    code = (
        "import asyncio, threading, hoplite_ucx as hoplite\n"
        "from hoplite_ucx import aio\n"
        "from hoplite_ucx.runtime.worker import default_cluster\n"
        "hoplite.init()\n"
        "calls = lambda: default_cluster.client().status()['calls']\n"
        "async def main():\n"
        "    open_call = asyncio.create_task(aio.get(hoplite.new_ref(), timeout=None))\n"
        "    while not calls():\n"
        "        await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
        "while calls():\n"
        "    pass\n"
        "wait = lambda: hoplite.get(hoplite.new_ref(), timeout=None)\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "while not calls():\n"
        "    pass\n"
        "print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=without_address(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "end\n"
    assert done.returncode == 0, done.stderr


def test_a_process_without_descriptors_is_told_so() -> None:
    code = (
        "import os, resource, threading, hoplite_ucx as hoplite\nfrom hoplite_ucx.errors import StoreFullError\n"
        "hoplite.init()\n"
        "ref = hoplite.put('here')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')), 4096))\n"
        "def look():\n"
        "    try: hoplite.get(ref)\n"
        "    except StoreFullError as error: print(error)\n"
        "thread = threading.Thread(target=look)\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: thread.start()\n"
        "thread.join()\n"
        "for fd in held: os.close(fd)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=without_address(), check=True)
    assert "no file descriptor left" in done.stdout
    assert "RLIMIT_NOFILE" in done.stdout


def fail_in_a_scope() -> None:
    with hoplite.scope():
        note_made(default_cluster.membership, hoplite.new_ref())
        raise ValueError("the user's own")


def test_an_embedded_cluster_without_its_directory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    before = set(children_of(os.getpid()))  # other tests of this process may have clusters of their own
    hoplite.init(memory=64 << 20)
    try:
        thread, outcome = in_background(lambda: hoplite.get(hoplite.new_ref(), timeout=None))
        started = set(children_of(os.getpid())) - before
        (directory,) = [child for child in started if "directory" in Path(f"/proc/{child}/cmdline").read_text()]
        os.kill(directory, signal.SIGKILL)
        thread.join(HANG)
        assert isinstance(outcome[0], ClosedError)
        assert "init()" in outcome[0].remedy
        assert "hoplite start" not in outcome[0].remedy
        with pytest.raises(ValueError, match="the user's own") as caught:
            fail_in_a_scope()
        assert "could not be deleted" in caught.value.__notes__[0]
    finally:
        hoplite.shutdown()


def test_no_agent_here(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests have agents on this host: one that is slow to answer would be named in the error instead.
    monkeypatch.setattr("hoplite_ucx.runtime.launch.cluster.agents", list)
    with pytest.raises(ClosedError, match="hoplite start"):
        hoplite.init("127.0.0.1:1")
    for address in ("nonsense", "host:port", ":7777", "127.0.0.1:99999"):
        with pytest.raises(HopliteError):
            hoplite.init(address)
    monkeypatch.setenv("HOPLITE_ADDRESS", "127.0.0.1:1")
    with pytest.raises(HopliteError):
        hoplite.init(memory=1 << 20)


def test_several_agents_on_one_host_must_be_named() -> None:
    with live_cluster(2) as live:
        with pytest.raises(HopliteError, match="several agents"):
            hoplite.init(live.address)
        hoplite.init(live.address, agent=live.hosts[1].agent.report["agent"])
        try:
            ref = live.hosts[0].put("over there")
            assert hoplite.get(ref, timeout=HANG) == "over there"
        finally:
            hoplite.shutdown()


def test_the_sockets_of_an_agent_lie_above_its_memory() -> None:
    """So the kernel closes them first when it is killed."""
    with live_cluster(2) as live:
        live.hosts[1].get(live.hosts[0].put(random_bytes(4 << 20)))
        for host in live.hosts:
            folder = Path(f"/proc/{host.agent.process.pid}/fd")
            kinds = {int(entry.name): str(entry.readlink()) for entry in folder.iterdir()}
            memory = [fd for fd, kind in kinds.items() if "memfd:hoplite" in kind]
            high = [fd for fd, kind in kinds.items() if kind.startswith("socket:") and fd > max(memory)]
            assert memory
            # The listener, the directory, a peer's session and link, and those of the workers.
            assert len(high) >= 6
