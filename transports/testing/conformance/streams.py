"""Checks of what links do while nothing goes wrong: order, many streams, back-pressure, offsets, cancelling."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from hoplite_ucx.transports.buffers import Memory
from hoplite_ucx.transports.interface import Fault, Priority
from hoplite_ucx.transports.testing.conformance.tools import (
    CLOSE_WAIT,
    Endpoint,
    GatedSink,
    Maker,
    Receiving,
    Serving,
    endpoints,
    filled,
    is_filled,
    next_key,
    pattern,
    steps,
    wait_until,
)

_MIB = 1 << 20


class LazySink:
    """Takes everything, and makes it final only on request; what is not final at the end is dropped."""

    device: int | None = None

    def __init__(self, size: int) -> None:
        self._view = memoryview(bytearray(size))
        self._final = 0
        self._grown: Callable[[], None] = lambda: None
        self.received = 0
        self.ended = False

    def window(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]

    def arrived(self, end: int) -> None:
        self.received = end

    def watermark(self) -> int:
        return self._final

    def limit(self) -> int:
        return len(self._view)

    def subscribe(self, grown: Callable[[], None]) -> None:
        self._grown = grown

    def end(self) -> int:
        self.ended = True
        return self._final

    def finish(self, final: int) -> None:
        self._final = final
        self._grown()


def _pair(sender: Endpoint, receiver: Endpoint, size: int, seed: int, granule: int) -> tuple[Serving, Receiving]:
    key, source = next_key(), filled(seed, size)
    incoming = Receiving(receiver, sender.node, sender.address, key, size, granule=granule)
    return Serving(sender, receiver.node, key, source, size, granule=granule), incoming


def check_order(make: Maker) -> None:
    """Bytes arrive in order, without gaps, and are the right ones."""
    size = 8 * _MIB + 12345
    with endpoints(make, 1, 2) as (a, b):
        memory = Memory(bytearray(size))
        sink = GatedSink(memory, size, size)
        key = next_key()
        incoming = Receiving(b, a.node, a.address, key, size, memory=memory, sink=sink)
        outgoing = Serving(a, b.node, key, filled(1, size), size)
        incoming.complete(1)
        outgoing.wait()
        assert sink.ends == sorted(set(sink.ends))
        assert sink.ends[-1] == size
        assert not b.transport.receive_positions()
        assert not a.transport.serve_positions()


def check_odd_sizes(make: Maker) -> None:
    """One byte, a granule and its neighbours; served before and after the receiver asks."""
    granule = 4096
    with endpoints(make, 1, 2) as (a, b):
        for size in (1, granule - 1, granule, granule + 1, 7 * granule + 13):
            for serve_first in (True, False):
                key = next_key()
                if serve_first:
                    outgoing = Serving(a, b.node, key, filled(size, size), size, granule=granule)
                incoming = Receiving(b, a.node, a.address, key, size, granule=granule)
                if not serve_first:
                    outgoing = Serving(a, b.node, key, filled(size, size), size, granule=granule)
                incoming.complete(size)
                outgoing.wait()


def check_zero_length(make: Maker) -> None:
    """A stream without bytes closes by itself, at the start and at the end of an object."""
    with endpoints(make, 1, 2) as (a, b):
        for size in (0, 1000):
            key = next_key()
            incoming = Receiving(b, a.node, a.address, key, size, offset=size)
            outgoing = Serving(a, b.node, key, filled(1, size), size, offset=size)
            assert incoming.wait() == (size, None)
            outgoing.wait()


def check_growing_source(make: Maker) -> None:
    """A sender forwards whatever there is, and does not wait for the rest of a granule."""
    size, granule = 4 * _MIB, 256 << 10
    with endpoints(make, 1, 2) as (a, b):
        source = filled(3, size, watermark=0)
        key = next_key()
        incoming = Receiving(b, a.node, a.address, key, size, granule=granule)
        outgoing = Serving(a, b.node, key, source, size, granule=granule)
        for count, watermark in enumerate(steps(3, 0, size, 40_000)):
            source.rise(watermark)
            if count % 20 == 0:
                wait_until(lambda: incoming.memory.watermark() >= source.watermark(), "bytes below the watermark")
        incoming.complete(3)
        outgoing.wait()
        source.rise(size)


def check_relay(make: Maker) -> None:
    """What arrives is forwarded while it arrives, over several hops."""
    size, granule = 16 * _MIB, 128 << 10
    with endpoints(make, 1, 2, 3, 4) as nodes:
        first = filled(4, size, watermark=0)
        source = first
        hops = []
        for sender, receiver in itertools.pairwise(nodes):
            key = next_key()
            incoming = Receiving(receiver, sender.node, sender.address, key, size, granule=granule)
            Serving(sender, receiver.node, key, source, size, granule=granule, priority=Priority.RELAYED)
            source = incoming.memory
            hops.append(incoming)
        first.rise(size // 2)
        wait_until(lambda: hops[-1].memory.watermark() == size // 2, "half of it at the end of the chain")
        first.rise(size)
        for incoming in hops:
            incoming.complete(4)


def check_many_streams(make: Maker) -> None:
    """Streams of all sizes share one link, both ways at once."""
    draw = random.Random(5)
    with endpoints(make, 1, 2) as (a, b):
        pairs = []
        for seed in range(40):
            sender, receiver = (a, b) if seed % 2 else (b, a)
            size = draw.choice((1, 1000, 100_000, 3 * _MIB))
            pairs.append((seed, *_pair(sender, receiver, size, seed, draw.choice((4096, 65536, _MIB)))))
        for seed, outgoing, incoming in pairs:
            incoming.complete(seed)
            outgoing.wait()
        assert len(a.transport.links()) == 2
        assert len(b.transport.links()) == 2


def check_fair_turns(make: Maker) -> None:
    """A short stream does not wait for a long one that came before it."""
    with endpoints(make, 1, 2) as (a, b):
        long_out, long_in = _pair(a, b, 128 * _MIB, 6, 64 << 10)
        wait_until(lambda: long_in.memory.watermark() > 0, "the long stream runs")
        _, short_in = _pair(a, b, _MIB, 7, 64 << 10)
        short_in.complete(7)
        assert not long_in.closes, "the short stream came last"
        long_in.cancel()
        long_in.wait()
        long_out.wait()


def check_back_pressure(make: Maker) -> None:
    """A full sink holds up only its own stream, which continues when the sink does."""
    size, limit = 2 * _MIB, 100_000
    with endpoints(make, 1, 2) as (a, b):
        memory = Memory(bytearray(size))
        sink = GatedSink(memory, size, limit)
        key = next_key()
        blocked = Receiving(b, a.node, a.address, key, size, memory=memory, sink=sink)
        Serving(a, b.node, key, filled(8, size), size, priority=Priority.RELAYED)
        wait_until(lambda: memory.watermark() == limit, "everything below the limit")
        _, other = _pair(a, b, 16 * _MIB, 9, 64 << 10)
        other.complete(9)
        assert memory.watermark() == limit
        assert blocked.position == limit
        for further in steps(8, limit, size, 50_000):
            sink.open_to(further)
        blocked.complete(8)


def check_slow_sink(make: Maker) -> None:
    """Credits of a few bytes at a time add up; the sender never gets ahead of them."""
    size = 300_000
    with endpoints(make, 1, 2) as (a, b):
        memory = Memory(bytearray(size))
        sink = GatedSink(memory, size, 1)
        key = next_key()
        incoming = Receiving(b, a.node, a.address, key, size, memory=memory, sink=sink)
        Serving(a, b.node, key, filled(10, size), size)
        for limit in steps(10, 1, size, 3000):
            sink.open_to(limit)
            time.sleep(0.0005)
        incoming.complete(10)


def check_final_later(make: Maker) -> None:
    """A stream is complete when its bytes are final, not when they have arrived; its position is what is final."""
    size = 500_000
    with endpoints(make, 1, 2) as (a, b):
        for final in (size, 1234):
            sink = LazySink(size)
            key = next_key()
            incoming = Receiving(b, a.node, a.address, key, size, sink=sink)
            Serving(a, b.node, key, filled(11, size), size).wait()
            wait_until(lambda sink=sink: sink.received == size, "all bytes")  # type: ignore[misc]
            assert not incoming.closes
            sink.finish(final)
            if final < size:
                assert incoming.position == final
                incoming.cancel()
            assert incoming.wait() == (final, None)
            assert sink.ended


def check_resume(make: Maker) -> None:
    """A stream that broke goes on at its watermark over a new connection."""
    size = 32 * _MIB
    with endpoints(make, 1, 2) as (a, b):
        outgoing, incoming = _pair(a, b, size, 12, 64 << 10)
        wait_until(lambda: incoming.memory.watermark() > 0, "the stream runs")
        b.transport.drop(a.node)
        watermark, fault = incoming.wait()
        assert fault is Fault.BROKEN
        assert is_filled(incoming.memory, 12, 0, watermark)
        outgoing.wait()
        key = next_key()
        memory = incoming.memory
        again = Receiving(b, a.node, a.address, key, size, offset=watermark, memory=memory)
        Serving(a, b.node, key, filled(12, size), size, offset=watermark).wait()
        again.complete(12)
        assert is_filled(memory, 12, 0, size)


def check_beyond_2gib(make: Maker) -> None:
    """Offsets do not fit 32 bits."""
    size = 5 << 30
    with endpoints(make, 1, 2) as (a, b):
        here, there = _sparse(size), _sparse(size)
        for offset in ((1 << 31) - 1000, (1 << 32) - 1000, size - _MIB):
            end = offset + _MIB
            key = next_key()
            here[offset:end] = pattern(13, offset, end)
            incoming = Receiving(b, a.node, a.address, key, end, offset=offset, memory=Memory(there, offset))
            outgoing = Serving(a, b.node, key, Memory(here, end), end, offset=offset)
            incoming.complete(13)
            outgoing.wait()


def _sparse(size: int) -> memoryview:
    """Much memory, of which only what is touched is there."""
    descriptor = os.memfd_create("sparse")
    os.truncate(descriptor, size)
    mapped = mmap.mmap(descriptor, size)
    os.close(descriptor)
    return memoryview(mapped)


def check_cancel_receive(make: Maker) -> None:
    """A cancelled stream closes soon, writes nothing afterwards, and harms no other stream of its link."""
    with endpoints(make, 1, 2) as (a, b):
        other_out, other = _pair(a, b, 64 * _MIB, 15, 64 << 10)
        for seed in range(6):
            outgoing, incoming = _pair(a, b, 32 * _MIB, seed, _MIB)
            wait_until(lambda incoming=incoming: incoming.memory.watermark() > 0, "it runs")  # type: ignore[misc]
            incoming.cancel()
            watermark, fault = incoming.wait(CLOSE_WAIT)
            assert fault is None
            after = bytes(incoming.memory.view[watermark : watermark + 2 * _MIB])
            assert is_filled(incoming.memory, seed, 0, watermark)
            outgoing.wait()
            assert bytes(incoming.memory.view[watermark : watermark + 2 * _MIB]) == after, "written after the close"
            incoming.cancel()
        other.complete(15)
        other_out.wait()


def check_cancel_serve(make: Maker) -> None:
    """The sender may stop: the receiver keeps what it has, waits, and is closed when it is cancelled."""
    with endpoints(make, 1, 2) as (a, b):
        key, size = next_key(), 64 * _MIB
        incoming = Receiving(b, a.node, a.address, key, size, granule=_MIB)
        outgoing = Serving(a, b.node, key, filled(16, size, watermark=size // 2), size, granule=_MIB)  # it never ends
        wait_until(lambda: incoming.memory.watermark() > 0, "it runs")
        outgoing.cancel()
        outgoing.wait(CLOSE_WAIT)
        time.sleep(0.05)
        assert not incoming.closes
        incoming.cancel()
        watermark, fault = incoming.wait(CLOSE_WAIT)
        assert fault is None
        assert is_filled(incoming.memory, 16, 0, watermark)
        _pair(a, b, _MIB, 17, 64 << 10)[1].complete(17)


def check_cancel_early(make: Maker) -> None:
    """Streams may be cancelled before there is a connection, and before the other side knows of them."""
    with endpoints(make, 1, 2) as (a, b):
        for _ in range(50):
            outgoing, incoming = _pair(a, b, _MIB, 18, 64 << 10)
            incoming.cancel()
            outgoing.cancel()
            assert incoming.wait(CLOSE_WAIT)[1] is None
            outgoing.wait(CLOSE_WAIT)
        _pair(a, b, _MIB, 19, 64 << 10)[1].complete(19)


def check_thousand_cancelled(make: Maker) -> None:
    """A thousand streams cancelled at all moments, on both sides; and the link is still good."""
    draw = random.Random(22)
    source = filled(22, _MIB)
    with endpoints(make, 1, 2) as (a, b):
        for _ in range(1000):
            key = next_key()
            incoming = Receiving(b, a.node, a.address, key, _MIB)
            outgoing = Serving(a, b.node, key, source, _MIB)
            if draw.random() < 0.5:
                time.sleep(draw.random() * 0.002)
            for cancel in draw.sample((incoming.cancel, outgoing.cancel), 2):
                cancel()
            incoming.wait(CLOSE_WAIT)
            outgoing.wait(CLOSE_WAIT)
        _pair(a, b, _MIB, 23, 64 << 10)[1].complete(23)


def check_itself(make: Maker) -> None:
    """A node may receive from itself."""
    with endpoints(make, 1) as (a,):
        _pair(a, a, 3 * _MIB, 20, 64 << 10)[1].complete(20)


def check_bad_calls(make: Maker) -> None:
    """What cannot be done is refused before anything happens."""
    with endpoints(make, 1, 2) as (a, b):
        outgoing, incoming = _pair(a, b, 1000, 21, 4096)
        _refuses(lambda: Receiving(b, a.node, "nowhere", next_key(), 10))
        incoming.complete(21)
        outgoing.wait()
        a.transport.cancel_serve((99, 99))
        b.transport.cancel_receive((99, 99))


def _refuses(call: Callable[[], object]) -> None:
    try:
        call()
    except ValueError:
        return
    raise AssertionError("a call that makes no sense was accepted")


def check_close(make: Maker) -> None:
    """Closing ends every stream once, as broken, and every thread; calls after it close at once."""
    with endpoints(make, 1, 2) as (a, b):
        size = 4 * _MIB
        pairs = []
        for seed in range(4):
            key = next_key()
            incoming = Receiving(b, a.node, a.address, key, size)
            pairs.append((Serving(a, b.node, key, filled(seed, size, watermark=size - 1), size), incoming))
        wait_until(lambda: all(incoming.memory.watermark() > 0 for _, incoming in pairs), "all of them run")
        b.close()
        for seed, (outgoing, incoming) in enumerate(pairs):
            watermark, fault = incoming.wait()
            assert fault is Fault.BROKEN
            assert is_filled(incoming.memory, seed, 0, watermark)
            outgoing.wait()
        late = Receiving(b, a.node, a.address, next_key(), 1000)
        assert late.wait(0.1) == (0, Fault.BROKEN)
        Serving(b, a.node, next_key(), filled(1, 1000), 1000).wait(0.1)


def check_nothing_leaks(make: Maker) -> None:
    """80 links opened and closed leave no descriptor and no thread behind."""
    with endpoints(make, 1) as (a,):
        for node in range(2, 5):
            _open_and_close(make, a, node)
        wait_until(lambda: not a.transport.links(), "the first links are gone")
        before = _resources_at_rest()
        for node in range(5, 45):
            _open_and_close(make, a, node)
        wait_until(lambda: not a.transport.links(), "all links are gone")
        # Fewer is not a leak: leftovers of other tests in this process may go meanwhile.
        wait_until(
            lambda: all(now <= then for now, then in zip(_resources(), before, strict=True)),
            f"no more descriptors and threads than before ({before}): {_resources()}",
        )


def _open_and_close(make: Maker, a: Endpoint, node: int) -> None:
    with endpoints(make, node) as (b,):
        _pair(a, b, 10_000, node, 4096)[1].complete(node)
        _pair(b, a, 10_000, node, 4096)[1].complete(node)


def _resources_at_rest() -> tuple[int, int]:
    """Once nothing has changed for a while: a transport may make ready what the next link will need."""
    seen: deque[tuple[int, int]] = deque(maxlen=10)

    def still() -> bool:
        seen.append(_resources())
        time.sleep(0.02)
        return len(seen) == 10 and len(set(seen)) == 1

    wait_until(still, "descriptors and threads at rest")
    return seen[-1]


def _resources() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


CHECKS: tuple[Callable[[Maker], None], ...] = (
    check_order,
    check_odd_sizes,
    check_zero_length,
    check_growing_source,
    check_relay,
    check_many_streams,
    check_fair_turns,
    check_back_pressure,
    check_slow_sink,
    check_final_later,
    check_resume,
    check_beyond_2gib,
    check_cancel_receive,
    check_cancel_serve,
    check_cancel_early,
    check_thousand_cancelled,
    check_itself,
    check_bad_calls,
    check_close,
    check_nothing_leaks,
)
