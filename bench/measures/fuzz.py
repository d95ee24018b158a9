"""Invalid bytes for everything that reads bytes: every parser here, then every port of a cluster.

Valid frames of every kind are generated from the types, then corrupted: bits flipped, bytes cut off, doubled, taken
from another frame. A parser must return a value or raise its own typed error; anything else is a *crash*, and is shown
with the seed and number that made it. Frames that the protocol's decoders accept go on into live machines, which must
keep their invariants. Ports are those of a real directory and agent: after all of it they must serve as before.

A frame is one corrupted input to one parser, or one that is sent to a port.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect

from hoplite_ucx.errors import HopliteError
from hoplite_ucx.protocol import Directory, NodeState, lookups
from hoplite_ucx.protocol import messages as protocol
from hoplite_ucx.protocol.events import DirectoryConnected, FromDirectory, FromNode, FromPeer
from hoplite_ucx.protocol.ids import node_id
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.node.machine import NodeProfile
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import agent_task, directory_task
from hoplite_ucx.runtime.local import worker_messages as wire
from hoplite_ucx.runtime.local.socket_names import socket_name
from hoplite_ucx.runtime.objects import layouts, trees, values
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.tcp.frames import RECORD
from hoplite_ucx.transports.ucx.settings import Greeting
from hoplite_ucx.transports.wire.addresses import parse_address
from hoplite_ucx.transports.wire.handshake import Identity, Kind, Peer, Steps, client, run_blocking, server
from hoplite_ucx.transports.wire.session import Session

_SAMPLES = 200
_MACHINE_FRAMES = 500
"""A machine is replaced after this many frames: what valid ones among them put into it does not count as growth."""
_CLUSTER = "fuzz"
_TOKEN = b"a token for fuzzing"
_SOCKET_SECONDS = 5.0


@dataclass(slots=True)
class Crash:
    """What a parser raised that is not its own, and how to see it again."""

    parser: str
    seed: int
    number: int
    error: str


@dataclass(slots=True)
class Report:
    seed: int
    frames: int = 0
    seconds: float = 0.0
    by_parser: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    crashes: list[Crash] = field(default_factory=list)
    memory_before: dict[str, int] = field(default_factory=dict)
    memory_after: dict[str, int] = field(default_factory=dict)
    serves_after: bool | None = None
    """Whether the cluster whose ports were fuzzed works as before; None if none was."""

    @property
    def growth(self) -> int:
        """The most that any process grew by, in bytes."""
        return max((self.memory_after[name] - before for name, before in self.memory_before.items()), default=0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"rate": self.frames / max(self.seconds, 1e-9), "growth": self.growth}


Advance = Callable[[int], None]


# --- frames -----------------------------------------------------------------------------------------------------


class Samples:
    """Random values of any type that msgspec knows, within its bounds and often at them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def of(self, kind: Any) -> Any:
        return self._make(inspect.type_info(kind))

    def _make(self, info: inspect.Type) -> Any:
        rng = self._rng
        match info:
            case inspect.IntType():
                low = info.ge if info.ge is not None else -(1 << 40)
                high = info.lt - 1 if info.lt is not None else 1 << 60
                return rng.choice([int(low), int(low) + 1, int(high), rng.randint(int(low), int(high))])
            case inspect.FloatType():
                return rng.uniform(info.ge or 0.0, info.le or 1e15)
            case inspect.BytesType():
                longest = min(info.max_length or 40, 40)
                return rng.randbytes(rng.randint(info.min_length or 0, max(longest, info.min_length or 0)))
            case inspect.StrType():
                return "".join(rng.choice("aé\0\n☃") for _ in range(rng.randint(0, 9)))
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.EnumType():
                return rng.choice(list(info.cls))
            case inspect.UnionType():
                return self._make(rng.choice(info.types))
            case inspect.VarTupleType():
                least = info.min_length or 0
                return tuple(self._make(info.item_type) for _ in range(rng.randint(least, least + 3)))
            case inspect.TupleType():
                return tuple(self._make(item) for item in info.item_types)
            case inspect.StructType():
                return self._struct(info)
            case _:
                return None

    def _struct(self, info: inspect.StructType) -> Any:
        fields = {each.name: self._make(each.type) for each in info.fields}
        if info.cls is protocol.Cut:  # it refuses stripes that do not fill it
            fields["stripes"] = [msgspec.structs.replace(stripe, size=4096) for stripe in fields["stripes"]]
            fields["size"] = 4096 * len(fields["stripes"])
        return info.cls(**fields)


