"""The TCP transport keeps what every transport must, and believes no peer that breaks the rules of its frames."""

import fcntl
import os
import socket
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.errors import ViolationError
from hoplite_ucx.transports.interface import Fault, Side
from hoplite_ucx.transports.tcp import receiving, sending
from hoplite_ucx.transports.tcp.frames import DATA, RECORD, Record
from hoplite_ucx.transports.tcp.sending import FIRST_FRAME, GRANULES, SMALL_GRANULE
from hoplite_ucx.transports.testing.conformance import CHECKS, Maker
from hoplite_ucx.transports.testing.conformance.tools import (
    GatedSink,
    Memory,
    Receiving,
    Serving,
    endpoints,
    filled,
    is_filled,
    next_key,
    wait_until,
)
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint
from hoplite_ucx.transports.wire.addresses import parse_address, socket_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, client, run_blocking, server
from tests.tools.links import give_up_soon, make_timers, run_check
from tests.tools.waiting import HANG

KEY = (2, 1)
SIZE = 100_000


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(monkeypatch: pytest.MonkeyPatch, check: Callable[[Maker], None]) -> None:
    run_check(monkeypatch, check, TcpEndpoint)


@pytest.mark.parametrize(("lower", "patience", "in_turns"), [(1, 60.0, False), (1, 0.0, True), (0, 60.0, True)])
def test_the_lowest_rank_goes_first_but_not_for_ever_nor_before_those_without(
    monkeypatch: pytest.MonkeyPatch, lower: int, patience: float, in_turns: bool
) -> None:
    make_timers(monkeypatch, patience=patience)
    size, granule = 16 << 20, 64 << 10
    with endpoints(TcpEndpoint, 1, 2) as (a, b):
        keys = {rank: next_key() for rank in (2, lower)}
        for rank, key in keys.items():
            Serving(a, b.node, key, filled(rank, size), size, granule=granule, rank=rank)
        later = GatedSink(memory := Memory(bytearray(size)), size, granule)
        second = Receiving(b, a.node, a.address, keys[2], size, granule=granule, memory=memory, sink=later)
        wait_until(lambda: memory.watermark() == granule, "the link is open")
        reached = []

        class Sink(GatedSink):
            def _arrived(self, watermark: int) -> None:
                if watermark == size:  # frames of a link come one after the other
                    reached.append(memory.watermark())
                super()._arrived(watermark)

        first_memory = Memory(bytearray(size))
        sink = Sink(first_memory, size, granule)
        first = Receiving(b, a.node, a.address, keys[lower], size, granule=granule, memory=first_memory, sink=sink)
        wait_until(lambda: first_memory.watermark() == granule, "both streams run")
        for each in (later, sink) if in_turns else (sink, later):
            each.open_to(size)
        first.complete(lower)
        second.complete(2)
        assert [watermark > size // 2 for watermark in reached] == [in_turns]


@contextmanager
def false_sender(talk: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """A sender that proves the token, hears of one stream, and then says what the test wants."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        sock, _ = listening.accept()
        with sock:
            run_blocking(server(Identity(1, b""), {Kind.BULK}, "receiver"), sock, "receiver")
            what, channel, limit, *key = RECORD.unpack(sock.recv(RECORD.size, socket.MSG_WAITALL))
            assert (what, limit, tuple(key)) == (Record.OPEN, SIZE, KEY)
            talk(sock, channel)
            sock.settimeout(HANG)
            with suppress(ConnectionResetError):
                while sock.recv(1000):
                    pass

    thread = threading.Thread(target=run)
    thread.start()
    with listening:
        yield socket_address(listening.getsockname())
        thread.join(HANG)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("ahead", "length", "offset"),
    [
        (0, 1 << 31, 0),  # longer than any frame
        (0, 0, 0),
        (0, SIZE + 1, 0),  # more than the sink takes
        (0, 1000, 1),  # a gap
        (7, 1000, 0),  # a channel that was never opened
        (0, 1000, 1 << 63),
    ],
)
def test_a_sender_that_breaks_the_rules(ahead: int, length: int, offset: int) -> None:
    lost: list[tuple[int, Side, Exception]] = []
    with (
        false_sender(lambda sock, channel: sock.sendall(DATA.pack(channel + ahead, length, offset))) as address,
        TcpEndpoint(2, on_lost=lambda *why: lost.append(why)) as end,
    ):
        assert Receiving(end, 1, address, KEY, SIZE).wait() == (0, Fault.BROKEN)
        assert isinstance(lost[0][2], ViolationError)
        assert address in str(lost[0][2])


def test_what_arrived_of_a_broken_frame_counts() -> None:
    data = bytes(filled(1, SIZE).view[:1234])

    def talk(sock: socket.socket, channel: int) -> None:
        sock.sendall(DATA.pack(channel, 50_000, 0) + data)
        sock.shutdown(socket.SHUT_WR)

    with false_sender(talk) as address, TcpEndpoint(2) as end:
        incoming = Receiving(end, 1, address, KEY, SIZE)
        assert incoming.wait() == (1234, Fault.BROKEN)
        assert is_filled(incoming.memory, 1, 0, 1234)


def test_a_long_frame_is_forwarded_piece_by_piece() -> None:
    """A relay need not wait for all of a frame: what it has is forwarded from a granule on."""
    granule, rest = 20_000, threading.Event()
    data = bytes(filled(1, SIZE).view)

    def talk(sock: socket.socket, channel: int) -> None:
        sock.sendall(DATA.pack(channel, SIZE, 0) + data[:granule])
        assert rest.wait(HANG)
        sock.sendall(data[granule:])

    with false_sender(talk) as address, TcpEndpoint(2) as end:
        incoming = Receiving(end, 1, address, KEY, SIZE, granule=granule)
        wait_until(lambda: incoming.memory.watermark() == granule, "a granule counts before its frame is whole")
        rest.set()
        assert incoming.wait() == (SIZE, None)
        assert is_filled(incoming.memory, 1, 0, SIZE)


@contextmanager
def false_receiver(end: TcpEndpoint) -> Iterator[socket.socket]:
    with socket.create_connection(parse_address(end.address)) as sock:
        run_blocking(client(Identity(2, b""), Kind.BULK, end.address), sock, end.address)
        yield sock


def unread(end: TcpEndpoint) -> int:
    """Bytes of a false receiver that have come, and that nobody has read."""
    sock = end.transport._links.sending[2]._sock
    assert sock is not None
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize(
    "data",
    [
        RECORD.pack(9, 1, 0, 0, 0),
        RECORD.pack(Record.OPEN, 0, 0, 5, 5),
        RECORD.pack(Record.OPEN, 1, 0, 5, 5) * 2,
        RECORD.pack(Record.OPEN, 1, 0, 5, 5) + RECORD.pack(Record.OPEN, 2, 0, 5, 5),
        RECORD.pack(Record.OPEN, 1, 0, *KEY) + RECORD.pack(Record.OPEN, 2, 0, *KEY),
        b"".join(RECORD.pack(Record.OPEN, n, 0, 9, n) for n in range(1, link_core.MAX_UNSERVED + 2)),
        b"\xff" * 1000,
    ],
    ids=["kind", "channel_0", "twice", "stream_twice", "served_twice", "too_many", "noise"],
)
def test_a_receiver_that_breaks_the_rules(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    give_up_soon(monkeypatch)  # what that receiver did not open waits for another connection
    with TcpEndpoint(1) as end:
        outgoing = Serving(end, 2, KEY, filled(1, SIZE), SIZE)
        with false_receiver(end) as sock:
            sock.sendall(data)
            sock.settimeout(HANG)
            with suppress(ConnectionResetError):
                while sock.recv(1000):
                    pass
        outgoing.wait()
        wait_until(lambda: not end.transport.links(), "the link is gone")


def test_records_that_say_nothing_new_are_harmless() -> None:
    with TcpEndpoint(1) as end, false_receiver(end) as sock:
        sock.sendall(
            RECORD.pack(Record.CREDIT, 77, 10, 0, 0)
            + RECORD.pack(Record.CANCEL, 77, 0, 0, 0)
            + RECORD.pack(Record.OPEN, 1, 0, 5, 5)
            + RECORD.pack(Record.CREDIT, 1, 10, 0, 0)
            + RECORD.pack(Record.CANCEL, 1, 0, 0, 0)
            + RECORD.pack(Record.OPEN, 2, (1 << 64) - 1, *KEY)[:20]
        )
        outgoing = Serving(end, 2, KEY, filled(1, FIRST_FRAME), FIRST_FRAME, granule=FIRST_FRAME)
        sock.sendall(RECORD.pack(Record.OPEN, 2, (1 << 64) - 1, *KEY)[20:])
        sock.settimeout(HANG)
        with sock.makefile("rb") as file:
            frame = file.read(DATA.size + FIRST_FRAME)
        assert DATA.unpack_from(frame) == (2, FIRST_FRAME, 0)
        assert frame[DATA.size :] == bytes(filled(1, FIRST_FRAME).view)
        outgoing.wait()


@pytest.fixture
def heard_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that read records."""
    names: list[str] = []
    record = sending.SendingLink._record

    def noted(link: sending.SendingLink, *said: int) -> None:
        names.append(threading.current_thread().name)
        record(link, *said)

    monkeypatch.setattr(sending.SendingLink, "_record", noted)
    return names


def test_a_stream_that_waits_for_bytes_begins_without_the_links_thread(heard_by: list[str]) -> None:
    with TcpEndpoint(1) as end, false_receiver(end) as sock:
        wait_until(lambda: any(link.connected for link in end.transport.links()), "the link is open")
        sock.sendall(RECORD.pack(Record.OPEN, 1, SIZE, *KEY))
        memory = filled(1, SIZE, watermark=0)
        wait_until(lambda: unread(end) == RECORD.size, "the record is here")
        assert heard_by == [], "nobody is served, and nobody is woken"
        outgoing = Serving(end, 2, KEY, memory, SIZE, granule=SIZE)
        assert heard_by == [threading.current_thread().name]
        memory.rise(SIZE)
        sock.settimeout(HANG)
        assert len(sock.recv(DATA.size, socket.MSG_WAITALL)) == DATA.size
        sock.recv(SIZE, socket.MSG_WAITALL)
        outgoing.wait()


def test_records_that_nobody_waits_for_are_read_when_they_are_many(heard_by: list[str]) -> None:
    with TcpEndpoint(1) as end, false_receiver(end) as sock:
        sock.sendall(RECORD.pack(Record.CREDIT, 1, 0, 0, 0) * (sending.UNHEARD // RECORD.size + 10))
        wait_until(lambda: len(heard_by) > 10, "they are read")
        assert threading.current_thread().name not in heard_by


def test_what_is_wrong_with_records_that_waited_breaks_the_link() -> None:
    lost: list[tuple[int, Side, Exception]] = []
    with TcpEndpoint(1, on_lost=lambda *why: lost.append(why)) as end, false_receiver(end) as sock:
        wait_until(lambda: any(link.connected for link in end.transport.links()), "the link is open")
        sock.sendall(RECORD.pack(Record.OPEN, 1, SIZE, *KEY) + RECORD.pack(9, 1, 0, 0, 0))
        wait_until(lambda: unread(end) == 2 * RECORD.size, "the records are here")
        outgoing = Serving(end, 2, KEY, filled(1, SIZE, watermark=0), SIZE)
        outgoing.wait()
        assert isinstance(lost[0][2], ViolationError)


def test_the_first_frame_of_a_stream_is_short() -> None:
    """Whoever waits for a stream soon has something to pass on; from then on frames are as long as they may be."""
    size = 4 * FIRST_FRAME
    with TcpEndpoint(1) as end, false_receiver(end) as sock:
        outgoing = Serving(end, 2, KEY, filled(1, size), size, granule=size)
        sock.sendall(RECORD.pack(Record.OPEN, 1, size, *KEY))
        sock.settimeout(HANG)
        with sock.makefile("rb") as file:
            for length, offset in ((FIRST_FRAME, 0), (size - FIRST_FRAME, FIRST_FRAME)):
                assert DATA.unpack(file.read(DATA.size)) == (1, length, offset)
                assert len(file.read(length)) == length
        outgoing.wait()


@pytest.mark.parametrize(("granule", "granules"), [(SMALL_GRANULE // 2, GRANULES), (2 * SMALL_GRANULE, 1)])
def test_a_stream_that_is_alone_has_several_small_granules_in_a_frame(granule: int, granules: int) -> None:
    first, longest = min(granule, FIRST_FRAME), granules * granule
    size = first + 2 * longest
    with TcpEndpoint(1) as end, false_receiver(end) as sock:
        outgoing = Serving(end, 2, KEY, filled(1, size), size, granule=granule)
        sock.sendall(RECORD.pack(Record.OPEN, 1, size, *KEY))
        sock.settimeout(HANG)
        with sock.makefile("rb") as file:
            for length, offset in ((first, 0), (longest, first), (longest, first + longest)):
                assert DATA.unpack(file.read(DATA.size)) == (1, length, offset)
                assert len(file.read(length)) == length
        outgoing.wait()


def test_a_link_that_is_dropped_just_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    tune = receiving.tune
    with endpoints(TcpEndpoint, 1, 2) as (a, b):

        def drop_first(sock: socket.socket) -> None:
            """Called by the link's thread, which has a socket that is not connected yet."""
            wait_until(lambda: any(link.streams for link in b.transport.links()), "the link has its stream")
            b.transport.drop(a.node)
            tune(sock)

        with monkeypatch.context() as patched:
            patched.setattr(receiving, "tune", drop_first)
            incoming = Receiving(b, a.node, a.address, next_key(), SIZE)
            assert incoming.wait() == (0, Fault.BROKEN)
        wait_until(lambda: not b.transport.links(), "the link is gone")
        key = next_key()
        again = Receiving(b, a.node, a.address, key, SIZE)
        Serving(a, b.node, key, filled(1, SIZE), SIZE)
        again.complete(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_streams_close_even_if_the_report_of_a_lost_link_fails() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    with TcpEndpoint(1, on_lost=fail) as a, TcpEndpoint(2, on_lost=fail) as b:
        key = next_key()
        incoming = Receiving(b, a.node, a.address, key, SIZE)
        outgoing = Serving(a, b.node, key, filled(1, SIZE, watermark=1), SIZE)
        wait_until(lambda: incoming.position == 1, "it runs")
        (link,) = a.transport._links.sending.values()
        (other,) = b.transport._links.receiving.values()
        link._shut_socket()  # neither side has asked for that
        assert incoming.wait() == (1, Fault.BROKEN)
        outgoing.wait()
        wait_until(lambda: not (link.alive or other.alive), "both threads have ended, each with the error on purpose")


def test_links_without_a_thread_leave_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with TcpEndpoint(1) as end:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            for number in range(20):
                assert Receiving(end, 2, end.address, (1, number), SIZE).wait() == (0, Fault.BROKEN)
                Serving(end, 2, (2, number), filled(1, SIZE), SIZE).wait()
        assert len(os.listdir("/proc/self/fd")) < before + 20


def test_idle_links_are_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    make_timers(monkeypatch, idle=0.2)
    lost: list[object] = []
    with TcpEndpoint(1, on_lost=lambda *why: lost.append(why)) as a, TcpEndpoint(2) as b:
        for number in range(3):
            key = (2, number)
            incoming = Receiving(b, 1, a.address, key, SIZE)
            Serving(a, 2, key, filled(number, SIZE), SIZE)
            incoming.complete(number)
            wait_until(lambda: not a.transport.links() and not b.transport.links(), "the links are gone")
    assert not lost


def test_a_stream_that_is_cancelled_as_its_source_fails_on_a_receiving_thread_is_closed() -> None:
    with endpoints(TcpEndpoint, 1, 2) as (a, b):

        class Failing(Memory):
            def window(self, offset: int, length: int) -> memoryview:
                serving.cancel()
                raise ZeroDivisionError(offset, length)

        source = Failing(bytearray(SIZE))
        serving = Serving(a, b.node, KEY, source, SIZE)
        Receiving(b, a.node, a.address, KEY, SIZE)
        (link,) = a.transport._links.sending.values()  # type: ignore[attr-defined]
        wait_until(lambda: link._core.streams and link._asleep, "the link's thread has nothing to do")

        def relay() -> None:
            sending.may_send()
            source.rise(SIZE)

        thread = threading.Thread(target=relay)
        thread.start()
        thread.join(HANG)
        serving.wait(HANG)
