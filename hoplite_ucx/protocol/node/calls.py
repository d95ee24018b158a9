"""The open calls of this node's users: puts, gets, waits, deletes, each with its deadline.

Every call ends in exactly one answer, a value or a typed failure, unless its caller gave up. Requests that the
directory has not answered are announced again in a new session, under the same call, so that nothing is done twice.

When the time for a get, a wait or a question is over, the node asks the directory once more (`Poll`), and the call ends
with that answer: everything asked before is answered before it. So no call reports an existing object as missing,
however short its time was. A get that asks `once` does that at its start. The directory has `suspicion` to answer;
without an answer the call says that the directory is silent. Requests (put, delete, reduce) have at least that long.
"""

from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    ContributorsAre,
    ContributorsCall,
    DeleteCall,
    DeleteDone,
    DescribeCall,
    DescriptionsAre,
    Fill,
    GetCall,
    PutCall,
    PutDone,
    PutReady,
    ReduceCall,
    ReduceDone,
    WaitCall,
    Waited,
)
from hoplite_ucx.protocol.ids import REF_BYTES, CallId, StreamId, Version, label
from hoplite_ucx.protocol.messages import (
    MAX_DESCRIBED,
    MAX_LAYOUT,
    Aborted,
    Ask,
    Completed,
    Contributors,
    Copy,
    Delete,
    Describe,
    Described,
    ObjectState,
    Poll,
    Polled,
    Put,
    PutAccepted,
    Reduce,
    Tombstone,
    Unhandled,
    Unwatch,
    Watch,
)
from hoplite_ucx.protocol.node.context import Context, OpenPoll
from hoplite_ucx.protocol.node.fetching import Fetching, store_full
from hoplite_ucx.protocol.node.memory import Holding, Memory, Phase, Request
from hoplite_ucx.protocol.node.serving import Serving

_TOMBSTONES_KEPT = 100_000
_NOT_THERE = (ObjectState.UNKNOWN, ObjectState.COMING)
_MOMENT = 0.001


@dataclass(slots=True, eq=False)
class PendingPut:
    call: PutCall
    request: Request | None = None
    holding: Holding | None = None
    accepted: PutAccepted | None = None
    answered: bool = False
    """The user has an answer already, a failure; only the writing into the segment is still waited for."""
    told: bool = False
    """The user knows that it is done, and the directory is yet to name it."""
    patience: float | None = None
    """What was left of its time when the user began to write. That clock stands still meanwhile: to fill an object may
    take as long as it likes, and ends with the writer."""


