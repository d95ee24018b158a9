"""What the directory refuses, and in which words: checks of a put and of a reduce, which change nothing, and the
failures that end a ref's waits."""

from hoplite_ucx.protocol.directory.table import Table
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import short
from hoplite_ucx.protocol.messages import Put, Reduce


def refuse_put(table: Table, put: Put) -> Failure | None:
    settings = table.world.settings
    if table.is_deleted(put.ref):
        return deleted(put.ref)
    record = table.records.get(put.ref)
    if record is not None and record.reduction is not None:
        return Failure(FailureKind.INVALID, "it is the target of a reduction", "put under another ref", put.ref)
    if put.size > settings.max_object:
        detail = f"{put.size} bytes are over the limit of {settings.max_object}"
        return Failure(FailureKind.INVALID, detail, "put it in parts", put.ref)
    if put.data is not None and (len(put.data) != put.size or put.size > settings.inline_limit):
        detail = f"a put of {put.size} bytes came with {len(put.data)} bytes"
        return Failure(FailureKind.INVALID, detail, f"send at most {settings.inline_limit} bytes with a put", put.ref)
    return None


def refuse_reduce(table: Table, reduce: Reduce) -> Failure | None:
    if table.is_deleted(reduce.target):
        return deleted(reduce.target)
    target = table.records.get(reduce.target)
    if target is not None and target.spec is not None:
        same = (target.spec.sources, target.spec.op, target.spec.count) == (reduce.sources, reduce.op, reduce.count)
        return None if same else invalid(reduce.target, "it is the target of another reduction")
    if target is not None and target.broadcast is not None and target.broadcast.sealed:
        return invalid(reduce.target, "an object was already put under this ref")
    problem = _problem_with_sources(table, reduce)
    return invalid(reduce.target, problem) if problem else None


def _problem_with_sources(table: Table, reduce: Reduce) -> str | None:
    settings = table.world.settings
    sources = set(reduce.sources)
    if not 1 <= reduce.count <= len(reduce.sources) <= settings.max_refs:
        return f"count is {reduce.count}, and must be from 1 to the number of sources, {len(reduce.sources)}"
    if len(sources) != len(reduce.sources):
        twice = next(ref for ref in reduce.sources if reduce.sources.count(ref) > 1)
        return f"source {short(twice)} is listed more than once"
    for ref in reduce.sources:
        if table.is_deleted(ref):
            return f"source {short(ref)} was deleted"
    pending = [reduce.target]
    seen: set[bytes] = set()
    while pending:  # whatever is made from the target must not be a source of it
        ref = pending.pop()
        if ref in sources:
            return f"source {short(ref)} is itself made from {short(reduce.target)}"
        if ref not in seen and (record := table.records.get(ref)) is not None:
            seen.add(ref)
            pending.extend(record.consumers)
    return None


def deleted(ref: bytes) -> Failure:
    return Failure(FailureKind.DELETED, "it was deleted", "put the value under a new ref", ref)


def invalid(ref: bytes, detail: str) -> Failure:
    return Failure(FailureKind.INVALID, detail, "correct the call", ref)


def aborted(ref: bytes) -> Failure:
    return Failure(FailureKind.ABORTED, "the process that was putting it ended", "put it again", ref)


def lost(ref: bytes) -> Failure:
    return Failure(
        FailureKind.LOST, "every complete copy of it died", f"put {short(ref)} again; gets will then succeed", ref
    )
