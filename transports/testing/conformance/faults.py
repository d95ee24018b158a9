"""Checks of what links do when a peer dies, is stopped, is not who it should be, or when everything happens at once."""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from hoplite_ucx.transports.buffers import Memory
from hoplite_ucx.transports.errors import ConnectionLostError, WrongTokenError
from hoplite_ucx.transports.interface import Fault, Priority, Side, StreamKey
from hoplite_ucx.transports.testing.conformance.tools import (
    CLOSE_WAIT,
    WAIT_SECONDS,
    Endpoint,
    GatedSink,
    Maker,
    OtherProcess,
    Receiving,
    Serving,
    endpoints,
    filled,
    is_filled,
    next_key,
    start_process,
    wait_until,
)
from hoplite_ucx.transports.wire.addresses import parse_address

_MIB = 1 << 20
_SIZE = 96 * _MIB


def _started(node: int, process: OtherProcess, endpoint: Endpoint, seed: int, granule: int = _MIB) -> Receiving:
    """A long stream from another process that has begun."""
    key, memory = next_key(), Memory(bytearray(_SIZE))
    process.serve(node, key, seed, _SIZE, granule=granule)
    incoming = Receiving(endpoint, process.node, process.address, key, _SIZE, granule=granule, memory=memory)
    wait_until(lambda: incoming.closes or memory.watermark() > 0, "the stream runs")
    return incoming


def check_sender_killed(make: Maker) -> None:
    """Bytes below the watermark are right, and another sender continues from there."""
    with endpoints(make, 1, 2) as (a, b):
        with start_process(make, 9) as process:
            incoming = _started(b.node, process, b, 1)
            process.kill()
            watermark, fault = incoming.wait()
        assert fault is Fault.BROKEN or watermark == _SIZE
        assert is_filled(incoming.memory, 1, 0, watermark)
        key, source = next_key(), filled(1, _SIZE)
        again = Receiving(b, a.node, a.address, key, _SIZE, offset=watermark, memory=incoming.memory)
        Serving(a, b.node, key, source, _SIZE, offset=watermark)
        again.complete(1)


