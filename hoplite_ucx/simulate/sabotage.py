"""Makes a machine raise in the middle of what it does: at any line of the protocol, wherever the count runs out.

So a fault of ours in any handler is simulated, with whatever state it leaves behind. Nothing is traced unless a trap
was set.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import hoplite_ucx.protocol
from hoplite_ucx.protocol import Directory, NodeState
from hoplite_ucx.protocol.events import Tick
from hoplite_ucx.protocol.messages import Alive, Heartbeat

__all__ = ["SabotageError", "disarm", "raise_in"]

_PROTOCOL = str(Path(hoplite_ucx.protocol.__file__).parent)


class SabotageError(Exception):
    """What a trap raises. Any other exception of a machine is a fault of the protocol, and ends the run."""


def raise_in(machine: Directory | NodeState, lines: int, *, beats: bool) -> None:
    """Let a machine raise when it has gone through so many lines more, in this event or in a later one. Without `beats`
    those of heartbeats, which are most of all, do not count."""
    vars(machine)["handle"] = _Trap(machine, lines, beats).handle


def disarm(machine: Directory | NodeState) -> None:
    vars(machine).pop("handle", None)


class _Trap:
    def __init__(self, machine: Directory | NodeState, lines: int, beats: bool) -> None:
        self._handle: Any = type(machine).handle.__get__(machine)
        self._left = lines
        self._beats = beats

    def handle(self, event: Any, now: float) -> Any:
        if not self._beats and _is_beat(event):
            return self._handle(event, now)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return self._handle(event, now)
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, what: str, _: object) -> Any:
        if what == "call":
            return self._trace if frame.f_code.co_filename.startswith(_PROTOCOL) else None
        if what == "line":
            self._left -= 1
            if self._left <= 0:
                where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise SabotageError(f"a trap at {where}")
        return self._trace


def _is_beat(event: Any) -> bool:
    return isinstance(event, Tick) or isinstance(getattr(event, "message", None), Alive | Heartbeat)
