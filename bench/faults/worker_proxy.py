"""The driver's end of a worker: steps that are sent and answered later, in any order, each with a bound.

What a step came to is an `Answer`: a value, an error as the worker's library raised it, or nothing, because the worker
is gone or did not answer in time. None of these is an exception here: in this harness, all of them are to be judged.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Host

__all__ = ["Answer", "Peer", "WorkerError"]


@dataclass(frozen=True)
class WorkerError:
    """What a worker's call raised; `typed` if the library did so on purpose."""

    type: str
    typed: bool
    text: str
    ref: str | None
    remedy: str
    at: float


@dataclass(frozen=True)
class Answer:
    done: dict[str, Any] | None = None
    error: WorkerError | None = None
    gone: bool = False
    """The worker ended before it answered. If none of these is set, it was silent until the deadline."""

    @property
    def silent(self) -> bool:
        return self.done is None and self.error is None and not self.gone

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.error.type}: {self.error.text}"
        return "done" if self.done is not None else "gone" if self.gone else "silent"


class Peer:
    def __init__(self, host: Host, address: str, environment: Mapping[str, str]) -> None:
        command = [*host.module("hoplite_ucx.bench.faults.worker"), address]
        self._process = LineProcess(host, command, f"the worker on host {host.index}", env=environment)
        self._numbers = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._gone

    def ready(self, deadline: float) -> Answer:
        """The word with which it begins."""
        return self.answer(0, deadline)

    def tell(self, do: str, **arguments: Any) -> int:
        """Give it a step; returns the ticket for its answer."""
        number = next(self._numbers)
        try:
            self._process.tell(json.dumps({"id": number, "do": do, **arguments}))
        except PeerError:
            self._gone = True
        return number

    def answer(self, ticket: int, deadline: float) -> Answer:
        """What came of a step, at a moment of the monotonic clock at the latest."""
        while ticket not in self._answers:
            if not self._gone and not self._listen(deadline):
                return Answer()
            if self._gone and ticket not in self._answers:
                return Answer(gone=True)
        return self._answers.pop(ticket)

    def ask(self, do: str, *, patience: float = 30.0, **arguments: Any) -> Answer:
        return self.answer(self.tell(do, **arguments), time.monotonic() + patience)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._gone = True
        self._process.close()

    def _listen(self, deadline: float) -> bool:
        """Take in the next answer, whichever it is; False if none came in time."""
        try:
            line = self._process.line(deadline)
        except PeerError:
            if time.monotonic() < deadline:
                self._gone = True
            return self._gone
        told = json.loads(line)
        error = told.get("error")
        self._answers[told["id"]] = Answer(told.get("done"), WorkerError(**error) if error is not None else None)
        return True
