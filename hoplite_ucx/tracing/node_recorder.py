"""What a node did, from the events and effects of its machine: calls, streams, slots, and waits for memory.

Simulated and live nodes are recorded alike. The machine is asked what an effect does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hoplite_ucx.protocol import NodeState
from hoplite_ucx.protocol.events import (
    CallFailed,
    CancelCall,
    Combine,
    Combined,
    CombineFailed,
    ContributorsAre,
    ContributorsCall,
    DeleteCall,
    DeleteDone,
    DescribeCall,
    DescriptionsAre,
    DirectoryConnected,
    DirectoryLost,
    Duplicate,
    Free,
    FromDirectory,
    FromPeer,
    GetCall,
    Got,
    NodeEffect,
    NodeEvent,
    PeerLost,
    PutCall,
    PutDone,
    Receive,
    ReceiveClosed,
    ReduceCall,
    ReduceDone,
    SendDirectory,
    Serve,
    ServeClosed,
    Tick,
    UserCall,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.ids import NO_SLOT, StreamId, label, short
from hoplite_ucx.protocol.messages import Alive, Declined, Place, StreamFailed, StreamRefused, StreamStatus
from hoplite_ucx.tracing.records import Arguments, Mark, Recording, Span, Taken

__all__ = ["NodeRecorder"]

_ROUTINE_SECONDS = 1e-3
"""Heartbeats that took less than this are left out."""

_CALLS = (PutCall, GetCall, WaitCall, DeleteCall, ReduceCall, ContributorsCall, DescribeCall)
_ANSWERS = (PutDone, Got, Waited, DeleteDone, ReduceDone, ContributorsAre, DescriptionsAre)


class NodeRecorder:
    def __init__(self, machine: Callable[[], NodeState], first_byte: Callable[[StreamId], float | None]) -> None:
        """`machine` gives the one that runs now; `first_byte` tells when that of a stream which just ended came, if
        the shell knows."""
        self._machine = machine
        self._first_byte = first_byte
        self._recording = Recording()
        self._on_event: dict[type, Callable[[Any, float], None]] = {
            **dict.fromkeys(_CALLS, self._asked),
            CancelCall: self._cancelled,
            ReceiveClosed: self._received,
            ServeClosed: lambda closed, now: self._recording.end(("serve", closed.stream), now),
            Combined: lambda combined, now: self._recording.end(("slot", combined.segment), now),
            CombineFailed: self._combine_failed,
            FromDirectory: self._from_directory,
            FromPeer: self._from_peer,
            PeerLost: lambda lost, now: self._mark(f"lost the session with {label(lost.peer)}", now),
            DirectoryLost: lambda _, now: self._mark("lost the directory", now),
            DirectoryConnected: lambda _, now: self._mark("reached the directory", now),
        }
        self._on_effect: dict[type, Callable[[Any, float], None]] = {
            **dict.fromkeys(_ANSWERS, self._answered),
            CallFailed: self._failed,
            Receive: self._receive,
            Serve: self._serve,
            Combine: self._combine,
            Duplicate: self._duplicate,
            Free: lambda freed, now: self._recording.end(("slot", freed.segment), now, freed=True),
            SendDirectory: self._to_directory,
        }

    def begin(self, calls: list[UserCall], now: float) -> None:
        """What is going on already is recorded from now on."""
        for call in calls:
            self._asked(call, now)
        for incoming in self._machine().incoming():
            self._open_receiving(incoming.stream, now, incoming.position, begun_before=True)
        for stream in self._machine().served_streams():
            self._open_serving(stream, now, begun_before=True)

    def handled(self, event: NodeEvent, effects: list[NodeEffect], now: float, took: float) -> None:
        if took and (took >= _ROUTINE_SECONDS or not _is_routine(event)):
            self._recording.add(Span("events", _name(event), now, now + took))
        note = self._on_event.get(type(event))
        if note is not None:
            note(event, now + took)
        for effect in effects:
            note = self._on_effect.get(type(effect))
            if note is not None:
                note(effect, now + took)

    def replaced(self, now: float) -> None:
        """The machine raised: its calls are asked again, or have failed."""
        for key in self._recording.open_keys():
            if key[0] in ("call", "room"):
                self._recording.end(key, now, outcome="the machine raised")

    def end(self, now: float) -> None:
        """The process is gone."""
        self._recording.end_all(now, killed=True)

    def take(self, now: float) -> Taken:
        return self._recording.take(now)

    def _mark(self, text: str, now: float, **details: str | int | float | bool) -> None:
        self._recording.add(Mark("marks", text, now, details))

    # --- calls -------------------------------------------------------------------------------------------------

    def _asked(self, call: UserCall, now: float) -> None:
        name, details = _asked_for(call)
        self._recording.begin(("call", call.call), Span("calls", name, now, now, details), now)

    def _answered(self, answer: Any, now: float) -> None:
        details = {"bytes": answer.size} if isinstance(answer, Got) else {}
        self._recording.end(("call", answer.call), now, **details)

    def _failed(self, failed: CallFailed, now: float) -> None:
        failure = failed.failure
        self._recording.end(("call", failed.call), now, failure=failure.kind.value, detail=failure.detail)

    def _cancelled(self, cancel: CancelCall, now: float) -> None:
        self._recording.end(("call", cancel.call), now, cancelled=True)

    # --- streams -----------------------------------------------------------------------------------------------

    def _from_directory(self, event: FromDirectory, now: float) -> None:
        """A placement waits for memory, unless its stream is opened with it: then this ends where it began."""
        message = event.message
        if isinstance(message, Place):
            name = f"{short(message.version.ref)} waits for memory or an earlier stream"
            span = Span("waits", name, now, now, {"ref": message.version.ref.hex(), "number": message.number})
            self._recording.begin(("room", message.version.ref, message.into), span, now)

    def _receive(self, receive: Receive, now: float) -> None:
        incoming = self._machine().incoming_stream(receive.stream)
        if incoming is not None:
            self._recording.end_wait(("room", incoming.ref, incoming.into), now)
            self._open_receiving(receive.stream, now, receive.offset)

    def _open_receiving(self, stream: StreamId, now: float, offset: int, *, begun_before: bool = False) -> None:
        incoming = self._machine().incoming_stream(stream)
        if incoming is None:
            return
        details: Arguments = {
            "ref": incoming.ref.hex(),
            "from": label(incoming.sender),
            "stream": str(stream),
            "offset": offset,
            "size": incoming.size,
        }
        if incoming.into:
            details["into"] = incoming.into.hex()
        if begun_before:
            details["begun_before_the_trace"] = True
        name = f"{short(incoming.ref)} from {label(incoming.sender)}"
        arrows = (f"stream {stream}",), (f"placement {incoming.number}",)
        self._recording.begin(("receive", stream), Span("receiving", name, now, now, details, *arrows), now)

    def _received(self, closed: ReceiveClosed, now: float) -> None:
        key = ("receive", closed.stream)
        first, began = self._first_byte(closed.stream), self._recording.began(key)
        details: Arguments = {"watermark": closed.watermark}
        if closed.fault is not None:
            details["fault"] = closed.fault.value
        if first is not None and began is not None:
            details["first_byte_after_seconds"] = max(0.0, first - began)
        self._recording.end(key, now, **details)

    def _serve(self, serve: Serve, now: float) -> None:
        self._open_serving(serve.stream, now)

    def _open_serving(self, stream: StreamId, now: float, *, begun_before: bool = False) -> None:
        request = self._machine().request_of(stream)
        if request is None:
            return
        ref, receiver = request.version.ref, label(stream.receiver)
        details: Arguments = {"ref": ref.hex(), "to": receiver, "stream": str(stream), "offset": request.offset}
        if begun_before:
            details["begun_before_the_trace"] = True
        span = Span("sending", f"{short(ref)} to {receiver}", now, now, details, (), (f"stream {stream}",))
        self._recording.begin(("serve", stream), span, now)

    def _from_peer(self, event: FromPeer, now: float) -> None:
        match event.message:
            case StreamStatus(stream, at, queued):
                what = "waits its turn" if queued else "has no bytes to send"
                self._mark(f"{label(event.peer)} {what}", now, stream=str(stream), at=at)
            case StreamRefused(stream, fault):
                self._mark(f"{label(event.peer)} refused a stream", now, stream=str(stream), fault=fault.value)

    def _to_directory(self, effect: SendDirectory, now: float) -> None:
        match effect.message:
            case Declined(version, number):
                key = ("room", version.ref, NO_SLOT)
                self._recording.end(key, now, declined=True)
                self._mark(f"no memory for {short(version.ref)}", now, ref=version.ref.hex(), number=number)
            case StreamFailed(version, _, watermark, sender, fault):
                text = f"the stream from {label(sender)} failed"
                self._mark(text, now, ref=version.ref.hex(), fault=fault.value, watermark=watermark)

    # --- slots -------------------------------------------------------------------------------------------------

    def _combine(self, combine: Combine, now: float) -> None:
        local = sum(part is not None for part in combine.parts)
        details: Arguments = {
            "op": combine.op.value,
            "size": combine.size,
            "start": combine.start,
            "local_parts": local,
            "streamed_parts": len(combine.parts) - local,
        }
        self._open_slot(combine.segment, f"combines {len(combine.parts)} parts of", details, now)

    def _duplicate(self, duplicate: Duplicate, now: float) -> None:
        self._open_slot(duplicate.segment, "copies", {}, now)

    def _open_slot(self, segment: int, what: str, details: Arguments, now: float) -> None:
        version = self._machine().version_in(segment)
        ref = version.ref if version is not None else b""
        name = f"{what} {short(ref)}"
        arrows = () if version is None else (f"slot {version} {label(self._machine().node)}",)
        span = Span("slots", name, now, now, {"ref": ref.hex(), **details}, (), arrows)
        self._recording.begin(("slot", segment), span, now)

    def _combine_failed(self, failed: CombineFailed, now: float) -> None:
        self._recording.end(("slot", failed.what), now, failure=failed.failure.detail)


def _asked_for(call: UserCall) -> tuple[str, Arguments]:
    match call:
        case PutCall(_, ref, size):
            return f"put {short(ref)}", {"ref": ref.hex(), "size": size}
        case GetCall(_, ref):
            return f"get {short(ref)}", {"ref": ref.hex()}
        case WaitCall(_, refs, count):
            return f"wait for {count} of {len(refs)}", {"first_ref": refs[0].hex() if refs else ""}
        case DeleteCall(_, refs):
            return f"delete {len(refs)}", {"first_ref": refs[0].hex() if refs else ""}
        case ReduceCall(_, target, sources, op, count):
            details: Arguments = {"ref": target.hex(), "op": op.value, "sources": len(sources), "count": count}
            return f"reduce into {short(target)}", details
        case ContributorsCall(_, ref):
            return f"contributors of {short(ref)}", {"ref": ref.hex()}
        case DescribeCall(_, refs):
            return f"info of {len(refs)}", {}


def _name(event: NodeEvent) -> str:
    kind = type(event).__name__
    return f"{kind} {type(event.message).__name__}" if isinstance(event, FromDirectory | FromPeer) else kind


def _is_routine(event: NodeEvent) -> bool:
    return isinstance(event, Tick) or (isinstance(event, FromDirectory) and isinstance(event.message, Alive))
