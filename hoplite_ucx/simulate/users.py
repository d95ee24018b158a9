"""The users of chaos: they put, get, reduce, wait, delete and give up at random, and put again what was lost."""

from __future__ import annotations

from collections.abc import Callable

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import GetCall, Got, PutCall
from hoplite_ucx.simulate.cluster import Call
from hoplite_ucx.simulate.drawing import STORM, Draw
from hoplite_ucx.simulate.oracle import Oracle

__all__ = ["Users"]


class Users:
    def __init__(self, draw: Draw, oracle: Oracle) -> None:
        self._draw = draw
        self._random = draw.random
        self._cluster = draw.cluster
        self._oracle = oracle

    def actions(self) -> list[Callable[[], None]]:
        return [
            *[lambda: self.get(self._draw.some_ref(), self._draw.some_node())] * 5,
            *[lambda: self.put(self._draw.some_putable_ref())] * 2,
            *[self._ask] * (2 if self._draw.reductions else 0),
            *[self._wait] * 2,
            *[self._unpin_some] * 2,
            self._cancel_some,
            self.delete,
        ]

    def put(self, ref: bytes, index: int | None = None) -> None:
        if index is None:
            index = self._draw.some_living_node()
        if index is None or not self._cluster.slots[index].alive:
            return
        if self._random.random() < 0.2 and ref in self._draw.plain:
            self._draw.sizes[ref] = self._draw.some_size()  # put again with other bytes
        size = self._draw.sizes[ref]
        inline = size <= self._cluster.settings.inline_limit
        self._draw.say(f"put {ref.hex()[:8]} {size}", index)
        self._cluster.put(index, ref, size, inline=inline)

    def get(self, ref: bytes, index: int) -> None:
        if self._cluster.slots[index].alive:
            self._draw.say(f"get {ref.hex()[:8]}", index)
            self._cluster.get(index, ref)

    def reduce(self, target: bytes) -> None:
        index = self._draw.some_living_node()
        if index is not None:
            sources, count = self._draw.reductions[target]
            everywhere = target in self._draw.allreduces
            what = "allreduce" if everywhere else "reduce"
            self._draw.say(f"{what} {count} of {len(sources)} into {target.hex()[:8]}", index)
            self._cluster.reduce(index, target, sources, count, everywhere=everywhere)

    def reduce_when_put(self, target: bytes) -> None:
        """Stripes are laid for sources that are there together: wait a while for all of them."""
        sources = set(self._draw.reductions[target][0])
        pending = any(
            isinstance(c.event, PutCall) and c.event.ref in sources and c.open for c in self._draw.all_calls()
        )
        if pending and self._cluster.clock.now < STORM / 2:
            self._cluster.clock.after(0.02, self.reduce_when_put, target)
        else:
            self.reduce(target)

    def _ask(self) -> None:
        index = self._draw.some_living_node()
        if index is not None:
            self._cluster.contributors(index, self._random.choice(list(self._draw.reductions)))

    def _wait(self) -> None:
        index = self._draw.some_living_node()
        if index is not None:
            refs = tuple(self._random.sample(self._draw.refs, self._random.randint(1, len(self._draw.refs))))
            self._cluster.wait(
                index, refs, self._random.randint(1, len(refs)), timeout=self._random.choice((None, 0.3))
            )

    def delete(self, ref: bytes | None = None) -> None:
        index = self._draw.some_living_node()
        if index is not None:
            ref = ref or self._draw.some_ref()
            self._draw.say(f"delete {ref.hex()[:8]}", index)
            self._oracle.expect_delete(ref)
            self._cluster.delete(index, ref)

    def _unpin_some(self) -> None:
        for call in self._draw.all_calls():
            if isinstance(call.answer, Got) and call.node.alive and self._random.random() < 0.5:
                self._cluster.unpin(call)

    def _cancel_some(self) -> None:
        """A user's process dies: its calls are cancelled, its puts cut off."""
        calls = [call for call in self._draw.all_calls() if call.open]
        if not calls:
            return
        call = self._random.choice(calls)
        if isinstance(call.event, PutCall):
            self._oracle.expect_abort(call.event.ref)
        self._draw.say(f"cancel {call.event.call}", int(call.node.host[1:]))
        self._cluster.cancel(call)

    def answered(self, call: Call) -> None:
        """A user whose get failed does something about it: puts the lost object again, or goes on with another."""
        if not (self._draw.retries and self._cluster.clock.now < STORM and isinstance(call.event, GetCall)):
            return
        failure, ref = call.failure, call.event.ref
        index = int(call.node.host[1:])
        delay = self._random.choice((0.0, 0.002, 0.1))
        if failure is not None and failure.kind in (FailureKind.LOST, FailureKind.ABORTED):
            for needed in sorted(self._draw.needed_for({ref})):
                self._cluster.clock.after(delay, self.put, needed, self._random.choice((index, None)))
            self._cluster.clock.after(delay, self.get, ref, index)
        elif failure is not None and failure.kind is FailureKind.DELETED:
            self._cluster.clock.after(delay, self.put, self._draw.some_putable_ref(), index)
