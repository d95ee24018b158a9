"""Calls that meet an agent which has just died are made again with the next one."""

from typing import Any, ClassVar, cast

import pytest

from hoplite_ucx.dask import access
from hoplite_ucx.dask.leases import Lease, closed
from hoplite_ucx.dask.worker_plugin import HopliteWorker
from hoplite_ucx.errors import ClosedError


class Agents:
    """A lease whose agents die, each when it is first called, until one does not."""

    def __init__(self, *dying: bool) -> None:
        self._dying = list(dying)
        self.calls = 0

    @property
    def cluster(self) -> "Agents":
        return self

    def joined(self) -> None:
        """The next one is there already."""

    def call(self) -> int:
        self.calls += 1
        if self._dying.pop(0):
            raise closed("the agent is gone", "start it again")
        return self.calls


def made(agents: Agents) -> Any:
    return access.on_agent(cast(Lease, agents), lambda cluster: cast(Agents, cluster).call())


def test_a_call_is_made_again_with_the_next_agent() -> None:
    assert made(Agents(False)) == 1
    assert made(Agents(True, True, False)) == 3


def test_not_for_ever() -> None:
    with pytest.raises(ClosedError):
        made(Agents(True, True, True, False))


def test_a_worker_whose_setup_failed_says_so() -> None:
    """Dask keeps the plugin, and the error would be that it lacks an attribute."""

    class Worker:
        address = "tcp://here:1"
        plugins: ClassVar = {access.PLUGIN: HopliteWorker()}

    with pytest.raises(ClosedError, match="not installed in the Dask worker tcp://here:1"):
        access.lease_of_worker(Worker())
