"""Objects that are filled in place: whatever their users do with views, forks and time limits, others see what was
final."""

import errno
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, InvalidRequestError, StoreFullError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.worker import client, default_cluster
from hoplite_ucx.runtime.worker.connection import Connection
from hoplite_ucx.transports import shm
from tests.runtime.test_faults import without_address
from tests.tools.waiting import HANG

SIZE = 1 << 20
PAGE = mmap.PAGESIZE


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
            patch.delenv(name, raising=False)
        hoplite.init(memory=256 << 20)
        yield
        hoplite.shutdown()


def create(size: int = SIZE) -> hoplite.Draft:
    return hoplite.create(size, np.uint8, timeout=HANG)


def get(ref: hoplite.ObjectRef) -> Any:
    return hoplite.get(ref, timeout=HANG)


@pytest.mark.parametrize("size", [1000, SIZE, SIZE + 1])
def test_a_view_from_before_the_seal_changes_nothing_for_others(size: int) -> None:
    draft = create(size)
    view, raw = draft.array[:], memoryview(draft.array)
    view[:] = 1
    ref = draft.seal()
    got = get(ref)
    view[:] = 2
    raw[-1] = 3
    assert (got == 1).all()
    assert (get(ref) == 1).all()
    assert view[0] == 2  # the writer's own pages
    with pytest.raises(ValueError, match="read-only"):
        draft.array[0] = 4
    hoplite.delete(ref)


def test_memory_of_an_earlier_put_is_as_safe() -> None:
    ours = default_cluster.client()
    ref = hoplite.put(np.zeros(SIZE, np.uint8), timeout=HANG)
    hoplite.delete(ref)
    had = set(ours._mine)
    draft = create()
    assert len(had - set(ours._mine)) == 1  # it was mapped from before
    view = draft.array[:]
    view[:] = 1
    ref = draft.seal()
    view[:] = 2
    assert (get(ref) == 1).all()
    hoplite.delete(ref)


def test_there_is_no_moment_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes just before the agent hears of the end."""
    draft = create()
    view = draft.array[:]
    view[:] = 1
    send = Connection.send

    def write_and_send(connection: Connection, request: wire.Request, deadline: float | None = None) -> None:
        if isinstance(request, wire.PutEnd):
            view[:] = 2
        send(connection, request, deadline)

    monkeypatch.setattr(Connection, "send", write_and_send)
    ref = draft.seal()
    assert view[0] == 2
    assert (get(ref) == 1).all()
    hoplite.delete(ref)


def test_threads_may_write_while_a_draft_is_sealed() -> None:
    for _ in range(10):
        draft = create(8 * SIZE)
        view, begun, over = draft.array[:], threading.Semaphore(0), threading.Event()

        def write(view: np.ndarray, begun: threading.Semaphore, over: threading.Event) -> None:
            while not over.is_set():
                view += 1
                begun.release()

        threads = [threading.Thread(target=write, args=(view, begun, over)) for _ in range(2)]
        for thread in threads:
            thread.start()
            assert begun.acquire(timeout=HANG)
        ref = draft.seal()
        sealed = get(ref).copy()
        over.set()
        for thread in threads:
            thread.join(HANG)
        assert np.array_equal(get(ref), sealed)
        hoplite.delete(ref)


def test_what_was_final_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    send = Connection.send

    def note_and_send(connection: Connection, request: wire.Request, deadline: float | None = None) -> None:
        if isinstance(request, wire.PutProgress):
            told.append(request.watermark)
        send(connection, request, deadline)

    monkeypatch.setattr(Connection, "send", note_and_send)
    draft = create(SIZE + 1)
    draft.array[:] = 1
    for nbytes in (PAGE - 1, 3 * PAGE, 4 * PAGE + 5, 2 * PAGE, SIZE + 1):
        draft.advance(nbytes)
        draft.array[: told[-1]] = 2  # of which others were told
    assert told == [0, 3 * PAGE, 4 * PAGE, 4 * PAGE, SIZE + 1]
    ref = draft.seal()
    assert (get(ref) == 1).all()
    hoplite.delete(ref)


@pytest.mark.parametrize("step", ["seal", "advance"])
def test_a_draft_whose_memory_cannot_be_made_private_is_given_up(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = hoplite.new_ref()
    draft = hoplite.create(SIZE, np.uint8, ref=ref, timeout=HANG)
    view = draft.array[:]

    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(shm, "_make_private", fail)
        with pytest.raises(StoreFullError, match=r"could not be mapped.*max_map_count"):
            draft.seal() if step == "seal" else draft.advance(SIZE)
    view[:] = 5  # it is still there
    with pytest.raises(InvalidRequestError, match="abandoned"):
        draft.seal()
    hoplite.put("another", ref=ref, timeout=HANG)
    assert get(ref) == "another"
    hoplite.delete(ref)


def in_a_child(work: Any) -> int:
    """The exit status of a forked child that does this; a truth is 0."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_may_fill_but_not_seal() -> None:
    draft = create()
    draft.advance(PAGE)

    def fill_and_try() -> bool:
        draft.array[PAGE:] = 6
        for step in (lambda: draft.advance(2 * PAGE), draft.seal):
            try:
                step()
            except (ClosedError, InvalidRequestError) as error:
                if "forked" not in str(error) and "abandoned" not in str(error):
                    return False
            else:
                return False
        return True

    assert in_a_child(fill_and_try) == 0
    ref = draft.seal()
    array = get(ref)
    assert not array[:PAGE].any()
    assert (array[PAGE:] == 6).all()
    hoplite.delete(ref)


