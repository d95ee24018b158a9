"""What it costs a host to forward an object: the processor time of a relay's agent, compared with a bare forwarder.

Three hosts in a chain: host 0 has the object, one of the others gets it and passes it to the last. Which of them is in
the middle, the directory decides; it is known by what its interface has sent. The bare chain is that of
`bare.participant`: a blocking Python process that receives into memory and sends from there. Rounds take turns.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hoplite_ucx.bench.bare.driver import BarePeers
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.harness.machine_facts import facts, versions
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.hosts.places import processor_seconds
from hoplite_ucx.bench.measures.operations import check_cell

__all__ = ["HOSTS", "RelayCost", "measure_relay"]

HOSTS = 3
_MIDDLE = 1  # of the bare chain
_ATTEMPTS = 5


@dataclass(frozen=True)
class RelayCost:
    """Seconds of processor time for every byte that was passed on, of every timed round."""

    relay: tuple[float, ...]
    bare: tuple[float, ...]
    settings: dict[str, Any]

    @property
    def ratio(self) -> float:
        return statistics.median(self.relay) / statistics.median(self.bare)

    def json_line(self) -> str:
        return json.dumps(
            {
                "what": "relay",
                "processor_seconds_per_byte": statistics.median(self.relay),
                "bare_processor_seconds_per_byte": statistics.median(self.bare),
                "ratio": self.ratio,
                "runs": self.relay,
                "bare_runs": self.bare,
                **self.settings,
            }
        )


def measure_relay(*, size: int, rate: float, repeat: int, advance: Callable[[], object] = lambda: None) -> RelayCost:
    """After an untimed round of each."""
    check_cell("broadcast", HOSTS, size)
    settings = {"hosts": HOSTS, "size": size, "rate": rate, "versions": versions(), "machine": facts()}
    costs: dict[str, list[float]] = {"relay": [], "bare": []}
    with (
        Cluster(HOSTS, rate) as cluster,
        LiveCluster(cluster.hosts, rate, memory=4 * size + (256 << 20)) as live,
        BarePeers(cluster.hosts, "broadcast", size) as bare,
    ):
        for _ in range(1 + repeat):
            costs["relay"].append(_cost_of_a_relay(live, size) / size)
            advance()
            bare.run()
            costs["bare"].append(bare.processor[_MIDDLE] / size)
            advance()
    return RelayCost(tuple(costs["relay"][1:]), tuple(costs["bare"][1:]), settings)


def _cost_of_a_relay(live: LiveCluster, size: int) -> float:
    """The processor time of the agent in the middle of a broadcast. Where a receiver asks after the other has finished,
    as on a busy machine, both may be sent the object by host 0: such a round is made again."""
    for _ in range(_ATTEMPTS):
        used, sent = _broadcast(live, size)
        middle = max(sent, key=lambda rank: sent[rank])
        if sent[middle] >= size:
            return used[middle]
    raise PeerError(
        f"no host passed the object on in {_ATTEMPTS} rounds: in the last one, the receivers sent "
        f"{sorted(sent.values())} of {size} bytes"
    )


def _broadcast(live: LiveCluster, size: int) -> tuple[dict[int, float], dict[int, int]]:
    """What each receiver's agent took of the processor, and the bytes that it sent."""
    ref = live.new_ref()
    receivers = live.ranks[1:]
    agents = {rank: live.pids[f"agent {rank}"] for rank in receivers}
    live.ask(0, "put", ref=ref, size=size, seed=1)
    used = {rank: processor_seconds(pid) for rank, pid in agents.items()}
    sent = {rank: _sent_by(pid) for rank, pid in agents.items()}
    live.at_once({rank: {"do": "get", "refs": [ref]} for rank in receivers})
    used = {rank: processor_seconds(pid) - used[rank] for rank, pid in agents.items()}
    sent = {rank: _sent_by(pid) - sent[rank] for rank, pid in agents.items()}
    live.together({rank: {"do": "check", "seeds": [[1]], "size": size} for rank in receivers})
    live.ask(0, "delete", refs=[ref])
    return used, sent


def _sent_by(pid: int) -> int:
    """How many bytes have left the interface of the host that a process is in."""
    with open(f"/proc/{pid}/net/dev") as table:
        (line,) = (line for line in table if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[8])
