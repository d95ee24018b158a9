"""A directory driver for the successor of a directory that died.

The nodes are played by the tests, which say what each announces: `Successor.survive` joins a node of the earlier
directory, `decide` lets the lease pass in which the nodes are heard. Versions of the earlier directory are
`version(n)`, of incarnation 1; its placements and slots have small numbers.
"""

from typing import Any

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.events import Probed, SessionLost
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import (
    Bind,
    Copy,
    Operation,
    Origin,
    Partial,
    Reduce,
    SlotReport,
    ToNode,
)
from tests.tools.machines import LARGE, DirectoryDriver, ref, version
from tests.tools.reducer import TARGET

A_SLOT = 50  # the ref of a slot's output that is no target


def copy(number: int, counter: int = 1, incarnation: int = 1, **changes: Any) -> Copy:
    return Copy(**({"version": version(number, counter, incarnation), "size": LARGE, "layout": b"layout"} | changes))


def partial(item: int, **changes: Any) -> Partial:
    usual = {"version": version(item), "size": LARGE, "layout": b"layout", "watermark": LARGE // 2}
    return Partial(**(usual | changes))


def spec(*sources: int, count: int | None = None, target: int = TARGET) -> Reduce:
    return Reduce(1, ref(target), tuple(map(ref, sources)), Operation.SUM, count or len(sources))


def origin(*sources: int) -> Origin:
    return Origin(spec(*sources), tuple(map(version, sources)))


def slot(
    output: Version,
    *parts: Version,
    number: int = 1,
    missing: tuple[Version, ...] = (),
    undecided: tuple[Version, ...] = (),
    reduce: Reduce | None = None,
    target: int = TARGET,
) -> SlotReport:
    bind = Bind(output, number, LARGE, b"layout", Operation.SUM, parts, ref(target), reduce)
    return SlotReport(bind, missing, undecided)


class Successor(DirectoryDriver):
    """The second incarnation, which hears the nodes of the first."""

    def __init__(self, *, settings: Settings | None = None, incarnation: int = 2) -> None:
        super().__init__(settings=settings, incarnation=incarnation)
        self.directory.recover(self.now)

    def survive(self, name: str, *, incarnation: int = 1, **announced: Any) -> None:
        """A node of the earlier directory comes; what it is sent at once is kept for the test."""
        self.join(name, incarnation=incarnation, **announced)

    def decide(self) -> None:
        names = {node: name for name, node in self.ids.items()}
        here = tuple(names[member.node] for member in self.directory.members if member.connected)
        self.pass_time(self.directory.settings.lease, beating=here)

    def kill(self, name: str) -> None:
        self.handle(SessionLost(self[name]))
        self.handle(Probed(self[name], accepted=False))

    def knows(self, number: int) -> bool:
        record = self.directory.records.get(ref(number))
        return record is not None and record.broadcast is not None

    def state(self, name: str, number: int) -> State:
        return self.receiver(name, number).state

    def take_bind(self, name: str) -> Bind:
        [bind] = self.heard_all(Bind, name)
        return bind

    def told_to(self, name: str, *kinds: type) -> list[ToNode]:
        """What the node was told of these kinds; everything is taken."""
        return [message for message in self.heard(name) if isinstance(message, kinds)]


def combining(successor: Successor, host: str, *holders: str, **changes: Any) -> None:
    """A host that streams in sources 1, 2, ..., each from one holder, and combines them into the target."""
    parts = tuple(version(index + 1) for index in range(len(holders)))
    streams = tuple(
        partial(index + 1, number=index + 1, sender=successor[holder], into=ref(TARGET))
        for index, holder in enumerate(holders)
    )
    sources = range(1, len(holders) + 1)
    report = slot(version(TARGET), *parts, number=9, missing=parts, reduce=spec(*sources))
    successor.survive(host, **({"partials": streams, "slots": (report,)} | changes))
