"""An exception inside of a machine, live: callers get an `InternalError` that names their object, and all goes on."""

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np
import pytest

from hoplite_ucx.errors import InternalError, ObjectDeletedError
from hoplite_ucx.protocol.events import DirectoryEffect, GetCall, NodeEffect
from hoplite_ucx.protocol.messages import Put
from hoplite_ucx.protocol.node.calls import Calls
from hoplite_ucx.runtime.agent.agent import Agent, AgentProfile
from hoplite_ucx.runtime.launch.cluster import agent_task
from hoplite_ucx.runtime.local.socket_names import socket_name
from hoplite_ucx.runtime.shell.raised_machines import tell_raised
from hoplite_ucx.runtime.worker import calls
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import new_ref
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from tests.tools.here import agent_here, directory_here
from tests.tools.live import RATE, TOKEN, Host, live_cluster, spawn
from tests.tools.waiting import HANG, eventually

LARGE = np.arange(1 << 20, dtype=np.float64)
SMALL = np.arange(16, dtype=np.float64)


def fails(call: Callable[[], object], ref: object) -> None:
    with pytest.raises(InternalError) as caught:
        call()
    assert caught.value.ref == ref
    assert "a fault of ours" in str(caught.value)


def then_raises(do: Callable[..., Any]) -> Callable[..., Any]:
    """What a handler does, and then a fault."""

    def broken(*arguments: Any) -> None:
        do(*arguments)
        raise ValueError("a fault of ours")

    return broken


def test_an_agent_whose_machine_raises_goes_on_with_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    with live_cluster(1) as live, agent_here(live.address) as here, ThreadPoolExecutor(1) as pool:
        far, host = live.hosts[0], here.host
        theirs, mine, absent = far.put(LARGE), host.put(LARGE * 3), new_ref()
        mapped = host.get(mine)
        node = here.agent.machine.node
        other = Client(socket_name(here.agent.cluster, here.agent.agent_id))
        waiting = pool.submit(Host(host.agent, other).get, absent)
        eventually(lambda: here.agent.machine.calls_awaiting(absent.binary) != [])

        fetching = here.agent.machine.fetching
        fetching.place = then_raises(fetching.place)  # type: ignore[method-assign]
        fails(lambda: host.get(theirs), theirs)
        assert np.array_equal(mapped, LARGE * 3), "what was given out stays"
        assert np.array_equal(host.get(theirs), LARGE), "what failed works now"
        assert np.array_equal(far.get(mine), LARGE * 3), "and what was here before is here"
        assert np.array_equal(far.get(host.reduce([theirs, mine])), LARGE * 4)
        assert not waiting.done(), "what has nothing to do with it waits on"
        far.put(SMALL, absent)
        assert np.array_equal(waiting.result(HANG), SMALL)
        assert here.agent.machine.node == node, "it is still the same node"
        assert "FromDirectory(Place)" in caplog.text
        assert theirs.binary.hex()[:8] in caplog.text
        other.close()


def test_an_agent_that_raises_in_every_call_fails_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with live_cluster(1) as live, agent_here(live.address) as here:
        ref = live.hosts[0].put(LARGE)
        monkeypatch.setattr(Calls, "get", then_raises(Calls.get))
        for _ in range(5):
            fails(lambda: here.host.get(ref), ref)
        monkeypatch.undo()
        assert np.array_equal(here.host.get(ref), LARGE)


def test_what_a_worker_left_to_be_deleted_is_deleted_by_the_successor() -> None:
    with live_cluster(1) as live, agent_here(live.address) as here:
        far, host = live.hosts[0], here.host
        ref = far.put(LARGE)
        leaving = Client(socket_name(here.agent.cluster, here.agent.agent_id))
        leaving.carry_out(calls.own(ref, HANG))
        parts = here.agent.machine.calls
        parts.delete = lambda _: None  # type: ignore[method-assign]  # this machine does not come to it
        leaving.close()
        eventually(lambda: here.agent._workers._unclaimed)
        parts.get = then_raises(lambda *_: None)  # type: ignore[method-assign]
        other = new_ref()
        fails(lambda: host.get(other), other)

        def is_deleted() -> bool:
            try:
                far.get(ref, timeout=0)
            except ObjectDeletedError:
                return True
            return False

        eventually(is_deleted)
        eventually(lambda: not here.agent._workers._unclaimed)


