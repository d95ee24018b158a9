"""The UCX transport keeps what every transport must, over UCX's TCP and its shared memory."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import pytest

from hoplite_ucx.transports.buffers import Memory
from hoplite_ucx.transports.errors import TransportError, ViolationError
from hoplite_ucx.transports.interface import Fault, Side
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, filled, pattern, wait_until
from hoplite_ucx.transports.testing.ucx_endpoint import SharedMemoryEndpoint, UcxEndpoint
from hoplite_ucx.transports.ucx import sending
from hoplite_ucx.transports.ucx.frames import RECORD, Connection, Record
from hoplite_ucx.transports.ucx.library import load
from hoplite_ucx.transports.ucx.settings import (
    GREETING_LENGTH,
    MARK,
    MAX_GREETING,
    RECORDS,
    DisagreementError,
    Greeting,
    UcxSettings,
)
from hoplite_ucx.transports.ucx.worker import Worker
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking
from tests.tools.links import make_timers, run_check
from tests.tools.waiting import HANG

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")


@pytest.mark.parametrize("make", [UcxEndpoint, SharedMemoryEndpoint], ids=["tcp", "posix"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(monkeypatch: pytest.MonkeyPatch, check: Callable[[Maker], None], make: Maker) -> None:
    run_check(monkeypatch, check, make)


class OtherSegment(UcxEndpoint):
    settings = UcxSettings(segment=64 << 10)


class Unusable(UcxEndpoint):
    settings = UcxSettings(tls=("no_such_transport",))


KEY = (2, 1)
SIZE = 300_000


def test_settings_that_differ_are_refused_before_ucx_is_connected() -> None:
    lost: list[tuple[int, Side, Exception]] = []

    def note(*why: tuple[int, Side, Exception]) -> None:
        lost.append(why)  # type: ignore[arg-type]

    with UcxEndpoint(1, on_lost=note) as a, OtherSegment(2, on_lost=note) as b:
        assert Receiving(b, 1, a.address, KEY, SIZE).wait() == (0, Fault.BROKEN)
        wait_until(lambda: len(lost) == 2, "both sides tell")
        for _, _, error in lost:
            assert isinstance(error, DisagreementError)
            assert "ucx.segment" in str(error)
            assert "same [ucx] settings" in str(error)


def test_settings_that_ucx_refuses_close_the_streams() -> None:
    lost: list[tuple[int, Side, Exception]] = []
    with Unusable(1, on_lost=lambda *why: lost.append(why)) as a:
        assert Receiving(a, 2, "127.0.0.1:1", KEY, SIZE).wait() == (0, Fault.BROKEN)
        Serving(a, 2, (2, 2), filled(1, SIZE), SIZE).wait()
    assert "correct the [ucx] section" in str(lost[0][2])


def test_the_endpoint_says_which_lanes_it_got() -> None:
    with UcxEndpoint(1) as a, UcxEndpoint(2) as b:
        Serving(a, 2, KEY, filled(1, SIZE), SIZE)
        Receiving(b, 1, a.address, KEY, SIZE).complete(1)
        ((where, lanes),) = b.transport.lanes().items()
        assert where == (1, Side.RECEIVING)
        assert lanes == ["tcp/lo"]


def test_who_asks_for_lanes_does_not_wait_for_a_busy_engine() -> None:
    """An agent tells its lanes on the thread that everything else of it waits for."""
    free = threading.Event()
    with UcxEndpoint(1) as a, UcxEndpoint(2) as b:
        Serving(a, 2, KEY, filled(1, SIZE), SIZE)
        Receiving(b, 1, a.address, KEY, SIZE).complete(1)

        def hold_up() -> None:
            free.wait(HANG)

        b.transport.start().call(hold_up)
        try:
            assert b.transport.lanes() == {(1, Side.RECEIVING): ["tcp/lo"]}
        finally:
            free.set()


def test_memory_that_may_not_be_written_is_never_given_to_ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    send = Worker.send

    def watched(self: Worker, endpoint: Any, window: memoryview, tag: int) -> Any:
        sent.append(window.readonly)
        return send(self, endpoint, window, tag)

    monkeypatch.setattr(Worker, "send", watched)
    with UcxEndpoint(1) as a, UcxEndpoint(2) as b:
        Serving(a, 2, KEY, Memory(memoryview(pattern(1, 0, SIZE)), SIZE), SIZE)
        Receiving(b, 1, a.address, KEY, SIZE).complete(1)
    assert sent
    assert not any(sent)


def test_a_forked_child_is_told() -> None:
    with UcxEndpoint(1) as a:
        engine = a.transport.start()
        engine._pid = -1  # as a child would see it
        with pytest.raises(TransportError, match="fork"):
            engine.call(lambda: None)
        engine._pid = os.getpid()


def test_loading_it_loads_no_dask() -> None:
    """An agent is up sooner, and smaller. Whoever needs Dask still finds it."""
    code = (
        "import sys; from hoplite_ucx.transports.ucx.library import load; load()\n"
        "assert 'ucxx' in sys.modules and 'dask' not in sys.modules, 'loaded with it'\n"
        "import importlib.util; assert importlib.util.find_spec('dask')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)


def test_reading_settings_loads_no_links() -> None:
    code = (
        "import sys; import hoplite_ucx.transports.configuration\n"
        "assert 'hoplite_ucx.transports.ucx.transport' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)


@pytest.mark.parametrize(
    ("rises", "parts"),
    [((4096, 8192, 12288), 0), ((5000, 8192, 12288), 1), ((1, 2, 12288), 2)],
    ids=["by_pieces", "in_the_middle", "byte_by_byte"],
)
def test_only_a_source_that_stands_in_mid_piece_costs_more_than_a_message(
    monkeypatch: pytest.MonkeyPatch, rises: tuple[int, ...], parts: int
) -> None:
    said: list[Record] = []
    put = Connection.put

    def watched(self: Connection, what: Record, channel: int, *numbers: int) -> None:
        said.append(what)
        put(self, what, channel, *numbers)

    monkeypatch.setattr(Connection, "put", watched)
    size = rises[-1]
    with UcxEndpoint(1) as a, UcxEndpoint(2) as b:
        source = Memory(bytearray(pattern(1, 0, size)))
        Serving(a, 2, KEY, source, size)
        incoming = Receiving(b, 1, a.address, KEY, size, granule=4096)
        for rise in rises:
            source.rise(rise)
            wait_until(lambda: incoming.memory.watermark() == source.watermark(), "the rise arrives")
        incoming.complete(1)
    assert (said.count(Record.PART), said.count(Record.SPLIT)) == (parts, parts)
    assert said.count(Record.PULL) == 3


def test_a_granule_that_is_tiny_does_not_pull_more_than_the_sender_lets_wait() -> None:
    granule = 256
    size = (sending.MAX_PULLS + 1000) * granule
    with UcxEndpoint(1) as a, UcxEndpoint(2) as b:
        source = Memory(bytearray(pattern(1, 0, size)))
        Serving(a, 2, KEY, source, size)
        incoming = Receiving(b, 1, a.address, KEY, size, granule=granule)
        for rise in (*range(granule, 20 * granule, granule), size):  # pulls wait meanwhile
            source.rise(rise)
            wait_until(lambda: incoming.memory.watermark() == source.watermark(), "the rise arrives")
        incoming.complete(1)


@contextmanager
def false_receiver(end: UcxEndpoint) -> Iterator[socket.socket]:
    """One that proves the token and then says what the test wants."""
    me = Identity(2, b"", info=MARK)
    with socket.create_connection(parse_address(end.address)) as sock:
        run_blocking(client(me, Kind.BULK, end.address), sock, end.address)
        yield sock


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 1000,
        GREETING_LENGTH.pack(MAX_GREETING + 1),
        GREETING_LENGTH.pack(5) + b"\xc1\xc1\xc1\xc1\xc1",
        GREETING_LENGTH.pack(0),
        Greeting((9, 9, 9), UcxSettings().agreed(), b"somewhere", records=RECORDS).encode(),
        Greeting((1, 22, 0), UcxSettings().agreed(), b"", records=RECORDS).encode(),
        Greeting((1, 22, 0), UcxSettings().agreed(), b"somewhere").encode(),
    ],
    ids=["noise", "too_long", "no_sense", "empty", "release", "no_address", "older_records"],
)
def test_a_greeting_that_makes_no_sense(data: bytes) -> None:
    with UcxEndpoint(1) as a:
        with false_receiver(a) as sock:
            sock.sendall(data)
            sock.settimeout(HANG)
            with suppress(ConnectionResetError):
                while sock.recv(1000):
                    pass
        wait_until(lambda: not a.transport.links(), "the link is gone")


OPENED = RECORD.pack(Record.OPEN, 1, *KEY, 0)


@pytest.mark.parametrize(
    "records",
    [
        RECORD.pack(9, 1, 0, 0, 0),
        RECORD.pack(Record.OPEN, 0, *KEY, 0),
        OPENED * 2,
        OPENED + RECORD.pack(Record.PULL, 1, 0, 0, SIZE + 1),
        OPENED + RECORD.pack(Record.PULL, 1, 0, 7, 100),
        OPENED + RECORD.pack(Record.PULL, 1, 0, 0, 0),
        OPENED + RECORD.pack(Record.SPLIT, 1, 0, 0, 0),
    ],
    ids=["kind", "channel_0", "twice", "beyond_the_end", "a_gap", "nothing", "split"],
)
def test_a_receiver_that_breaks_the_rules(records: bytes) -> None:
    lost: list[tuple[int, Side, Exception]] = []
    with UcxEndpoint(1, on_lost=lambda *why: lost.append(why)) as a, UcxEndpoint(3) as other:
        outgoing = Serving(a, 2, KEY, filled(1, SIZE), SIZE)
        worker = Worker(load(), load().context(UcxSettings().for_ucx()), UcxSettings())
        with false_receiver(a) as sock:
            sock.sendall(worker.greeting(7).encode() + records)
            sock.settimeout(HANG)
            with suppress(ConnectionResetError):
                while sock.recv(1000):
                    pass
        worker.close()
        if not records.startswith(OPENED):
            outgoing.cancel()  # it waits for a connection that opens it
        outgoing.wait()
        assert isinstance(lost[0][2], ViolationError)
        Serving(a, 3, (3, 1), filled(1, SIZE), SIZE)
        Receiving(other, 1, a.address, (3, 1), SIZE).complete(1)


def test_idle_links_are_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    make_timers(monkeypatch, idle=0.1)
    lost: list[object] = []
    with UcxEndpoint(1, on_lost=lambda *why: lost.append(why)) as a, UcxEndpoint(2) as b:
        for number in range(2):
            Serving(a, 2, (2, number), filled(number, SIZE), SIZE)
            Receiving(b, 1, a.address, (2, number), SIZE).complete(number)
            wait_until(lambda: not a.transport.links() and not b.transport.links(), "the links are gone")
    assert not lost