def spoil(rng: random.Random, frame: bytes, other: bytes) -> bytes:
    """The frame with some of it changed; now and then nothing of it, since frames of any kind may come."""
    spoilt = bytearray(frame)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        at = rng.randrange(len(spoilt) + 1)
        match rng.randrange(7):
            case 0 if at < len(spoilt):
                spoilt[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(spoilt):
                spoilt[at] = rng.choice((0x00, 0x7F, 0x80, 0xC1, 0xC6, 0xDD, 0xDF, 0xFF))
            case 2:
                del spoilt[at:]
            case 3:
                del spoilt[at : at + rng.randint(1, 8)]
            case 4:
                spoilt[at:at] = rng.randbytes(rng.randint(1, 16))
            case 5:
                spoilt[at:at] = other[: rng.randint(0, len(other))]
            case _:
                spoilt[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"))
    return bytes(spoilt)


# --- parsers ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Parser:
    """Something that reads bytes. `read` gives anything, or raises one of `refusals`."""

    name: str
    samples: list[bytes]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = (HopliteError, TransportError)


def parsers(rng: random.Random) -> list[Parser]:
    samples = Samples(rng)

    def messages(union: object) -> list[bytes]:
        kinds = get_args(union)
        return [msgspec.msgpack.encode(samples.of(kinds[n % len(kinds)])) for n in range(_SAMPLES)]

    to_directory, to_node, to_peer = map(messages, (protocol.ToDirectory, protocol.ToNode, protocol.ToPeer))
    looks = [rng.randbytes(16) for _ in range(_SAMPLES)]
    requests, replies = messages(wire.Request), messages(wire.Reply)
    me, peer = Identity(1, _TOKEN, b"cluster"), Identity(2, _TOKEN, b"cluster", b"info")
    from_client, from_server = _conversation(me, peer)
    directory, node = _DirectoryMachine(), _NodeMachine()
    greetings = [Greeting((1, 19), {"tls": ["tcp"], "segment": n}, rng.randbytes(20), n).encode()[4:] for n in range(9)]
    return [
        Parser("handshake server", [from_client], lambda data: _converse(server(me, set(Kind), "fuzz"), data)),
        Parser("handshake client", [from_server], lambda data: _converse(client(peer, Kind.PEER, "fuzz"), data)),
        Parser("session", [_framed(rng, to_peer) for _ in range(_SAMPLES)], _SessionFeed(rng).read),
        Parser("directory", to_directory, directory.read),
        Parser("directory from reader", looks, directory.read_look),
        Parser("reader from directory", messages(lookups.Answer), lookups.decode_answer),
        Parser("node from directory", to_node, node.read_directory),
        Parser("node from peer", to_peer, node.read_peer),
        Parser("worker requests", [_framed(rng, requests) for _ in range(_SAMPLES)], _wire_reader(wire.decode_request)),
        Parser("worker replies", [_framed(rng, replies) for _ in range(_SAMPLES)], _wire_reader(wire.decode_reply)),
        Parser("layout", _layouts(), _read_layout),
        Parser("ucx greeting", greetings, lambda data: Greeting.decode(data, "fuzz")),
    ]


def _conversation(me: Identity, peer: Identity) -> tuple[bytes, bytes]:
    """What the two sides of a good handshake say."""
    sides: list[Steps] = [client(peer, Kind.PEER, "fuzz"), server(me, set(Kind), "fuzz")]
    said, read, wants = [b"", b""], [0, 0], [0, 0]
    answers: list[bytes | None] = [None, None]
    over = [False, False]
    while not all(over):
        for side in (0, 1):
            while not over[side]:
                if wants[side]:
                    there = said[1 - side][read[side] :]
                    if len(there) < wants[side]:
                        break
                    answers[side], read[side] = there[: wants[side]], read[side] + wants[side]
                    wants[side] = 0
                answer = answers[side]
                try:
                    step = next(sides[side]) if answer is None else sides[side].send(answer)
                except StopIteration:
                    over[side] = True
                    break
                if isinstance(step, bytes):
                    said[side] += step
                    answers[side] = b""
                else:
                    wants[side] = step
    return said[0], said[1]


def _converse(steps: Steps, data: bytes) -> None:
    """One side of a handshake that hears these bytes, and then nothing."""
    at = 0
    answer: bytes | None = None
    with suppress(StopIteration):
        while True:
            step = next(steps) if answer is None else steps.send(answer)
            if isinstance(step, bytes):
                answer = b""
                continue
            assert 0 <= step < 4096, f"it wants {step} bytes"
            if at + step > len(data):
                break
            answer, at = data[at : at + step], at + step
    steps.close()


def _framed(rng: random.Random, bodies: list[bytes]) -> bytes:
    chosen = rng.choices(bodies, k=rng.randint(1, 3))
    return b"".join(len(body).to_bytes(4, "little") + body for body in chosen)


class _Wire:
    """As much of an event loop's transport as a session needs."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def _decode_from_peer(frame: bytes) -> None:
    protocol.decode_to_peer(frame)


class _SessionFeed:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._peer = Peer("fuzz", 2, Kind.PEER, b"", b"")

    def read(self, data: bytes) -> None:
        session = Session(self._peer, lambda _: None)
        session.on_frame = _decode_from_peer
        session.connection_made(_Wire())  # type: ignore[arg-type]
        cut = self._rng.randrange(len(data) + 1)
        try:
            session.data_received(data[:cut])
            session.data_received(data[cut:])
        finally:
            session.connection_lost(None)


class _DirectoryMachine:
    """Two nodes have joined; what decodes is said by one of them."""

    def __init__(self) -> None:
        self._frames = 0
        self._now = 0.0
        self._machine = self._fresh()

    def _fresh(self) -> Directory:
        machine = Directory(1, _CLUSTER)
        for number in (1, 2):
            address = f"127.0.0.1:{number}"
            join = protocol.Join(protocol.PROTOCOL, _CLUSTER, 0, node_id(number), "h", address, 1e9, 1e9, 9, 9)
            machine.handle(FromNode(node_id(number), join), self._now)
        return machine

    def read(self, data: bytes) -> None:
        self._frames += 1
        if self._frames % _MACHINE_FRAMES == 0:
            check(self._machine)
            self._machine = self._fresh()
        message = protocol.decode_to_directory(data)
        self._now += 1e-4
        self._machine.handle(FromNode(node_id(1 + self._frames % 2), message), self._now)

    def read_look(self, data: bytes) -> None:
        self._machine.look(data)


class _NodeMachine:
    def __init__(self) -> None:
        self._frames = 0
        self._now = 0.0
        self._machine = self._fresh()

    def _fresh(self) -> NodeState:
        profile = NodeProfile(host="h", address="127.0.0.1:1", up=1e9, down=1e9, cluster=_CLUSTER, memory=1 << 40)
        machine = NodeState(node_id(1), profile)
        machine.start(self._now)
        machine.handle(DirectoryConnected(), self._now)
        machine.handle(FromDirectory(protocol.Welcome(1, _CLUSTER, Settings())), self._now)
        return machine

    def _step(self) -> None:
        self._frames += 1
        self._now += 1e-4
        if self._frames % _MACHINE_FRAMES == 0:
            check(self._machine)
            self._machine = self._fresh()

    def read_directory(self, data: bytes) -> None:
        self._step()
        self._machine.handle(FromDirectory(protocol.decode_to_node(data)), self._now)

    def read_peer(self, data: bytes) -> None:
        self._step()
        self._machine.handle(FromPeer(node_id(2), protocol.decode_to_peer(data)), self._now)


def _wire_reader(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
    return lambda data: [decode(frame) for frame in wire.Frames().feed(data)]


_VALUE_BYTES = 4096
_SOME_LAYOUT = values.encode({"b": 1.5, 3: [1, 2]}).layout


class _Pair(NamedTuple):
    first: object
    second: object


def _layouts() -> list[bytes]:
    import numpy as np

    arrays = [
        np.zeros(8),
        np.zeros((2, 3), "<i4"),
        np.zeros(3, [("a", "<f4"), ("b", "<i8", (2,))]),
        np.zeros(2, "M8[s]"),
    ]
    tree = {"b": arrays[:2], 3: (arrays[2],), "a": OrderedDict(y=1, x=b"bytes"), "c": _Pair(arrays[0], 1.5)}
    return [values.encode(value).layout for value in (*arrays, tree, tree["a"], "text", b"x" * 10, np.float32(1))]


def _read_layout(data: bytes) -> object:
    """What needs no code of the user's is built; pickles and classes are only for the user's own `get`."""
    trees.difference(_SOME_LAYOUT, data)
    found = layouts.decode_layout(data, _VALUE_BYTES)
    if isinstance(found, layouts.BundleLayout) or b"named" in data:
        return found
    return values.decode(memoryview(bytes(_VALUE_BYTES)), data)


def fuzz_parsers(frames: int, seed: int, advance: Advance = lambda _: None) -> Report:
    """This many corrupted frames, in turns to every parser."""
    rng = random.Random(seed)
    every = parsers(rng)
    report = Report(seed, by_parser={parser.name: 0 for parser in every})
    warm = min(frames // 10, 20_000)
    begun = time.monotonic()
    for number in range(frames):
        if number == warm:  # what is allocated once does not count as growth
            report.memory_before["this process"] = resident(os.getpid())
        parser = every[number % len(every)]
        data = spoil(rng, rng.choice(parser.samples), rng.choice(parser.samples))
        try:
            parser.read(data)
        except parser.refusals:
            report.refused += 1
        except Exception as error:
            shown = f"{type(error).__name__}: {error} of {data.hex()[:200]}"
            report.crashes.append(Crash(parser.name, seed, number, shown))
        report.by_parser[parser.name] += 1
        if number % 1000 == 999:
            advance(1000)
    report.frames, report.seconds = frames, time.monotonic() - begun
    report.memory_after["this process"] = resident(os.getpid())
    return report


def resident(pid: int) -> int:
    """What a process has in memory, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- ports ------------------------------------------------------------------------------------------------------


def fuzz_ports(frames: int, seed: int, advance: Advance = lambda _: None) -> Report:
    """Corrupted frames at every port of a directory and an agent: before the proof, after it, on links, from
    workers."""
    rng = random.Random(seed)
    directory = processes.spawn("directory", directory_task(_TOKEN), tied_to_thread=True)
    agent = None
    try:
        task = agent_task(directory.report["address"], _TOKEN, 256 << 20, 1e9, "127.0.0.1")
        agent = processes.spawn("agent", task, tied_to_thread=True)
        name = socket_name(agent.report["cluster"], agent.report["agent"])
        report = Report(seed)
        children = {"directory": directory.process.pid, "agent": agent.process.pid}
        ports = _Ports(rng, directory.report["address"], agent.report["address"], name)
        every: dict[str, Callable[[int], None]] = {
            "directory, no proof": lambda count: ports.unproven(ports.directory, count),
            "agent, no proof": lambda count: ports.unproven(ports.agent, count),
            "directory, session": lambda count: ports.session(ports.directory, Kind.CONTROL, count),
            "directory, reader": lambda count: ports.session(ports.directory, Kind.READER, count),
            "agent, session": lambda count: ports.session(ports.agent, Kind.PEER, count),
            "agent, link": ports.link,
            "agent, worker": ports.worker,
        }
        begun = time.monotonic()
        for turn, count in enumerate(_turns(frames, len(every))):
            if turn == len(every):  # each was used once
                report.memory_before = {role: resident(pid) for role, pid in children.items()}
            kind = list(every)[turn % len(every)]
            every[kind](count)
            report.by_parser[kind] = report.by_parser.get(kind, 0) + count
            report.frames += count
            advance(count)
        report.seconds = time.monotonic() - begun
        report.serves_after = _serves(name) and all(child.running() for child in (directory, agent))
        report.memory_after = {role: resident(pid) for role, pid in children.items()}
        report.memory_before = report.memory_before or report.memory_after
        return report
    finally:
        if agent is not None:
            agent.stop()
        directory.stop()


_BATCH = 50


def _turns(frames: int, kinds: int) -> Iterator[int]:
    while frames > 0:
        count = min(_BATCH, max(1, frames // kinds))
        yield count
        frames -= count


def _serves(name: str) -> bool:
    worker = Client(name)
    try:
        ref, big = secrets.token_bytes(16), values.encode(bytes(1 << 20))
        worker.put(ref, big, 10.0, fresh=True)
        ((memory, found),) = worker.get([ref], 10.0)
        return bool(values.decode(memory, found) == bytes(1 << 20))
    finally:
        worker.close()


class _Ports:
    """Sends batches of spoilt frames. A port that closes the connection has refused; the next frame opens another."""

    def __init__(self, rng: random.Random, directory: str, agent: str, name: str) -> None:
        self.directory = directory
        self.agent = agent
        self._name = name
        self._rng = rng
        samples = Samples(rng)

        def bodies(union: object) -> list[bytes]:
            return [msgspec.msgpack.encode(samples.of(kind)) for kind in get_args(union) for _ in range(5)]

        self._bodies = {
            Kind.CONTROL: bodies(protocol.ToDirectory),
            Kind.PEER: bodies(protocol.ToPeer),
            Kind.READER: [*bodies(protocol.ToDirectory), *[bytes(16)] * 100],
        }
        self._requests = bodies(wire.Request)
        self._hello = _conversation(Identity(1, _TOKEN), Identity(2, _TOKEN))[0]

    def unproven(self, address: str, count: int) -> None:
        for _ in range(count):
            with self._dial(address) as sock, suppress(OSError):
                sock.sendall(spoil(self._rng, self._hello, self._hello))
                if self._rng.random() < 0.5:  # else it goes without waiting for what is said of it
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass

    def session(self, address: str, kind: Kind, count: int) -> None:
        bodies = self._bodies[kind]
        self._talk(lambda: self._proven(address, kind), lambda: self._frame(bodies), count)

    def link(self, count: int) -> None:
        records = [RECORD.pack(what, n, 1 << 20, 5, n) for what in (1, 2, 3) for n in range(4)]
        self._talk(lambda: self._proven(self.agent, Kind.BULK), lambda: self._spoilt(records), count)

    def worker(self, count: int) -> None:
        def dial() -> socket.socket:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(_SOCKET_SECONDS)
            sock.connect(self._name)
            sock.sendall(wire.frame(wire.Hello(wire.WIRE, self._rng.randbytes(16), background=True)))
            return sock

        self._talk(dial, lambda: self._frame(self._requests), count)

    def _spoilt(self, bodies: list[bytes]) -> bytes:
        return spoil(self._rng, self._rng.choice(bodies), self._rng.choice(bodies))

    def _frame(self, bodies: list[bytes]) -> bytes:
        """Spoilt within its length, or with it."""
        body = self._spoilt(bodies)
        if self._rng.random() < 0.9:
            return len(body).to_bytes(4, "little") + body
        return spoil(self._rng, len(body).to_bytes(4, "little") + body, body)

    def _talk(self, dial: Callable[[], socket.socket], frame: Callable[[], bytes], count: int) -> None:
        sock = dial()
        try:
            for _ in range(count):
                try:
                    sock.sendall(frame())
                    sock.setblocking(False)
                    with suppress(BlockingIOError):
                        while sock.recv(65536):
                            pass
                        raise ConnectionResetError  # it was closed
                    sock.settimeout(_SOCKET_SECONDS)
                except (ConnectionError, TimeoutError):
                    sock.close()
                    sock = dial()
        finally:
            sock.close()

    def _dial(self, address: str) -> socket.socket:
        return socket.create_connection(parse_address(address), _SOCKET_SECONDS)

    def _proven(self, address: str, kind: Kind) -> socket.socket:
        sock = self._dial(address)
        node = self._rng.randrange(1, 5)
        try:
            run_blocking(client(Identity(node, _TOKEN), kind, address), sock, address, _SOCKET_SECONDS)
        except TransportError:
            sock.close()
            raise
        sock.settimeout(_SOCKET_SECONDS)
        return sock
