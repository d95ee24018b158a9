"""Where a run of chaos takes place: the cluster, its objects, and the one way to do something to them.

The module that chooses an action calls `do`, which keeps it for the recording; a replay and the calm, which no
recording needs, call `perform`. An action that is not possible any more ends the run: a replay of something else would
show nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVarTuple

from hoplite_ucx.protocol.events import Got, PutCall
from hoplite_ucx.simulate.actions import (
    Action,
    Ask,
    BreakStream,
    Cancel,
    CrashDirectory,
    Cut,
    Delete,
    Get,
    Heal,
    Isolate,
    Kill,
    LoseDirectory,
    LosePeer,
    Poll,
    PowerOff,
    Put,
    RaiseInDirectory,
    RaiseInNode,
    Reduce,
    Restart,
    RestartDirectory,
    Restore,
    Resume,
    Retire,
    Setup,
    StallStream,
    Stop,
    Unpin,
    Wait,
)
from hoplite_ucx.simulate.cluster import Call, VirtualCluster
from hoplite_ucx.simulate.node import VirtualNode
from hoplite_ucx.simulate.oracle import Oracle
from hoplite_ucx.simulate.sabotage import raise_in
from hoplite_ucx.simulate.streams import Serving

__all__ = ["DivergedError", "Stage"]

Args = TypeVarTuple("Args")

# Less than any time in a run, more than a float's error.
_A_LITTLE = 1e-9
_FAULTS = (
    *(Kill, PowerOff, Restart, Stop, Cut, Isolate),
    *(LoseDirectory, LosePeer, BreakStream, StallStream, CrashDirectory, RaiseInNode, RaiseInDirectory),
)


class DivergedError(AssertionError):
    """A recorded action is not possible: the run is not the one that was recorded."""


class Stage:
    def __init__(self, setup: Setup, cluster_type: type[VirtualCluster]) -> None:
        self.setup = setup
        self.cluster = cluster_type(setup.shape, setup.seed, setup.protocol_settings(), checked=True)
        self.oracle = Oracle(self.cluster, fair_weather=setup.fair_weather)
        self.refs = {number: self.cluster.new_ref() for number in sorted([*setup.sizes, *setup.targets])}
        self._numbers = {ref: number for number, ref in self.refs.items()}
        self.sizes = dict(setup.sizes)
        """Of each object as it was put last."""
        self.steps: list[tuple[float, Action]] = []
        self.log: list[tuple[float, str]] = []
        self.faults = 0
        self.retiring: set[int] = set()
        """Processes that are to leave, by identity: nobody begins anything there."""

    def do(self, action: Action) -> None:
        self.steps.append((self.cluster.clock.now, action))
        self.perform(action)

    def perform(self, action: Action) -> None:
        self._tell(action)
        self.faults += isinstance(action, _FAULTS)
        match action:
            case Kill() | PowerOff() | Retire() | Restart() | Stop() | Resume() | LoseDirectory() | LosePeer():
                self._trouble_process(action)
            case BreakStream() | StallStream():
                self._trouble_stream(action)
            case Cut() | Heal() | Isolate() | Restore():
                self._trouble_network(action)
            case CrashDirectory():
                self._require(self.cluster.directory.alive, action)
                self.cluster.crash_directory()
            case RestartDirectory():
                self._require(not self.cluster.directory.alive, action)
                self.cluster.restart_directory()
            case RaiseInNode(node, lines, beats):
                self._require(self.cluster.slots[node].alive, action)
                raise_in(self.cluster.slots[node].machine, lines, beats=beats)
            case RaiseInDirectory(lines, beats):
                self._require(self.cluster.directory.alive, action)
                raise_in(self.cluster.directory.machine, lines, beats=beats)
            case Poll():
                self._poll(action)
            case Unpin():
                self._unpin(action)
            case Cancel():
                self._cancel(action)
            case _:
                self._use(action)

    def later(self, delay: float, callback: Callable[[*Args], object], *args: *Args) -> None:
        """At a moment at which nothing else happens: then a replay, which knows only the moment, has the same order."""
        self.cluster.clock.after(delay + _A_LITTLE, callback, *args)

    def living(self) -> list[int]:
        nodes = enumerate(self.cluster.slots)
        return [index for index, node in nodes if node.alive and node.identity not in self.retiring]

    def calls(self) -> list[Call]:
        return list(self.cluster.calls.values())

    def needed_for(self, numbers: set[int]) -> list[int]:
        """What to put so that these can be had."""
        needed: set[int] = set()
        pending = list(numbers)
        while pending:
            number = pending.pop()
            if number in self.setup.targets:
                pending.extend(self.setup.targets[number].sources)
            else:
                needed.add(number)
        return sorted(needed)

    def number_of(self, ref: bytes) -> int | None:
        """None for a ref that the protocol made up, as of a slot."""
        return self._numbers.get(ref)

    def streams_to(self, node: VirtualNode, receiver: str) -> list[Serving]:
        return [serving for serving in node.serving.values() if serving.receiver_host == receiver]

    # --- users -------------------------------------------------------------------------------------------------

    def _use(self, action: Put | Get | Reduce | Ask | Wait | Delete) -> None:
        cluster, refs = self.cluster, self.refs
        self._require(cluster.slots[action.node].alive, action)
        match action:
            case Put(node, ref, size):
                self.sizes[ref] = size
                cluster.put(node, refs[ref], size, inline=size <= cluster.settings.inline_limit)
            case Get(node, ref):
                cluster.get(node, refs[ref])
            case Reduce(node, target):
                made_of = self.setup.targets[target]
                sources = tuple(refs[source] for source in made_of.sources)
                cluster.reduce(node, refs[target], sources, made_of.count, everywhere=made_of.everywhere)
            case Ask(node, target):
                cluster.contributors(node, refs[target])
            case Wait(node, numbers, count, timeout):
                cluster.wait(node, tuple(refs[number] for number in numbers), count, timeout=timeout)
            case Delete(node, ref):
                self.oracle.expect_delete(refs[ref])
                cluster.delete(node, refs[ref])

    def _poll(self, action: Poll) -> None:
        node, refs = self.cluster.slots[action.node], tuple(self.refs[number] for number in action.refs)
        self._require(node.alive and not node.stopped, action)
        ready = self.oracle.ready_now(node, refs)
        self.oracle.expect_ready(self.cluster.wait(action.node, refs, len(refs), timeout=0.0), ready)
        if node.alive:  # an ambush may have ended it
            self.oracle.expect_ready(self.cluster.get(action.node, refs[0], once=True), ready)

    def _unpin(self, action: Unpin) -> None:
        call = self._call(action)
        self._require(isinstance(call.answer, Got) and call.node.alive, action)
        self.cluster.unpin(call)

    def _cancel(self, action: Cancel) -> None:
        call = self._call(action)
        self._require(call.open, action)
        if isinstance(call.event, PutCall):
            self.oracle.expect_abort(call.event.ref)
        self.cluster.cancel(call)

    def _call(self, action: Unpin | Cancel) -> Call:
        self._require(action.call in self.cluster.calls, action)
        return self.cluster.calls[action.call]

    # --- faults ------------------------------------------------------------------------------------------------

    def _trouble_process(
        self, action: Kill | PowerOff | Retire | Restart | Stop | Resume | LoseDirectory | LosePeer
    ) -> None:
        node = self.cluster.slots[action.node]
        self._require(node.alive != isinstance(action, Restart), action)
        match action:
            case Kill():
                node.kill()
            case PowerOff():
                self.cluster.network.isolate(node.host)
                node.kill()
            case Retire():
                self.retiring.add(node.identity)
                node.retire()
            case Restart(index):
                self.cluster.restart(index)
            case Stop():
                self._require(not node.stopped, action)
                node.stop()
            case Resume():
                self._require(node.stopped, action)
                node.resume()
            case LoseDirectory():
                self._require(not node.stopped, action)
                node.lose_directory()
            case LosePeer(_, peer):
                self._require(not node.stopped and peer in node.peers, action)
                node.lose_peer(peer)

    def _trouble_stream(self, action: BreakStream | StallStream) -> None:
        node = self.cluster.slots[action.node]
        streams = self.streams_to(node, action.receiver)
        self._require(node.alive and action.nth < len(streams), action)
        serving = streams[action.nth]
        if isinstance(action, BreakStream):
            node.break_stream(serving.stream)
        else:
            serving.stuck = True

    def _trouble_network(self, action: Cut | Heal | Isolate | Restore) -> None:
        network = self.cluster.network
        match action:
            case Cut(source, target):
                network.cut(source, target)
            case Heal(source, target):
                network.heal(source, target)
            case Isolate(host):
                network.isolate(host)
            case Restore(host):
                network.restore(host)

    def _require(self, possible: bool, action: Action) -> None:
        if not possible:
            index = getattr(action, "node", None)
            where = "" if index is None else f" at h{index}"
            when = f"{self.cluster.clock.now:.6f}"
            raise DivergedError(f"the recording does not fit any more: at {when} {action} is not possible{where}")

    def _tell(self, action: Action) -> None:
        index = getattr(action, "node", None)
        if isinstance(action, Unpin | Cancel) and action.call in self.cluster.calls:
            index = int(self.cluster.calls[action.call].node.host[1:])
        who = "network" if index is None else f"h{index} (n{self.cluster.slots[index].identity:x})"
        self.log.append((self.cluster.clock.now, f"{who}: {action}"))