@dataclass(slots=True, eq=False)
class PendingWait:
    call: WaitCall
    ready: dict[bytes, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingDelete:
    call: DeleteCall
    began: float


@dataclass(frozen=True, slots=True)
class Deleted:
    """Refs that were deleted from here, under which directory, and until when that is remembered. Only the names are
    kept, and those of one call together: there may be very many."""

    refs: tuple[bytes, ...]
    incarnation: int
    until: float


@dataclass(frozen=True, slots=True)
class Announcement:
    """Everything users asked for that the directory may not have heard of, or may have forgotten."""

    producing: tuple[Copy, ...]
    puts: tuple[Put, ...]
    watches: tuple[bytes, ...]
    deletes: tuple[Delete, ...]
    reduces: tuple[Reduce, ...]
    asks: tuple[Ask, ...]
    questions: tuple[Describe, ...]
    submitted: tuple[Reduce, ...]
    tombstones: tuple[Tombstone, ...]


class Calls:
    def __init__(self, context: Context, memory: Memory, serving: Serving, fetching: Fetching) -> None:
        self._context = context
        self._memory = memory
        self._serving = serving
        self._fetching = fetching
        self.puts: dict[CallId, PendingPut] = {}
        self.waits: dict[CallId, PendingWait] = {}
        self.deletes: dict[CallId, PendingDelete] = {}
        self.reduces: dict[CallId, ReduceCall] = {}
        self.asks: dict[CallId, ContributorsCall] = {}
        self.questions: dict[CallId, DescribeCall] = {}
        self._watchers: dict[bytes, dict[CallId, None]] = {}
        self.submitted: dict[bytes, Reduce] = {}
        """Reductions asked for from here that are not known to be decided, by target."""
        self._deleted: deque[Deleted] = deque()  # the oldest first
        self._tombstones = 0  # how many refs those are

    # --- put ---------------------------------------------------------------------------------------------------

    def put(self, call: PutCall) -> None:
        settings = self._context.settings
        if problem := _bad_ref(call.ref):
            self._refuse(call.call, problem, call.ref)
        elif call.size < 0 or call.size > settings.max_object:
            self._refuse(call.call, f"size is {call.size}, and must be from 0 to {settings.max_object}", call.ref)
        elif call.data is not None and (len(call.data) != call.size or call.size > settings.inline_limit):
            self._refuse(call.call, f"a put of {call.size} bytes came with {len(call.data)} bytes", call.ref)
        elif len(call.layout) > MAX_LAYOUT:
            self._refuse(call.call, f"a layout of {len(call.layout)} bytes is over the limit of {MAX_LAYOUT}", call.ref)
        else:
            put = PendingPut(call)
            self._set_request_deadline(call.call, call.deadline)
            self._begin_put(put)

    def _begin_put(self, put: PendingPut) -> None:
        self.puts[put.call.call] = put
        put.request = Request(
            put.call.size, patient=True, granted=lambda: self._put_granted(put), denied=lambda: self._put_denied(put)
        )
        self._memory.request(put.request)

    def _put_granted(self, put: PendingPut) -> None:
        call = put.call
        put.request = None
        put.holding = self._memory.allocate(call.ref, call.size, call.layout, Phase.PRODUCING)
        if call.data is not None:
            self._context.emit(Fill(put.holding.segment, call.data))
            put.holding.watermark = call.size
            if call.fresh and not put.told and self._context.hears_directory():
                # It is put when this node has it: no answer of the directory could change that. But if
                # no other node can learn of it, its user must know.
                put.told = True
                self._context.answer(PutDone(call.call, None, existing=False))
        else:
            put.holding.writing = True
            if call.deadline is not None:
                put.patience = max(0.0, call.deadline - self._context.now)
                self._context.timers.cancel(("call", call.call))
            self._context.emit(PutReady(call.call, put.holding.segment))
        self._context.tell_directory(_offer(put))

    def _put_denied(self, put: PendingPut) -> None:
        del self.puts[put.call.call]
        if put.told:
            return
        self._context.answer(CallFailed(put.call.call, store_full(put.call.ref, put.call.size, self._memory)))

    def put_accepted(self, accepted: PutAccepted) -> None:
        put = self.puts.get(accepted.call)
        if put is None or put.answered or put.holding is None:
            if not accepted.existing and self._memory.get(accepted.version) is None:
                self._context.tell_directory(Aborted(accepted.version))
            return
        if put.accepted is not None:
            return
        put.accepted = accepted
        if not accepted.existing:
            self._memory.name(put.holding, accepted.version)
            self._serving.arrived(put.holding)
        self._finish_put(put)

    def put_finished(self, call: CallId) -> None:
        put = self.puts.get(call)
        if put is None or put.holding is None:
            return
        put.holding.writing = False
        put.holding.watermark = put.holding.size
        if put.answered:
            del self.puts[call]
            self._memory.release(put.holding)
            return
        self._finish_put(put)
        if call in self.puts and put.patience is not None:
            self._set_request_deadline(call, self._context.now + put.patience)

    def put_refused(self, call: CallId, failure: Failure) -> None:
        put = self.puts.get(call)
        if put is not None and not put.answered:
            self._fail_put(put, failure)

    def _finish_put(self, put: PendingPut) -> None:
        """Answer once the directory knows the object and every byte is written."""
        holding, accepted = put.holding, put.accepted
        assert holding is not None
        if accepted is None or holding.writing:
            return
        del self.puts[put.call.call]
        if accepted.existing:
            self._memory.doom(holding)
        else:
            holding.phase = Phase.COMPLETE
            if put.call.data is None:
                self._context.tell_directory(Completed(accepted.version))
            self._fetching.put_here(holding)
            self._memory.review()
        if not put.told:
            self._context.answer(PutDone(put.call.call, accepted.version, accepted.existing))

    def _fail_put(self, put: PendingPut, failure: Failure | None) -> None:
        """End a put early; its segment stays until its writer is known to have stopped."""
        call, holding = put.call.call, put.holding
        put.answered = True
        if failure is not None and not put.told:
            self._context.answer(CallFailed(call, failure))
        if put.request is not None:
            self._memory.withdraw(put.request)
        if holding is None or not holding.writing:
            del self.puts[call]
        if holding is not None:
            if holding.version is not None:
                self._context.tell_directory(Aborted(holding.version))
            self._serving.gone(holding)
            self._memory.doom(holding)

    # --- get ---------------------------------------------------------------------------------------------------

    def get(self, call: GetCall) -> None:
        if problem := _bad_ref(call.ref):
            self._refuse(call.call, problem, call.ref)
            return
        holding = self._memory.complete_copy(call.ref)
        if holding is not None:
            self._memory.give_out(holding, call.call)
            return
        self._fetching.get(call.ref, call.call)
        if call.once:
            self._poll(call.call, OpenPoll(call.ref, call.deadline))
        else:
            self._set_deadline(call.call, call.deadline)

    # --- wait --------------------------------------------------------------------------------------------------

    def wait(self, call: WaitCall) -> None:
        refs = dict.fromkeys(call.refs)
        if problem := next(filter(None, map(_bad_ref, refs)), None):
            self._refuse(call.call, problem, None)
        elif len(refs) != len(call.refs):
            self._refuse(call.call, "a ref is listed more than once", None)
        elif not 1 <= call.count <= len(refs) <= self._context.settings.max_refs:
            self._refuse(
                call.call, f"count is {call.count}, and must be from 1 to the number of refs, {len(refs)}", None
            )
        else:
            wait = self.waits[call.call] = PendingWait(call)
            unknown = []
            for ref in refs:
                if self._memory.complete_copy(ref) is not None:
                    wait.ready[ref] = None
                elif ref in self._watchers:
                    self._watchers[ref][call.call] = None
                else:
                    self._watchers[ref] = {call.call: None}
                    unknown.append(ref)
            if self._satisfied(wait):
                return
            if unknown:
                self._context.tell_directory(Watch(tuple(unknown)))
            self._set_deadline(call.call, call.deadline)

    def ready(self, refs: tuple[bytes, ...]) -> None:
        """All of them are ready: a wait for one reports the others too."""
        touched = {}
        for ref in refs:
            for call in self._watchers.pop(ref, ()):
                self.waits[call].ready[ref] = None
                touched[call] = self.waits[call]
        for wait in touched.values():
            self._satisfied(wait)

    def _satisfied(self, wait: PendingWait) -> bool:
        if len(wait.ready) < wait.call.count:
            return False
        self._end_wait(wait)
        return True

    def _end_wait(self, wait: PendingWait) -> None:
        call = wait.call
        self._forget_wait(wait)
        ready = tuple(ref for ref in call.refs if ref in wait.ready)
        rest = tuple(ref for ref in call.refs if ref not in wait.ready)
        self._context.answer(Waited(call.call, ready, rest))

    def _forget_wait(self, wait: PendingWait) -> None:
        del self.waits[wait.call.call]
        unwatched = []
        for ref in wait.call.refs:
            watchers = self._watchers.get(ref)
            if watchers is not None and watchers.pop(wait.call.call, wait) is None and not watchers:
                del self._watchers[ref]
                unwatched.append(ref)
        if unwatched:
            self._context.tell_directory(Unwatch(tuple(unwatched)))

    # --- delete ------------------------------------------------------------------------------------------------

    def delete(self, call: DeleteCall) -> None:
        if problem := next(filter(None, map(_bad_ref, call.refs)), None):
            self._refuse(call.call, problem, None)
        elif len(call.refs) > self._context.settings.max_refs:
            self._refuse(call.call, f"{len(call.refs)} refs are more than one call may delete", None)
        else:
            self.deletes[call.call] = PendingDelete(call, self._context.now)
            self._set_request_deadline(call.call, call.deadline)
            self._context.tell_directory(Delete(call.call, call.refs))

    def deleted(self, call: CallId) -> None:
        delete = self.deletes.pop(call, None)
        if delete is not None:
            self._remember_deleted(delete)
            self._context.answer(DeleteDone(call))

    def _remember_deleted(self, delete: PendingDelete) -> None:
        """A new directory must not take the objects for alive. Counted from the call, this is forgotten before the
        directory that did it allows puts of the refs again."""
        until = delete.began + self._context.settings.tombstone
        self._deleted.append(Deleted(delete.call.refs, self._context.incarnation, until))
        self._tombstones += len(delete.call.refs)
        while self._deleted and (self._deleted[0].until <= self._context.now or self._tombstones > _TOMBSTONES_KEPT):
            self._tombstones -= len(self._deleted.popleft().refs)

    # --- reduce ------------------------------------------------------------------------------------------------

    def reduce(self, call: ReduceCall) -> None:
        if problem := next(filter(None, map(_bad_ref, (call.target, *call.sources))), None):
            self._refuse(call.call, problem, None)
        elif not 1 <= call.count <= len(call.sources) <= self._context.settings.max_refs:
            detail = f"count is {call.count}, and must be from 1 to the number of sources, {len(call.sources)}"
            self._refuse(call.call, detail, call.target)
        else:
            self.reduces[call.call] = call
            self._set_request_deadline(call.call, call.deadline)
            self._context.tell_directory(_submission(call))

    def reduced(self, call: CallId, failure: Failure | None) -> None:
        reduce = self.reduces.pop(call, None)
        if reduce is not None:
            if failure is None:
                self.submitted[reduce.target] = _submission(reduce)
            self._context.answer(ReduceDone(call) if failure is None else CallFailed(call, failure))

    def over(self, target: bytes) -> None:
        self.submitted.pop(target, None)

    def ask(self, call: ContributorsCall) -> None:
        if problem := _bad_ref(call.ref):
            self._refuse(call.call, problem, call.ref)
        else:
            self.asks[call.call] = call
            self._context.tell_directory(Ask(call.call, call.ref))
            self._set_deadline(call.call, call.deadline)

    def contributors(self, answer: Contributors) -> None:
        if self.asks.pop(answer.call, None) is not None:
            failure = answer.failure
            self._context.answer(
                ContributorsAre(answer.call, answer.refs) if failure is None else CallFailed(answer.call, failure)
            )

    # --- what is known -----------------------------------------------------------------------------------------

    def describe(self, call: DescribeCall) -> None:
        if problem := next(filter(None, map(_bad_ref, call.refs)), None):
            self._refuse(call.call, problem, None)
        elif len(call.refs) > MAX_DESCRIBED:
            self._refuse(
                call.call, f"{len(call.refs)} refs are more than the {MAX_DESCRIBED} that one call may ask about", None
            )
        else:
            self.questions[call.call] = call
            self._set_request_deadline(call.call, call.deadline)
            self._context.tell_directory(Describe(call.call, call.refs))

    def described(self, answer: Described) -> None:
        question = self.questions.pop(answer.call, None)
        if question is not None:
            self._context.answer(DescriptionsAre(answer.call, answer.descriptions))

    # --- deadlines, cancelling, the session --------------------------------------------------------------------

    def expired(self, call: CallId) -> None:
        if (poll := self._context.polls.get(call)) is not None:
            self._poll_expired(call, poll)
        elif call in self.waits:
            self._poll(call, OpenPoll(None, self._context.now))
        elif call in self._fetching.getters:
            self._poll(call, OpenPoll(self._fetching.getters[call], self._context.now))
        elif call in self.asks:
            self._poll(call, OpenPoll(self.asks[call].ref, self._context.now))
        elif self._forget_simple(call):
            self._context.answer(CallFailed(call, self._context.unanswered(None)))
        elif call in self.puts and not self.puts[call].answered:
            put = self.puts[call]
            waiting_for_room = put.request is not None
            ref, size = put.call.ref, put.call.size
            failure = store_full(ref, size, self._memory) if waiting_for_room else self._undecided(ref)
            self._fail_put(put, failure)

    def _poll(self, call: CallId, poll: OpenPoll) -> None:
        """Ask the directory for the state; if it is known to be away, that is the answer."""
        context = self._context
        context.polls[call] = poll
        poll.asked = context.awake()
        context.tell_directory(Poll(call, poll.ref))
        if context.joined or context.silence() < context.settings.suspicion:
            self._look_again(call, poll, context.settings.suspicion)
        else:
            self._unanswered(call, poll)

    def poll_again(self) -> None:
        """Questions that were asked in a lost session, or without one."""
        for call, poll in self._context.polls.items():
            if poll.asked is not None:
                self._context.tell_directory(Poll(call, poll.ref))

    def polled(self, answer: Polled) -> None:
        poll = self._context.polls.get(answer.call)
        if poll is None:
            return
        poll.asked = None
        if answer.call in self.waits:
            self._end_wait(self.waits[answer.call])
        elif answer.state not in _NOT_THERE and not poll.is_final(self._context.now):
            self._look_again(answer.call, poll, self._context.settings.lease)  # it may be lost meanwhile
            if answer.state is not ObjectState.READY and poll.ref is not None:
                self._fetching.ask_again(poll.ref)
        else:
            self._not_there(answer.call, poll, answer.state)

    def _poll_expired(self, call: CallId, poll: OpenPoll) -> None:
        if poll.asked is not None:
            left = poll.asked + self._context.settings.suspicion - self._context.awake()
            if left > _MOMENT:  # this node was paused: the answer may be on its way, or the question was lost meanwhile
                self._look_again(call, poll, left)
            else:
                self._unanswered(call, poll)
        elif poll.is_final(self._context.now):
            self._not_there(call, poll, ObjectState.READY)
        else:
            self._poll(call, poll)

    def _unanswered(self, call: CallId, poll: OpenPoll) -> None:
        """The directory is silent. A running transfer continues without it."""
        context, ref = self._context, poll.ref
        if ref is not None and not poll.is_final(context.now) and self._fetching.is_receiving(ref):
            self._look_again(call, poll, context.settings.suspicion)
            return
        so_far = ""
        if (wait := self.waits.get(call)) is not None:
            so_far = f": of {len(wait.call.refs)} refs {len(wait.ready)} are known to be ready"
        elif ref is not None and self._fetching.is_receiving(ref):
            so_far = f": {self._fetching.state_of(ref, None)}"
        self._fail(call, context.unanswered(ref, so_far))

    def _not_there(self, call: CallId, poll: OpenPoll, known: ObjectState) -> None:
        ref = poll.ref
        assert ref is not None
        if call in self.asks:
            detail, remedy = "its reduction is not sealed yet", "ask again later, or give the call a longer timeout"
        elif poll.is_final(self._context.now):
            detail = f"the time for this get ran out: {self._fetching.state_of(ref, known)}"
            remedy = "check whether its producer still runs, or give a longer timeout"
        else:
            detail = f"there is nothing to get now: {self._fetching.state_of(ref, known)}"
            remedy = "ask again later, or give the get a timeout to wait for its producer"
        self._fail(call, Failure(FailureKind.TIMEOUT, detail, remedy, ref))

    def _fail(self, call: CallId, failure: Failure) -> None:
        """End a call that waits for an object or an answer."""
        self._context.answer(CallFailed(call, failure))
        if call in self._fetching.getters:
            self._fetching.give_up(call)
        elif (wait := self.waits.get(call)) is not None:
            self._forget_wait(wait)
        else:
            self._forget_simple(call)

    def _look_again(self, call: CallId, poll: OpenPoll, delay: float) -> None:
        at = self._context.now + delay
        if poll.until is not None and not poll.is_final(self._context.now):
            at = min(at, poll.until)
        self._context.timers.set(("call", call), at)

    def unhandled(self, message: Unhandled) -> None:
        """The directory failed while it handled these calls, or objects that calls here wait for: they are not
        repeated."""
        for call in message.calls:
            if (put := self.puts.get(call)) is not None:
                if not (put.told or put.answered):  # else no caller waits for it, and it is offered again
                    self._fail_put(put, replace(message.failure, ref=put.call.ref))
            elif (refs := self._refs_of(call)) is not None:
                self._fail(call, replace(message.failure, ref=refs[0]))
        for ref in message.refs:
            failure = replace(message.failure, ref=ref)
            self._fetching.failed(ref, failure)
            for call in list(self._watchers.get(ref, ())):
                self._fail(call, failure)

    def _refs_of(self, call: CallId) -> tuple[bytes, ...] | None:
        """What an open call that is not a put is about."""
        if (ref := self._fetching.getters.get(call)) is not None:
            return (ref,)
        if (wait := self.waits.get(call)) is not None:
            return wait.call.refs
        if (delete := self.deletes.get(call)) is not None:
            return delete.call.refs
        if (reduce := self.reduces.get(call)) is not None:
            return (reduce.target,)
        if (ask := self.asks.get(call)) is not None:
            return (ask.ref,)
        question = self.questions.get(call)
        return question.refs if question is not None else None

    def succeed(self, earlier: "Calls") -> None:
        """Continue with the puts that users of an earlier machine know as done."""
        self.submitted = dict(earlier.submitted)
        self._deleted = deque(earlier._deleted)
        self._tombstones = sum(len(deleted.refs) for deleted in self._deleted)
        for put in list(earlier.puts.values()):
            if put.told and not put.answered:
                self._begin_put(PendingPut(put.call, told=True))

    def cancel(self, call: CallId) -> None:
        """The caller is gone. It does not write to its segment any more."""
        self._context.forget_call(call)
        if (put := self.puts.get(call)) is not None:
            if put.holding is not None:
                put.holding.writing = False
            if put.answered:
                del self.puts[call]
                if put.holding is not None:
                    self._memory.release(put.holding)
            else:
                self._fail_put(put, None)
        elif call in self._fetching.getters:
            self._fetching.give_up(call)
        elif (wait := self.waits.get(call)) is not None:
            self._forget_wait(wait)
        elif (ask := self.asks.pop(call, None)) is not None:
            self._context.tell_directory(Poll(call, ask.ref))  # which ends it there, too
        elif not self._forget_simple(call):
            self._memory.unpin(call)

    def _forget_simple(self, call: CallId) -> bool:
        """Calls that are a question and an answer, and hold nothing."""
        return any(calls.pop(call, None) is not None for calls in self.simple())

    def simple(self) -> tuple[MutableMapping[CallId, Any], ...]:
        return self.deletes, self.reduces, self.asks, self.questions

    def dropped(self, version: Version) -> None:
        """The directory ended a version that is still being put: offered again, it gets a new version or the reason."""
        for put in self.puts.values():
            holding = put.holding
            if holding is not None and holding.version == version and not put.answered:
                self._serving.gone(holding)
                self._memory.unname(holding)
                put.accepted = None
                self._context.tell_directory(_offer(put))

    def announce(self) -> "Announcement":
        puts = [put for put in self.puts.values() if put.holding is not None and not put.answered]
        held = [put.holding for put in puts if put.holding is not None]
        now = self._context.now
        return Announcement(
            tuple(Copy(h.version, h.size, h.layout) for h in held if h.version is not None),
            tuple(_offer(put) for put in puts if put.accepted is None),
            tuple(self._watchers),
            tuple(Delete(delete.call.call, delete.call.refs) for delete in self.deletes.values()),
            tuple(_submission(call) for call in self.reduces.values()),
            tuple(Ask(call.call, call.ref) for call in self.asks.values()),
            tuple(Describe(call.call, call.refs) for call in self.questions.values()),
            tuple(self.submitted.values()),
            tuple(Tombstone(ref, d.incarnation) for d in self._deleted if d.until > now for ref in d.refs),
        )

    def beat(self, positions: dict[StreamId | CallId, int]) -> None:
        for call, put in self.puts.items():
            if put.holding is not None and positions.get(call, 0) > put.holding.watermark:
                put.holding.watermark = positions[call]
                self._memory.moved(put.holding)

    def _undecided(self, ref: bytes) -> Failure:
        if not self._context.hears_directory():
            return self._context.unanswered(ref)
        detail = f"{label(self._context.node)} did not learn in time whether this put or another one counts"
        remedy = "check whether another put or draft of the ref is unfinished, and whether the directory runs"
        return Failure(FailureKind.TIMEOUT, detail, remedy, ref)

    def _refuse(self, call: CallId, detail: str, ref: bytes | None) -> None:
        self._context.answer(CallFailed(call, Failure(FailureKind.INVALID, detail, "correct the call", ref)))

    def _set_deadline(self, call: CallId, deadline: float | None) -> None:
        """Of a call that waits for what others do."""
        if deadline is not None and deadline <= self._context.now:
            self.expired(call)
        elif deadline is not None:
            self._context.timers.set(("call", call), deadline)

    def _set_request_deadline(self, call: CallId, deadline: float | None) -> None:
        """Of a call that only the directory must answer, for which it has some time in any case."""
        if deadline is not None:
            least = self._context.now + self._context.settings.suspicion
            self._context.timers.set(("call", call), max(deadline, least))


def _offer(put: PendingPut) -> Put:
    call = put.call
    return Put(call.call, call.ref, call.size, call.layout, call.data, told=put.told)


def _submission(call: ReduceCall) -> Reduce:
    return Reduce(call.call, call.target, call.sources, call.op, call.count, call.everywhere)


def _bad_ref(ref: bytes) -> str | None:
    if len(ref) == REF_BYTES:
        return None
    return f"a ref has {REF_BYTES} bytes, this one has {len(ref)}"
