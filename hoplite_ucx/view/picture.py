"""One picture of what the directory and the agents say: hosts, links, operations with their streams, objects, failures.

No IO, no clock: answers go in with the moment at which they came, and viewers take what has changed. An *operation* is
what people think of as one thing: an object that spreads, or a reduction with everything that is made for it and of it.
Its streams come from two sides: the directory says at once who is placed behind whom, the agents say how far a stream
is, and afterwards exactly when it began and ended. Finished operations are kept, up to a bound, to be looked at again.

Moments are of the directory's clock. What agents say is moved there, by an offset that `source` measures.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TypeAlias

from hoplite_ucx.protocol.directory.world import Incident
from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.protocol.ids import label
from hoplite_ucx.protocol.watching import (
    Arrived,
    Assembling,
    Begun,
    Decided,
    Dropped,
    Known,
    Looked,
    MemberIs,
    Placed,
    ReductionIs,
    Stopped,
    Taken,
    Told,
)
from hoplite_ucx.runtime.objects.layouts import decode_layout
from hoplite_ucx.view.entities import SAMPLES, Host, Json, Operation, Stream

OPERATIONS_KEPT = 100
STREAMS_KEPT = 4000
"""Of all operations together; the oldest operations go first."""
FAILURES_KEPT = 100
AFTERMATH = 3.0
"""Seconds after a failure, in which what follows from it happens: its story is asked for once more."""
PUTS_KEPT = 10_000
"""Objects of which it is known who put them, whether or not anybody gets them."""
NAMES_KEPT = 10_000
GONE_KEPT = 64
"""Hosts that died or left, and are still shown."""
LINKS_SHOWN = 256
OBJECTS_SHOWN = 20
QUIET = 0.6
"""An operation without a stream for this long is over."""
AGAIN = 5.0
"""Unless a receiver has lost its sender: it may get another one for so long."""

Key: TypeAlias = tuple[str, str]
"""Of something that viewers show: its kind and its id."""


class Picture:
    def __init__(self) -> None:
        self.cluster: Json = {}
        self.now = 0.0
        self._told_until = 0.0  # what the directory did until then is known
        self._incarnation = 0
        self._hosts: OrderedDict[str, Host] = OrderedDict()
        self._operations: OrderedDict[str, Operation] = OrderedDict()
        self._current: dict[str, Operation] = {}  # the latest operation of a ref, a slot, a stripe
        self._links: dict[str, Json] = {}
        self._largest: dict[str, list[tuple[bytes, int]]] = {}
        self._known: dict[bytes, Known] = {}
        self._putters: OrderedDict[str, str] = OrderedDict()
        self._names: OrderedDict[str, str] = OrderedDict()
        self._failures: deque[Json] = deque(maxlen=FAILURES_KEPT)
        self._last_incident = float("-inf")
        self._stories: dict[bytes, tuple[float, list[tuple[float, str]]]] = {}  # as they were at a moment
        self._ids = itertools.count(1)
        self._viewers: list[Changes] = []

    # --- what viewers take -------------------------------------------------------------------------------------

    def join(self) -> Changes:
        changes = Changes(self)
        self._viewers.append(changes)
        return changes

    def leave(self, changes: Changes) -> None:
        self._viewers.remove(changes)

    def _changed(self, kind: str, what: str) -> None:
        for viewer in self._viewers:
            viewer.keys[kind, what] = None

    def keys(self) -> list[Key]:
        """Of everything that is shown."""
        return [
            ("cluster", ""),
            *(("host", each) for each in self._hosts),
            *(("op", each) for each in self._operations),
            *(("stream", f"{op.id}/{each}") for op in self._operations.values() for each in op.streams if not op.ended),
            ("links", ""),
            ("objects", ""),
            ("failures", ""),
        ]

    def show(self, key: Key) -> Json | list[Json] | None:
        """None if it is not there any more."""
        kind, what = key
        match kind:
            case "cluster":
                return self.cluster
            case "host":
                return host.show() if (host := self._hosts.get(what)) is not None else None
            case "op":
                return self._show_operation(found) if (found := self._operations.get(what)) is not None else None
            case "stream":
                of, _, number = what.partition("/")
                operation = self._operations.get(of)
                stream = operation.streams.get(number) if operation is not None else None
                return stream.show(of) if stream is not None else None
            case "links":
                ranked = sorted(self._links.values(), key=lambda link: (-link["rate"], -link["bytes"]))
                return ranked[:LINKS_SHOWN]
            case "objects":
                return self._objects()
            case "failures":
                return [{**each, "story": self._story(each)} for each in self._failures]
        raise KeyError(kind)

    def whole(self, operation: str) -> Json | None:
        """An operation with everything that is known of its course."""
        found = self._operations.get(operation)
        if found is None:
            return None
        streams = [stream.show(found.id, whole=True) for stream in found.streams.values()]
        return {**self._show_operation(found), "streams": streams, "slot_samples": found.slot_samples}

    def _show_operation(self, operation: Operation) -> Json:
        known = self._known.get(bytes.fromhex(operation.ref))
        return {
            "id": operation.id,
            "ref": operation.ref,
            "name": self._names.get(operation.ref, ""),
            "kind": operation.kind,
            "size": operation.size,
            "layout": _layout(known),
            "began": operation.began,
            "ended": operation.ended,
            "putter": operation.putter,
            "copies": operation.copies,
            "streams_count": len(operation.streams),
            "reduction": self._show_reduction(operation),
            "sealed": operation.sealed,
            "failure": operation.failure,
            "deaths": operation.deaths,
            "assembling": operation.assembling,
            "slots": operation.slots,
        }

    def _show_reduction(self, operation: Operation) -> Json | None:
        reduction = operation.reduction
        if reduction is None:
            return None
        names = {ref: self._names[ref] for ref in reduction["sources"] if ref in self._names}
        return {**reduction, "names": names}

    def _objects(self) -> list[Json]:
        sizes: dict[bytes, int] = {}
        for held in self._largest.values():
            sizes.update(held)
        largest = sorted(sizes, key=lambda ref: -sizes[ref])[:OBJECTS_SHOWN]
        return [self._object(ref, sizes[ref]) for ref in largest]

    def _object(self, ref: bytes, size: int) -> Json:
        known = self._known.get(ref)
        holders = [node for node, held in self._largest.items() if any(ref == each for each, _ in held)]
        return {
            "ref": ref.hex(),
            "name": self._names.get(ref.hex(), ""),
            "size": size,
            "layout": _layout(known),
            "state": known.state if known is not None else "",
            "copies": known.copies if known is not None else len(holders),
            "holders": holders,
            "creator": known.creator if known is not None else None,
            "age": known.age if known is not None else None,
        }

    def _story(self, failure: Json) -> list[Json]:
        ref = failure["ref"]
        _, told = self._stories.get(bytes.fromhex(ref), (0.0, [])) if ref else (0.0, [])
        return [{"at": at, "text": text} for at, text in told]

    def questions(self) -> tuple[list[bytes], list[bytes]]:
        """Of which objects the directory should be asked: for a description, and for their story."""
        sizes: dict[bytes, int] = {}
        for held in self._largest.values():
            sizes.update(held)
        described = sorted(sizes, key=lambda ref: -sizes[ref])[:OBJECTS_SHOWN]
        described += [bytes.fromhex(op.ref) for op in reversed(self._operations.values()) if op.ended is None][:20]
        lately = {bytes.fromhex(each["ref"]): each["at"] for each in self._failures if each["ref"]}
        untold = [ref for ref, at in reversed(lately.items()) if not self._is_told(ref, at)]
        return list(dict.fromkeys(described)), untold[:8]

    def _is_told(self, ref: bytes, failed: float) -> bool:
        """Whether the story of what failed is known, at first as it was then, and later with what came of it."""
        at, _ = self._stories.get(ref, (float("-inf"), []))
        return at >= failed + AFTERMATH or (at >= failed and self.now < failed + AFTERMATH)

    def running(self) -> bool:
        return any(operation.ended is None for operation in self._operations.values())

    def hosts(self) -> dict[str, str]:
        """The nodes that may be asked, and their addresses."""
        return {host.id: host.address for host in self._hosts.values() if host.state not in ("dead", "left")}

    # --- what the directory says -------------------------------------------------------------------------------

    def looked(self, looked: Looked) -> None:
        self.now = max(self.now, looked.now)
        self._told_until = looked.now
        if looked.incarnation != self._incarnation:
            self._incarnation = looked.incarnation
            self._last_incident = float("-inf")
        about = {
            "cluster": looked.cluster,
            "uptime": looked.uptime,
            "objects": looked.objects,
            "nodes": len(looked.members),
            "incarnation": looked.incarnation,
            "connected": True,
        }
        self._set_cluster(about)
        self._members(looked.members, looked.incidents)
        if looked.fresh:
            self._start_over(looked.told)
        for told in looked.told:
            self._tell(told)
        if len(self._known) > 10 * len(looked.known) + OPERATIONS_KEPT:
            self._known.clear()
        if len(self._stories) > 2 * FAILURES_KEPT:
            self._stories.clear()
        for known in looked.known:
            if self._known.get(known.ref) != known:
                self._known[known.ref] = known
                self._changed("objects", "")
                if (operation := self._current.get(known.ref.hex())) is not None:
                    self._changed("op", operation.id)
        for ref, story in looked.stories:
            self._stories[ref] = (looked.now, story)
            self._changed("failures", "")
        self._note(looked.incidents)
        self._settle()

    def directory_lost(self) -> None:
        if self.cluster:
            self._set_cluster({**self.cluster, "connected": False})

    def _set_cluster(self, about: Json) -> None:
        self.cluster = about
        self._changed("cluster", "")

    def _start_over(self, told: Iterable[Told]) -> None:
        """What runs is told again. What is not is over, and nobody has seen how; its agent may say so later."""
        running = {(label(each.node), each.ref, each.into) for each in told if isinstance(each, Placed)}
        for operation in list(self._operations.values()):
            if operation.ended is None and operation.pending():
                operation.reduction = None
            operation.assembling.clear()
            for stream in operation.open():
                if (stream.to, bytes.fromhex(stream.ref), bytes.fromhex(stream.into)) not in running:
                    fault = "" if stream.position >= stream.size else "not seen"
                    self._end(operation, stream, self.now, stream.position, fault)

    def _members(self, members: Iterable[MemberIs], incidents: Iterable[Incident]) -> None:
        there = {label(member.node): member for member in members}
        dead = {label(each.node): each for each in incidents if each.node is not None}
        for name, member in there.items():
            host = self._hosts.get(name)
            if host is None:
                host = self._hosts[name] = Host(name, member.host, member.address, "", member.rate, self.now)
            if host.state != member.state:
                host.state, host.since, host.why = member.state, self.now, ""
                self._changed("host", name)
        for name, host in self._hosts.items():
            if name not in there and host.state not in ("dead", "left"):
                incident = dead.get(name)
                host.state, host.since = ("dead", incident.at) if incident is not None else ("left", self.now)
                host.why = incident.detail if incident is not None else ""
                self._gone(host)
        gone = [name for name, host in self._hosts.items() if host.state in ("dead", "left")]
        for name in gone[: max(0, len(gone) - GONE_KEPT)]:
            del self._hosts[name]
            self._changed("host", name)

    def _gone(self, host: Host) -> None:
        self._changed("host", host.id)
        self._largest.pop(host.id, None)
        for key in [key for key, link in self._links.items() if host.id in (link["from"], link["to"])]:
            del self._links[key]
        self._changed("links", "")
        for operation in self._operations.values():
            if operation.ended is not None:
                continue
            involved = host.id in operation.copies or operation.putter == host.id
            for stream in operation.open():
                if host.id in (stream.to, stream.sender):
                    involved = True
                    if stream.to == host.id:
                        self._end(operation, stream, host.since, stream.position, "dead")
            if involved or host.id in operation.assembling:
                operation.assembling.pop(host.id, None)
                if host.state == "dead":
                    operation.deaths.append((host.since, host.id))
                self._touch(operation)

    def _note(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            if incident.at <= self._last_incident:
                continue
            self._last_incident = incident.at
            ref = incident.ref.hex() if incident.ref is not None else ""
            self._failures.append(
                {
                    "at": incident.at,
                    "what": incident.what,
                    "detail": incident.detail,
                    "remedy": incident.remedy,
                    "ref": ref,
                    "name": self._names.get(ref, ""),
                    "node": label(incident.node) if incident.node is not None else "",
                }
            )
            if incident.node is None and (operation := self._current.get(ref)) is not None:
                operation.failure = incident.detail
                self._finish(operation, incident.at)
            self._changed("failures", "")

    # --- operations --------------------------------------------------------------------------------------------

    def _tell(self, told: Told) -> None:
        ref, at = told.ref.hex(), told.at
        match told:
            case Begun(_, _, node, _):
                self._putters[ref] = label(node)
                if len(self._putters) > PUTS_KEPT:
                    self._putters.popitem(last=False)
                if (operation := self._current.get(ref)) is not None and operation.ended is None:
                    operation.putter = label(node)
            case Placed():
                self._placed(told)
            case Stopped(_, _, node, into, number, watermark, fault):
                operation = self._current.get(into.hex() or ref)
                for stream in operation.open() if operation is not None else ():
                    if stream.number == number and stream.to == label(node) and operation is not None:
                        self._end(operation, stream, at, watermark, fault or "halted")
            case Arrived(_, _, node):
                self._arrived(ref, label(node), at)
            case Taken(_, _, node, into):
                operation = self._current.get(into.hex())
                for stream in operation.open() if operation is not None else ():
                    if stream.ref == ref and stream.into == into.hex() and operation is not None:
                        self._end(operation, stream, at, stream.size, "")
            case Assembling(_, _, node, size, stripes):
                operation = self._operation(ref, size, at)
                operation.assembling[label(node)] = at
                for stripe in stripes:
                    self._current[stripe.hex()] = operation
                self._touch(operation, at)
            case Decided():
                operation = self._current.get(ref)
                if operation is not None and operation.ref == ref:
                    operation.sealed = at
                    self._touch(operation, at)
            case Dropped():
                operation = self._current.get(ref)
                if operation is not None and operation.ref == ref:
                    for stream in operation.open():
                        self._end(operation, stream, at, stream.position, "dropped")
                    self._finish(operation, at)
            case ReductionIs():
                self._reduction(told)

    def _operation(self, ref: str, size: int, at: float) -> Operation:
        """The one that goes on for the ref, or a new one."""
        found = self._current.get(ref)
        if found is None or found.ended is not None:
            copies = dict(found.copies) if found is not None and found.ref == ref else {}
            found = Operation(f"o{next(self._ids)}", ref, size, at, at, self._putters.get(ref, ""), copies=copies)
            self._operations[found.id] = self._current[ref] = found
            self._changed("op", found.id)
            self._forget_oldest()
        found.size = max(found.size, size)
        return found

    def _placed(self, told: Placed) -> None:
        ref, into = told.ref.hex(), told.into.hex()
        current = self._current.get(into or ref)
        if current is not None and current.placement(told.number) is not None:
            return  # a fresh picture had it, or its agent was faster
        operation = self._operation_of(ref, into, told.size, told.at)
        to, sender = label(told.node), label(told.sender)
        for stream in operation.open():
            if (stream.to, stream.ref, stream.into) == (to, ref, into):
                if stream.number > told.number:
                    return  # a fresh picture had what came after it
                self._end(operation, stream, told.at, stream.position, "placed again")
        self._add(operation, Stream("", ref, to, sender, into, told.size, told.at, told.number))

    def _operation_of(self, ref: str, into: str, size: int, at: float) -> Operation:
        """A stream into a slot belongs to the slot's reduction, and so does one of a slot's output or a stripe."""
        operation = self._current.get(into) if into else self._current.get(ref)
        if operation is not None and operation.ended is None:
            return operation
        if operation is not None and operation.ref != ref and into:
            return operation
        return self._operation(into or ref, size, at)

    def _add(self, operation: Operation, stream: Stream) -> None:
        stream.id = f"s{next(self._ids)}"
        earlier = [
            each
            for each in operation.streams.values()
            if (each.to, each.ref, each.into) == (stream.to, stream.ref, stream.into)
        ]
        if earlier:
            stream.offset = stream.position = max(each.position for each in earlier)
        operation.streams[stream.id] = stream
        operation.began = min(operation.began, stream.begun)
        self._changed("stream", f"{operation.id}/{stream.id}")
        self._touch(operation, stream.begun)

    def _end(self, operation: Operation, stream: Stream, at: float, position: int, fault: str) -> None:
        stream.ended = max(at, stream.begun)
        stream.position = max(stream.position, position)
        stream.fault = fault
        self._changed("stream", f"{operation.id}/{stream.id}")
        self._touch(operation, at)

    def _arrived(self, ref: str, node: str, at: float) -> None:
        operation = self._current.get(ref)
        if operation is None:
            return
        for stream in operation.open():
            if stream.to == node and stream.ref == ref and not stream.into:
                self._end(operation, stream, at, stream.size, "")
        if operation.ref == ref:
            operation.copies.setdefault(node, at)
            operation.assembling.pop(node, None)
            self._touch(operation, at)

    def _reduction(self, told: ReductionIs) -> None:
        ref = told.ref.hex()
        operation = self._operation(ref, told.size, told.at)
        operation.size = told.size
        operation.reduction = {
            "op": told.op,
            "count": told.count,
            "sources": [each.hex() for each in told.sources],
            "ready": [each.hex() for each in told.ready],
            "homes": [label(node) if node else "" for node in told.homes],
            "chosen": [each.hex() for each in told.chosen],
            "requester": label(told.requester),
            "everywhere": told.everywhere,
            "slot_count": told.slot_count,
            "source_count": told.source_count,
            "slots": [
                {
                    "ref": slot.ref.hex(),
                    "host": label(slot.host) if slot.host is not None else "",
                    "parts": [part.hex() for part in slot.parts],
                    "taken": [part.hex() for part in slot.taken],
                    "bound": slot.bound,
                }
                for slot in told.slots
            ],
        }
        operation.failure = told.failure
        for slot in told.slots:
            self._adopt(operation, slot.ref.hex())
        self._touch(operation, told.at)

    def _adopt(self, operation: Operation, ref: str) -> None:
        """What was taken for an operation of its own belongs to another: its streams move there."""
        other = self._current.get(ref)
        self._current[ref] = operation
        if other is None or other is operation or other.ref != ref:
            return
        for stream in other.streams.values():
            operation.streams[stream.id] = stream
            operation.began = min(operation.began, stream.begun)
            self._changed("stream", f"{operation.id}/{stream.id}")
        self._forget(other)

    def _touch(self, operation: Operation, at: float | None = None) -> None:
        operation.last = max(operation.last, self.now if at is None else at)
        self._changed("op", operation.id)

    def _finish(self, operation: Operation, at: float) -> None:
        if operation.ended is None:
            operation.ended = max(at, operation.began)
            self._changed("op", operation.id)

    def _settle(self) -> None:
        """What has been quiet for a while is over. By the directory's answers, which may be behind those of agents: it
        says whether a stream that broke has a successor."""
        for operation in list(self._operations.values()):
            if operation.ended is not None or operation.open() or operation.pending() or operation.assembling:
                continue
            if self._told_until - operation.last < (AGAIN if operation.has_lost_sender() else QUIET):
                continue
            self._finish(operation, operation.last)

    def _forget(self, operation: Operation) -> None:
        self._operations.pop(operation.id, None)
        for ref in [ref for ref, current in self._current.items() if current is operation]:
            del self._current[ref]
        self._changed("op", operation.id)

    def _forget_oldest(self) -> None:
        while len(self._operations) > OPERATIONS_KEPT or self._stream_count() > STREAMS_KEPT:
            oldest = next((op for op in self._operations.values() if op.ended is not None), None)
            if oldest is None:
                return
            self._forget(oldest)

    def _stream_count(self) -> int:
        return sum(len(operation.streams) for operation in self._operations.values())

    # --- what agents say ---------------------------------------------------------------------------------------

    def reported(self, node: str, report: Json, offset: float, delay: float) -> None:
        """`offset`: what to add to a moment of the agent to have one of the directory; `delay`: how exact that is."""
        host = self._hosts.get(node)
        if host is None:
            return
        at = report["now"] + offset
        self.now = max(self.now, at)
        for name in report.get("names", ()):
            self._name(*name)
        for stream in report["history"]:
            self._history(node, stream, offset)
        for stream in report["streams"]:
            self._position(stream, at)
        for slot in report["slots"]:
            self._slot(slot, at)
        shown = {key: report[key] for key in ("memory", "objects", "workers", "calls")}
        host.report = {**host.report, **shown, "clock": {"offset": offset, "delay": delay}}
        if "links" in report:
            host.report["gpus"] = report["gpu"].get("devices", [])
            self._note_links(host, report["links"], at)
            largest = [(bytes(ref), size) for ref, size in report["largest"]]
            if self._largest.get(node) != largest:
                self._largest[node] = largest
                self._changed("objects", "")
        self._changed("host", node)
        self._settle()

    def silent(self, node: str) -> None:
        """The agent does not answer: what it moved is not known."""
        host = self._hosts.get(node)
        if host is not None and host.report:
            host.report = {}
            self._changed("host", node)

    def _name(self, ref: bytes, name: str) -> None:
        known = bytes(ref).hex()
        if self._names.get(known) != name:
            self._names[known] = name
            if len(self._names) > NAMES_KEPT:
                self._names.popitem(last=False)
            self._changed("objects", "")
            if (operation := self._current.get(known)) is not None:
                self._changed("op", operation.id)

    def _position(self, stream: Json, at: float) -> None:
        operation = self._current.get(stream["into"] or stream["ref"])
        known = operation.placement(stream["number"]) if operation is not None else None
        if operation is None or known is None or known.ended is not None:
            return
        if known.sample(at, stream["position"]):
            self._changed("stream", f"{operation.id}/{known.id}")
            operation.last = max(operation.last, at)

    def _slot(self, slot: Json, at: float) -> None:
        operation = self._current.get(slot["ref"])
        if operation is None or operation.ended is not None:
            return
        operation.slots[slot["ref"]] = {"position": slot["position"], "size": slot["size"]}
        samples = operation.slot_samples.setdefault(slot["ref"], [])
        samples.append((at, slot["position"]))
        if len(samples) > SAMPLES:
            del samples[1:-1:2]
        self._changed("op", operation.id)

    def _history(self, node: str, stream: Json, offset: float) -> None:
        """Exactly when a stream began and ended: of a known one, or of one that was over before anybody looked."""
        opened = stream["opened"] + offset
        first = stream["first_byte"] + offset if stream["first_byte"] is not None else None
        closed = stream["closed"] + offset if stream["closed"] is not None else None
        operation = self._current.get(stream["into"] or stream["ref"])
        known = operation.placement(stream["number"]) if operation is not None else None
        if known is None or operation is None:
            if closed is None:
                return  # the directory tells of it
            operation = self._operation_at(stream, opened, closed)
            form = (stream["into"], stream["size"], opened, stream["number"])
            known = Stream("", stream["ref"], node, stream["sender"], *form)
            self._add(operation, known)
        if known.told_by_agent:
            return
        known.begun, known.first, known.offset = opened, first, stream["offset"]
        if closed is not None:
            known.told_by_agent = True
            position = stream["watermark"] if stream["watermark"] is not None else known.position
            fault = known.fault or (stream["fault"] or ("" if position >= known.size else "ended early"))
            self._end(operation, known, closed, position, "" if position >= known.size else fault)
            known.position = position
            if position >= known.size and not known.into and operation.ref == known.ref:
                operation.copies.setdefault(node, closed)
            if operation.ended is not None:
                operation.ended = max(operation.ended, closed)

    def _operation_at(self, stream: Json, opened: float, closed: float) -> Operation:
        """Of a stream that was over before anybody looked: it belongs with those of its ref at about that time."""
        ref = stream["into"] or stream["ref"]
        current = self._current.get(ref)
        if current is not None and (current.ended is None or opened - current.ended < QUIET):
            return current
        operation = self._operation(ref, stream["size"], opened)
        operation.last = closed
        return operation

    def _note_links(self, host: Host, links: Iterable[Json], at: float) -> None:
        kept = {}
        for link in links:
            receiving = link["side"] == "receiving"
            peer = self._node_of(link["peer"])
            count = host.counted.get((link["peer"], link["side"]))
            rate = 0.0
            if count is not None and at > count[0]:
                rate = max(0.0, (link["bytes"] - count[1]) / (at - count[0]))
            kept[link["peer"], link["side"]] = (at, link["bytes"], rate)
            key = f"{peer}→{host.id}" if receiving else f"{host.id}→{peer}"
            if receiving or key not in self._links:
                self._links[key] = {
                    "from": peer if receiving else host.id,
                    "to": host.id if receiving else peer,
                    "transport": link["transport"],
                    "lanes": link["lanes"],
                    "bytes": link["bytes"],
                    "rate": rate,
                    "reason": link["reason"],
                }
        host.counted = kept
        sides = {"receiving": 0.0, "sending": 0.0}
        for (_, side), (_, _, rate) in kept.items():
            sides[side] = sides.get(side, 0.0) + rate
        host.report["in"], host.report["out"] = sides["receiving"], sides["sending"]
        self._changed("links", "")

    def _node_of(self, peer: str) -> str:
        """Links know an identity; its latest life is meant."""
        lives = [name for name in self._hosts if name.partition(".")[0] == peer]
        return lives[-1] if lives else peer


class Changes:
    """What one viewer has not been shown yet: keys only, so that a viewer that does not read costs nothing."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.keys: dict[Key, None] = dict.fromkeys(picture.keys())
        self._first = True

    def take(self) -> Json | None:
        """Everything that changed, as it is now; None if nothing did."""
        if not self.keys:
            return None
        keys, self.keys = self.keys, {}
        message: Json = {"now": self._picture.now}
        if self._first:
            self._first, message["first"] = False, True
        for key in keys:
            kind, what = key
            shown = self._picture.show(key)
            if kind in ("host", "op", "stream"):
                message.setdefault(f"{kind}s", {})[what.rpartition("/")[2]] = shown
            else:
                message[kind] = shown
        return message


def _layout(known: Known | None) -> str:
    if known is None or not known.layout or known.size is None:
        return ""
    try:
        return str(decode_layout(known.layout, known.size))
    except HopliteError:  # of a build that has others
        return ""
