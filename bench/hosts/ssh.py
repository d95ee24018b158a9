"""Machines that are reached through ssh, as places for the processes of a measurement.

    with SshCluster(read_hosts(path)) as cluster, LiveCluster(cluster.hosts, rate) as live: ...

A file lists them, one machine per line: `[user@]host[:port]`, and then settings that differ from the defaults,

    alice@node1  address=10.0.0.1  python=/opt/venv/bin/python
    node2        python="env HOPLITE_CONFIG=/etc/hoplite.toml /opt/venv/bin/python"

`address` is where processes listen and others reach them; if it is not given, the address by which ssh came there.
`python` runs Python with this version of hoplite. `devices` are the RDMA devices that `hoplite bench fabric` may use,
such as mlx5_0:1,mlx5_1:1; all that are active by default.

Every process has an ssh connection of its own, whose standard streams are its own, so that secrets travel as they do on
one machine: on standard input, never on a command line. ssh never asks questions (BatchMode): the user sets up keys and
known hosts. A guard (`ssh_guard`) on every machine makes sure that everything there ends, however this end goes: with
the block, with this process, or with the network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hoplite_ucx
from hoplite_ucx.bench.hosts.all_or_nothing import Opened
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.places import Clock
from hoplite_ucx.bench.hosts.ssh_guard import VARIABLE
from hoplite_ucx.runtime.launch.tokens import TOKEN

__all__ = ["Machine", "SshCluster", "SshHost", "read_hosts", "ssh_words"]

_PYTHON = "python3"
_TARGET = re.compile(r"(?:(?P<user>[^@:\s-][^@:\s]*)@)?(?P<host>[^@:\s-][^@:\s]*)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_KEYS = ("address", "python", "devices")
_MOST_HOSTS = 256

_CONNECT_SECONDS = 10
_START_SECONDS = 45.0  # from another machine's disk, which may be a network's
_ANSWER_SECONDS = 15.0
_END_SECONDS = 8.0
SILENCE = 15.0
"""After so long without a sign of the other end, both ends know that the network is gone."""
_SIGNS = 3  # so many may be lost
_LOOKS = 5  # at a clock, of which the quickest counts


# --- the file ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A line of a hosts file. `host` is what ssh knows, an alias of its configuration too."""

    host: str
    user: str | None = None
    port: int | None = None
    address: str | None = None
    python: tuple[str, ...] = (_PYTHON,)
    devices: tuple[str, ...] = ()


def ssh_words(command: str) -> list[str]:
    """An ssh command with its options, as a list."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PeerError(f"{command!r} is not a command: {error}") from error
    if not words:
        raise PeerError("an ssh command is needed, such as: ssh -i KEY")
    return words


def read_hosts(path: Path) -> list[Machine]:
    """The machines that a file names; refuses what it does not understand, with the number of the line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PeerError(f"the hosts file {path} cannot be read: {error}") from error
    machines = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                machines.append(_machine(words))
        except ValueError as error:
            raise PeerError(f"line {number} of {path}: {error}") from error
    if not 2 <= len(machines) <= _MOST_HOSTS:
        raise PeerError(f"{path} names {len(machines)} machines; 2 to {_MOST_HOSTS} can be measured")
    return machines


def _machine(words: list[str]) -> Machine:
    target, *settings = words
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"{target!r} is not a machine; write [user@]host[:port]")
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in _KEYS or not equals or not value.strip() or key in found:
            raise ValueError(
                f"{setting!r} is not a setting; write each of {', '.join(_KEYS)} once, as {_KEYS[0]}=VALUE"
            )
        found[key] = value
    port = match["port"]
    python = tuple(shlex.split(found.get("python", _PYTHON)))
    devices = tuple(found["devices"].split(",")) if "devices" in found else ()
    number = None if port is None else int(port)
    return Machine(match["host"], match["user"], number, found.get("address"), python, devices)


# --- one machine ------------------------------------------------------------------------------------------------


