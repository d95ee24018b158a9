"""The soak: a short one on real processes, what it calls growth, and what it calls a reason."""

import os
import time

import pytest

from hoplite_ucx.bench.faults.injecting import Fault, FaultKind
from hoplite_ucx.bench.faults.worker_proxy import Answer, WorkerError
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.soak.driver import soak
from hoplite_ucx.bench.soak.sampling import Growth, Sampler, Use, use_of
from hoplite_ucx.bench.soak.tasks import Books, Known, Task, TaskKind

MIB = 1 << 20


@pytest.mark.long(reason="counts what happens in a given time")
@pytest.mark.usefixtures("emulated_hosts")
def test_a_short_soak() -> None:
    verdict = soak(seconds=15, machines=3, lanes=2, rate=50e6, every=4, seed=3)
    assert verdict.problems == []
    assert sum(verdict.faults.values()) >= 2
    assert sum(verdict.tasks.values()) > 100
    assert set(verdict.tasks) == set(TaskKind)


def test_a_soak_needs_machines() -> None:
    with pytest.raises(PeerError, match="3 machines"):
        soak(seconds=1, machines=2, lanes=1, rate=50e6, every=4, seed=0)


@pytest.mark.parametrize(
    ("last", "flat"),
    [
        (Use(105 * MIB, 40, 10), True),
        (Use(150 * MIB, 40, 10), False),
        (Use(100 * MIB, 100, 10), False),
        (Use(100 * MIB, 40, 30), False),
    ],
)
def test_growth(last: Use, flat: bool) -> None:
    assert Growth("agent 0", 100.0, Use(100 * MIB, 40, 10), last).flat is flat


def test_samples_of_this_process() -> None:
    use = use_of(os.getpid())
    assert use is not None
    assert use.memory > MIB
    assert use.threads >= 1
    assert use_of(1 << 30) is None
    sampler = Sampler()
    for _ in range(10):
        sampler.sample({"this": os.getpid()})
    assert sampler.growth() == []
    for _ in range(30):
        sampler.sample({"this": os.getpid()})
    (growth,) = sampler.growth()
    assert growth.process == "this"
    assert growth.flat


def error(kind: str) -> Answer:
    return Answer(error=WorkerError(kind, True, "text", None, "remedy", time.monotonic()))


def put_and_get() -> tuple[Books, Task]:
    """An object of machine 1, and a get of it on machine 2."""
    books = Books(1)
    put = books.next_task(1)
    assert put.kind is TaskKind.PUT
    assert books.end(put, Answer(done={})) is None
    return books, books._get(2, put.about[0])


def test_errors_in_the_soak_need_a_reason() -> None:
    for kind in ("ObjectLostError", "GetTimeoutError", "ClosedError", "StoreFullError", "ObjectDeletedError"):
        books, get = put_and_get()
        assert books.end(get, error(kind)) is not None, kind
    books, get = put_and_get()
    books.note_fault(Fault(FaultKind.KILL_HOST, 3))
    assert books.end(get, error("ObjectLostError")) is not None
    books, get = put_and_get()
    doubtful = books.note_fault(Fault(FaultKind.KILL_HOST, 1))
    assert doubtful == get.about
    assert get.about[0].ref not in books.known
    assert books.end(get, error("ObjectLostError")) is None
    books, get = put_and_get()
    books.note_fault(Fault(FaultKind.KILL_AGENT, 2))
    assert books.end(get, error("ClosedError")) is None
    books, get = put_and_get()
    assert books.end(get, Answer()) == "a get hangs"
    books, get = put_and_get()
    check = books.check(get)
    assert books.end(check, Answer(done={"wrong": "a byte"})) is not None


@pytest.mark.parametrize("seen", [False, True])
def test_a_result_needs_its_sources_until_it_is_made(seen: bool) -> None:
    """The submission is over long before the reduction is, and a source may be deleted in between."""
    books = Books(1)
    sources: list[Known] = []
    while len(sources) < 2:
        put = books._put(1)
        books.end(put, Answer(done={}))
        sources += put.about
    target = Known("aa" * 16, 4096, [1, 2], 2, None, time.monotonic(), sources)
    get = books._get(2, target)
    if seen:
        assert books.end(get, Answer(done={})) is None
        get = books._get(2, target)
    books.forget(1, sources[:1])
    assert (books.end(get, error("ObjectLostError")) is None) is not seen


def test_what_may_exist_is_not_forgotten() -> None:
    books = Books(1)
    put = books.next_task(1)
    books.note_fault(Fault(FaultKind.KILL_WORKER, 1))
    assert books.end(put, Answer(gone=True)) is None
    assert books.strays == put.about
    assert books.known == {}
