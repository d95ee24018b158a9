"""A process on a host that reads and writes lines over its standard streams, never over the measured network.

Every wait for a line has a deadline. If a process has ended, the error contains its standard error.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from select import select
from typing import IO, Any, Protocol

__all__ = ["Host", "LineProcess", "PeerError", "ThisHost"]

_LAST_WORDS = 10.0


class PeerError(RuntimeError):
    """A process of a measurement failed, or did not answer in time."""


class Host(Protocol):
    """Where a process can be started: a host of a cluster, or this one."""

    @property
    def address(self) -> str: ...

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]: ...


class ThisHost:
    """This machine, on loopback."""

    address = "127.0.0.1"

    def popen(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(arguments, **options)


class LineProcess:
    """With `log`, what it says on standard error goes to that file: a talkative process would fill a pipe."""

    def __init__(
        self,
        host: Host,
        command: list[str],
        name: str,
        env: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        if log is not None:
            pipes["stderr"] = log
        # Without a buffer, so that waiting for a line and reading it agree on what has come.
        self._process = host.popen(command, env=env, bufsize=0, **pipes)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        try:
            self.send(f"{line}\n".encode())
        except BrokenPipeError:
            raise self._failure() from None

    def send(self, data: bytes) -> None:
        """Also from another thread: for a process that has ended it raises BrokenPipeError, and its last output stays
        readable."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def line(self, deadline: float) -> str:
        """The next line of its output, before a moment of the monotonic clock."""
        assert self._process.stdout is not None
        if not select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise PeerError(f"{self.name} did not answer in time")
        line: bytes = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return line.decode().strip()

    def kill(self) -> None:
        self._process.kill()

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, deadline: float) -> bool:
        """Whether it has ended by itself, at a moment of the monotonic clock at the latest."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        return self._process.returncode is not None

    def close(self) -> None:
        """Kill it, close its pipes and wait for it."""
        self._process.kill()
        with self._process:
            pass

    def _failure(self) -> PeerError:
        """For a process that has ended, so that all its output is complete."""
        if self._log is not None:
            self._log.seek(0)
        said = self._log or self._process.stderr
        assert said is not None
        why = said.read().decode(errors="replace").strip()
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS)
            why = f"it exited with {self._process.returncode}"
        return PeerError(f"{self.name} failed: {why}")
