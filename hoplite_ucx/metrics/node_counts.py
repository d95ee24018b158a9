"""What a node's machine did, counted from its events and effects: calls and how long they took, streams, slots.

An observer of the machine, on its thread: nothing here locks, and nothing is looked up by a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hoplite_ucx.metrics.families import CALL_SECONDS, EVENT_SECONDS, Family, Histogram, Kind, Sample
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    Combine,
    CombineFailed,
    ContributorsAre,
    ContributorsCall,
    DeleteCall,
    DeleteDone,
    DescribeCall,
    DescriptionsAre,
    DirectoryLost,
    GetCall,
    Got,
    NodeEffect,
    NodeEvent,
    PutCall,
    PutDone,
    Receive,
    ReduceCall,
    ReduceDone,
    SendDirectory,
    Serve,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.ids import CallId
from hoplite_ucx.protocol.messages import StreamFailed, StreamFault

__all__ = ["NodeCounts"]

_NAMES: dict[type, str] = {
    PutCall: "put",
    GetCall: "get",
    WaitCall: "wait",
    DeleteCall: "delete",
    ReduceCall: "reduce",
    ContributorsCall: "contributors",
    DescribeCall: "info",
}
_ANSWERS = (PutDone, Got, Waited, DeleteDone, ReduceDone, ContributorsAre, DescriptionsAre)


class _Calls:
    """All calls of one kind."""

    __slots__ = ("cancelled", "failed", "name", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = Histogram(CALL_SECONDS)
        self.failed: Counter[FailureKind] = Counter()
        self.cancelled = 0


class NodeCounts:
    def __init__(self) -> None:
        self._events = Histogram(EVENT_SECONDS)
        self._calls = {kind: _Calls(name) for kind, name in _NAMES.items()}
        self._open: dict[CallId, tuple[_Calls, float]] = {}
        self._received = 0
        self._resumed = 0
        self._served = 0
        self._failed: Counter[StreamFault] = Counter()
        self._slots = 0
        self._slots_failed = 0
        self._sessions_lost = 0
        self._on_event: dict[type, Callable[[Any, float], None]] = {
            **dict.fromkeys(_NAMES, self._asked),
            CancelCall: self._cancelled,
            CombineFailed: self._slot_failed,
            DirectoryLost: self._session_lost,
        }
        self._on_effect: dict[type, Callable[[Any, float], None]] = {
            **dict.fromkeys(_ANSWERS, self._answered),
            CallFailed: self._call_failed,
            Combine: self._slot_began,
            Receive: self._receive_began,
            SendDirectory: self._told_directory,
            Serve: self._serve_began,
        }

    def handled(self, event: NodeEvent, effects: list[NodeEffect], now: float, took: float) -> None:
        self._events.add(took)
        count = self._on_event.get(type(event))
        if count is not None:
            count(event, now)
        for effect in effects:
            count = self._on_effect.get(type(effect))
            if count is not None:
                count(effect, now)

    def replaced(self, now: float) -> None:  # noqa: ARG002
        """Another machine continues: calls that it is not asked again have failed without a word to it."""
        self._open.clear()

    # --- counting ----------------------------------------------------------------------------------------------

    def _asked(self, call: Any, now: float) -> None:
        self._open[call.call] = (self._calls[type(call)], now)

    def _answered(self, answer: Any, now: float) -> None:
        if (asked := self._open.pop(answer.call, None)) is not None:
            asked[0].seconds.add(now - asked[1])

    def _call_failed(self, failed: CallFailed, now: float) -> None:
        if (asked := self._open.pop(failed.call, None)) is not None:
            asked[0].failed[failed.failure.kind] += 1
            asked[0].seconds.add(now - asked[1])

    def _cancelled(self, cancel: CancelCall, _: float) -> None:
        if (asked := self._open.pop(cancel.call, None)) is not None:
            asked[0].cancelled += 1

    def _receive_began(self, receive: Receive, _: float) -> None:
        self._received += 1
        self._resumed += receive.offset > 0

    def _serve_began(self, _: Serve, __: float) -> None:
        self._served += 1

    def _told_directory(self, told: SendDirectory, _: float) -> None:
        if isinstance(told.message, StreamFailed):
            self._failed[told.message.fault] += 1

    def _slot_began(self, _: Combine, __: float) -> None:
        self._slots += 1

    def _slot_failed(self, _: CombineFailed, __: float) -> None:
        self._slots_failed += 1

    def _session_lost(self, _: DirectoryLost, __: float) -> None:
        self._sessions_lost += 1

    # --- for the exporter --------------------------------------------------------------------------------------

    def families(self) -> list[Family]:
        calls = self._calls.values()
        return [
            Family(
                Kind.HISTOGRAM,
                "hoplite_call_duration_seconds",
                "How long calls of this host's programs took in the agent, those that failed too. Of reduce it is "
                "the request alone: see hoplite_reduction_duration_seconds.",
                [Sample(each.seconds.copy(), (each.name,)) for each in calls],
                ("call",),
            ),
            Family(
                Kind.COUNTER,
                "hoplite_calls_failed",
                "Calls that ended with an error.",
                [Sample(count, (each.name, kind.value)) for each in calls for kind, count in each.failed.items()],
                ("call", "kind"),
            ),
            Family(
                Kind.COUNTER,
                "hoplite_calls_cancelled",
                "Calls whose program gave up or ended.",
                [Sample(each.cancelled, (each.name,)) for each in calls],
                ("call",),
            ),
            Family(
                Kind.COUNTER,
                "hoplite_streams",
                "Streams that were begun.",
                [Sample(self._received, ("received",)), Sample(self._served, ("sent",))],
                ("direction",),
            ),
            Family(
                Kind.COUNTER,
                "hoplite_streams_broken",
                "Received streams that ended before their last byte.",
                [Sample(self._failed[fault], (fault.value,)) for fault in StreamFault],
                ("fault",),
            ),
            Family(
                Kind.COUNTER,
                "hoplite_streams_resumed",
                "Received streams that continued where an earlier one had ended.",
                [Sample(self._resumed)],
            ),
            Family(Kind.COUNTER, "hoplite_slots", "Slots of reductions that combined here.", [Sample(self._slots)]),
            Family(
                Kind.COUNTER,
                "hoplite_slots_failed",
                "Slots whose parts could not be combined.",
                [Sample(self._slots_failed)],
            ),
            Family(
                Kind.COUNTER,
                "hoplite_directory_sessions_lost",
                "How often the agent lost the directory, or did not reach it.",
                [Sample(self._sessions_lost)],
            ),
            Family(
                Kind.HISTOGRAM,
                "hoplite_agent_event_duration_seconds",
                "How long the agent's machine took for an event.",
                [Sample(self._events.copy())],
            ),
        ]
