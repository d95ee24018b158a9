"""Links over RDMA: names of transports, memory that may not be written, limits, and ports that go down."""

import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hoplite_ucx.transports.buffers import Memory
from hoplite_ucx.transports.interface import Fault, Side
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, filled, next_key, pattern
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx.settings import UcxSettings
from tests.rdma.inside.endpoints import RcEndpoint
from tests.tools.waiting import HANG, eventually

SIZE = 3_000_001


def over(*tls: str) -> type[UcxEndpoint]:
    class Endpoint(UcxEndpoint):
        settings = UcxSettings(tls=tls)

    return Endpoint


def transfer(a: UcxEndpoint, b: UcxEndpoint, seed: int, size: int = SIZE) -> Receiving:
    key = next_key()
    Serving(a, b.node, key, filled(seed, size), size)
    incoming = Receiving(b, a.node, a.address, key, size)
    incoming.complete(seed)
    return incoming


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.tier("default")) for name in ("rc", "rc_verbs", "ud", "ud_verbs", "ib")],
)
def test_every_name_of_rdma_connects(name: str) -> None:
    make = over(name)
    with make(1) as a, make(2) as b:
        transfer(a, b, 1)
        lanes = b.transport.lanes()[a.node, Side.RECEIVING]
    assert f"{'ud' if name.startswith('ud') else 'rc'}_verbs/rxe0:1" in lanes
    assert all(lane.endswith("rxe0:1") for lane in lanes)


@pytest.mark.tier("quick")
def test_memory_that_may_not_be_written_is_sent() -> None:
    """A card refuses to register it; so would this one."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(pattern(1, 0, SIZE))
        file.flush()
        mapped = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
    with RcEndpoint(1) as a, RcEndpoint(2) as b:
        key = next_key()
        Serving(a, 2, key, Memory(memoryview(mapped), SIZE), SIZE)
        Receiving(b, 1, a.address, key, SIZE).complete(1)


_BOUNDED = """
import resource, sys
from tests.rdma.inside.test_links import locked_by_streams
print(max(locked_by_streams(40)), resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
"""


def locked_by_streams(count: int) -> list[int]:
    """How much memory was locked after each of so many objects of 8 MiB, all of which stay."""
    locked, kept = [], []
    with RcEndpoint(1) as a, RcEndpoint(2) as b:
        for seed in range(count):
            kept.append(transfer(a, b, seed, 8 << 20))
            lines = Path("/proc/self/status").read_text().splitlines()
            locked.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmPin")))
    return locked


@pytest.mark.tier("default")
def test_objects_go_on_where_little_memory_may_be_locked(record_property: Callable[[str, object], None]) -> None:
    """640 MiB of objects in all, with 512 MiB for two workers: what UCX keeps locked must not reach the limit."""
    limit = 512 << 20
    who = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    done = subprocess.run(
        ["prlimit", f"--memlock={limit}:{limit}", *who, sys.executable, "-c", _BOUNDED],
        env={**os.environ, "HOME": "/dev/shm"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    most, allowed = map(int, done.stdout.split())
    record_property("locked_mib", most >> 20)
    assert allowed == limit != resource.RLIM_INFINITY
    assert most < limit


def set_port(state: str) -> None:
    subprocess.run(["ip", "link", "set", "rdma0", state], check=True)


@pytest.mark.tier("default")
@pytest.mark.parametrize("when", ["in mid-object", "while idle", "before the first link"])
def test_a_port_that_goes_down_and_comes_back(when: str, record_property: Callable[[str, object], None]) -> None:
    """The process lives on, links end at once, none is opened meanwhile; with the port RDMA comes back."""
    size = 64 << 20
    try:
        with RcEndpoint(1) as a, RcEndpoint(2) as b:
            for end in (a, b):
                end.transport.start()
            if when != "before the first link":
                transfer(a, b, 1)
            key = next_key()
            if when == "in mid-object":
                Serving(a, 2, key, filled(2, size), size)
                incoming = Receiving(b, 1, a.address, key, size)
                eventually(lambda: incoming.memory.watermark() > size // 8)
            set_port("down")
            began = time.monotonic()
            if when != "in mid-object":
                Serving(a, 2, key, filled(2, size), size)
                incoming = Receiving(b, 1, a.address, key, size)
            watermark, fault = incoming.wait(HANG)
            record_property("noticed_seconds", round(time.monotonic() - began, 2))
            assert fault is Fault.BROKEN
            assert watermark < size
            assert Receiving(b, 1, a.address, next_key(), size).wait(HANG) == (0, Fault.BROKEN)
            set_port("up")
            eventually(lambda: "ACTIVE" in Path("/sys/class/infiniband/rxe0/ports/1/state").read_text())
            transfer(a, b, 3)
    finally:
        set_port("up")
