"""The users of chaos: they put, get, reduce, wait, poll, delete and give up at random, and put again what was lost."""

from __future__ import annotations

from collections.abc import Callable

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import GetCall, Got, PutCall, PutDone
from hoplite_ucx.simulate.actions import Ask, Cancel, Delete, Get, Poll, Put, Reduce, Unpin, Wait
from hoplite_ucx.simulate.cluster import Call
from hoplite_ucx.simulate.drawing import STORM, Draw
from hoplite_ucx.simulate.stage import Stage

__all__ = ["Users"]


class Users:
    def __init__(self, draw: Draw, stage: Stage) -> None:
        self._draw = draw
        self._random = draw.random
        self._stage = stage
        self._cluster = stage.cluster

    def actions(self) -> list[Callable[[], None]]:
        return [
            *[lambda: self.get(self._draw.some_ref(), self._draw.some_node())] * 5,
            *[lambda: self.put(self._draw.some_putable_ref())] * 2,
            *[self._ask] * (2 if self._draw.targets else 0),
            *[self._wait] * 2,
            *[self._unpin_some] * 2,
            self._cancel_some,
            self.delete,
        ]

    def put(self, ref: int, index: int | None = None) -> None:
        if index is None:
            index = self._some_living_node()
        if index is None or index not in self._stage.living():
            return
        size = self._stage.sizes[ref]
        if self._random.random() < 0.2 and ref in self._draw.plain:
            size = self._draw.some_size()  # put again with other bytes
        self._stage.do(Put(index, ref, size))

    def get(self, ref: int, index: int) -> None:
        if self._cluster.slots[index].alive:
            self._stage.do(Get(index, ref))

    def rush(self, ref: int) -> None:
        """Most nodes get it at the same moment, and perhaps some a little later."""
        rng = self._draw.crowds
        for index in rng.sample(range(self._draw.nodes), rng.randint(3, self._draw.nodes)):
            self._stage.later(rng.choice((0.0, 0.0, 0.0, 0.0, 0.02)), self.get, ref, index)

    def reduce(self, target: int) -> None:
        index = self._some_living_node()
        if index is not None:
            self._stage.do(Reduce(index, target))

    def reduce_when_put(self, target: int) -> None:
        """Stripes are used only if all sources are ready together: wait a while for all of them."""
        sources = {self._stage.refs[source] for source in self._draw.targets[target].sources}
        pending = any(isinstance(c.event, PutCall) and c.event.ref in sources and c.open for c in self._stage.calls())
        if pending and self._cluster.clock.now < STORM / 2:
            self._stage.later(0.02, self.reduce_when_put, target)
        else:
            self.reduce(target)

    def _ask(self) -> None:
        index = self._some_living_node()
        if index is not None:
            self._stage.do(Ask(index, self._random.choice(list(self._draw.targets))))

    def _wait(self) -> None:
        index = self._some_living_node()
        if index is not None:
            refs = tuple(self._random.sample(self._draw.refs, self._random.randint(1, len(self._draw.refs))))
            count = self._random.randint(1, len(refs))
            self._stage.do(Wait(index, refs, count, self._random.choice((None, 0.3))))
            self._poll(index, refs)

    def _poll(self, index: int, refs: tuple[int, ...]) -> None:
        node = self._cluster.slots[index]
        if node.alive and not node.stopped:
            self._stage.do(Poll(index, refs))

    def delete(self, ref: int | None = None) -> None:
        index = self._some_living_node()
        if index is not None:
            self._stage.do(Delete(index, ref or self._draw.some_ref()))

    def _unpin_some(self) -> None:
        for call in self._stage.calls():
            if isinstance(call.answer, Got) and call.node.alive and self._random.random() < 0.5:
                self._stage.do(Unpin(call.event.call))

    def _cancel_some(self) -> None:
        call = self._draw.one_of([call for call in self._stage.calls() if call.open])
        if call is not None:
            self._stage.do(Cancel(call.event.call))

    def answered(self, call: Call) -> None:
        """A user that has put an object looks for it. A user whose get failed reacts: it puts the lost object again, or
        continues with another."""
        if isinstance(call.answer, PutDone) and isinstance(call.event, PutCall) and self._cluster.clock.now < STORM:
            put = self._stage.number_of(call.event.ref)
            assert put is not None
            self._stage.later(0.0, self._poll, int(call.node.host[1:]), (put,))
        if not (self._draw.retries and self._cluster.clock.now < STORM and isinstance(call.event, GetCall)):
            return
        failure, ref = call.failure, self._stage.number_of(call.event.ref)
        assert ref is not None
        index = int(call.node.host[1:])
        delay = self._random.choice((0.0, 0.002, 0.1))
        if failure is not None and failure.kind in (FailureKind.LOST, FailureKind.ABORTED):
            for needed in self._stage.needed_for({ref}):
                self._stage.later(delay, self.put, needed, self._random.choice((index, None)))
            self._stage.later(delay, self.get, ref, index)
        elif failure is not None and failure.kind is FailureKind.DELETED:
            self._stage.later(delay, self.put, self._draw.some_putable_ref(), index)

    def _some_living_node(self) -> int | None:
        return self._draw.one_of(self._stage.living())
