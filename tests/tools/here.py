"""An agent or a directory in the test's own process, so that what is inside of it can be broken."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hoplite_ucx.runtime.agent.agent import Agent, AgentProfile
from hoplite_ucx.runtime.directory.server import DirectoryServer
from hoplite_ucx.runtime.launch.processes import Child
from hoplite_ucx.runtime.local.socket_names import socket_name
from hoplite_ucx.runtime.worker.client import Client
from tests.tools.live import RATE, TOKEN, Host
from tests.tools.waiting import HANG


@contextmanager
def loop_here() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG)
        loop.close()


class Here:
    """An agent in this process, so that its effects can be broken, and a client of it."""

    def __init__(self, agent: Agent, client: Client) -> None:
        self.agent = agent
        self.host = Host(Child(None, {}), client)  # type: ignore[arg-type]

    def breaks(self, effect: type, error: Exception, times: int = 1_000_000) -> None:
        perform = self.agent._perform[effect]
        left = times

        def broken(what: Any) -> None:
            nonlocal left
            if left:
                left -= 1
                raise error
            perform(what)

        self.agent._perform[effect] = broken


@contextmanager
def agent_here(directory: str) -> Iterator[Here]:
    agent = Agent(AgentProfile(directory=directory, token=TOKEN, host="127.0.0.1", memory=1 << 30, rate=RATE))
    with loop_here() as loop:
        asyncio.run_coroutine_threadsafe(agent.start(), loop).result(HANG)
        client = Client(socket_name(agent.cluster, agent.agent_id))
        try:
            yield Here(agent, client)
        finally:
            client.close()
            asyncio.run_coroutine_threadsafe(agent.close(), loop).result(HANG)


@contextmanager
def directory_here() -> Iterator[tuple[DirectoryServer, str]]:
    """A directory, and where it listens."""
    with loop_here() as loop:

        async def begin() -> tuple[DirectoryServer, str]:
            server = DirectoryServer("here", TOKEN)
            return server, await server.start("127.0.0.1", 0)

        server, address = asyncio.run_coroutine_threadsafe(begin(), loop).result(HANG)
        try:
            yield server, address
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result(HANG)
