"""The keeper of a host's agent: who comes and goes does not end it."""

import socket
import threading
from typing import Any, cast

from hoplite_ucx.dask import keeper
from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.runtime.launch.owned_processes import AgentProcess
from tests.tools.waiting import HANG

TERMS = Terms("cluster", "127.0.0.1:1", "token")


class MadeUpAgent:
    agent = "agent"
    pid = 1

    def __init__(self) -> None:
        self.over = threading.Event()

    def wait(self) -> None:
        self.over.wait(HANG)


def test_a_process_that_dies_as_soon_as_it_has_connected_takes_nobody_with_it() -> None:
    """Else the agent would end with its keeper, and all objects of the host with it."""
    agent = MadeUpAgent()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0hoplite-test-keeper-{id(agent)}")
        listener.listen()
        with socket.socket(socket.AF_UNIX) as brief:
            brief.connect(listener.getsockname())  # and is gone
        ended: list[Any] = []

        def serve() -> None:
            keeper._serve(listener, cast(AgentProcess, agent), TERMS)
            ended.append(None)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(HANG)
            other.connect(listener.getsockname())
            assert b'"agent"' in other.recv(1000)
            agent.over.set()
            serving.join(HANG)
    assert ended, "when the agent ends, and not before"
