"""One host's part in the bare operations: blocking sockets, numpy, and as little else as possible.

The runtime is compared with these: no directory, no failures, no late arrivals, every host knows from the start what to
do and with whom, and memory and connections exist before the clock runs. Results are compared
after it stopped. `driver` starts a peer in each host and speaks with it over its standard streams, a line each:

    peer: ready          driver: the moment to start, on the clock that all processes of a machine share
    peer: the seconds from that moment until it was done, and the processor time it took

until standard input ends. Arguments: operation, own rank, size in bytes, the addresses of all ranks in order.
"""

from __future__ import annotations

import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
# A round's timed part, and whether the result of a round is right, given its number.
Operation = tuple[Callable[[], None], Callable[[int], bool]]

PORT = 7601
# How much a relay receives before it forwards: small enough that seven hops of it are short beside 32 MiB, large enough
# that calls are few.
CHUNK = 128 << 10
ECHOES = 200
_FEWEST_ECHOES = 3
_ECHOED = 64 << 20  # of large ones, so many bytes a round
_PATIENCE = 60.0


class Peer:
    """A rank with its memory, and the connections that its operation needs."""

    def __init__(self, rank: int, size: int, addresses: list[str]) -> None:
        self.rank = rank
        self.hosts = len(addresses)
        self.last = self.hosts - 1
        self.addresses = addresses
        self.array: Array = np.ones(size // 4, np.float32)  # touched, so that no page is fresh later
        self.bytes = self.array.data.cast("B")
        self.round_trip: float | None = None  # what an echo reports in place of the time of the whole round
        self.listener = socket.create_server((addresses[rank], PORT), backlog=self.hosts)
        self.listener.settimeout(_PATIENCE)

    def connect(self, rank: int) -> socket.socket:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return _prepared(socket.create_connection((self.addresses[rank], PORT), timeout=_PATIENCE))
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def accept(self) -> socket.socket:
        return _prepared(self.listener.accept()[0])


def _prepared(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)  # a timeout would add a poll to every call; the driver bounds the whole
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill all of it."""
    if connection.recv_into(into, len(into), socket.MSG_WAITALL) != len(into):
        raise ConnectionError("the other end closed in the middle")


class Adder:
    """Adds arriving bytes to a part of an array, given in bytes, through a buffer of one chunk."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._scratch = np.empty(CHUNK // 4, np.float32)
        self._scratch_bytes = self._scratch.data.cast("B")

    def receive(self, connection: socket.socket, start: int, stop: int) -> None:
        receive(connection, self._scratch_bytes[: stop - start])
        self._array[start // 4 : stop // 4] += self._scratch[: (stop - start) // 4]


def chunks(start: int, stop: int) -> list[tuple[int, int]]:
    return [(at, min(at + CHUNK, stop)) for at in range(start, stop, CHUNK)]


# --- the operations --------------------------------------------------------------------------------------------


def broadcast(peer: Peer) -> Operation:
    """A chain 0 → 1 → 2 → …; a relay passes on whatever has arrived."""
    before = peer.accept() if peer.rank > 0 else None
    after = peer.connect(peer.rank + 1) if peer.rank < peer.last else None
    memory = peer.bytes

    def run() -> None:
        if before is None:
            assert after is not None
            after.sendall(memory)
        at = 0
        while before is not None and at < len(memory):
            count = before.recv_into(memory[at : at + CHUNK])
            if count == 0:
                raise ConnectionError("the host before closed in the middle")
            if after is not None:
                after.sendall(memory[at : at + count])
            at += count

    return run, lambda number: bool((peer.array == own_value(0, number)).all())


def reduce(peer: Peer) -> Operation:
    """A chain … → 2 → 1 → 0; each host adds its own array, chunk by chunk."""
    before = peer.accept() if peer.rank < peer.last else None
    after = peer.connect(peer.rank - 1) if peer.rank > 0 else None
    memory, array = peer.bytes, peer.array
    adder = Adder(array)

    def run() -> None:
        if before is None:
            assert after is not None
            after.sendall(memory)
        else:
            for start, stop in chunks(0, len(memory)):
                adder.receive(before, start, stop)
                if after is not None:
                    after.sendall(memory[start:stop])

    return run, lambda number: peer.rank > 0 or bool((array == total(peer, number)).all())


def gather(peer: Peer) -> Operation:
    """All other hosts send to 0, which has a thread and a buffer for each."""
    if peer.rank > 0:
        to_root = peer.connect(0)
        to_root.sendall(bytes([peer.rank]))
        return lambda: to_root.sendall(peer.bytes), lambda _: True

    arrays = [np.ones_like(peer.array) for _ in peer.addresses]
    sources = [peer.accept() for _ in range(peer.last)]
    ranks = [source.recv(1)[0] for source in sources]

    def run() -> None:
        threads = [
            threading.Thread(target=receive, args=(source, arrays[rank].data.cast("B")))
            for source, rank in zip(sources, ranks, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run, lambda number: all(bool((arrays[rank] == own_value(rank, number)).all()) for rank in ranks)


def allreduce(peer: Peer) -> Operation:
    """A ring: n-1 steps that add up a part each, n-1 that pass the sums round; one connection to either neighbour.

    A chunk goes on as soon as it is added up, so what is received in one step is what is sent in the next.
    """
    connector = threading.Thread(target=lambda: right.append(peer.connect((peer.rank + 1) % peer.hosts)))
    right: list[socket.socket] = []
    connector.start()
    before = peer.accept()
    connector.join()
    (after,) = right
    memory, array = peer.bytes, peer.array
    edges = [len(array) * part // peer.hosts * 4 for part in range(peer.hosts + 1)]
    adder = Adder(array)

    def part(step: int) -> list[tuple[int, int]]:
        index = (peer.rank - step) % peer.hosts
        return chunks(edges[index], edges[index + 1])

    def run() -> None:
        outgoing: SimpleQueue[memoryview | None] = SimpleQueue()

        def send() -> None:
            while (piece := outgoing.get()) is not None:
                after.sendall(piece)

        sender = threading.Thread(target=send)
        sender.start()
        for start, stop in part(0):
            outgoing.put(memory[start:stop])
        steps = 2 * (peer.hosts - 1)
        for step in range(1, steps + 1):
            for start, stop in part(step):
                if step < peer.hosts:
                    adder.receive(before, start, stop)
                else:
                    receive(before, memory[start:stop])
                if step < steps:
                    outgoing.put(memory[start:stop])
        outgoing.put(None)
        sender.join()

    return run, lambda number: bool((array == total(peer, number)).all())


def echo(peer: Peer) -> Operation:
    """Round trips between 0 and 1; a round is as many as it takes for a steady median, which 0 reports."""
    connection = peer.accept() if peer.rank == 1 else peer.connect(1)
    memory = peer.bytes
    echoes = max(_FEWEST_ECHOES, min(ECHOES, _ECHOED // len(memory)))

    def run() -> None:
        trips = []
        for _ in range(echoes):
            began = time.monotonic()
            if peer.rank == 0:
                connection.sendall(memory)
            receive(connection, memory)
            if peer.rank == 1:
                connection.sendall(memory)
            trips.append(time.monotonic() - began)
        peer.round_trip = statistics.median(trips) if peer.rank == 0 else 0.0

    return run, lambda _: True


OPERATIONS: dict[str, Callable[[Peer], Operation]] = {
    "broadcast": broadcast,
    "reduce": reduce,
    "gather": gather,
    "allreduce": allreduce,
    "echo": echo,
}


# --- rounds ----------------------------------------------------------------------------------------------------


def own_value(rank: int, number: int) -> float:
    """What a rank contributes to a round: small whole numbers, so that sums are exact in any order."""
    return float(rank + 1 + number % 100)


def total(peer: Peer, number: int) -> float:
    return sum(own_value(rank, number) for rank in range(peer.hosts))


def main(arguments: list[str]) -> None:
    operation, rank, size, *addresses = arguments
    peer = Peer(int(rank), int(size), addresses)
    run, is_right = OPERATIONS[operation](peer)
    number = 0
    while True:
        number += 1
        peer.array.fill(own_value(peer.rank, number))
        tell("ready")
        told = sys.stdin.readline()
        if not told:
            return
        start = float(told)
        used = time.process_time()
        time.sleep(max(0.0, start - time.monotonic()))
        run()
        seconds = time.monotonic() - start
        used = time.process_time() - used
        if not is_right(number):
            raise SystemExit(f"rank {rank}: a wrong result of {operation}")
        tell(f"{seconds if peer.round_trip is None else peer.round_trip!r} {used!r}")


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
