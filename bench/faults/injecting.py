"""The faults: what each does to the cluster, for how long, and which nodes count as dead because of it.

A fault with a duration is *brief*, well within the lease, or *long*, well beyond it: between the
two the result depends on the machine's load, and an oracle could not judge it.
"""

from __future__ import annotations

import enum
import signal
import time
from dataclasses import dataclass

from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.protocol.settings import Settings

__all__ = ["BRIEF", "LEASE", "LONG", "Fault", "FaultKind"]

LEASE = Settings().lease
BRIEF = (0.2, 0.5 * LEASE)
LONG = (LEASE + 0.8, LEASE + 1.3)
_SLOWER = 10.0


class FaultKind(enum.StrEnum):
    NOTHING = "nothing"
    """To compare with."""
    KILL_HOST = "kill host"
    """The agent and the worker of a machine, with -9."""
    KILL_AGENT = "kill agent"
    """The agent alone: its worker must hear of it."""
    KILL_WORKER = "kill worker"
    RESTART_AGENT = "restart agent"
    """The agent dies, and another one begins in its place with an empty store."""
    STOP = "stop agent"
    CUT = "cut"
    CUT_IN = "cut in"
    CUT_OUT = "cut out"
    SLOW = "slow link"
    DIRECTORY = "kill directory"
    """It is started again after a while."""
    CUT_DIRECTORY = "cut directory"
    FULL = "full store"


_WAYS = {FaultKind.CUT: "both", FaultKind.CUT_IN: "in", FaultKind.CUT_OUT: "out", FaultKind.CUT_DIRECTORY: "both"}
_DEADLY = {FaultKind.KILL_HOST, FaultKind.KILL_AGENT, FaultKind.RESTART_AGENT}


@dataclass(frozen=True)
class Fault:
    """`victim` is a machine's index; of the directory's faults it means nothing. It is undone after `seconds`."""

    kind: FaultKind
    victim: int
    seconds: float = 0.0

    @property
    def kills_agent(self) -> bool:
        return self.kind in _DEADLY

    @property
    def kills_worker(self) -> bool:
        return self.kind in (FaultKind.KILL_HOST, FaultKind.KILL_WORKER)

    @property
    def spares_machines(self) -> bool:
        return self.kind in (FaultKind.DIRECTORY, FaultKind.CUT_DIRECTORY, FaultKind.NOTHING)

    @property
    def silences(self) -> bool:
        """Silent: only time shows it."""
        return self.kind in (FaultKind.STOP, FaultKind.CUT, FaultKind.CUT_IN, FaultKind.CUT_OUT)

    @property
    def outlasts_lease(self) -> bool:
        return self.seconds > LEASE

    @property
    def loses_copies(self) -> bool:
        """Whether the victim's node may be declared dead, so that what only it has counts as lost."""
        return self.kills_agent or (self.silences and self.outlasts_lease)

    def inject(self, cluster: FaultCluster, filler: str) -> float:
        """Break it; returns the moment. `filler` names what is put to fill a store."""
        at = time.monotonic()
        match self.kind:
            case FaultKind.KILL_HOST:
                cluster.signal_agent(self.victim, signal.SIGKILL)
                cluster.machines[self.victim].peer.kill()
                cluster.kill_agent(self.victim)
                cluster.kill_worker(self.victim)
            case FaultKind.KILL_AGENT | FaultKind.RESTART_AGENT:
                cluster.signal_agent(self.victim, signal.SIGKILL)
                cluster.kill_agent(self.victim)
            case FaultKind.KILL_WORKER:
                cluster.machines[self.victim].peer.kill()
                cluster.kill_worker(self.victim)
            case FaultKind.STOP:
                cluster.stop_agent(self.victim)
            case FaultKind.CUT | FaultKind.CUT_IN | FaultKind.CUT_OUT:
                cluster.cut(cluster.machines[self.victim].host, _WAYS[self.kind])
                at = time.monotonic()  # it takes a process or two
            case FaultKind.SLOW:
                cluster.slow_down(cluster.machines[self.victim].host, _SLOWER)
                at = time.monotonic()
            case FaultKind.DIRECTORY:
                cluster.kill_directory()
            case FaultKind.CUT_DIRECTORY:
                cluster.cut(cluster.head, "both")
                at = time.monotonic()
            case FaultKind.FULL:
                cluster.machines[self.victim].peer.tell("reserve", ref=filler, spare=64 << 10)
        return at

    def undo(self, cluster: FaultCluster) -> None:
        """What its duration ends; what is dead stays so until the cluster is restored."""
        match self.kind:
            case FaultKind.STOP:
                cluster.resume_agent(self.victim)
            case FaultKind.CUT | FaultKind.CUT_IN | FaultKind.CUT_OUT | FaultKind.SLOW | FaultKind.CUT_DIRECTORY:
                cluster.heal_links()
            case FaultKind.DIRECTORY:
                cluster.start_directory_again()
            case FaultKind.RESTART_AGENT:
                cluster.revive(self.victim)
