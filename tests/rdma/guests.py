"""Guests with an RDMA device: started, watched, and ended whatever happens. What they do is in `guest/run.sh`.

A guest is a process of this machine, with its own session; it gets no network, and nothing of this machine to write to
but a folder of its own. What it found comes back there, a line of JSON for each test (see `inside/conftest.py`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rdma.fetching import GUEST_FILES, Cache

__all__ = ["Plan", "Result", "run_in_qemu", "run_in_user_mode"]

_BOOT_SECONDS = 300.0
"""In software it takes 10 s on an idle machine."""
_KVM_BOOT_SECONDS = 25.0
_LOOK_SECONDS = 0.3
_SOFTWARE_CPU = "max,-erms,-fsrm"
"""Without the string instructions that a C library copies memory with where they are fast: in software they are slow, a
byte at a time."""
_UNGUARDED = "mitigations=off init_on_alloc=0 hardened_usercopy=off audit=0 nokaslr"
"""Nobody attacks a guest's kernel, and each of these guards doubles what a page costs in software."""
_UP = re.compile(r"guest: up.*")
_PANIC = re.compile(r"Kernel panic|Oops:|BUG: unable")


@dataclass(frozen=True)
class Plan:
    """What a guest is to do; `seconds` is for the tests alone."""

    tier: str
    checkout: Path
    folder: Path
    seconds: float
    only: str = ""
    memory: str = "2560M"


@dataclass
class Result:
    machine: str
    boot_seconds: float | None = None
    """None if it was never up."""
    seconds: float = 0.0
    failure: str = ""
    """Why the guest itself did not do what it was asked to; empty if it ran its tests."""
    tests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failure and bool(self.tests) and all(test["outcome"] == "passed" for test in self.tests)


