"""What it costs a broadcast that the cluster is observed: metrics scraped every second, a trace, viewers of the page.

Two clusters on the same hosts take turns. One has metrics, and is scraped, traced and looked at in its rounds; the
other has nothing of it. All that observes runs on host 0, beside the directory. To see by how much two clusters differ
anyway, both can be left alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from hoplite_ucx.bench.measures.operations import LiveRounds, check_cell
from hoplite_ucx.bench.measures.timed_directory import EVENT_SECONDS, TimedCluster
from hoplite_ucx.bench.measures.viewing import QUIET, Interval, ask_viewers, median_interval, open_viewers

__all__ = ["Observation", "measure_observing"]

_PATIENCE = 60.0
_PORT = 9180
_METRICS = MappingProxyType({"HOPLITE_METRICS_PORT": str(_PORT), "HOPLITE_METRICS_HOST": "0.0.0.0"})
_PHASE = 0.618
"""How far the moment of a round moves between two scrapes from one round to the next."""


@dataclass(frozen=True)
class Observation:
    """Seconds of each round, and for how long the directory handled events in it."""

    hosts: int
    size: int
    viewers: int
    calibrated: bool
    observed: tuple[float, ...]
    alone: tuple[float, ...]
    directory_observed: tuple[float, ...]
    directory_alone: tuple[float, ...]
    scrapes: int
    spans: int

    @property
    def ratio(self) -> Interval:
        return median_interval([a / b for a, b in zip(self.observed, self.alone, strict=True)])

    @property
    def directory_ratio(self) -> Interval:
        pairs = zip(self.directory_observed, self.directory_alone, strict=True)
        return median_interval([a / b for a, b in pairs])

    def per_placement(self, used: tuple[float, ...]) -> float:
        """What the directory took for one, with all events that belong to it: each receiver is placed once."""
        return statistics.median(used) / (self.hosts - 1)

    def json_line(self) -> str:
        ratio, directory = self.ratio, self.directory_ratio
        return json.dumps(
            {
                "what": "observed broadcast" if not self.calibrated else "two clusters that nobody observes",
                "hosts": self.hosts,
                "size": self.size,
                "viewers": self.viewers,
                "rounds": len(self.observed),
                "ratio": ratio.median,
                "ratio_interval": [ratio.low, ratio.high],
                "seconds": list(self.observed),
                "seconds_alone": list(self.alone),
                "directory_ratio": directory.median,
                "directory_ratio_interval": [directory.low, directory.high],
                "directory_seconds_per_placement": self.per_placement(self.directory_observed),
                "directory_seconds_per_placement_alone": self.per_placement(self.directory_alone),
                "scrapes": self.scrapes,
                "spans": self.spans,
            }
        )


def measure_observing(
    *,
    hosts: int,
    size: int,
    rate: float,
    rounds: int,
    viewers: int,
    calibrate: bool = False,
    advance: Callable[[], object] = lambda: None,
) -> Observation:
    check_cell("broadcast", hosts, size)
    runs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(hosts, rate))
        alone = stack.enter_context(TimedCluster(cluster.hosts, rate))
        links = {} if calibrate else _METRICS
        observed = stack.enter_context(TimedCluster(cluster.hosts, rate, links=links))
        rounds_of = {True: LiveRounds(observed, size), False: LiveRounds(alone, size)}
        watch = _Observers(stack, cluster.hosts, observed, 0 if calibrate else viewers)
        for operation in rounds_of.values():
            operation.broadcast()
        for number in range(rounds):
            for watched in (True, False) if number % 2 else (False, True):
                live = observed if watched else alone
                if watched and not calibrate:
                    watch.begin()
                time.sleep(1.0 + number * _PHASE % 1.0)
                before = watch.event_seconds(live)
                seconds = rounds_of[watched].broadcast().seconds
                runs[watched].append((seconds, watch.event_seconds(live) - before))
                if watched and not calibrate:
                    watch.end()
                advance()
    return Observation(
        hosts,
        size,
        viewers,
        calibrate,
        tuple(seconds for seconds, _ in runs[True]),
        tuple(seconds for seconds, _ in runs[False]),
        tuple(used for _, used in runs[True]),
        tuple(used for _, used in runs[False]),
        watch.scrapes,
        watch.spans,
    )


class _Observers:
    def __init__(self, stack: ExitStack, hosts: list[Host], live: TimedCluster, viewers: int) -> None:
        self.scrapes = 0
        self.spans = 0
        self._viewers = open_viewers(stack, hosts[0], live, viewers) if viewers else None
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        command = [*hosts[0].module("hoplite_ucx.bench.measures.observer")]
        self._process = LineProcess(hosts[0], command, "the observer")
        stack.callback(self._process.close)
        ports = [(hosts[0], _PORT + 1), *((host, _PORT) for host in hosts)]
        task = {
            "directory": live.address,
            "token": live.token.decode(),
            "urls": [f"http://{host.address}:{port}/metrics" for host, port in ports],
            "trace": str(Path(folder) / "run.json"),
        }
        self._ask(json.dumps(task), "ready")

    def begin(self) -> None:
        if self._viewers is not None and ask_viewers(self._viewers, "look") != "looking":
            raise PeerError("the view did not answer its viewers")
        self._ask("begin", "begun")

    def end(self) -> None:
        told = json.loads(self._ask("end"))
        if told["lost"]:
            raise PeerError(f"not all of the cluster was traced: {told['lost']}")
        self.scrapes += told["scrapes"]
        self.spans += told["spans"]
        if self._viewers is not None:
            ask_viewers(self._viewers, "leave")
            time.sleep(QUIET)

    def event_seconds(self, live: TimedCluster) -> float:
        """For how long its directory has handled events so far."""
        return float(json.loads(self._ask(f"ask {live.address} {live.token.decode()}"))[EVENT_SECONDS])

    def _ask(self, line: str, expected: str | None = None) -> str:
        self._process.tell(line)
        answer = self._process.line(time.monotonic() + _PATIENCE)
        if expected is not None and answer != expected:
            raise PeerError(f"the observer said {answer!r}, not {expected!r}")
        return answer
