"""Memory that its last user dropped is free for that user's next call, whoever tells the agent and in which order."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import StoreFullError
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.worker import client, default_cluster
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.connection import PING, Connection
from hoplite_ucx.runtime.worker.releases import Releases
from tests.tools.live import live_cluster
from tests.tools.waiting import HANG

ROOM = 4 << 20
LARGE = np.zeros(3 << 20, np.uint8)
"""Of which one has room."""
SMALL = np.zeros(200 << 10, np.uint8)
"""Of which a few have room beside that one."""
ROUNDS = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN"):
            patch.delenv(name, raising=False)
        hoplite.init(memory=ROOM)
        yield
        hoplite.shutdown()


@pytest.fixture
def idle_janitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells the agent of releases in the background."""
    monkeypatch.setattr(Client, "_tell_releases", lambda _: None)


def put() -> hoplite.ObjectRef:
    return hoplite.put(LARGE, timeout=HANG)


def create() -> hoplite.ObjectRef:
    with hoplite.create(LARGE.shape, LARGE.dtype, timeout=HANG) as draft:
        draft.array[:] = 0
    return draft.ref


def put_elsewhere() -> hoplite.ObjectRef:
    """By a thread that had no connection before."""
    made: list[hoplite.ObjectRef] = []
    thread = threading.Thread(target=lambda: made.append(put()))
    thread.start()
    thread.join(HANG)
    return made[0]


@pytest.mark.usefixtures("cluster", "idle_janitor")
@pytest.mark.parametrize("make", [put, create, put_elsewhere])
def test_a_dropped_array_leaves_room_for_the_next_object(make: Callable[[], hoplite.ObjectRef]) -> None:
    ref = make()
    for _ in range(ROUNDS):
        array = hoplite.get(ref, timeout=HANG)
        hoplite.delete(ref)
        with pytest.raises(StoreFullError):
            put()
        del array
        ref = make()
    hoplite.delete(ref)


@pytest.mark.usefixtures("cluster", "idle_janitor")
def test_the_same_on_an_event_loop() -> None:
    """There is room for one: a put that came before the release would raise `StoreFullError`."""

    async def main() -> None:
        ref = await aio.put(LARGE, timeout=HANG)
        for _ in range(ROUNDS):
            array = await aio.get(ref, timeout=HANG)
            await aio.delete(ref)
            del array
            ref = await aio.put(LARGE, timeout=HANG)
        await aio.delete(ref)

    asyncio.run(main())


def put_small() -> hoplite.ObjectRef:
    return hoplite.put(SMALL, timeout=HANG)


def put_small_on_a_loop() -> hoplite.ObjectRef:
    return asyncio.run(aio.put(SMALL, timeout=HANG))


