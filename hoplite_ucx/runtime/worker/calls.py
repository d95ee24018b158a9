"""The calls that only ask: what is checked, what the agent is asked, and what its reply means to the user.

Each is written once, for callers that block (`api`) and for callers on an event loop (`aio`): a generator that yields
questions, is sent the replies, and returns the result. Its driver knows connections; nothing here does.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.protocol.messages import MAX_DESCRIBED
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.objects import filling, on_device, values
from hoplite_ucx.runtime.objects.filling import Progress
from hoplite_ucx.runtime.objects.layouts import Kind
from hoplite_ucx.runtime.objects.values import Encoded
from hoplite_ucx.runtime.worker.checks import (
    about,
    check_count,
    check_like,
    check_out,
    check_progress,
    check_timeout,
    invalid,
    list_of_refs,
    no_memory,
    one_ref,
    operation,
    optional_ref,
)
from hoplite_ucx.runtime.worker.object_info import ObjectInfo, info_of
from hoplite_ucx.runtime.worker.refs import ObjectRef, name_of
from hoplite_ucx.transports import shm

_DELETED_AT_ONCE = 1000
"""More would keep the agent busy for too long for the other processes of the host."""


class Question(NamedTuple):
    """What to ask, and how long the caller waits for the answer. The request is built when it is sent, from the number
    of the call and the remaining time."""

    request: Callable[[int, float | None], wire.Request]
    timeout: float | None
    hurried: bool = False
    """Ping the agent soon: the caller gave it no time; only the transfer may take some."""


R = TypeVar("R")
Steps: TypeAlias = Generator[Question, wire.Reply, R]


def put_small(ref: bytes, encoded: Encoded, timeout: float | None, *, fresh: bool) -> Steps[None]:
    """Put an object that goes to the agent by copy."""
    data = encoded.to_bytes()
    yield Question(
        lambda call, left: wire.PutRequest(call, ref, encoded.size, encoded.layout, data, left, fresh), timeout
    )


def wait(
    refs: Sequence[ObjectRef], count: int, timeout: float | None
) -> Steps[tuple[list[ObjectRef], list[ObjectRef]]]:
    seconds = check_timeout(timeout)
    given = list_of_refs(refs, most=wire.MAX_REFS)
    needed = check_count(count, len(given), "refs")
    by_name = {ref.binary: ref for ref in given}
    if len(by_name) != len(given):
        raise invalid("a ref is listed more than once", "give each ref once")
    names = tuple(by_name)
    reply = yield Question(lambda call, left: wire.WaitRequest(call, names, needed, left), seconds)
    assert isinstance(reply, wire.Ready)
    return [by_name[name] for name in reply.ready], [by_name[name] for name in reply.rest]


def info(refs: ObjectRef | Sequence[ObjectRef], timeout: float | None) -> Steps[list[ObjectInfo]]:
    seconds = check_timeout(timeout)
    given = [refs] if isinstance(refs, ObjectRef) else list_of_refs(refs)
    deadline = None if seconds is None else time.monotonic() + seconds
    known: list[ObjectInfo] = []
    for start in range(0, len(given), MAX_DESCRIBED):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        reply = yield _description(tuple(ref.binary for ref in given[start : start + MAX_DESCRIBED]), left)
        assert isinstance(reply, wire.Descriptions)
        known += map(info_of, reply.descriptions)
    return known


def _description(names: tuple[bytes, ...], timeout: float | None) -> Question:
    return Question(lambda call, left: wire.DescribeRequest(call, names, left), timeout)


class Completed:
    """What is left of `as_completed`: the refs that were not ready yet, and the time."""

    def __init__(self, refs: Sequence[ObjectRef], timeout: float | None) -> None:
        self.rest = list(dict.fromkeys(list_of_refs(refs, most=wire.MAX_REFS)))
        self._given = len(self.rest)
        self._timeout = check_timeout(timeout)
        self._ends = None if self._timeout is None else time.monotonic() + self._timeout

    def more(self) -> Steps[list[ObjectRef]]:
        """At least one more that is ready."""
        left = None if self._ends is None else max(0.0, self._ends - time.monotonic())
        ready, self.rest = yield from wait(self.rest, 1, left)
        if not ready:
            detail = f"{len(self.rest)} of {self._given} refs are not ready after {self._timeout:g} s"
            remedy = "check whether their producers still run, or give a longer timeout"
            raise Failure(FailureKind.TIMEOUT, detail, remedy).exception()
        return ready


def delete(refs: ObjectRef | Sequence[ObjectRef], timeout: float | None) -> Steps[None]:
    seconds = check_timeout(timeout)
    given = [refs] if isinstance(refs, ObjectRef) else list_of_refs(refs)
    names = [ref.binary for ref in given]
    deadline = None if seconds is None else time.monotonic() + seconds
    for start in range(0, len(names), _DELETED_AT_ONCE):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        yield _deletion(tuple(names[start : start + _DELETED_AT_ONCE]), left)


def _deletion(names: tuple[bytes, ...], timeout: float | None) -> Question:
    return Question(lambda call, left: wire.DeleteRequest(call, names, left), timeout)


def own(refs: ObjectRef | Sequence[ObjectRef], timeout: float | None) -> Steps[None]:
    seconds = check_timeout(timeout)
    given = [refs] if isinstance(refs, ObjectRef) else list_of_refs(refs, most=wire.MAX_REFS)
    names = tuple(ref.binary for ref in given)
    yield Question(lambda call, _: wire.OwnRequest(call, names), seconds)


def reduce(
    refs: Sequence[ObjectRef],
    op: str,
    count: int | None,
    ref: ObjectRef | None,
    timeout: float | None,
    *,
    everywhere: bool,
    is_near: Callable[[bytes], None],
) -> Steps[ObjectRef]:
    """`is_near` is called with the target before the agent gets the request."""
    seconds = check_timeout(timeout)
    sources = list_of_refs(refs, most=wire.MAX_REFS)
    how = operation(op)
    needed = check_count(len(sources) if count is None else count, len(sources), "sources")
    if len(set(sources)) != len(sources):
        raise invalid("a source is listed more than once", "give each source once")
    target = optional_ref(ref)
    if target in sources:
        raise about(invalid("the target is one of the sources", "give the result a ref of its own"), target)
    names = tuple(source.binary for source in sources)
    is_near(target.binary)
    form = (target.binary, names, how, needed)
    name = name_of(target.binary)
    yield Question(lambda call, left: wire.ReduceRequest(call, *form, left, everywhere, name), seconds)
    return target


def contributors(ref: ObjectRef, timeout: float | None) -> Steps[list[ObjectRef]]:
    seconds = check_timeout(timeout)
    name = one_ref(ref).binary
    reply = yield Question(lambda call, left: wire.ContributorsRequest(call, name, left), seconds)
    assert isinstance(reply, wire.References)
    return [ObjectRef(name) for name in reply.refs]


class Wish(NamedTuple):
    """How a user wants the value of an object: see `Cluster.get`."""

    copy: bool = False
    like: Kind | None = None
    out: object = None
    progress: Progress | None = None


AS_IT_WAS = Wish()
Library: TypeAlias = Literal["numpy", "torch", "cupy"]


def wish_of(copy: object, like: object, out: object, progress: object) -> Wish:
    if not copy and like is None and out is None and progress is None:
        return AS_IT_WAS
    return Wish(bool(copy), check_like(like), check_out(copy, like, out), check_progress(progress, out))


def value_of(ref: ObjectRef, memory: memoryview, layout: bytes, wish: Wish) -> Any:
    """The value that was got, in the form the user wants."""
    try:
        if wish.out is not None:
            filling.fill(memory, layout, wish.out, wish.progress)
            return wish.out
        return (values.decode_copy if wish.copy else values.decode)(memory, layout, wish.like)
    except HopliteError as error:
        raise about(error, ref) from error
    except shm.NotWritableError as error:
        raise about(no_memory(error), ref) from error


def wish_on(device: int, copy: object, like: object, out: object, progress: object) -> Wish:
    """The same for what is wanted on a device."""
    wish = wish_of(copy, like, out, progress)
    if wish.like is Kind.ARRAY:
        raise invalid('like="numpy" and device= are both given, and numpy has no arrays on devices', "leave one out")
    if wish.out is not None:
        on_device.check_targets(wish.out, device)
    return wish


def value_on(ref: ObjectRef, memory: memoryview | Window, layout: bytes, device: int, wish: Wish) -> Any:
    """The value that was got, on a device."""
    try:
        if wish.out is not None:
            on_device.fill_on(memory, layout, device, wish.out, wish.progress)
            return wish.out
        return on_device.decode_on(memory, layout, device, copy=wish.copy, like=wish.like)
    except HopliteError as error:
        raise about(error, ref) from error


def of_many(error: HopliteError, refs: Sequence[ObjectRef]) -> HopliteError:
    """The failure of many puts: names the put that failed, unless all did."""
    failure = error.failure
    if error.ref not in refs:
        return error
    detail = f"values[{refs.index(error.ref)}] could not be put: {failure.detail}"
    return Failure(failure.kind, detail, failure.remedy, failure.ref, failure.peer).exception()


PutRun: TypeAlias = list[tuple[bytes, Encoded]]
_RUN = 1024


def runs(refs: Sequence[ObjectRef], given: Sequence[object], small_limit: int) -> Iterator[PutRun]:
    """What is put together: some small objects, or one that is large. Each is examined when it is its turn."""
    run: PutRun = []
    for ref, value in zip(refs, given, strict=True):
        try:
            encoded = values.encode(value)
        except HopliteError as error:
            raise about(error, ref) from error
        if run and (encoded.size > small_limit or len(run) == _RUN):
            yield run
            run = []
        run.append((ref.binary, encoded))
        if encoded.size > small_limit:
            yield run
            run = []
    if run:
        yield run
