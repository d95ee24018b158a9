"""Every transport compared with what it uses: throughput by frame size, and round trips, on loopback or two hosts.

A *contest* is a transport and its yardstick: tcp beside blocking sockets, UCX beside a bare loop on the same UCX, a
shared segment beside private memory, memory of a GPU beside memory of the host on the same link. All ways take turns,
round by round, so that other load affects all alike; medians are compared. UCX is named after the lanes that it really
used, read after the first round: a link that was requested as RDMA and got another lane is refused, since a figure with
a wrong name is worse than none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import msgspec

from hoplite_ucx.bench.harness.timing import Measurement, Round, measure_in_turn
from hoplite_ucx.bench.hosts.line_process import Host, LineProcess, PeerError, ThisHost
from hoplite_ucx.bench.measures import link_end
from hoplite_ucx.bench.measures.loopback import BUFFER
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.transports.ucx.settings import RDMA, UcxSettings

__all__ = ["CONTESTS", "Contest", "Result", "contests_here", "measure_links", "name_of_lanes"]

STAGED_RATE = 0.9
"""What links shall reach with memory of GPUs, of what they reach with memory of the host."""
_START_SECONDS = 60.0
_STEP_SECONDS = link_end.SECONDS + 10


@dataclass(frozen=True)
class Contest:
    """A transport as it is asked for, and the two ways that are compared."""

    name: str
    ours: str
    bare: str
    ucx: UcxSettings = field(default_factory=UcxSettings)
    local: bool = False
    """Whether it works within one host only."""

    @property
    def echoes(self) -> bool:
        return self.ours in ("tcp", "ucx")

    @property
    def gpu(self) -> bool:
        return "gpu" in self.name

    def wanted(self, frame: int | None) -> float | None:
        """The part of the bare rate that it shall reach with such frames."""
        if frame is None or (self.local and self.gpu):
            return None
        return STAGED_RATE if self.gpu else wanted_rate(frame)


CONTESTS = {
    contest.name: contest
    for contest in (
        Contest("tcp", "tcp", "socket"),
        Contest("ucx-tcp", "ucx", "bare-ucx", UcxSettings(tls=("tcp",))),
        Contest("ucx-posix", "ucx", "bare-ucx", UcxSettings(tls=("posix",)), local=True),
        Contest("rdma", "ucx", "bare-ucx", UcxSettings(tls=("rc",))),
        Contest("shm", "shm", "memcpy", local=True),
        Contest("tcp-gpu", "tcp-gpu", "tcp"),
        Contest("ucx-gpu", "ucx-gpu", "ucx", UcxSettings(tls=("tcp", "cuda_copy"))),
        Contest("rdma-gpu", "ucx-gpu", "ucx", UcxSettings(tls=("rc",))),
        Contest("gpu-peers", "gpu-peers", "gpu-copy", local=True),
    )
}


def contests_here(*, ucx: bool, rdma: bool, gpus: int = 0) -> list[Contest]:
    """What this machine can take part in."""
    of_host = {"tcp": True, "ucx-tcp": ucx, "ucx-posix": ucx, "rdma": rdma, "shm": True}
    of_gpus = {"tcp-gpu": gpus, "ucx-gpu": gpus and ucx, "rdma-gpu": gpus and rdma, "gpu-peers": gpus > 1}
    here = of_host | of_gpus
    return [contest for name, contest in CONTESTS.items() if here[name]]


def wanted_rate(frame: int) -> float:
    """The part of the bare rate that a link shall reach with such frames."""
    return 0.95 if frame >= 1 << 20 else 0.7


def name_of_lanes(asked: str, lanes: Sequence[str]) -> str:
    """What to call a UCX link with these lanes. Only what runs on RDMA alone may be called so; else it is refused."""
    within_hosts = ("self", "cuda")  # what copies memory of GPUs to lanes
    transports = sorted({lane.partition("/")[0] for lane in lanes if not lane.startswith(within_hosts)})
    rdma = bool(transports) and all(_is_rdma(transport) for transport in transports)
    if asked == "rdma" and not rdma:
        got = ", ".join(lanes) or "unknown lanes"
        raise PeerError(f"rdma was asked for, but UCX uses {got}: not measured under that name; run hoplite doctor")
    return f"ucx {'+'.join(transports) or 'of unknown lanes'}{' (rdma)' if rdma else ''}"


def _is_rdma(transport: str) -> bool:
    return transport in RDMA or transport.partition("_")[0] in RDMA


@dataclass(frozen=True)
class Result:
    """One transport at one frame size, or its round trip (`frame` is None), beside the bare way in the same rounds."""

    transport: str
    where: str
    frame: int | None
    size: int
    ours: Measurement
    bare: Measurement
    bare_name: str
    wanted: float | None = None
    """The part of the bare rate that it shall reach."""
    lanes: tuple[str, ...] = ()
    beside_tcp: float | None = None
    """The rate as a part of that of our own TCP link in the same rounds."""

    @property
    def rate_ratio(self) -> float:
        return self.bare.seconds / self.ours.seconds

    @property
    def processor_ratio(self) -> float | None:
        """The same of the processor time that all ends took: it can be trusted more on a busy machine."""
        ours, bare = self.ours.processor, self.bare.processor
        return bare / ours if ours and bare else None

    def json_line(self) -> str:
        told = json.loads(self.ours.json_line())
        told |= {
            "transport": self.transport,
            "where": self.where,
            "frame": self.frame,
            "size": self.size,
            "bare": self.bare_name,
            "bare_spread": self.bare.spread,
            "rate_ratio": self.rate_ratio,
            "processor_ratio": self.processor_ratio,
            "wanted_rate_ratio": self.wanted,
            "rate_ratio_to_tcp": self.beside_tcp,
            "lanes": self.lanes,
            "rails": sorted({lane.partition("/")[2] for lane in self.lanes}),
        }
        if self.frame is not None:
            told |= {
                "bytes_per_second": self.size / self.ours.seconds,
                "bare_bytes_per_second": self.size / self.bare.seconds,
            }
        return json.dumps(told)


class Pair:
    """The two ends of one way, until the `with` block ends. They are made at once and meet when all are there."""

    def __init__(self, way: str, hosts: Sequence[Host], settings: UcxSettings) -> None:
        self.way = way
        self._ends: dict[str, LineProcess] = {}
        told = msgspec.json.encode(settings).decode()
        try:
            for end, host in zip(("serve", "pull"), hosts, strict=True):
                command = [*processes.module("hoplite_ucx.bench.measures.link_end"), way, host.address, end, told]
                self._ends[end] = LineProcess(host, command, f"the end of {way} that has to {end}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self._ends.values():
            process.close()
        self._ends = {}

    def meet(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        addresses = {end: self._answer(end, deadline)["done"] for end in self._ends}
        self._both(
            serve={"do": "meet", "address": addresses["pull"]}, pull={"do": "meet", "address": addresses["serve"]}
        )

    def stream(self, size: int, frame: int) -> Round:
        return self._timed("serve", "pull", size=size, frame=frame)

    def echo(self) -> Round:
        return self._timed("answer", "echo")

    def lanes(self) -> tuple[str, ...]:
        """As the pulling end has them."""
        told = self._both(serve={"do": "lanes"}, pull={"do": "lanes"})
        return tuple(told["pull"]["done"])

    def _timed(self, serve: str, pull: str, **how: int) -> Round:
        told = self._both(serve={"do": serve, **how}, pull={"do": pull, **how})
        return Round(told["pull"]["done"], sum(each["used"] for each in told.values()))

    def _both(self, **orders: dict[str, Any]) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + _STEP_SECONDS
        for end, order in orders.items():
            self._ends[end].tell(json.dumps(order))
        return {end: self._answer(end, deadline) for end in orders}

    def _answer(self, end: str, deadline: float) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._ends[end].line(deadline))
        if "error" in told:
            raise PeerError(told["error"])
        return told


def rounds_of(contests: Iterable[Contest], frames: Sequence[int]) -> int:
    """How many rounds a measurement has for each repetition, for a progress bar."""
    return sum(2 * (len(frames) + contest.echoes) for contest in contests)


def measure_links(
    contests: Sequence[Contest],
    *,
    hosts: Sequence[Host] | None = None,
    size: int,
    frames: Sequence[int],
    repeat: int,
    advance: Callable[[], object] = lambda: None,
) -> list[Result]:
    """Measure all contests between two hosts, or on loopback if none are given."""
    where = "loopback" if hosts is None else "two hosts"
    between = [ThisHost(), ThisHost()] if hosts is None else list(hosts)
    for frame in frames:
        if not 0 < frame <= min(size, BUFFER) or BUFFER % frame:
            raise PeerError(f"frames of {frame} bytes cannot be measured: use powers of two, up to the size and 16 MiB")
    with ExitStack() as stack:
        entrants = [Entrant(contest, between, stack) for contest in contests]
        for entrant in entrants:
            entrant.meet(min(frames))
        results: list[Result] = []
        for frame in frames:
            results += _measure(entrants, where, size, frame, repeat, advance)
        echoing = [entrant for entrant in entrants if entrant.contest.echoes]
        return results + _measure(echoing, where, size, None, repeat, advance)


class Entrant:
    """A contest with its processes, and what its link is to be called."""

    def __init__(self, contest: Contest, hosts: Sequence[Host], stack: ExitStack) -> None:
        self.contest = contest
        self.bare = stack.enter_context(Pair(contest.bare, hosts, contest.ucx))
        self.ours = stack.enter_context(Pair(contest.ours, hosts, contest.ucx))
        self.name = contest.name
        self.lanes: tuple[str, ...] = ()

    def meet(self, frame: int) -> None:
        self.bare.meet()
        self.ours.meet()
        self.ours.stream(frame, frame)  # UCX has its lanes once it has sent something
        self.lanes = self.ours.lanes()
        if self.contest.ours == "ucx":
            self.name = name_of_lanes(self.contest.name, self.lanes)
        elif self.contest.ours == "ucx-gpu":
            self.name = f"{name_of_lanes(self.contest.name.removesuffix('-gpu'), self.lanes)} of a GPU"


def _measure(
    entrants: Sequence[Entrant],
    where: str,
    size: int,
    frame: int | None,
    repeat: int,
    advance: Callable[[], object],
) -> list[Result]:
    """One frame size, or round trips, of all of them."""
    runs: dict[str, Callable[[], Round]] = {}
    for entrant in entrants:
        runs[f"bare {entrant.name}"] = _run(entrant.bare, size, frame)
        runs[entrant.name] = _run(entrant.ours, size, frame)
    timed = {each.what: each for each in measure_in_turn(runs, repeat=repeat, advance=advance)}
    tcp = timed.get("tcp")
    results = []
    for entrant in entrants:
        bare, ours = timed[f"bare {entrant.name}"], timed[entrant.name]
        results.append(
            Result(
                entrant.name,
                where,
                frame,
                link_end.ECHO if frame is None else size,
                replace(ours, what="round trip" if frame is None else "stream", limit_seconds=bare.seconds),
                bare,
                entrant.contest.bare,
                entrant.contest.wanted(frame),
                entrant.lanes,
                None if tcp is None or tcp is ours else tcp.seconds / ours.seconds,
            )
        )
    return results


def _run(pair: Pair, size: int, frame: int | None) -> Callable[[], Round]:
    return pair.echo if frame is None else lambda: pair.stream(size, frame)
