"""The faults of chaos: processes are killed, stopped and restarted, links cut, sessions and streams broken."""

from __future__ import annotations

from collections.abc import Callable

from hoplite_ucx.protocol.events import PutCall
from hoplite_ucx.simulate.actions import (
    BreakStream,
    CrashDirectory,
    Cut,
    Heal,
    Isolate,
    Kill,
    LoseDirectory,
    LosePeer,
    PowerOff,
    RaiseInDirectory,
    RaiseInNode,
    Restart,
    RestartDirectory,
    Restore,
    Resume,
    Retire,
    StallStream,
    Stop,
)
from hoplite_ucx.simulate.drawing import Draw
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.stage import Stage

__all__ = ["Faults"]


class Faults:
    def __init__(self, draw: Draw, stage: Stage) -> None:
        self._draw = draw
        self._random = draw.random
        self._stage = stage
        self._cluster = stage.cluster
        self.raging = True

    def actions(self) -> list[Callable[[], None]]:
        return [
            self._kill,
            self._kill,
            self._power_off,
            self._restart,
            self._stop_for_a_while,
            self._stop_for_a_while,
            self._cut_one_way,
            self._cut_from_directory,
            self._lose_directory,
            *[self.crash_directory] * self._draw.crashes,
            self._lose_peer,
            self._break_stream,
            self._stall_stream,
        ]

    def _kill(self) -> None:
        index = self._some_living_node()
        if index is not None:
            self.kill_node(self._cluster.slots[index])

    def kill_node(self, node: VirtualNode) -> None:
        if node.alive and self.raging:
            self._stage.do(Kill(int(node.host[1:])))

    def _power_off(self) -> None:
        index = self._some_living_node()
        if index is not None:
            self._stage.do(PowerOff(index))

    def retire(self) -> None:
        """One that has nothing to put: its users are gone. Somebody must stay."""
        staying = self._stage.living()
        putting = {call.node.host for call in self._stage.calls() if call.open and isinstance(call.event, PutCall)}
        index = self._draw.one_of([index for index in staying if self._cluster.slots[index].host not in putting])
        if index is not None and len(staying) > 1 and not self._cluster.slots[index].stopped:
            self._stage.do(Retire(index))

    def _restart(self) -> None:
        index = self._draw.one_of([index for index, node in enumerate(self._cluster.slots) if not node.alive])
        if index is not None:
            self._stage.do(Restart(index))

    def _stop_for_a_while(self) -> None:
        index = self._some_running_node()
        if index is None:
            return
        node = self._cluster.slots[index]
        self._stage.do(Stop(index))

        def resume() -> None:
            if node.alive and node.stopped:
                self._stage.do(Resume(index))

        self._stage.later(self._random.choice((0.05, 0.3, 1.5)), resume)

    def _cut_one_way(self) -> None:
        a, b = self._random.sample(range(self._draw.nodes), 2)
        self.cut(f"h{a}", f"h{b}", for_seconds=self._random.choice((0.1, 0.5, 2.0)))

    def _cut_from_directory(self) -> None:
        ends = [f"h{self._draw.some_node()}", "directory"]
        self._random.shuffle(ends)
        self.cut(*ends, for_seconds=self._random.choice((0.1, 0.5, 2.0)))

    def cut(self, source: str, target: str, *, for_seconds: float) -> None:
        self._stage.do(Cut(source, target))
        self._stage.later(for_seconds, self._stage.do, Heal(source, target))

    def cut_off(self, host: str, *, from_now: float, until: float) -> None:
        self._stage.later(from_now, self._stage.do, Isolate(host))
        self._stage.later(until, self._stage.do, Restore(host))

    def _lose_directory(self) -> None:
        index = self._some_running_node()
        if index is not None:
            self._stage.do(LoseDirectory(index))

    def crash_directory(self, absence: float | None = None) -> None:
        if self._cluster.directory.alive and self.raging:
            self._stage.do(CrashDirectory())
            self._stage.later(absence or self._random.choice((0.001, 0.05, 0.3)), self._stage.do, RestartDirectory())

    def raise_somewhere(self) -> None:
        """A machine raises: soon, in the middle of whatever it does next, or some events later. Its successor may, too,
        as soon as it begins."""
        rng = self._draw.traps
        living = self._stage.living()
        index = rng.choice(living) if living and rng.random() < 0.6 else None
        self._raise_in(index)
        if rng.random() < 0.3:
            self._stage.later(rng.choice((1e-3, 0.03, 0.1)), self._raise_in, index)

    def _raise_in(self, index: int | None) -> None:
        rng = self._draw.traps
        how = int(10 ** rng.uniform(0, 3.3)), rng.random() < 0.2
        if not self.raging:
            return
        if index is None and self._cluster.directory.alive:
            self._stage.do(RaiseInDirectory(*how))
        elif index is not None and self._cluster.slots[index].alive:
            self._stage.do(RaiseInNode(index, *how))

    def _lose_peer(self) -> None:
        index = self._some_running_node()
        if index is not None and self._cluster.slots[index].peers:
            self._stage.do(LosePeer(index, self._random.choice(sorted(self._cluster.slots[index].peers))))

    def _break_stream(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            self._stage.do(BreakStream(*stream))

    def _stall_stream(self) -> None:
        stream = self._some_stream()
        if stream is not None:
            self._stage.do(StallStream(*stream))

    def _some_living_node(self) -> int | None:
        return self._draw.one_of(self._stage.living())

    def _some_running_node(self) -> int | None:
        """One that is alive, if it is not stopped."""
        index = self._some_living_node()
        return None if index is None or self._cluster.slots[index].stopped else index

    def _some_stream(self) -> tuple[int, str, int] | None:
        """Its sender, its receiver's host, and which of those between the two it is."""
        index = self._some_living_node()
        if index is None:
            return None
        node = self._cluster.slots[index]
        serving = self._draw.one_of(list(node.serving.values()))
        if serving is None:
            return None
        return index, serving.receiver_host, self._stage.streams_to(node, serving.receiver_host).index(serving)
