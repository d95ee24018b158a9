"""Objects that are cut for a crowd, between real processes: bytes compared, also after one of them was killed."""

import contextlib
import dataclasses
import os
import signal
import threading

import msgspec
import numpy as np
import pytest

from hoplite_ucx.errors import ClosedError
from hoplite_ucx.protocol.messages import ObjectState
from hoplite_ucx.runtime.settings import HostSettings
from hoplite_ucx.runtime.worker import calls
from hoplite_ucx.runtime.worker.refs import ObjectRef
from tests.runtime.test_cluster import random_bytes
from tests.tools import live as tools
from tests.tools.live import Host, Live, live_cluster, patient
from tests.tools.waiting import HANG, eventually

pytestmark = pytest.mark.long(reason="whether hosts ask together is decided by how busy this machine is")

HOSTS = 5
STRIPES = 2


@pytest.fixture(autouse=True)
def slow_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory takes the hosts for so slow that it waits long for a crowd, however busy this machine is."""
    monkeypatch.setattr(tools, "RATE", 1e5)


def small_crowds() -> HostSettings:
    usual = patient()
    cluster = msgspec.structs.replace(usual.cluster, crowd=2, stripes=STRIPES, depth_cost=0, regroup=1.0)
    return dataclasses.replace(usual, cluster=cluster)


class Getters:
    """Gets of one object at several hosts, all at the same moment."""

    def __init__(self, hosts: list[Host], ref: ObjectRef) -> None:
        self.values: dict[int, np.ndarray] = {}
        self._threads = [
            threading.Thread(target=self._get, args=(index, host, ref)) for index, host in enumerate(hosts)
        ]
        for thread in self._threads:
            thread.start()

    def _get(self, index: int, host: Host, ref: ObjectRef) -> None:
        with contextlib.suppress(ClosedError):  # of the one that is killed
            self.values[index] = host.get(ref)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(HANG)
            assert not thread.is_alive()


def receives_stripes(host: Host) -> bool:
    return len(host.status()["streams"]) == STRIPES


def stopped_at_its_source(live: Live, data: np.ndarray) -> tuple[Getters, ObjectRef]:
    """All other hosts are to get it in stripes, and the host that has it does nothing yet."""
    source, *others = live.hosts
    ref = source.put(data)
    # The put returns before the directory hears that the copy is complete, and only a complete copy is cut.
    eventually(lambda: others[0].client.carry_out(calls.info(ref, HANG))[0].state == ObjectState.READY)
    os.kill(source.agent.process.pid, signal.SIGSTOP)
    getters = Getters(others, ref)
    eventually(lambda: all(receives_stripes(host) for host in others))
    return getters, ref


def test_a_crowd_gets_an_object_in_stripes() -> None:
    data = random_bytes(16 << 20)
    with live_cluster(HOSTS, settings=small_crowds()) as live:
        getters, ref = stopped_at_its_source(live, data)
        os.kill(live.hosts[0].agent.process.pid, signal.SIGCONT)
        getters.join()
        assert len(getters.values) == HOSTS - 1
        assert all(np.array_equal(value, data) for value in getters.values.values())
        eventually(lambda: all(host.status()["objects"] == 1 for host in live.hosts))  # the windows are gone
        live.hosts[1].delete(ref)


def test_the_others_get_it_if_one_is_killed() -> None:
    data = random_bytes(16 << 20)
    with live_cluster(HOSTS, settings=small_crowds()) as live:
        getters, _ = stopped_at_its_source(live, data)
        live.hosts[2].kill()
        os.kill(live.hosts[0].agent.process.pid, signal.SIGCONT)
        getters.join()
        assert sorted(getters.values) == [0, 2, 3]
        assert all(np.array_equal(value, data) for value in getters.values.values())
