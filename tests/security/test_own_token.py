"""The token that `hoplite start --head` makes where none is given: nobody else gets in, the user's own commands do."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import hoplite_ucx as hoplite
from hoplite_ucx.cli import app
from hoplite_ucx.cli.start import _show
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch import inspection
from hoplite_ucx.runtime.launch.service import ServicePlan
from hoplite_ucx.runtime.launch.tokens import head_token, own_file, read_token
from hoplite_ucx.transports.errors import WrongTokenError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.private_files import create_private
from hoplite_ucx.transports.wire.session import connect
from tests.runtime.launch.test_service import ENVIRONMENT, run, service, status

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
NOBODY = 65534


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has set nothing up."""
    for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN", "HOPLITE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    for environment in (os.environ, ENVIRONMENT):
        monkeypatch.setitem(environment, "XDG_CONFIG_HOME", str(tmp_path / "config"))  # type: ignore[call-overload]
    return tmp_path / "config" / "hoplite" / "token"


def knock(address: str, token: bytes) -> None:
    async def work() -> None:
        (await connect(address, Identity(1, token), Kind.CONTROL, lambda _: None)).abort()

    asyncio.run(work())


def test_nobody_joins_a_head_without_its_token(home: Path) -> None:
    with service("--head", "--port", "0") as (_, report):
        assert report["token_file"] == str(home)
        assert home.stat().st_mode & 0o777 == 0o600
        assert home.parent.stat().st_mode & 0o777 == 0o700
        for token in (b"", b"guessed"):
            with pytest.raises(WrongTokenError):
                knock(report["address"], token)
        knock(report["address"], home.read_bytes().strip())


def test_the_users_own_commands_and_programs_need_nothing(home: Path) -> None:
    program = "import hoplite_ucx as h\nh.init()\nprint(h.get(h.put('found'), timeout=60))"
    with service("--head", "--port", "0") as (_, report):
        cluster, _ = status(report["address"])
        assert cluster["cluster"] == report["cluster"]
        told = subprocess.run(
            [sys.executable, "-c", program],
            env={**ENVIRONMENT, "HOPLITE_ADDRESS": report["address"]},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert told.stdout == "found\n", told.stderr
        with service("--address", report["address"]) as (_, other):
            assert other["cluster"] == report["cluster"]
        made = home.read_bytes()
        with service("--head", "--port", "0") as (_, another):
            assert another["token_file"] == str(home)
        assert home.read_bytes() == made


def test_what_to_copy_is_said_where_the_token_is_missing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "agents", list)  # as on another host
    with service("--head", "--port", "0") as (_, report):
        elsewhere = {"XDG_CONFIG_HOME": str(home.parents[2] / "elsewhere")}
        for command in ("start", "status"):
            done = CliRunner().invoke(app, [command, "--address", report["address"]], env=elsewhere)
            assert done.exit_code == 1
            assert "copy the token file that `hoplite start --head` prints" in done.stderr


def test_a_head_tells_other_hosts_what_to_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = {"address": "198.18.0.1:4711", "agent": "1234", "cluster": "abcd"}
    plan = ServicePlan(token=b"secret", memory=1 << 20)
    for host, told in (("198.18.0.1", True), ("127.0.0.1", False)):
        started = SimpleNamespace(address=f"{host}:7777", agent=agent, metrics={}, view=None)
        _show(started, plan, home, False)  # type: ignore[arg-type]
        said = capsys.readouterr().out
        assert f"token      {home} " in said
        assert "secret" not in said
        assert (f"copy that file to the same place, then `hoplite start --address {host}:7777`" in said) == told


def test_status_beside_a_program_with_its_own_cluster(home: Path) -> None:
    hoplite.init(memory=64 << 20)
    try:
        address = os.environ["HOPLITE_ADDRESS"]
        done = run("status", "--address", address)
        assert done.returncode == 0, done.stderr
        assert "1 node," in done.stdout
        create_private(home, b"the token of another cluster")
        assert run("status", "--address", address).returncode == 0
    finally:
        hoplite.shutdown()


# --- the file ---------------------------------------------------------------------------------------------------


def test_the_file_is_made_once_and_read_by_all(home: Path) -> None:
    assert read_token() == b""
    token, path = head_token()
    assert path == own_file() == home
    assert len(token) == 64
    assert head_token() == (token, home)
    assert read_token() == token
    create_private(home, b"another")  # two heads that are started at the same time: the first file counts
    assert read_token() == token
    assert os.listdir(home.parent) == ["token"]


def refused(says: str) -> None:
    for read in (read_token, head_token):
        with pytest.raises(HopliteError, match=says) as caught:
            read()
        assert str(own_file()) in str(caught.value)
        assert "HOPLITE_TOKEN_FILE" in str(caught.value)


def test_a_file_that_others_can_read_is_refused(home: Path) -> None:
    create_private(home, b"a token")
    home.chmod(0o644)
    refused("open to every user")
    home.chmod(0o600)
    home.write_bytes(b"\n")
    refused("is empty")


def test_a_planted_link_is_refused_and_not_followed(home: Path, tmp_path: Path) -> None:
    home.parent.mkdir(parents=True)
    target = tmp_path / "target"
    home.symlink_to(target)
    refused("is a symbolic link")
    assert not target.exists()
    create_private(target, b"something else of this user")
    refused("is a symbolic link")


@NEEDS_ROOT
def test_a_file_of_another_user_is_refused(home: Path) -> None:
    create_private(home, b"known to somebody else")
    os.chown(home, NOBODY, NOBODY)
    refused("belongs to another user")


def test_a_file_that_cannot_be_made_is_an_error(home: Path) -> None:
    home.parents[1].touch()  # where its directory should be
    with pytest.raises(HopliteError, match=r"cannot be created.*HOPLITE_TOKEN"):
        head_token()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which does not count
    monkeypatch.setenv("HOME", "relative")
    assert own_file() is None
    assert read_token() == b""
    with pytest.raises(HopliteError, match=r"no home directory.*HOPLITE_TOKEN"):
        head_token()
