"""Who gets in: tokens and where they come from, other users of the host, connections that never say who they are."""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.service import ServicePlan
from hoplite_ucx.runtime.launch.tokens import head_token, read_token
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.local.socket_names import agents
from hoplite_ucx.runtime.worker.connection import Connection
from hoplite_ucx.transports.errors import WrongTokenError
from hoplite_ucx.transports.wire import session as sessions
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Listener, connect
from tests.runtime.launch.test_service import service
from tests.tools.live import Live, live_cluster
from tests.tools.waiting import HANG

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
NOBODY = 65534


@pytest.fixture(scope="module")
def live():  # type: ignore[no-untyped-def]
    with live_cluster(1) as cluster:
        yield cluster


# --- tokens -----------------------------------------------------------------------------------------------------


def test_token_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv("HOPLITE_TOKEN", "")  # set to nothing is not set
    monkeypatch.setenv("HOPLITE_TOKEN_FILE", str(path))

    def refused(says: str) -> None:
        with pytest.raises(HopliteError, match=says) as caught:
            read_token()
        assert str(path) in str(caught.value)

    refused("cannot be read: No such file")
    path.write_text("  \n")
    path.chmod(0o600)
    refused("is empty")
    path.write_text("x" * 100_000)
    refused("has more than")
    path.write_text(" the token\n")
    assert read_token() == b"the token"
    for mode in (0o604, 0o602, 0o644):
        path.chmod(mode)
        refused("open to every user")
    path.chmod(0o640)
    assert read_token() == b"the token"
    path.unlink()
    os.mkfifo(path, 0o600)
    refused("not a regular file")  # and does not wait for a writer
    path.unlink()
    path.mkdir(0o700)
    refused("not a regular file")


def test_a_token_and_a_file_with_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever counted, somebody would be surprised, and would look for the reason in the wrong place."""
    path = tmp_path / "token"
    path.write_text("from the file\n")
    path.chmod(0o600)
    monkeypatch.setenv("HOPLITE_TOKEN_FILE", str(path))
    monkeypatch.setenv("HOPLITE_TOKEN", "from the variable")
    for read in (read_token, head_token):
        with pytest.raises(HopliteError, match="HOPLITE_TOKEN and the file that HOPLITE_TOKEN_FILE names") as caught:
            read()
        assert str(path) in str(caught.value)
        assert "from the" not in str(caught.value), "a token is not shown"
    monkeypatch.setenv("HOPLITE_TOKEN", "from the file")
    assert read_token() == b"from the file"


def test_a_programs_own_cluster_has_its_own_token_though_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("of another cluster\n")
    path.chmod(0o600)
    monkeypatch.setenv("HOPLITE_TOKEN_FILE", str(path))
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hoplite.init():
        assert read_token() == os.environ["HOPLITE_TOKEN"].encode(), "as processes started from here read it"
    assert read_token() == b"of another cluster"


def test_no_token_is_shown_or_on_a_command_line() -> None:
    secret = secrets.token_hex(16)
    assert secret not in repr(Identity(1, secret.encode())) + repr(ServicePlan(token=secret.encode(), memory=1))
    with service("--head", "--port", "0", HOPLITE_TOKEN=secret) as (head, _):
        found = [pid for pid in _family(head.pid) if (Path("/proc") / str(pid) / "cmdline").exists()]
        assert len(found) >= 3, "the head, the directory, the agent, which may have a warden"
        for pid in found:
            assert secret not in Path(f"/proc/{pid}/cmdline").read_text()


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def test_a_listener_itself_refuses_to_listen_beyond_loopback_without_a_token() -> None:
    async def work() -> None:
        for host in ("0.0.0.0", "::"):
            with pytest.raises(WrongTokenError, match="HOPLITE_TOKEN"):
                await Listener(Identity(1, b""), {}).start(host)
        listener = Listener(Identity(1, b"a token"), {})
        await listener.start("0.0.0.0")
        await listener.close()

    asyncio.run(work())


# --- other users ------------------------------------------------------------------------------------------------


@NEEDS_ROOT
def test_a_worker_of_another_user_is_refused(live: Live) -> None:
    """It says what a worker says, and the connection ends without an answer; the user's own worker is served."""
    name = live.hosts[0].name
    hello = wire.frame(wire.Hello(wire.WIRE, bytes(16), background=True))
    code = (
        "import os, socket, sys\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"s.connect({name!r})\n"
        "try:\n"
        f"    s.sendall({hello!r})\n"
        "    answer = s.recv(100)\n"
        "except (BrokenPipeError, ConnectionResetError):\n"
        "    answer = b''\n"
        "sys.exit(0 if answer == b'' else 7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG, check=False).returncode == 0
    connection = Connection(name, secrets.token_bytes(16), background=False)
    connection.close()


@NEEDS_ROOT
def test_a_false_agent_of_another_user_is_not_believed_and_costs_no_time() -> None:
    """It takes a name of ours: once it answers, once its queue is full and nobody ever will."""
    name = f"\0hoplite-{os.getuid()}-false-{secrets.token_hex(4)}"
    code = (
        "import os, socket, sys\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"s = socket.socket(socket.AF_UNIX); s.bind({name!r}); s.listen(0)\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        with pytest.raises(HopliteError, match="another user's process"):
            Connection(name, bytes(16), background=False)
        filling = []
        for _ in range(4):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            filling.append(sock)
            try:
                sock.connect(name)
            except BlockingIOError:
                break
        with pytest.raises(HopliteError, match="no agent answers"):
            Connection(name, bytes(16), background=False)
        for sock in filling:
            sock.close()
        process.stdin.close()


def test_names_that_are_no_text_hide_nobody(live: Live) -> None:
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0hoplite-\xff\xfe\n" + secrets.token_bytes(4).hex().encode())
        odd.listen()
        assert live.hosts[0].name in agents()


# --- connections that never say who they are --------------------------------------------------------------------


def test_half_open_handshakes_are_bounded_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as many as may be in the handshake say nothing; who has the token gets in all the same, each time
    within its time limit; and the silent ones are closed."""
    monkeypatch.setattr(sessions, "MAX_HANDSHAKES", 32)
    monkeypatch.setattr(sessions, "SLOW_SECONDS", 0.1)

    async def work() -> None:
        listener = Listener(Identity(1, b"t"), {Kind.CONTROL: lambda _: None})
        address = await listener.start("127.0.0.1")
        silent = [socket.create_connection(parse_address(address)) for _ in range(96)]
        most = 0
        for number in range(5):
            session = await connect(address, Identity(2 + number, b"t"), Kind.CONTROL, lambda _: None)
            most = max(most, len(listener._handshakes))
            session.abort()
        assert most <= 32
        loop = asyncio.get_running_loop()
        for sock in silent:
            sock.settimeout(HANG)
            assert await loop.run_in_executor(None, sock.recv, 1) == b""
            sock.close()
        assert not listener._handshakes
        await listener.close()

    asyncio.run(work())


def test_a_directory_serves_under_half_open_connections(live: Live) -> None:
    host = live.hosts[0]
    where = parse_address(live.address)
    silent = [socket.create_connection(where) for _ in range(400)]
    try:
        assert host.get(host.put("meanwhile")) == "meanwhile"
        late = live.add_host(memory=64 << 20)  # and a new agent gets in
        assert late.get(host.put(bytes(1 << 20))) == bytes(1 << 20)
    finally:
        for sock in silent:
            sock.close()
