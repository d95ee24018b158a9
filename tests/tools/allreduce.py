"""A directory driver for targets in stripes: three sources a, b, c make three, whose chains end at a, b and c."""

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.messages import (
    Assemble,
    Bind,
    Bound,
    Completed,
    Operation,
    Reduce,
    ToNode,
    Want,
)
from tests.tools.machines import DirectoryDriver, ref
from tests.tools.reducer import TARGET

SOURCES = {"a": 1, "b": 2, "c": 3}


class Allreduce(DirectoryDriver):
    """A directory that was asked for an allreduce; slots are taken by themselves, and what was said is kept."""

    op = Operation.SUM

    def __init__(self, *names: str, count: int = 3, getters: str = "abc", settings: Settings | None = None) -> None:
        super().__init__(*(names or ("a", "b", "c")), settings=settings)
        self.taken: list[Bind] = []
        self.said: dict[str, list[ToNode]] = {name: [] for name in self.ids}
        for name, number in SOURCES.items():
            self.put(name, number)
        if "d" in self.ids:
            self.put("d", 4)
        for name in getters:
            self.tell(name, Want(ref(TARGET)))
        sources = tuple(ref(number) for number in (1, 2, 3, 4)[: len(self.ids)])
        self.tell("a", Reduce(1, ref(TARGET), sources, self.op, count, everywhere=True))

    def listen(self) -> None:
        for name in self.ids:
            self.said[name] += self.heard(name)

    def bind_all(self) -> None:
        """Everyone takes the slots that it is given, until nobody is given any."""
        while True:
            self.listen()
            binds = [(name, m) for name, said in self.said.items() for m in said if isinstance(m, Bind)]
            if not binds:
                return
            for name, bind in binds:
                self.said[name].remove(bind)
                self.taken.append(bind)
                has = self.directory.table.has_part
                missing = tuple(part for part in bind.parts if not has(part.ref, self[name]))
                self.tell(name, Bound(bind.version, bind.number, missing))

    def last(self, name: str, kind: type) -> ToNode:
        self.listen()
        return [m for m in self.said[name] if isinstance(m, kind)][-1]

    def assembly_of(self, name: str) -> Assemble:
        message = self.last(name, Assemble)
        assert isinstance(message, Assemble)
        return message

    def finish(self, name: str, *, whole: bool = True) -> None:
        """The node has all stripes, and with them the target."""
        assemble = self.assembly_of(name)
        self.tell(name, *(Completed(stripe.version) for stripe in assemble.stripes))
        if whole:
            self.tell(name, Completed(assemble.version))
