"""`ci/rdma` on the host, with guests that are shell scripts: what is missing, hangs or panics ends in a clear line."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.rdma import __main__ as command
from tests.rdma import fetching, guests
from tests.rdma.fetching import Cache, LackingError
from tests.rdma.guests import Plan, Result
from tests.tools.waiting import eventually

DONE = {"test": "a", "outcome": "passed", "seconds": 1.0, "figures": {}, "why": ""}


def watch(tmp_path: Path, script: str) -> tuple[Result, list[str]]:
    """A guest that does this; it writes the process id of one that it started, if it did."""
    said: list[str] = []
    plan = Plan("quick", Path.cwd(), tmp_path, 60.0)
    shell = ["sh", "-c", f"cd {tmp_path}; {script}"]
    return guests._watch(shell, dict(os.environ), plan, said.append, "a script", 60.0), said


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or ") Z" in Path(f"/proc/{pid}/stat").read_text()


def test_a_guest_that_does_its_work(tmp_path: Path) -> None:
    script = f"echo 'guest: up after 1 s'; echo '{json.dumps(DONE)}' > results.jsonl; echo 0 > status; sleep 1"
    result, said = watch(tmp_path, script)
    assert result.passed
    assert [test["test"] for test in result.tests] == ["a"]
    assert any("passed" in line for line in said)


def assert_ended(tmp_path: Path, script: str, failure: str) -> None:
    """With all that it started."""
    result, _ = watch(tmp_path, f"sleep 1000 & echo $! > pid; {script}; wait")
    assert result.failure == failure
    assert not result.passed
    eventually(lambda: gone(int((tmp_path / "pid").read_text())))


def test_a_guest_that_panics_is_ended(tmp_path: Path) -> None:
    panic = "Kernel panic - not syncing: no root"
    assert_ended(tmp_path, f"echo '{panic}'", f"the guest's kernel failed: {panic}")


def test_a_guest_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute is over when it has begun to hang."""
    hangs = tmp_path / "hangs"
    clock = SimpleNamespace(monotonic=lambda: 61.0 if hangs.exists() else 0.0, sleep=time.sleep)
    monkeypatch.setattr(guests, "time", clock)
    assert_ended(tmp_path, f"touch {hangs}", "the guest was not up after 60 s")


def test_a_guest_that_ends_too_early(tmp_path: Path) -> None:
    assert watch(tmp_path, "echo no such device; exit 3")[0].failure == "it ended at once: no such device"
    up = "echo 'guest: up'"
    assert watch(tmp_path, up)[0].failure == "the guest ended before its tests did"


def test_a_test_that_takes_its_process_along_is_named(tmp_path: Path) -> None:
    started = json.dumps({**DONE, "outcome": "started"})
    script = (
        f"echo 'guest: up'; echo '{started}' > results.jsonl; echo Aborted > pytest.log; echo 134 > status; sleep 1"
    )
    result, _ = watch(tmp_path, script)
    assert result.failure == "a test aborted its process: Aborted"
    assert [test["outcome"] for test in result.tests] == ["ended with its process"]


def test_kvm_that_refuses_is_replaced_by_software(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu = tmp_path / "qemu/usr/bin/qemu-system-x86_64"
    qemu.parent.mkdir(parents=True)
    folder = tmp_path / "out"
    folder.mkdir()
    qemu.write_text(
        "#!/bin/sh\ncase \"$*\" in *'accel kvm'*) echo 'failed to set MSR'; exit 1;; esac\n"
        f"cd {folder}; echo '{json.dumps(DONE)}' > results.jsonl; echo 0 > status; echo 'guest: up'; sleep 1\n"
    )
    qemu.chmod(0o755)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev/kvm" or real(path, mode))
    pieces = dict.fromkeys(("kernel", "initramfs", "userland", "ucx"), lambda: tmp_path)
    cache = SimpleNamespace(qemu=lambda: tmp_path / "qemu", place=tmp_path, **pieces)
    said: list[str] = []
    result = guests.run_in_qemu(cache, Plan("quick", Path.cwd(), folder, 60.0), said.append)  # type: ignore[arg-type]
    assert result.passed
    assert result.machine == "qemu in software"
    assert any("KVM refuses (it ended at once: failed to set MSR)" in line for line in said)
    said.clear()
    again = guests.run_in_qemu(cache, Plan("quick", Path.cwd(), folder, 60.0), said.append)  # type: ignore[arg-type]
    assert again.passed
    assert not any("KVM" in line for line in said), "it is not tried twice between two boots of this machine"


def test_a_piece_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_more: object) -> str:
        raise LackingError("apt-get failed: E: Unable to locate package qemu-system-x86")

    monkeypatch.setattr(fetching, "_run", refuse)
    with pytest.raises(LackingError, match="Unable to locate package"):
        Cache(tmp_path / "cache", lambda _line: None).qemu()
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_space_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOPLITE_RDMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5 << 20))
    monkeypatch.setattr(sys, "argv", ["ci/rdma", "--quick"])
    assert command.main() == 2
    assert f"ci/rdma: only 5 MiB are free at {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_a_machine_without_apt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object, **_more: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    with pytest.raises(LackingError, match="this needs a Debian machine"):
        Cache(tmp_path, lambda _line: None).userland()