def check_receiver_killed(make: Maker) -> None:
    """Its streams close, and others continue."""
    with endpoints(make, 1, 2) as (a, b), start_process(make, 9) as process:
        key, source = next_key(), filled(2, _SIZE, watermark=_SIZE // 2)
        process.receive(a.node, a.address, key, _SIZE, granule=_MIB)
        outgoing = Serving(a, process.node, key, source, _SIZE, granule=_MIB)
        wait_until(lambda: outgoing.position > 0, "the stream runs")
        process.kill()
        outgoing.wait()
        other = next_key()
        incoming = Receiving(b, a.node, a.address, other, _MIB)
        Serving(a, b.node, other, filled(3, _MIB), _MIB)
        incoming.complete(3)


def check_sender_stopped(make: Maker) -> None:
    """A stream from a stopped sender can be cancelled at once; the link continues when the sender does."""
    with endpoints(make, 1, 2) as (a, b), start_process(make, 9) as process:
        incoming = _started(b.node, process, b, 4)
        process.stop()
        time.sleep(0.3)
        key = next_key()
        other = Receiving(b, a.node, a.address, key, _MIB)
        Serving(a, b.node, key, filled(5, _MIB), _MIB)
        other.complete(5)
        if not incoming.closes:
            incoming.cancel()
        watermark, fault = incoming.wait(CLOSE_WAIT)
        assert fault is None
        edge = bytes(incoming.memory.view[watermark : watermark + 2 * _MIB])
        process.resume()
        again = _started(b.node, process, b, 6)
        again.complete(6)
        assert is_filled(incoming.memory, 4, 0, watermark)
        assert bytes(incoming.memory.view[watermark : watermark + 2 * _MIB]) == edge, "written after the close"
        assert len(b.transport.links()) == 2, "the link was broken"


def check_sender_goes_on(make: Maker) -> None:
    """A stream whose sender was stopped for a while is completed when it runs again."""
    with endpoints(make, 2) as (b,), start_process(make, 9) as process:
        incoming = _started(b.node, process, b, 7)
        process.stop()
        time.sleep(0.3)
        process.resume()
        incoming.complete(7)


def check_receiver_stopped(make: Maker) -> None:
    """A stream to a stopped receiver can be cancelled in the middle of a frame; the source is then free."""
    with endpoints(make, 1, 2) as (a, b), start_process(make, 9) as process:
        key, source = next_key(), filled(8, _SIZE)
        process.receive(a.node, a.address, key, _SIZE, granule=_MIB)
        outgoing = Serving(a, process.node, key, source, _SIZE, granule=_MIB)
        wait_until(lambda: outgoing.position > 0, "the stream runs")
        process.stop()
        time.sleep(0.3)
        other = next_key()
        incoming = Receiving(b, a.node, a.address, other, _MIB)
        Serving(a, b.node, other, filled(9, _MIB), _MIB)
        incoming.complete(9)
        outgoing.cancel()
        outgoing.wait(CLOSE_WAIT)
        source.view.release()  # nothing reads it, or this or the thread fails
        process.resume()
        after = filled(1, _MIB)

        def is_served() -> bool:
            """False if it asked on a link that was broken while it was stopped; it notices that until the next time."""
            key = next_key()
            process.receive(a.node, a.address, key, _MIB, granule=_MIB)
            outgoing = Serving(a, process.node, key, after, _MIB)
            served = outgoing.closed_within(5.0)
            outgoing.cancel()
            return served

        wait_until(is_served, "the receiver gets the next stream")


def check_stopped_link_closes(make: Maker) -> None:
    """Closing does not wait for a peer that does not move."""
    with start_process(make, 9) as process:
        with endpoints(make, 2) as (b,):
            incoming = _started(b.node, process, b, 10)
            process.stop()
            assert b.close()
            incoming.wait()
        process.resume()


def check_nobody_there(make: Maker) -> None:
    """A receive from a port where nothing listens breaks soon; a serve whose receiver never comes is closed."""
    with endpoints(make, 1, 2) as (a, b):
        a.close()
        incoming = Receiving(b, a.node, a.address, next_key(), _MIB)
        assert incoming.wait() == (0, Fault.BROKEN)
        Serving(b, 77, next_key(), filled(1, _MIB), _MIB).wait()


def check_wrong_token(make: Maker) -> None:
    """Neither side talks to a peer with another token, and both say why."""
    lost: list[tuple[int, Side, Exception]] = []
    with make(1, b"right") as a, make(2, b"wrong", on_lost=lambda *why: lost.append(why)) as b:
        incoming = Receiving(b, a.node, a.address, next_key(), _MIB)
        assert incoming.wait() == (0, Fault.BROKEN)
        wait_until(lambda: a.refused and lost, "both sides tell")
        assert isinstance(a.refused[0], WrongTokenError)
        assert isinstance(lost[0][2], WrongTokenError)
        assert "HOPLITE_TOKEN" in str(lost[0][2])


def check_wrong_node(make: Maker) -> None:
    """Another node than expected is not received from."""
    with endpoints(make, 1, 2) as (a, b):
        assert Receiving(b, 55, a.address, next_key(), _MIB).wait() == (0, Fault.BROKEN)


def check_garbage(make: Maker) -> None:
    """Strangers get nothing, cost little, and do no harm."""
    noise = random.Random(11).randbytes(100_000)
    with endpoints(make, 1, 2) as (a, b):
        where = parse_address(a.address)
        for data in (noise, b"GET / HTTP/1.1\r\n\r\n" * 10, b"\0" * 5000, b"hoplite\0" * 1000):
            with socket.create_connection(where, timeout=WAIT_SECONDS) as sock:
                try:
                    sock.sendall(data)
                    while sock.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
        silent = [socket.create_connection(where, timeout=WAIT_SECONDS) for _ in range(20)]
        key = next_key()
        incoming = Receiving(b, a.node, a.address, key, _MIB)
        Serving(a, b.node, key, filled(12, _MIB), _MIB)
        incoming.complete(12)
        for sock in silent:
            assert sock.recv(100) == b"", "a silent connection was kept"
            sock.close()
        wait_until(lambda: len(a.refused) >= 24, "everyone is refused")


class _Storm:
    """Streams that are begun, fed, cancelled and broken at random, between a few nodes."""

    def __init__(self, nodes: list[Endpoint], seed: int) -> None:
        self.nodes = nodes
        self.seed = seed
        self.size = 2 * _MIB
        self.received: list[Receiving] = []
        self.served: list[Serving] = []
        self._draw = random.Random(seed)
        self._sources: list[Memory] = []
        self._sinks: list[GatedSink] = []
        self._written: list[tuple[Receiving, bytes]] = []  # closed streams, and what was beyond their watermark then

    def step(self) -> None:
        draw, recent = self._draw, slice(-30, None)
        live = [stream for stream in self.received[recent] if not stream.closes]
        if len(live) < 12:
            self._begin()
        for source in self._sources[recent]:
            source.rise(min(source.watermark() + draw.randrange(self.size // 4), self.size))
        for sink in self._sinks[recent]:
            sink.open_to(min(sink.limit() + draw.randrange(self.size // 4), self.size))
        act = draw.random()
        if act < 0.2 and live:
            draw.choice(live).cancel()
        elif act < 0.3:
            draw.choice(self.served[recent]).cancel()
        elif act < 0.31:
            draw.choice(self.nodes).transport.drop(draw.choice(self.nodes).node)
        elif act < 0.4:
            time.sleep(draw.random() * 0.005)
        closed = [stream for stream in self.received[recent] if stream.closes and draw.random() < 0.1]
        self._written += [(stream, bytes(stream.memory.view[stream.closes[0][0] :])) for stream in closed]

    def _begin(self) -> None:
        draw, size, key = self._draw, self.size, next_key()
        sender, receiver = draw.sample(self.nodes, 2)
        offset, granule = draw.randrange(size), draw.choice((4096, 65536, _MIB))
        source = filled(self.seed, size, watermark=draw.choice((0, size)))
        memory = Memory(bytearray(size), offset)
        sink = GatedSink(memory, size, draw.choice((offset, offset + 1, size)))
        self._sources.append(source)
        self._sinks.append(sink)

        def receive() -> None:
            where = (receiver, sender.node, sender.address)
            stream = Receiving(*where, key, size, offset=offset, granule=granule, memory=memory, sink=sink)
            self.received.append(stream)

        def serve() -> None:
            priority = draw.choice(tuple(Priority))
            stream = Serving(
                sender, receiver.node, key, source, size, offset=offset, granule=granule, priority=priority
            )
            self.served.append(stream)

        for part in draw.sample((receive, serve), 2):
            part()

    def end(self) -> None:
        for incoming in self.received:
            incoming.cancel()
        for outgoing in self.served:
            outgoing.cancel()
            outgoing.wait()
        for incoming in self.received:
            watermark, _ = incoming.wait()
            assert is_filled(incoming.memory, self.seed, incoming.offset, watermark), "wrong bytes"
        for incoming, after in self._written:
            assert incoming.memory.view[incoming.closes[0][0] :] == after, "written after the close"
        assert not any(node.transport.receive_positions() for node in self.nodes)
        assert not any(node.transport.serve_positions() for node in self.nodes)


def check_storm(make: Maker, seed: int = 13, steps: int = 120) -> None:
    """Whatever happens in whatever order: streams close once, none writes after that, and links are still good."""
    lost: list[Exception] = []
    with ExitStack() as stack:
        nodes = [stack.enter_context(make(node, on_lost=lambda *why: lost.append(why[2]))) for node in (1, 2, 3)]
        storm = _Storm(nodes, seed)
        for _ in range(steps):
            storm.step()
        storm.end()
        for sender, receiver in itertools.permutations(nodes, 2):
            key = next_key()
            incoming = Receiving(receiver, sender.node, sender.address, key, _MIB)
            Serving(sender, receiver.node, key, filled(seed, _MIB), _MIB)
            incoming.complete(seed)
    assert all(len(stream.closes) == 1 for stream in storm.received)
    assert all(stream.closes == 1 for stream in storm.served)
    wrong = [error for error in lost if not isinstance(error, ConnectionLostError)]
    assert not wrong, f"the peers are all well, but {wrong}"


def check_kill_storm(make: Maker) -> None:
    """Peers die at random moments, and the receiver always knows what it has."""
    draw = random.Random(14)
    with endpoints(make, 2) as (b,):
        for seed in range(4):
            with start_process(make, 100 + seed) as process:
                streams: list[Receiving] = []
                for _ in range(6):
                    key: StreamKey = next_key()
                    granule = draw.choice((4096, 65536, _MIB))
                    size = 16 * _MIB
                    streams.append(Receiving(b, process.node, process.address, key, size, granule=granule))
                    process.serve(b.node, key, seed, size, granule=granule)
                time.sleep(draw.random() * 0.05)
                process.kill()
                for stream in streams:
                    watermark, fault = stream.wait()
                    assert fault is Fault.BROKEN or watermark == stream.size
                    assert is_filled(stream.memory, seed, 0, watermark)
        wait_until(lambda: not b.transport.links(), "the links are gone")


CHECKS: tuple[Callable[[Maker], None], ...] = (
    check_sender_killed,
    check_receiver_killed,
    check_sender_stopped,
    check_sender_goes_on,
    check_receiver_stopped,
    check_stopped_link_closes,
    check_nobody_there,
    check_wrong_token,
    check_wrong_node,
    check_garbage,
    check_storm,
    check_kill_storm,
)