@pytest.mark.usefixtures("cluster", "idle_janitor")
@pytest.mark.parametrize("make", [put_small, put_small_on_a_loop])
def test_an_object_that_goes_by_copy_finds_room_too(make: Callable[[], hoplite.ObjectRef]) -> None:
    ref = put()
    array = hoplite.get(ref, timeout=HANG)
    hoplite.delete(ref)
    refs = [make() for _ in range((ROOM - LARGE.nbytes) // SMALL.nbytes)]
    with pytest.raises(StoreFullError):
        make()
    del array
    refs.append(make())
    hoplite.delete(refs)


@pytest.mark.usefixtures("idle_janitor")
def test_what_comes_from_another_host_finds_room_too() -> None:
    with live_cluster(2, memory=ROOM) as live:
        near, far = live.hosts
        ref, wanted = near.put(LARGE), far.put(LARGE)
        for _ in range(3):
            array = near.get(ref)
            near.delete(ref)
            with pytest.raises(StoreFullError):
                near.get(wanted)
            del array
            ref, wanted = wanted, ref
            assert near.get(ref).shape == LARGE.shape
            near.delete(ref)
            ref, wanted = near.put(LARGE), far.put(LARGE)


def drop_an_array() -> Callable[[], None]:
    arrays = [hoplite.get(ref := put(), timeout=HANG)]
    hoplite.delete(ref)
    return arrays.clear


def abort_a_draft() -> Callable[[], None]:
    return hoplite.create(LARGE.shape, LARGE.dtype, timeout=HANG).abort


def forget_a_draft() -> Callable[[], None]:
    drafts = [hoplite.create(LARGE.shape, LARGE.dtype, timeout=HANG)]
    return drafts.clear


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("hold", [drop_an_array, abort_a_draft, forget_a_draft])
def test_a_put_that_overtakes_other_connections_finds_room(
    hold: Callable[[], Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is stopped while all others speak of what was freed, and then reads the put's connection first."""
    let_go = hold()
    told = threading.Event()
    tell = Client._tell_releases

    def tell_and_say_so(ours: Client) -> None:
        tell(ours)
        told.set()

    monkeypatch.setattr(Client, "_tell_releases", tell_and_say_so)
    mine = default_cluster.client()._connection(None)
    receive = mine.receive
    assert default_cluster.membership.attachment is not None
    agent = default_cluster.membership.attachment.children[1].process.pid

    def wake_and_receive(deadline: float | None, **options: bool) -> wire.Reply:
        os.kill(agent, signal.SIGCONT)
        return receive(deadline, **options)

    monkeypatch.setattr(mine, "receive", wake_and_receive)
    os.kill(agent, signal.SIGSTOP)
    try:
        mine.send(wire.Ping(PING))  # so this is the first connection that the agent will read
        let_go()
        assert told.wait(HANG)
        hoplite.delete(put())
    finally:
        os.kill(agent, signal.SIGCONT)


@pytest.mark.usefixtures("cluster", "idle_janitor")
def test_a_release_that_another_thread_took_along_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """That thread's request is on its way, and whatever becomes of it, the next put does not rely on it."""
    ref = put()
    array = hoplite.get(ref, timeout=HANG)
    hoplite.delete(ref)
    on_its_way, go_on = threading.Event(), threading.Event()
    make = Client.with_releases

    def send_late(ours: Client, connection: Connection, call: int, request: wire.Request) -> bytes:
        frames = make(ours, connection, call, request)
        if threading.current_thread() is thread:
            on_its_way.set()
            assert go_on.wait(HANG)
        return frames

    monkeypatch.setattr(Client, "with_releases", send_late)
    thread = threading.Thread(target=lambda: hoplite.wait([hoplite.new_ref()], timeout=0))
    del array
    thread.start()
    try:
        assert on_its_way.wait(HANG)
        hoplite.delete(put())
    finally:
        go_on.set()
        thread.join(HANG)


@pytest.mark.usefixtures("cluster")
def test_what_is_released_without_any_call_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MANY_RELEASES", 3)
    ours, pins, nearly_all = default_cluster.client(), set(), threading.Event()
    hear = Releases.heard

    def note(releases: Releases, heard: Iterable[int]) -> None:
        hear(releases, heard)
        pins.update(heard)
        if len(pins) > 10 - 3:
            nearly_all.set()

    monkeypatch.setattr(Releases, "heard", note)
    ref = put()
    arrays = [hoplite.get(ref, timeout=HANG) for _ in range(10)]
    arrays.clear()
    assert nearly_all.wait(HANG)
    assert len(ours._releases.unheard()) < 3
    hoplite.delete(ref)
    assert not ours._releases.unheard()  # its reply shows that all was heard


def test_a_release_is_remembered_until_it_was_heard() -> None:
    releases = Releases()
    releases.add(1, 0)
    releases.forks += 1
    releases.add(2, 1)
    releases.add(1, 1)  # as of a pin in doubt: that it was mapped before the fork stays known
    assert releases.message(releases.unheard()).pins == ((1, True), (2, False))
    assert releases.untold() == {1: 0, 2: 1}
    assert not releases.untold()
    releases.add(3, 1)
    assert releases.untold() == {3: 1}
    releases.heard(releases.unheard())
    assert not releases.unheard()


def test_arrays_may_die_while_releases_are_told() -> None:
    """On other threads, all the time."""
    releases = Releases()
    count, heard = 20_000, set()

    def die(first: int) -> None:
        for pin in range(first, first + count):
            releases.add(pin, 0)

    threads = [threading.Thread(target=die, args=(index * count,)) for index in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or releases.unheard():
        heard.update(releases.untold())
        releases.heard(releases.unheard())
    assert len(heard) <= 2 * count
