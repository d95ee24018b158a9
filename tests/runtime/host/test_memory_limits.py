"""A store's limit is never more than its host, or its container, has."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hoplite_ucx as hoplite
from hoplite_ucx.cli import app
from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime.host import memory_limits
from hoplite_ucx.runtime.host.memory_limits import store_limit

GIB = 1 << 30
INSTALLED = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_more_than_the_host_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "host_memory", lambda: 24 * GIB)
    monkeypatch.delenv("HOPLITE_ADDRESS", raising=False)
    for host_wants in (lambda: hoplite.init(memory=900 * GIB), lambda: hoplite.connect(memory=25 * GIB)):
        with pytest.raises(InvalidRequestError, match=r"this host has 24 GiB of memory; give less.*\(12288MiB\)"):
            host_wants()
    assert not hoplite.is_initialized()
    home = {"XDG_CONFIG_HOME": str(tmp_path), "HOPLITE_TOKEN": ""}
    done = CliRunner().invoke(app, ["start", "--head", "--port", "0", "--memory", "900GiB"], env=home)
    assert done.exit_code == 1
    assert "a store of 900 GiB does not fit: this host has 24 GiB" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "host_memory", lambda: 6 * GIB)
    assert store_limit(None) == 3 * GIB
    assert store_limit(6 * GIB) == 6 * GIB
    monkeypatch.setattr(memory_limits, "host_memory", lambda: 600 * GIB)
    assert store_limit(None) == 4 * GIB


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups(tmp_path: Path) -> None:
    assert memory_limits.host_memory(tmp_path) == INSTALLED


def test_control_groups(tmp_path: Path) -> None:
    """The least of the group's own limit and those above it."""
    groups = tmp_path / "sys/fs/cgroup"
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/session\n")
    write(groups / "user.slice/session/memory.max", "max\n")
    assert memory_limits.host_memory(tmp_path) == INSTALLED
    write(groups / "user.slice/memory.max", "100000000\n")
    assert memory_limits.host_memory(tmp_path) == 100_000_000
    write(groups / "user.slice/session/memory.max", "90000000\n")
    assert memory_limits.host_memory(tmp_path) == 90_000_000


def test_control_groups_of_version_1_in_a_container(tmp_path: Path) -> None:
    """It is told its name outside, and sees its own group as the topmost."""
    write(tmp_path / "proc/self/cgroup", "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "80000000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n")
    assert memory_limits.host_memory(tmp_path) == 80_000_000
