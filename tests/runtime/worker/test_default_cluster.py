"""What `init` and `connect` are given: how a private cluster is made, and which one is joined."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, InvalidRequestError
from hoplite_ucx.runtime.launch import processes

MEMORY = "64MiB"
SECRET = "a secret of ours"
VARIABLES = ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN", "HOPLITE_TOKEN_FILE", "HOPLITE_CONFIG")


@pytest.fixture(autouse=True)
def no_cluster_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[hoplite.Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        with hoplite.connect(memory=MEMORY, token=SECRET) as started:
            yield started


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{SECRET}\n")
    return path


def test_memory_as_people_write_it(cluster: hoplite.Cluster) -> None:
    client = cluster._of.client
    assert client.greeting.memory == 64 << 20


def test_a_cluster_is_joined_with_its_token(cluster: hoplite.Cluster, secret_file: Path) -> None:
    ref = cluster.put("here")
    for given in ({}, {"token": SECRET}, {"token_file": secret_file}, {"token_file": str(secret_file)}):
        with hoplite.connect(cluster.address, **given) as joined:
            assert (joined.cluster_id, joined.agent) == (cluster.cluster_id, cluster.agent)
            assert joined.get(ref) == "here"
    with pytest.raises(InvalidRequestError, match="this is not the token of the cluster"):
        hoplite.connect(cluster.address, token="another")


def test_the_token_is_the_clusters(cluster: hoplite.Cluster, secret_file: Path) -> None:
    """Whoever asks its directory must know it."""
    code = "from hoplite_ucx.cli import main; main()"
    command = [sys.executable, "-c", code, "status", "--json", "--address", cluster.address]
    for token, status in ((SECRET, 0), ("another", 1)):
        environment = {**os.environ, "HOPLITE_TOKEN": token}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
        assert done.returncode == status
    with (
        hoplite.connect(memory=MEMORY, token_file=secret_file) as other,
        hoplite.connect(other.address, token=SECRET) as joined,
    ):
        assert joined.cluster_id == other.cluster_id


def test_links_are_configured_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "links.toml").write_text('[links]\ntransport = "tcp"\n')
    (tmp_path / "wrong.toml").write_text('[links]\ntransport = "pigeons"\n')
    monkeypatch.chdir(tmp_path)
    with hoplite.connect(memory=MEMORY, config="links.toml") as cluster:
        attachment = cluster._of.attachment
        assert attachment is not None
        for child in attachment.children:
            environment = Path(f"/proc/{child.process.pid}/environ").read_bytes().split(b"\0")
            assert f"HOPLITE_CONFIG={tmp_path}/links.toml".encode() in environment
    assert "HOPLITE_CONFIG" not in os.environ
    for name in ("wrong.toml", "missing.toml"):
        with pytest.raises(InvalidRequestError, match=name):
            hoplite.connect(config=Path(name))


WRONG: dict[str, dict[str, Any]] = {
    "memory of nothing": {"memory": 0},
    "memory below nothing": {"memory": -1},
    "memory without end": {"memory": 10**30},
    "memory as a truth": {"memory": True},
    "memory as a fraction": {"memory": 1.5},
    "memory in pigeons": {"memory": "4 pigeons"},
    "memory of nothing, as text": {"memory": "0B"},
    "memory of a cluster that runs": {"memory": "1GiB", "address": "127.0.0.1:1"},
    "address of nobody": {"address": ""},
    "address as a number": {"address": 7777},
    "agent without an address": {"agent": "n1"},
    "agent as a number": {"agent": 1, "address": "127.0.0.1:1"},
    "token as bytes": {"token": b"secret"},
    "token of nothing": {"token": ""},
    "token of blanks": {"token": "  "},
    "token with a zero": {"token": "a\0b"},
    "token that is no text": {"token": "\ud800"},
    "both tokens": {"token": "a", "token_file": "b"},
    "token file that is missing": {"token_file": "/nowhere/token"},
    "token file as a number": {"token_file": 3},
    "config as a number": {"config": 3},
    "config with a zero": {"config": "a\0b"},
    "config that is missing": {"config": "/nowhere/config.toml"},
    "config of a cluster that runs": {"config": os.devnull, "address": "127.0.0.1:1"},
}


@pytest.mark.parametrize("begin", [hoplite.init, hoplite.connect])
@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_bad_arguments_are_refused_before_anything_starts(
    begin: Any, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "start", None)
    with pytest.raises(InvalidRequestError) as caught:
        begin(**arguments)
    assert caught.value.remedy
    assert "secret" not in str(caught.value).replace("cluster's secret", "")
    assert not hoplite.is_initialized()


def test_a_token_file_that_all_can_read_is_refused(secret_file: Path) -> None:
    secret_file.chmod(0o644)
    with pytest.raises(InvalidRequestError, match="chmod"):
        hoplite.init(token_file=secret_file)


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(ClosedError, match=r"127\.0\.0\.1:1 "):
        hoplite.connect("127.0.0.1:1")
