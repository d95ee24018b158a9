"""What the tests of the Dask adapter run as tasks, and what they ask its workers. Workers import this module."""

import os
import threading
from typing import Any

import numpy as np
from distributed import Event

import hoplite_ucx.dask as hoplite_dask
from hoplite_ucx.dask import leases
from hoplite_ucx.dask.decoded_values import values
from tests.tools.waiting import HANG

Array = Any


def make(size: int, value: float) -> Array:
    return np.full(size, value)


def fail(*_: object, **__: object) -> Array:
    raise ZeroDivisionError("the source's own exception")


def time_out() -> Array:
    raise TimeoutError("of the user's")


def make_after(event: str, size: int) -> Array:
    assert Event(event).wait(HANG)
    return make(size, 100.0)


def share_array(size: int, value: float) -> hoplite_dask.SharedResult:
    return hoplite_dask.share(np.full(size, value))


def total(array: Array) -> float:
    return float(np.asarray(array).sum())


def kind(value: object) -> str:
    return type(value).__name__


def add_first(number: float, array: Array) -> float:
    return number + float(array[0])


def nested(tree: dict[str, Any]) -> float:
    return float(tree["arrays"][1][0]) + tree["number"]


def open_result(result: hoplite_dask.SharedResult) -> float:
    return float(result.get().sum())


class Counted:
    """Counts in each process how often it was unpickled."""

    loads = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)
        Counted.loads += 1


def loads_of(counted: Counted) -> tuple[int, int, int]:
    return os.getpid(), counted.number, Counted.loads


def agent_of_this_process() -> tuple[str, int, int]:
    """Its name, how many objects its store holds, and how many decoded values are kept here."""
    (lease,) = [lease for lease in leases._leases.values() if lease.joined() is not None]
    cluster = lease.cluster
    return cluster.agent, int(cluster._of.client.status()["objects"]), len(values)


def agent_name() -> str | None:
    """None while the agent is replaced, of which a process hears a moment later."""
    clusters = [cluster for lease in leases._leases.values() if (cluster := lease.joined()) is not None]
    return clusters[0].agent if clusters else None


def pid() -> int:
    return os.getpid()


def descriptors_and_threads() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def keeper_and_agent() -> tuple[int, int]:
    """The process ids of this process's keeper and agent, as the keeper says."""
    (lease,) = [lease for lease in leases._leases.values() if lease.joined() is not None]
    found = leases._ask_keeper(lease.terms, 60.0)
    assert found is not None
    held, report = found
    held.close()
    return report["keeper_pid"], report["agent_pid"]


def directory_pid(dask_scheduler: Any) -> int | None:
    pid: int | None = dask_scheduler.plugins["hoplite"]._directory.pid
    return pid