def run_in_qemu(cache: Cache, plan: Plan, report: Callable[[str], None]) -> Result:
    """With KVM if this machine has one that works; else in software."""
    qemu, userland = cache.qemu(), cache.userland()
    _prepare(plan, cache.ucx())

    def command(*accelerator: str) -> list[str]:
        share = "security_model=none,readonly=on,multidevs=remap"
        return [
            str(qemu / "usr/bin/qemu-system-x86_64"),
            *("-L", str(qemu / "usr/share/qemu"), "-L", str(qemu / "usr/share/seabios")),
            *accelerator,
            *("-smp", "2", "-m", plan.memory, "-nodefaults", "-no-user-config", "-display", "none"),
            *("-serial", "stdio", "-no-reboot", "-device", "virtio-rng-pci"),
            *("-kernel", str(cache.kernel()), "-initrd", str(cache.initramfs())),
            *("-append", f"console=ttyS0 quiet panic=-1 tsc=unstable no_timer_check {_UNGUARDED}"),
            *("-fsdev", f"local,id=host,path=/,{share}", "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
            *("-fsdev", f"local,id=over,path={userland},{share}", "-device", "virtio-9p-pci,fsdev=over,mount_tag=over"),
            *("-fsdev", f"local,id=out,path={plan.folder},security_model=none"),
            *("-device", "virtio-9p-pci,fsdev=out,mount_tag=out"),
        ]

    environment = {**os.environ, "LD_LIBRARY_PATH": str(qemu / "usr/lib/x86_64-linux-gnu")}
    refused = cache.place / "kvm-refused"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and not (refused.exists() and refused.read_text() == boot):
        hardware = command("-accel", "kvm", "-cpu", "host")
        result = _watch(hardware, environment, plan, report, "qemu with KVM", _KVM_BOOT_SECONDS)
        if result.boot_seconds is not None:
            return result
        report(f"KVM refuses ({result.failure}); software emulation instead, until this machine boots again")
        refused.write_text(boot)
        _prepare(plan, cache.ucx())
    software = command("-accel", "tcg,thread=multi", "-cpu", _SOFTWARE_CPU)
    return _watch(software, environment, plan, report, "qemu in software", _BOOT_SECONDS)


def run_in_user_mode(cache: Cache, plan: Plan, report: Callable[[str], None]) -> Result:
    kernel, userland = cache.user_mode_kernel(), cache.userland()
    _prepare(plan, cache.ucx())
    command = [
        str(kernel),
        *(f"mem={plan.memory}", "ncpus=2", "seccomp=auto"),
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={GUEST_FILES / 'user-mode-init.sh'}"),
        *(f"OVER={userland}", f"OUT={plan.folder}"),
        *("con=null", "con0=fd:0,fd:1", "ssl=null", "quiet", "panic=-1"),
    ]
    environment = {**os.environ, "TMPDIR": "/dev/shm"}
    return _watch(command, environment, plan, report, "a user-mode kernel", _BOOT_SECONDS)


def _prepare(plan: Plan, ucx: Path) -> None:
    for path in plan.folder.iterdir():
        path.unlink()
    (plan.folder / "run.sh").write_text((GUEST_FILES / "run.sh").read_text())
    settings = {
        "CHECKOUT": plan.checkout,
        "UCX": ucx,
        "TIER": plan.tier,
        "ONLY": plan.only,
        "SECONDS_FOR_TESTS": int(plan.seconds),
    }
    lines = [f"{key}='{value}'\n" for key, value in settings.items()]
    (plan.folder / "settings").write_text("".join(lines))


def _watch(
    command: list[str],
    environment: dict[str, str],
    plan: Plan,
    report: Callable[[str], None],
    machine: str,
    boot_seconds: float,
) -> Result:
    """Until the guest has ended, or must be."""
    result = Result(machine)
    console = plan.folder / "console"
    began = time.monotonic()
    with console.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    told = 0
    try:
        while process.poll() is None:
            time.sleep(_LOOK_SECONDS)
            spent, said = time.monotonic() - began, console.read_text(errors="replace")
            if result.boot_seconds is None and (up := _UP.search(said)):
                result.boot_seconds = round(spent, 1)
                report(f"{machine}: {up[0].removeprefix('guest: ')} ({spent:.0f} s here)")
            told = _progress(plan, told, report)
            if (panic := _PANIC.search(said)) is not None:
                result.failure = f"the guest's kernel failed: {said[panic.start() :].splitlines()[0]}"
            elif result.boot_seconds is None and spent > boot_seconds:
                result.failure = f"the guest was not up after {boot_seconds:.0f} s"
            elif spent > plan.seconds + boot_seconds + 30:
                result.failure = f"the guest did not end after {spent:.0f} s"
            if result.failure:
                break
    finally:
        _end(process)
    _progress(plan, told, report)
    result.seconds = round(time.monotonic() - began, 1)
    result.tests = _tests(plan)
    status = plan.folder / "status"
    said = console.read_text(errors="replace").strip()
    if result.boot_seconds is None and _UP.search(said):
        result.boot_seconds = result.seconds  # it was up, and over, between two looks
    if not result.failure and result.boot_seconds is None:
        last = said.splitlines()
        result.failure = f"it ended at once: {last[-1] if last else process.returncode}"
    elif not result.failure and not status.exists():
        result.failure = "the guest ended before its tests did"
    elif not result.failure and int(status.read_text() or 99) not in (0, 1):
        lines = (plan.folder / "pytest.log").read_text(errors="replace").strip().splitlines()
        ended = {124: f"the tests took longer than {plan.seconds:.0f} s", 134: "a test aborted its process"}
        why = ended.get(int(status.read_text()), f"pytest ended with {status.read_text().strip()}")
        result.failure = f"{why}: {lines[-1][:300] if lines else 'it said nothing'}"
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """The guest and whatever it started (a user-mode kernel has many processes): its session is its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)


def _lines(plan: Plan) -> list[dict[str, Any]]:
    """What the guest has written so far; its last line may be half of one."""
    try:
        text = (plan.folder / "results.jsonl").read_text(errors="replace")
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _progress(plan: Plan, told: int, report: Callable[[str], None]) -> int:
    lines = _lines(plan)
    for line in lines[told:]:
        if line["outcome"] != "started":
            figures = ", ".join(f"{key} {value}" for key, value in line["figures"].items())
            report(
                f"  {line['outcome']:7} {line['seconds']:7.1f} s  {line['test']}{f'  ({figures})' if figures else ''}"
            )
    return len(lines)


def _tests(plan: Plan) -> list[dict[str, Any]]:
    """Each with its outcome. One that began and never ended took its process along."""
    found: dict[str, dict[str, Any]] = {}
    for line in _lines(plan):
        found[line["test"]] = {**line, "outcome": "ended with its process"} if line["outcome"] == "started" else line
    return list(found.values())
