"""What the directory decided, from the events and effects of its machine: placements, slots, reductions, deaths.

A placement is a span from the message to the receiver until the receiver has everything, fails, or is placed anew.

Every node waits for the directory, so it does little in the middle of an event: what may matter is noted, and becomes
spans when they are taken, or when enough has gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hoplite_ucx.protocol.directory.machine import Placed
from hoplite_ucx.protocol.events import (
    CombineBytes,
    DirectoryEffect,
    DirectoryEvent,
    Disconnect,
    FromNode,
    Probe,
    Probed,
    SendNode,
    SessionLost,
    Tick,
)
from hoplite_ucx.protocol.ids import NO_SLOT, NodeId, Version, label, short
from hoplite_ucx.protocol.messages import (
    Aborted,
    Bind,
    Completed,
    Consumed,
    Declined,
    Drop,
    Halted,
    Heartbeat,
    Join,
    Leave,
    Over,
    Place,
    Reduce,
    Result,
    Sealed,
    StreamFailed,
    Unfit,
)
from hoplite_ucx.tracing.records import Arguments, Mark, Recording, Span, Taken

__all__ = ["DirectoryRecorder"]

_ROUTINE_SECONDS = 1e-3
"""Heartbeats that took less than this are left out."""
_ROUTINE = {Tick, Heartbeat}
_ROUTINE_NAMES = {kind.__name__ for kind in _ROUTINE}
_EVENTS = {SessionLost, Probed}
_NOTED = 1024
"""Events that are noted before they become spans."""
_VERDICTS = {True: "answers at its port", False: "refuses at its port", None: "does not answer at its port"}


class DirectoryRecorder:
    def __init__(self) -> None:
        self._recording = Recording()
        self._noted: list[tuple[DirectoryEvent | None, list[DirectoryEffect], float, str, float]] = []
        self._on_message: dict[type, Callable[[NodeId, Any, float], None]] = {
            Reduce: self._asked_to_reduce,
            Completed: self._completed,
            Consumed: lambda node, message, now: self._end_placement(node, message.version.ref, message.into, now),
            StreamFailed: self._stream_failed,
            Halted: self._halted,
            Declined: self._declined,
            Unfit: self._unfit,
            Join: lambda node, _, now: self._mark(f"{label(node)} joins", now),
            Leave: lambda node, _, now: self._mark(f"{label(node)} leaves", now),
            Aborted: lambda node, message, now: self._mark(
                f"the put of {short(message.version.ref)} at {label(node)} was given up", now
            ),
        }
        self._on_sent: dict[type, Callable[[NodeId, Any, float], None]] = {
            Place: self._placed,
            Bind: self._bound,
            Drop: self._dropped,
            Over: lambda _, message, now: self._recording.end(("reduction", message.target), now),
            Result: lambda _, message, now: self._recording.end(("reduction", message.version.ref), now),
            Sealed: self._sealed,
        }

    def begin(self, placements: Iterable[Placed], now: float) -> None:
        """What is going on already is recorded from now on, unless it is."""
        self._record()
        for placed in placements:
            if self._recording.is_open(("placement", placed.receiver, placed.version.ref, placed.into)):
                continue
            details: Arguments = {"size": placed.size, "begun_before_the_trace": True}
            self._open_placement(
                placed.receiver, placed.sender, placed.version, placed.into, placed.number, details, now
            )

    def handled(self, event: DirectoryEvent, effects: list[DirectoryEffect], now: float, took: float) -> None:
        """Keeps nothing of messages that do not matter here: they may be large."""
        kind: type = type(event)
        matters = kind in _EVENTS
        if kind is FromNode:
            kind = type(event.message)  # type: ignore[union-attr]
            matters = kind in self._on_message
        on_sent = self._on_sent
        kept = [
            effect
            for effect in effects
            if (type(effect.message) in on_sent if type(effect) is SendNode else type(effect) is not CombineBytes)
        ]
        if matters or kept or (kind not in _ROUTINE and took) or took >= _ROUTINE_SECONDS:
            self._noted.append((event if matters else None, kept, now, kind.__name__, took))
            if len(self._noted) >= _NOTED:
                self._record()

    def _record(self) -> None:
        noted, self._noted = self._noted, []
        for event, effects, now, name, took in noted:
            if took and (name not in _ROUTINE_NAMES or took >= _ROUTINE_SECONDS):
                self._recording.add(Span("events", name, now, now + took))
            self._record_event(event, effects, now + took)

    def _record_event(self, event: DirectoryEvent | None, effects: list[DirectoryEffect], now: float) -> None:
        match event:
            case FromNode(node, message):
                note = self._on_message.get(type(message))
                if note is not None:
                    note(node, message, now)
            case SessionLost(node):
                self._mark(f"the session of {label(node)} is lost", now)
            case Probed(node, accepted):
                self._mark(f"{label(node)} {_VERDICTS[accepted]}", now)
        for effect in effects:
            match effect:
                case SendNode(node, sent):
                    note = self._on_sent.get(type(sent))
                    if note is not None:
                        note(node, sent, now)
                case Probe(node):
                    self._mark(f"{label(node)} is suspected", now)
                case Disconnect(node):
                    self._gone(node, now)

    def replaced(self, now: float) -> None:
        """The machine raised: its successor places everything anew."""
        self._record()
        self._recording.end_all(now, outcome="the machine raised")

    def end(self, now: float) -> None:
        """The process is gone."""
        self._record()
        self._recording.end_all(now, killed=True)

    def take(self, now: float) -> Taken:
        self._record()
        return self._recording.take(now)

    def _mark(self, text: str, now: float) -> None:
        self._recording.add(Mark("marks", text, now))

    # --- placements --------------------------------------------------------------------------------------------

    def _placed(self, node: NodeId, place: Place, now: float) -> None:
        details: Arguments = {"size": place.size, "granule": place.granule, "planned_rate": place.rate}
        self._open_placement(node, place.sender, place.version, place.into, place.number, details, now)

    def _open_placement(
        self,
        receiver: NodeId,
        sender: NodeId,
        version: Version,
        into: bytes,
        number: int,
        more: Arguments,
        now: float,
    ) -> None:
        details: Arguments = {
            "ref": version.ref.hex(),
            "number": number,
            "version": str(version),
            "sender": label(sender),
            "receiver": label(receiver),
            **more,
        }
        if into:
            details["into"] = into.hex()
        name = f"{short(version.ref)}: {label(sender)} → {label(receiver)}"
        span = Span("placements", name, now, now, details, (f"placement {number}",))
        self._recording.begin(("placement", receiver, version.ref, into), span, now)

    def _end_placement(
        self, node: NodeId, ref: bytes, into: bytes, now: float, **details: str | int | float | bool
    ) -> None:
        self._recording.end(("placement", node, ref, into), now, **details)

    def _completed(self, node: NodeId, completed: Completed, now: float) -> None:
        self._end_placement(node, completed.version.ref, NO_SLOT, now)
        self._recording.end(("slot", completed.version.ref), now)

    def _stream_failed(self, node: NodeId, failed: StreamFailed, now: float) -> None:
        details = {"fault": failed.fault.value, "watermark": failed.watermark}
        self._end_placement(node, failed.version.ref, failed.into, now, **details)

    def _halted(self, node: NodeId, halted: Halted, now: float) -> None:
        self._end_placement(node, halted.version.ref, halted.into, now, halted=True, watermark=halted.watermark)

    def _declined(self, node: NodeId, declined: Declined, now: float) -> None:
        self._end_placement(node, declined.version.ref, NO_SLOT, now, declined=True)

    def _dropped(self, node: NodeId, drop: Drop, now: float) -> None:
        self._end_placement(node, drop.version.ref, NO_SLOT, now, dropped=True)

    # --- reductions --------------------------------------------------------------------------------------------

    def _asked_to_reduce(self, _: NodeId, reduce: Reduce, now: float) -> None:
        key = ("reduction", reduce.target)
        if not self._recording.is_open(key):
            details: Arguments = {
                "ref": reduce.target.hex(),
                "op": reduce.op.value,
                "sources": len(reduce.sources),
                "count": reduce.count,
                "everywhere": reduce.everywhere,
            }
            name = f"{reduce.op.value} of {reduce.count} into {short(reduce.target)}"
            self._recording.begin(key, Span("reductions", name, now, now, details), now)

    def _bound(self, node: NodeId, bind: Bind, now: float) -> None:
        ref = bind.version.ref
        details: Arguments = {
            "ref": ref.hex(),
            "target": bind.target.hex(),
            "number": bind.number,
            "host": label(node),
            "parts": len(bind.parts),
            "size": bind.size,
            "start": bind.start,
        }
        name = f"slot of {short(bind.target)} at {label(node)}"
        span = Span("slots", name, now, now, details, (f"slot {bind.version} {label(node)}",))
        self._recording.begin(("slot", ref), span, now)

    def _unfit(self, _: NodeId, unfit: Unfit, now: float) -> None:
        self._recording.end(("slot", unfit.version.ref), now, failure=unfit.detail)

    def _sealed(self, _: NodeId, sealed: Sealed, now: float) -> None:
        """Told to every host that has it: the first one counts."""
        key = ("slot", sealed.version.ref)
        if self._recording.is_open(key):
            self._recording.end(key, now, sealed=True)

    # --- nodes -------------------------------------------------------------------------------------------------

    def _gone(self, node: NodeId, now: float) -> None:
        self._mark(f"{label(node)} is gone", now)
        for key in self._recording.open_keys():
            if key[0] == "placement" and key[1] == node:
                self._recording.end(key, now, receiver_gone=True)
