"""Commands that errors tell users to type work as they stand, beside a program's own cluster and a started one."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, InvalidRequestError, StoreFullError
from hoplite_ucx.runtime.launch.tokens import own_file, read_token
from hoplite_ucx.runtime.local import remedies
from hoplite_ucx.runtime.local.worker_messages import Greeting
from hoplite_ucx.transports.wire.private_files import create_private
from tests.runtime.launch.test_service import ENVIRONMENT, HOPLITE, run, service
from tests.runtime.test_faults import children_of
from tests.tools.typing_remedies import commands, hoplite_command

MEMORY = 64 << 20


@pytest.fixture(autouse=True)
def another_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands are typed in a shell that knows nothing of the program's environment."""
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN", "HOPLITE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    for environment in (os.environ, ENVIRONMENT):
        monkeypatch.setitem(environment, "XDG_CONFIG_HOME", str(tmp_path / "config"))  # type: ignore[call-overload]
    yield
    hoplite.shutdown()


@contextmanager
def typed(arguments: list[str]) -> Iterator[str]:
    """A command that runs until ctrl-C, and the first line that it prints."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*HOPLITE, *arguments], **pipes, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()
            process.communicate(timeout=60)


def lasting_port() -> int:
    """A free one that the system gives to nobody by itself, so that it is still free after its listener has ended."""
    for port in range(10_000 + os.getpid() % 10_000, 30_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


def fill() -> StoreFullError:
    hoplite.put(np.ones(40 << 20, np.uint8))
    with pytest.raises(StoreFullError) as caught:
        hoplite.create(2 * MEMORY, np.uint8)  # more than there will ever be room for, which is known at once
    return caught.value


def delete_as_told(error: StoreFullError) -> None:
    told = hoplite_command(error)
    assert run(*told).stdout == "deleted 0 objects\n", "a minute has not passed"
    at_once = [word if word != "60s" else "0s" for word in told]
    done = run(*at_once)
    assert done.stdout == "deleted 1 object\n", done.stderr
    hoplite.put(np.ones(40 << 20, np.uint8), timeout=60)


def test_a_full_store_of_a_programs_own_cluster() -> None:
    hoplite.init(memory=MEMORY)
    delete_as_told(fill())


def test_idle_objects_are_deleted_though_larger_ones_are_in_use() -> None:
    cluster = hoplite.init(memory=MEMORY)
    used = hoplite.gather([hoplite.put(np.ones(1 << 20, np.uint8)) for _ in range(12)], timeout=60)
    idle = [hoplite.put(np.ones(300_000, np.uint8)) for _ in range(3)]
    done = run("delete", "--idle", "0s", "--address", cluster.address, "--agent", cluster.agent)
    assert done.stdout == "deleted 3 objects\n", done.stderr
    assert {known.state for known in hoplite.info(idle)} == {hoplite.ObjectState.DELETED}
    assert all(array.all() for array in used)


def test_a_full_store_of_a_started_cluster_with_two_agents_here() -> None:
    with (
        service("--head", "--port", "0") as (_, report),
        service("--address", report["address"]) as (_, other),
    ):
        hoplite.init(report["address"], agent=other["agent"])
        delete_as_told(fill())
        hoplite.shutdown()


def test_several_agents_of_which_one_is_to_be_named() -> None:
    with (
        service("--head", "--port", "0") as (_, report),
        service("--address", report["address"]) as (_, other),
    ):
        delete = ["delete", "--idle", "0s", "--address", report["address"]]
        refused = run(*delete)
        assert refused.returncode == 1
        assert "--agent" in refused.stderr
        assert "HOPLITE_AGENT" in refused.stderr
        assert run(*delete, "--agent", other["agent"]).stdout == "deleted 0 objects\n"
        assert run(*delete, HOPLITE_AGENT=other["agent"]).stdout == "deleted 0 objects\n"
        assert run(*delete[:3], HOPLITE_AGENT=other["agent"], HOPLITE_ADDRESS=report["address"]).returncode == 0
        of_another_cluster = {"HOPLITE_AGENT": "1234", "HOPLITE_ADDRESS": "127.0.0.1:1"}
        assert run(*delete, "--agent", other["agent"], **of_another_cluster).returncode == 0


def test_delete_without_a_cluster_names_those_of_this_host() -> None:
    hoplite.init(memory=MEMORY)
    done = run("delete", "--idle", "60s", COLUMNS="400")
    assert done.returncode == 2
    assert os.environ["HOPLITE_ADDRESS"] in done.stderr


def test_an_agent_that_was_killed_with_its_head() -> None:
    with service("--head", "--port", str(lasting_port())) as (head, report):
        hoplite.init(report["address"])
        (agent,) = [c for c in children_of(head.pid) if Path(f"/proc/{c}/cmdline").read_bytes().count(b"agent")]
        os.kill(agent, signal.SIGKILL)
        head.wait(60)
        with pytest.raises(ClosedError) as caught:
            hoplite.put(1, timeout=60)
        with typed(hoplite_command(caught.value)) as line:
            assert line.startswith(f"directory  {report['address']} ")
            hoplite.shutdown()
            hoplite.init(report["address"])
            assert hoplite.get(hoplite.put(1), timeout=60) == 1
            hoplite.shutdown()


def test_an_agent_whose_directory_is_elsewhere() -> None:
    greeting = Greeting("c", "1a", "198.18.200.1:7777", 0, 0, 0, joined=True)
    assert hoplite_command(remedies.start_again(greeting)) == ["start", "--address", "198.18.200.1:7777"]
    private = Greeting("c", "1a", "127.0.0.1:7777", 0, 0, 0, joined=True, private=True)
    assert commands(remedies.start_again(private)) == []


def test_a_child_of_a_program_that_was_killed() -> None:
    """It can start nothing that brings the cluster back."""
    hoplite.init(memory=MEMORY)
    with hoplite.connect(os.environ["HOPLITE_ADDRESS"]) as child:
        hoplite.shutdown()
        with pytest.raises(ClosedError, match="the program that started this cluster has exited") as caught:
            child.put(1, timeout=60)
    assert commands(caught.value) == []


def test_no_agent_on_this_host() -> None:
    """There is a directory; its head's agent is in another process's name, which is as good as on another host."""
    with service("--head", "--port", "0") as (_, report):
        with pytest.raises(ClosedError) as caught:
            hoplite.init(report["address"], agent="0")
        with typed([*hoplite_command(caught.value), "--memory", "64MiB"]) as line:
            assert line.startswith("agent ")


def test_no_agent_at_all() -> None:
    told = commands(remedies.JOIN_OR_START)
    assert told == [["hoplite", "start", "--head"], ["hoplite", "start", "--address", "HOST:PORT"]]


def test_the_token_that_is_to_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same place below another home."""
    with service("--head", "--port", "0") as (_, report):
        copied = Path(report["token_file"]).read_bytes()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
        assert read_token() == b""
        there = own_file()
        assert there is not None
        create_private(there, copied)
        assert read_token() == copied.strip()


def test_a_token_file_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my token"
    path.write_text("secret")
    path.chmod(0o644)
    monkeypatch.setenv("HOPLITE_TOKEN_FILE", str(path))
    with pytest.raises(InvalidRequestError) as caught:
        read_token()
    (told,) = [command for command in commands(caught.value) if command[0] == "chmod"]
    subprocess.run(told, check=True, timeout=60)
    assert read_token() == b"secret"