class SshHost:
    """A machine with its guard. `ssh` is the command, with options of the user's."""

    def __init__(self, machine: Machine, ssh: Sequence[str], mark: str, silence: float) -> None:
        self._mark = mark
        self._numbers = itertools.count()
        self._started: dict[int, int] = {}  # what reaches a process, by its number here, and the process's own number
        self._plain = [*ssh, *_target(machine)]  # as somebody would type it
        self._command = [*ssh, *_options(silence), *_target(machine)]
        self.name = machine.host
        self.python: Sequence[str] = machine.python
        self.folder = ""
        self.address = machine.address or ""
        self.told: dict[str, Any] = {}
        """What the guard told about the machine."""
        guard = [*self.module("hoplite_ucx.bench.hosts.ssh_guard"), mark, str(silence)]
        self._guard = LineProcess(self, guard, f"hoplite on {self.name}")

    def module(self, name: str) -> Sequence[str]:
        return [*self.python, "-P", "-m", name]  # -P: not from the directory where ssh begins

    def await_ready(self, deadline: float) -> None:
        try:
            line = self._guard.line(deadline)
        except PeerError as error:
            raise self._unready(str(error)) from None
        try:
            self.told = json.loads(line)
            version = self.told["versions"]["hoplite"]
        except (ValueError, TypeError, KeyError):
            raise PeerError(
                f"{self.name} printed {line[:200]!r} before hoplite could: a command over ssh must print nothing "
                "else; check the start-up files of the shell there"
            ) from None
        if version != hoplite_ucx.__version__:
            raise PeerError(
                f"{self.name} has hoplite {version}, and here it is {hoplite_ucx.__version__}: install the same there"
            )
        self.folder = self.told["folder"]
        self.address = self.address or "".join(self.told["address"])
        if not self.address:
            raise PeerError(f"the address of {self.name} is unknown; write address=… in the hosts file")

    def _unready(self, why: str) -> PeerError:
        why = why.removeprefix(f"{self._guard.name} failed: ").strip()
        last = why.splitlines()[-1] if why else "it said nothing"
        python = shlex.join(self.python)
        if "No module named" in last:
            remedy = (
                f"install hoplite-ucx {hoplite_ucx.__version__} there, or name the Python that has it with python=…"
            )
            return PeerError(f"{self.name} has no hoplite, or an older one, for {python} ({last}): {remedy}")
        if "not found" in last or "No such file or directory" in last:
            return PeerError(f"{self.name} has no {python} ({last}): name its Python with python=… in the hosts file")
        return PeerError(f"{self.name} cannot be reached ({last}); try: {shlex.join([*self._plain, 'true'])}")

    def popen(
        self, arguments: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """What reaches the process. Of `env`, those variables go along that are not as this process has them."""
        number = next(self._numbers)
        variables = {name: value for name, value in (env or {}).items() if os.environ.get(name) != value}
        if TOKEN in variables:
            raise ValueError("a token would be seen on a command line")
        variables[VARIABLE] = f"{self._mark}/{number}"
        remote = ["env", *(f"{name}={value}" for name, value in variables.items()), *arguments]
        # A session of its own: ctrl-C at the terminal is for the driver, which ends everything in its order.
        process = subprocess.Popen([*self._command, f"exec {shlex.join(remote)}"], start_new_session=True, **options)
        self._started[process.pid] = number
        return process

    def clock(self) -> Clock:
        looks = [self._look() for _ in range(_LOOKS)]
        return min(looks, key=lambda clock: clock.error)

    def _look(self) -> Clock:
        asked = time.monotonic()
        theirs = self._ask(what="clock")
        answered = time.monotonic()
        return Clock(theirs - (asked + answered) / 2, (answered - asked) / 2)

    def processor(self, process: subprocess.Popen[Any]) -> float:
        return self._ask(what="processor", process=self._started[process.pid])

    def _ask(self, **question: Any) -> float:
        self._guard.tell(json.dumps(question))
        return float(self._guard.line(time.monotonic() + _ANSWER_SECONDS))

    def live_sign(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # who waits for it learns of its end, and why
            self._guard.send(b"\n")

    def end(self) -> None:
        """Let the guard end everything; `close` waits for it."""
        with contextlib.suppress(OSError):
            self._guard.end_input()

    def close(self, deadline: float) -> None:
        if self.told:  # else nobody is there to be waited for, or somebody who will find that nobody is here
            self._guard.wait(deadline)
        self._guard.close()


def _options(silence: float) -> list[str]:
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": str(_CONNECT_SECONDS),
        "ServerAliveInterval": str(max(1, round(silence / _SIGNS))),
        "ServerAliveCountMax": str(_SIGNS),
        "LogLevel": "ERROR",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        # A shared connection would outlive the process that made it.
        "ControlMaster": "no",
        "ControlPath": "none",
    }
    return ["-T", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]


def _target(machine: Machine) -> list[str]:
    port = [] if machine.port is None else ["-p", str(machine.port)]
    return [*port, machine.host if machine.user is None else f"{machine.user}@{machine.host}"]


# --- all of them ------------------------------------------------------------------------------------------------


class SshCluster(Opened):
    """Its hosts are reached and checked when the block begins; nothing of ours runs there when it has ended."""

    def __init__(self, machines: Sequence[Machine], ssh: Sequence[str] = ("ssh",), *, silence: float = SILENCE) -> None:
        self.hosts: list[SshHost] = []
        self._machines = machines
        self._ssh = ssh
        self._silence = silence
        self._over = threading.Event()
        self._signs = threading.Thread(target=self._give_signs, daemon=True)

    def _open(self) -> None:
        run = secrets.token_hex(8)
        try:
            for index, machine in enumerate(self._machines):
                self.hosts.append(SshHost(machine, self._ssh, f"{run}-{index}", self._silence))
            self._signs.start()
            deadline = time.monotonic() + _START_SECONDS
            for host in self.hosts:
                host.await_ready(deadline)
            self._check_addresses()
        except FileNotFoundError as error:
            raise PeerError(f"{self._ssh[0]} is not installed here ({error}); install an ssh client") from error

    def close(self) -> None:
        self._over.set()
        if self._signs.ident is not None:
            self._signs.join()
        deadline = time.monotonic() + _END_SECONDS
        for host in self.hosts:
            host.end()
        for host in self.hosts:
            host.close(deadline)
        self.hosts = []

    def _give_signs(self) -> None:
        while not self._over.wait(self._silence / _SIGNS):
            for host in self.hosts:
                host.live_sign()

    def _check_addresses(self) -> None:
        names: dict[str, str] = {}
        for host in self.hosts:
            if host.address in names:
                raise PeerError(
                    f"{names[host.address]} and {host.name} have the same address, {host.address}; name machines once, "
                    "or give each an address=… of its own"
                )
            names[host.address] = host.name
        inward = [host for host in self.hosts if host.address.startswith("127.") or host.address == "::1"]
        if inward and len(inward) < len(self.hosts):
            raise PeerError(
                f"others cannot reach {inward[0].name} at {inward[0].address}; give it an address=… in the hosts file"
            )
