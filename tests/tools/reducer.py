"""A directory driver for reductions. The nodes are played by the tests: `Reducer.take` accepts a slot as a node would,
with what the directory knows it has. Degrees are those of the cost model: large objects make chains, so that three
sources a, b, c in order of arrival give the slots (b, a) and (c, (b, a)), the latter being the root.
"""

from typing import Any

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.events import CombineBytes, Probed, SessionLost
from hoplite_ucx.protocol.ids import Version, short
from hoplite_ucx.protocol.messages import (
    Ask,
    Bind,
    Bound,
    CombineInline,
    Completed,
    Consumed,
    Contributors,
    Copy,
    Halt,
    Halted,
    Operation,
    Put,
    Reduce,
    Reduced,
    ToNode,
    Want,
)
from tests.tools.machines import LARGE, DirectoryDriver, ref

TARGET, OUTER = 100, 200


class Reducer(DirectoryDriver):
    """A directory whose nodes are told to reduce; calls are numbered by themselves."""

    op = Operation.SUM

    def __init__(self, *names: str, settings: Settings | None = None) -> None:
        super().__init__(*names, settings=settings)
        self._calls = 1000

    def reduce(
        self, name: str, sources: tuple[int, ...], count: int | None = None, target: int = TARGET
    ) -> Failure | None:
        """Ask for a reduction; why it was refused is returned. Nobody else's messages are taken."""
        self._calls += 1
        numbers = tuple(map(ref, sources))
        count = len(sources) if count is None else count
        self.tell(name, Reduce(self._calls, ref(target), numbers, self.op, count))
        heard = self.heard(name)
        [answer] = [m for m in heard if isinstance(m, Reduced)]
        self._sent[self[name]] = [m for m in heard if m is not answer]
        assert answer.call == self._calls
        return answer.failure

    def bind_of(self, name: str) -> Bind:
        """The slot that the node was just given; its other messages are taken too."""
        [bind] = self.heard_all(Bind, name)
        return bind

    def accept(self, name: str, bind: Bind) -> None:
        """The node takes the slot: what it has not itself must be sent to it."""
        missing = [part for part in bind.parts if not self.directory.table.has_part(part.ref, self[name])]
        self.tell(name, Bound(bind.version, bind.number, tuple(missing)))

    def take(self, name: str) -> Bind:
        bind = self.bind_of(name)
        self.accept(name, bind)
        return bind

    def take_anywhere(self) -> tuple[str, Bind]:
        """Whoever was given a slot takes it; other messages stay."""
        names = {node: name for name, node in self.ids.items()}
        [(node, bind)] = [(n, m) for n, sent in self._sent.items() for m in sent if isinstance(m, Bind)]
        self._sent[node].remove(bind)
        self.accept(names[node], bind)
        return names[node], bind

    def consume(self, name: str, bind: Bind) -> None:
        """Every part that is sent to the slot has come."""
        for part in bind.parts:
            record = self.directory.records.get(part.ref)
            if record is None or record.broadcast is None:
                continue
            if (self[name], bind.version.ref) in record.broadcast.receivers:
                self.tell(name, Consumed(part, bind.version.ref))

    def finish(self, name: str, bind: Bind) -> None:
        self.consume(name, bind)
        self.tell(name, Completed(bind.version))

    def kill(self, name: str) -> None:
        self.handle(SessionLost(self[name]))
        self.handle(Probed(self[name], accepted=False))

    def lose(self, name: str) -> None:
        """Kill a node, and let those who were told to halt report."""
        self.kill(name)
        self.report_halts(*self.ids)

    def report_halts(self, *names: str, watermark: int = LARGE // 2) -> None:
        for name in names:
            heard = self.heard(name)
            self._sent[self[name]] = [m for m in heard if not isinstance(m, Halt)]
            for halt in heard:
                if isinstance(halt, Halt):
                    self.tell(name, Halted(halt.version, halt.number, watermark, wanted=True, into=halt.into))

    def version_of(self, number: int) -> Version:
        return self.broadcast(number).version

    def feeders(self, bind: Bind) -> dict[str, str]:
        """Which node sends each streaming part of a slot: by part, in hex."""
        names = {node: name for name, node in self.ids.items()}
        found = {}
        for part in bind.parts:
            record = self.directory.records[part.ref]
            for receiver in record.broadcast.receivers.values() if record.broadcast else ():
                if receiver.into == bind.version.ref and receiver.sender is not None:
                    found[short(part.ref)] = names[receiver.sender]
        return found

    def broadcast_of(self, bind: Bind) -> Broadcast:
        broadcast = self.directory.records[bind.version.ref].broadcast
        assert broadcast is not None
        return broadcast

    def run(self, *names: str) -> list[Bind]:
        """Let the nodes take and finish whatever slots they are given, until nothing more happens."""
        binds = []
        while new := [(name, m) for name in names for m in self.heard(name) if isinstance(m, Bind)]:
            for name, bind in new:
                self.accept(name, bind)
            binds += new
        for name, bind in binds:
            self.finish(name, bind)
        return [bind for _, bind in binds]

    def rejoin(self, name: str, copies: tuple[int, ...] = (), **changes: Any) -> None:
        held = tuple(Copy(self.version_of(number), LARGE, b"layout") for number in copies)
        self.join(name, copies=held, **changes)

    def contributors(self, name: str, number: int = TARGET) -> list[Contributors]:
        self.tell(name, Ask(7, ref(number)))
        return self.heard_all(Contributors, name)

    def waiting_for(self, name: str) -> list[ToNode]:
        """What the node was sent and has not looked at; it stays."""
        return self._sent.get(self[name], [])

    def quiet(self) -> None:
        for name in self.ids:
            self.heard(name)


def chain() -> tuple[Reducer, Bind, Bind]:
    """A, B and C have a source each; B runs the slot (2, 1) and C the root (3, slot); D and E have nothing."""
    d = Reducer("A", "B", "C", "D", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    assert d.reduce("E", (1, 2, 3)) is None
    lower = d.take("B")
    root = d.take("C")
    d.quiet()
    return d, lower, root


def sealed_chain() -> tuple[Reducer, Bind, Bind]:
    d, lower, root = chain()
    d.finish("B", lower)
    d.finish("C", root)
    return d, lower, root


def asked() -> tuple[Reducer, Bind, Bind]:
    """A, B and C have a source each; B and C were asked to take the slot (2, 1) and the root (3, slot), and have not
    answered; D has room too, and E gets the target."""
    d = Reducer("A", "B", "C", "D", "E")
    for number, name in enumerate("ABC", 1):
        d.put(name, number)
    d.reduce("E", (1, 2, 3))
    d.tell("E", Want(ref(TARGET)))
    return d, d.bind_of("B"), d.bind_of("C")


def chained() -> tuple[Reducer, Bind, Bind]:
    """The inner target (2, 1), bound to B, is a source of the outer (3, inner), bound to C; 5 on E is to spare."""
    d = Reducer("A", "B", "C", "D", "E")
    for name, number in (("A", 1), ("B", 2), ("E", 5)):
        d.put(name, number)
    assert d.reduce("D", (TARGET, 3), target=OUTER) is None
    assert d.reduce("D", (1, 2, 5), count=2) is None
    inner = d.take("B")
    d.put("C", 3)
    outer = d.take("C")
    d.quiet()
    return d, inner, outer


LONG = b"layout" * 200
"""Objects with such a layout a node combines, however small they are."""


def small(*names: str) -> tuple[Reducer, CombineBytes]:
    """C asked for the sum of small objects, which D wants, and the directory is to combine them."""
    d = _reduce_small(names, b"layout")
    [combine] = [effect for effect in d.effects if isinstance(effect, CombineBytes)]
    return d, combine


def small_at_node(*names: str) -> tuple[Reducer, CombineInline]:
    """The same, and C is to combine them."""
    d = _reduce_small(names, LONG)
    [combine] = d.heard_all(CombineInline, "C")
    return d, combine


def _reduce_small(names: tuple[str, ...], layout: bytes) -> Reducer:
    d = Reducer("A", "B", "C", "D")
    for number, name in enumerate(names, 1):
        d.tell(name, Put(number, ref(number), 2, layout, bytes([number, number])))
    d.tell("D", Want(ref(TARGET)))
    d.quiet()
    d.reduce("C", tuple(range(1, len(names) + 1)))
    return d


HALF = LARGE // 2


def copied(d: Reducer, name: str, number: int) -> None:
    place = d.want(name, number)
    d.tell(name, Completed(place.version))


def split() -> tuple[Reducer, Bind, Bind]:
    """C died. D, which has source 3, combines the rest of the root's parts for E, which has got half of the target."""
    d, _, root = chain()
    copied(d, "D", 3)
    d.want("E", TARGET)
    d.lose("C")
    below = d.take("D")
    assert below.parts == root.parts
    assert (below.start, below.resume) == (HALF, False)
    rest = d.take("E")
    assert (rest.version, rest.parts) == (root.version, (below.version,))
    assert (rest.start, rest.resume) == (HALF, True)
    d.quiet()
    return d, below, rest
