"""The faults of chaos: processes are killed, stopped and restarted, links cut, sessions and streams broken."""

from __future__ import annotations

from collections.abc import Callable

from hoplite_ucx.simulate.drawing import Draw
from hoplite_ucx.simulate.node import VirtualNode

__all__ = ["Faults"]


class Faults:
    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._random = draw.random
        self._cluster = draw.cluster
        self.raging = True
        self.count = 0

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

    def note(self, what: str, index: int | None) -> None:
        self.count += 1
        self._draw.say(what, index)

    def _kill(self) -> None:
        index = self._draw.some_living_node()
        if index is not None:
            self.kill_node(self._cluster.slots[index])

    def kill_node(self, node: VirtualNode) -> None:
        if node.alive and self.raging:
            self.note("kill", int(node.host[1:]))
            node.kill()

    def _power_off(self) -> None:
        """The host is gone and says nothing: no reset, no refusal."""
        index = self._draw.some_living_node()
        if index is not None:
            self.note("power off", index)
            self._cluster.network.isolate(self._draw.host(index))
            self._cluster.slots[index].kill()

    def _restart(self) -> None:
        dead = [index for index in range(self._draw.nodes) if not self._cluster.slots[index].alive]
        if dead:
            index = self._random.choice(dead)
            self.note("restart", index)
            self._cluster.restart(index)

    def _stop_for_a_while(self) -> None:
        index = self._draw.some_living_node()
        if index is None or self._cluster.slots[index].stopped:
            return
        self.note("stop", index)
        node = self._cluster.slots[index]
        node.stop()

        def resume() -> None:
            if node.alive and node.stopped:
                self._draw.say("resume", index)
                node.resume()

        self._cluster.clock.after(self._random.choice((0.05, 0.3, 1.5)), resume)

    def _cut_one_way(self) -> None:
        a, b = self._random.sample(range(self._draw.nodes), 2)
        self.cut(self._draw.host(a), self._draw.host(b), for_seconds=self._random.choice((0.1, 0.5, 2.0)))

    def _cut_from_directory(self) -> None:
        ends = [self._draw.host(self._draw.some_node()), "directory"]
        self._random.shuffle(ends)
        self.cut(*ends, for_seconds=self._random.choice((0.1, 0.5, 2.0)))

    def cut(self, source: str, target: str, *, for_seconds: float) -> None:
        self.note(f"cut {source} → {target}", None)
        self._cluster.network.cut(source, target)
        self._cluster.clock.after(for_seconds, self._cluster.network.heal, source, target)

    def _lose_directory(self) -> None:
        index = self._draw.some_living_node()
        if index is not None and not self._cluster.slots[index].stopped:
            self.note("lose the directory's session", index)
            self._cluster.slots[index].lose_directory()

    def crash_directory(self, absence: float | None = None) -> None:
        if not (self._cluster.directory.alive and self.raging):
            return
        self.note("crash of the directory", None)
        self._cluster.crash_directory()

        def restart() -> None:
            self._draw.say("restart of the directory", None)
            self._cluster.restart_directory()

        self._cluster.clock.after(absence or self._random.choice((0.001, 0.05, 0.3)), restart)

    def _lose_peer(self) -> None:
        index = self._draw.some_living_node()
        if index is None or self._cluster.slots[index].stopped:
            return
        node = self._cluster.slots[index]
        if node.peers:
            self.note("lose a peer's session", index)
            node.lose_peer(self._random.choice(sorted(node.peers)))

    def _break_stream(self) -> None:
        index = self._draw.some_living_node()
        if index is not None and self._cluster.slots[index].serving:
            self.note("break a stream", index)
            node = self._cluster.slots[index]
            node.break_stream(self._random.choice(list(node.serving)))

    def _stall_stream(self) -> None:
        """A connection that neither moves nor breaks, while its sender is alive and says so."""
        index = self._draw.some_living_node()
        if index is not None and self._cluster.slots[index].serving:
            self.note("stall a stream", index)
            self._random.choice(list(self._cluster.slots[index].serving.values())).stuck = True
