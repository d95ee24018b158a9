"""Starting processes: what they load, who may join, and how they are found."""

import asyncio
import socket
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.errors import InvalidRequestError, StoreFullError
from hoplite_ucx.runtime.host import memory_limits
from hoplite_ucx.runtime.launch import cluster
from hoplite_ucx.transports.errors import WrongTokenError
from hoplite_ucx.transports.wire.addresses import parse_address, socket_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import connect
from tests.first_hour.findings import finding
from tests.runtime.launch.test_service import run, service
from tests.tools.live import live_cluster
from tests.tools.planting import plant, run_in, traces, write_program
from tests.tools.silent_agents import silent_agents
from tests.tools.typing_remedies import hoplite_command


@finding("1", "init() in a directory where others left uvloop.py, secrets.py and hoplite_ucx/")
def planted_modules() -> str:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here"
        plant(here)
        ran = run_in(here, write_program(Path(folder) / "elsewhere"))
        assert ran.stdout == "works\n", ran.stderr
        assert traces(here) == []
    return "it works, and none of them runs"


@finding("8", "init(address) beside 20 stopped agents of other clusters")
def stopped_agents() -> str:
    with live_cluster(1) as live, silent_agents(20), mock.patch.object(cluster, "_GREETING_SECONDS", 60.0):
        began = time.monotonic()
        cluster.join(live.address, None, None).close()
        took = time.monotonic() - began
    assert took < 50, "it waited for one of them"
    return f"it took {1e3 * took:.0f} ms"


@finding("7", "joining a head that was started without a token, as another user of the host")
def no_token() -> str:
    async def join(address: str) -> None:
        await connect(address, Identity(1, b""), Kind.CONTROL, lambda _: None)

    with (
        tempfile.TemporaryDirectory() as home,
        service("--head", "--port", "0", HOPLITE_TOKEN="", XDG_CONFIG_HOME=home) as (_, report),
    ):
        try:
            asyncio.run(join(report["address"]))
        except WrongTokenError as error:
            mode = Path(report["token_file"]).stat().st_mode & 0o777
            assert mode == 0o600
            return f"{error.detail}; the head made a file for it with mode {mode:o}"
    raise AssertionError("anybody can join")


@finding("14a", "sending garbage to the directory's port")
def garbage() -> str:
    with (
        service("--head", "--port", "0") as (head, report),
        socket.create_connection(parse_address(report["address"])) as stranger,
    ):
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        address = socket_address(stranger.getsockname())
        assert head.stderr is not None
        line = head.stderr.readline()
    assert address in line
    return f"it is logged: {line.strip()}"


@finding("14b", "init(memory='900GiB') on a smaller host")
def too_much_memory() -> str:
    with mock.patch.object(memory_limits, "host_memory", return_value=24 << 30):
        try:
            hoplite.connect(memory="900GiB")
        except InvalidRequestError as error:
            return str(error)
    raise AssertionError("it is taken silently")


@finding("9", "typing what StoreFullError says, beside a program's own cluster")
def typed_remedies() -> str:
    with hoplite.connect(memory=64 << 20) as program:
        program.put(np.ones(40 << 20, np.uint8))
        try:
            program.create(1 << 30, np.uint8)
        except StoreFullError as error:
            told = hoplite_command(error)
            done = run(*told, HOPLITE_TOKEN="")
            assert done.returncode == 0, done.stderr
            return f"`hoplite {' '.join(told)}` {done.stdout.strip()}"
    raise AssertionError("it is not full")