def test_a_child_that_is_forked_later_shares_nothing_with_others() -> None:
    draft = create()
    view = draft.array[:]
    view[:] = 1
    ref = draft.seal()

    def write() -> bool:
        view[:] = 9
        return True

    assert in_a_child(write) == 0
    assert (get(ref) == 1).all()
    assert (view == 1).all()
    hoplite.delete(ref)


def test_drafts_leave_no_descriptor_and_no_mapping_behind() -> None:
    def count() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("memfd:hoplite" in line for line in maps)

    hoplite.put(1)  # this thread has a connection
    before = count()
    for end in ("seal", "abort", "forget"):
        draft = create()
        draft.advance(SIZE // 2)
        if end == "seal":
            hoplite.delete(draft.seal())
            assert count()[0] == before[0]  # the array alone holds no descriptor
        elif end == "abort":
            draft.abort()
            assert count()[0] == before[0]
        del draft
        assert count() == before


_ENDS = """
import numpy as np
import hoplite_ucx as hoplite

hoplite.init(memory=64 << 20)
sealed, half, untouched = (hoplite.create(1 << 20, np.uint8) for _ in range(3))
view = sealed.array[:]
half.advance(1 << 19)
sealed.seal()
array = hoplite.get(sealed.ref)
hoplite.shutdown()
view[:] = 1
array.sum()
try:
    half.advance(1 << 20)
except hoplite.ClosedError as error:
    print(error)
"""


def test_a_program_may_end_with_drafts() -> None:
    command = [sys.executable, "-c", _ENDS]
    done = subprocess.run(command, env=without_address(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "shut down" in done.stdout


class Clock:
    """The client's clock, which stands still unless it is set forward."""

    def __init__(self) -> None:
        self.forward = 0.0

    def monotonic(self) -> float:
        return self.forward


def test_a_draft_has_one_time_limit_for_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent takes 50 s to greet, 4 s to give memory, and 3 s to hear of a part; the user takes an hour to fill."""
    clock = Clock()
    asked: list[float | None] = []
    deadlines: list[float] = []
    connect, send, reply = client.Client._connect, Connection.send, client.Client._reply

    def connect_slowly(*arguments: Any) -> Connection:
        connection = connect(*arguments)
        clock.forward += 50
        return connection

    def reply_slowly(ours: Any, connection: Any, calls: Any, deadline: float) -> wire.Reply:
        deadlines.append(deadline - clock.monotonic() - ours.grace)
        clock.forward += 4
        return reply(ours, connection, calls, deadline)

    def send_slowly(connection: Connection, request: wire.Request, deadline: float | None = None) -> None:
        if isinstance(request, wire.PutProgress):
            clock.forward += 3
        send(connection, request, deadline)

    make = client.Client.with_releases

    def note(ours: Any, connection: Any, call: int, request: Any) -> bytes:
        asked.append(request.timeout)
        return make(ours, connection, call, request)

    monkeypatch.setattr(client, "time", clock)
    monkeypatch.setattr(client.Client, "_connect", connect_slowly)
    monkeypatch.setattr(client.Client, "_reply", reply_slowly)
    monkeypatch.setattr(client.Client, "with_releases", note)
    monkeypatch.setattr(Connection, "send", send_slowly)
    draft = hoplite.create(SIZE, np.uint8, timeout=60)
    assert draft.timeout == pytest.approx(6)
    clock.forward += 3600
    draft.advance(PAGE)
    clock.forward += 3600
    ref = draft.seal()
    monkeypatch.undo()
    assert asked == [pytest.approx(10)]
    assert deadlines == [pytest.approx(10), pytest.approx(3)]
    hoplite.delete(ref)