def test_an_agent_that_no_machine_can_succeed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hopeless:
        story = successor = then_raises(lambda *_: None)

    ended: list[int] = []
    monkeypatch.setattr("hoplite_ucx.runtime.agent.agent.signal.raise_signal", ended.append)
    agent = Agent(AgentProfile(directory="127.0.0.1:1", token=TOKEN, memory=1 << 30, rate=RATE))
    agent.machine = Hopeless()  # type: ignore[assignment]
    agent._close_all = lambda: None  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(ValueError, match="a fault of ours"):
        agent._succeed(GetCall(1, new_ref().binary, None), ValueError("the first one"))
    assert ended == [signal.SIGTERM], "as if it had been told to"


def test_a_story_that_cannot_be_told_keeps_nobody_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    class Speechless:
        def story(self, ref: bytes) -> None:
            raise KeyError(ref)

    event = GetCall(1, new_ref().binary, None)
    tell_raised(logging.getLogger("test"), event, ValueError("a fault of ours"), Speechless())  # type: ignore[arg-type]
    assert "GetCall" in caplog.text
    assert "cannot be told" in caplog.text


def test_a_directory_whose_machine_raises_begins_anew_with_what_its_nodes_have() -> None:
    with directory_here() as (server, address):
        agents = [spawn("agent", agent_task(address, TOKEN, 1 << 30, RATE, "127.0.0.1")) for _ in range(2)]
        names = [socket_name(agent.report["cluster"], agent.report["agent"]) for agent in agents]
        hosts = [Host(agent, Client(name)) for agent, name in zip(agents, names, strict=True)]
        try:
            large, small = hosts[0].put(LARGE), hosts[0].put(SMALL)
            eventually(
                lambda: server.machine.known_objects() == 2
            )  # a small put returns before the directory hears of it
            before = server.machine.incarnation
            handlers = server.machine._handlers
            handlers[Put] = then_raises(handlers[Put])
            ref = new_ref()
            fails(lambda: hosts[0].put(LARGE, ref), ref)
            assert server.machine.incarnation > before
            assert np.array_equal(hosts[1].get(large), LARGE)
            assert np.array_equal(hosts[1].get(small), SMALL)
            hosts[0].put(LARGE * 2, ref)
            assert np.array_equal(hosts[1].get(ref), LARGE * 2)

            sick, swept = server.machine, threading.Event()

            def sweep() -> None:
                swept.set()
                raise ValueError("a fault of ours")

            sick._sweep = sweep  # type: ignore[method-assign]
            assert swept.wait(HANG), "the directory looks after its nodes"
            eventually(lambda: server.machine is not sick)
            assert np.array_equal(hosts[1].get(hosts[0].put(LARGE * 5)), LARGE * 5)
        finally:
            for host in hosts:
                host.client.close()
                host.agent.stop()


# --- every shell performs every effect -------------------------------------------------------------------------------


class Unheard:
    """An effect that no shell knows."""


def test_a_directory_that_does_not_perform_an_effect_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite_ucx.runtime.directory.server.DirectoryEffect", DirectoryEffect | Unheard)
    with pytest.raises(TypeError, match="Unheard"), directory_here():
        pass


def test_an_agent_performs_every_effect() -> None:
    with directory_here() as (_, address), agent_here(address) as here:
        assert set(here.agent._perform) == set(get_args(NodeEffect))


@pytest.mark.parametrize(("shell", "effects"), [("node", NodeEffect), ("directory", DirectoryEffect)])
def test_a_virtual_shell_that_does_not_perform_an_effect_does_not_start(
    monkeypatch: pytest.MonkeyPatch, shell: str, effects: Any
) -> None:
    VirtualCluster(Shape(nodes=1))
    monkeypatch.setattr(f"hoplite_ucx.simulate.{shell}.{shell.title()}Effect", effects | Unheard)
    with pytest.raises(TypeError, match="Unheard"):
        VirtualCluster(Shape(nodes=1))
