"""The two acts of the demo: a broadcast and a reduce between real hosts, with a host killed in the middle of each.

An act gives the workers their tasks, listens to them until all are done, kills one host in the middle, and afterwards
has every result compared with the expected one. Everything visible from outside is recorded as it happens (the tree,
the progress of every host, incidents), so that a screen can show it at any time.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.demo.hosts import DemoError, Hosts, Machine
from hoplite_ucx.bench.demo.traffic import Traffic
from hoplite_ucx.bench.harness.timing import limit_seconds

_NOTICE = 0.05
"""The time between announcing the start and the start."""
_FRAME = 0.1
_SELDOM = 0.1
_UNSHAPED = 0.02
_OFTEN = 0.005
_CLOSELY = 0.5
"""The pauses between looking at an agent, in seconds: as a rule, on loopback, and for a while after a kill those behind
the host that is gone."""
_MIDDLE = (0.3, 0.9)
"""A host is killed when its progress is in this range."""
_LATE = (0.1, 0.2, 0.3)
"""How much later than the others the last hosts put their arrays."""
_PATIENCE = 60.0


@dataclass(frozen=True)
class Incident:
    """Something worth a line, `at` so many seconds after the act began."""

    at: float
    mark: str
    text: str


@dataclass(frozen=True)
class Reroute:
    """A host that got bytes from a new sender, so many seconds after the death of another."""

    host: int
    sender: int
    after: float


@dataclass
class Track:
    """What is known of one host."""

    index: int
    role: str = ""
    fraction: float = 0.0
    senders: list[int] = field(default_factory=list)
    done_at: float | None = None
    dead: bool = False


class Act(ABC):
    """A `show` is called about ten times a second, and at the end."""

    name: str

    def __init__(self, hosts: Hosts, *, kill: bool, show: Callable[[Act], None]) -> None:
        self.hosts = hosts
        self.size = hosts.size
        self.limit: float | None = None
        if hosts.rate is not None:
            self.limit = limit_seconds(self.name, len(hosts.machines), self.size, hosts.rate)
        self.tracks = [Track(machine.index) for machine in hosts.machines]
        self.incidents: list[Incident] = []
        self.reroutes: list[Reroute] = []
        self.problems: list[str] = []
        self.killed: int | None = None
        self.killed_at: float | None = None
        self.edges: list[tuple[int, int]] = []
        self.seconds: float | None = None
        self.began: float | None = None
        self._kill_wanted = kill
        self._show = show
        self._done: dict[int, dict[str, dict[str, Any]]] = {track.index: {} for track in self.tracks}
        self._traffic = Traffic({machine.node: machine.index for machine in hosts.machines})
        # A short act must be polled more often, or no host would be found in the middle.
        self._every = _UNSHAPED if self.limit is None else min(_SELDOM, max(_OFTEN, self.limit / 8))

    # --- what differs between acts -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def prepare(self) -> None:
        """Everything that is not timed."""

    @abstractmethod
    def begin(self, at: float) -> None:
        """Tell every host what to do at that moment."""

    @abstractmethod
    def over(self) -> bool: ...

    @abstractmethod
    def victim(self) -> int | None:
        """The host to kill now."""

    @abstractmethod
    def affected(self, victim: int) -> None:
        """A host is about to be killed: record what that means for the others."""

    @abstractmethod
    def standing(self, victim: int) -> str:
        """How far a host was that has just been killed."""

    @abstractmethod
    def check(self) -> None:
        """Compare results, when the clock has stopped."""

    # --- the course of an act ----------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Machine]:
        return [machine for machine in self.hosts.machines if machine.alive]

    def now(self) -> float:
        return 0.0 if self.began is None else time.monotonic() - self.began

    def play(self) -> None:
        self.prepare()
        self._watch(self._every)
        deadline = time.monotonic() + _PATIENCE
        while not all(self._traffic.knows(machine.index) for machine in self.alive):
            self._listen(deadline)
        self.began = time.monotonic() + _NOTICE
        self.begin(self.began)
        deadline = self.began + _PATIENCE + 10 * (self.limit or 0.0)
        shown = 0.0
        while not self.over():
            self._listen(deadline)
            if self._kill_wanted and self.killed is None and (victim := self.victim()) is not None:
                self._kill(victim)
            if time.monotonic() - shown >= _FRAME:
                shown = time.monotonic()
                self._show(self)
        ends = [track.done_at for track in self.tracks if track.done_at is not None and not track.dead]
        self.seconds = max(ends, default=None)
        self._look_once_more()
        if self._kill_wanted and self.killed is None:
            self.note("·", "nobody was killed: it was over too soon; try a larger --size")
        self.check()
        self._show(self)

    def _look_once_more(self) -> None:
        """So that the last picture shows the end."""
        self._watch(self._every)
        until = time.monotonic() + 2 * self._every + _NOTICE
        while time.monotonic() < until:
            self._listen(until + _PATIENCE)
        self._watch(None)

    def note(self, mark: str, text: str, at: float | None = None) -> None:
        self.incidents.append(Incident(self.now() if at is None else at, mark, text))

    def has_done(self, host: int, what: str) -> bool:
        return what in self._done[host]

    def answer(self, host: int, what: str) -> dict[str, Any]:
        return self._done[host][what]

    def _watch(self, every: float | None) -> None:
        for machine in self.alive:
            machine.tell("watch", every=every)

    def _listen(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            late = [track.index for track in self.tracks if track.done_at is None and not track.dead]
            raise DemoError(f"the {self.name} did not end: hosts {late} still wait")
        for machine, report in self.hosts.reports(_FRAME):
            if "received" in report:
                self._note_traffic(machine, report)
            elif "failed" in report:
                self._done[machine.index][report["failed"]] = {"failed": report["why"]}
                self.problems.append(f"host {machine.index} could not {report['failed']}: {report['why']}")
            else:
                self._done[machine.index][report["done"]] = report
                self.done(machine.index, report)
        for track in self.tracks:
            if not track.dead:
                track.senders = self._traffic.senders(track.index)
        self.edges = self._traffic.edges(track.index for track in self.tracks if not track.dead)

    def done(self, host: int, report: dict[str, Any]) -> None:
        if report["done"] == "get" and self.began is not None:
            self.tracks[host].done_at = report["at"] - self.began
            self.tracks[host].fraction = 1.0

    def _note_traffic(self, machine: Machine, report: dict[str, Any]) -> None:
        host, at = machine.index, report["at"]
        new = self._traffic.note(host, report["received"], at)
        self._traffic.note_streams(host, report["streams"])
        track = self.tracks[host]
        fraction = self._traffic.fraction(host)
        if track.done_at is None and fraction is not None:
            track.fraction = fraction
        if self.killed_at is None or self.began is None:
            return
        for sender in new:  # the tree was whole before the kill, so this is because of it
            after = at - self.began - self.killed_at
            self.reroutes.append(Reroute(host, sender, after))
            self.note("↪", self.rerouted(host, sender, after), at - self.began)

    def rerouted(self, host: int, sender: int, after: float) -> str:
        return f"host {host} continues from host {sender}, {after * 1e3:.0f} ms after the kill"

    def _kill(self, victim: int) -> None:
        """With -9, agent and worker. Its receivers are watched closely, to see how soon they continue."""
        machine, track = self.hosts.machines[victim], self.tracks[victim]
        standing = self.standing(victim)
        self.affected(victim)
        for sender, receiver in self.edges:
            if sender == victim:
                self.hosts.machines[receiver].tell("watch", every=_OFTEN, seconds=_CLOSELY)
        self.killed, self.killed_at = victim, self.now()
        machine.kill()
        self.note("✗", f"host {victim} is killed with -9, {standing}", self.killed_at)
        self._traffic.forget(victim)
        track.dead = True
        track.senders = []

    def _compare(self, ref: str, machines: list[Machine], hosts: list[int]) -> None:
        """Have these workers compare what they got with the sum of those hosts' arrays."""
        for machine in machines:
            machine.tell("check", ref=ref, size=self.size, hosts=hosts)
        for host, answer in self.hosts.await_all("check", machines).items():
            if answer["wrong"] is not None:
                self.problems.append(f"host {host} got something else: {answer['wrong']}")

    def report(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seconds": self.seconds,
            "limit_seconds": self.limit,
            "ratio": None if self.limit is None or self.seconds is None else self.seconds / self.limit,
            "killed": self.killed,
            "killed_at_seconds": self.killed_at,
            "reroutes": [
                {"host": each.host, "sender": each.sender, "after_seconds": each.after} for each in self.reroutes
            ],
            "finished_seconds": {track.index: track.done_at for track in self.tracks if track.done_at is not None},
            "tree": self.edges,
            "problems": self.problems,
        }


class Broadcast(Act):
    """Host 0 has an array, and all others get it at the same moment."""

    name = "broadcast"

    def __init__(self, hosts: Hosts, *, kill: bool, show: Callable[[Act], None]) -> None:
        super().__init__(hosts, kill=kill, show=show)
        self._ref = secrets.token_hex(16)
        self.tracks[0].role = "source"
        self.tracks[0].fraction = 1.0

    @property
    def title(self) -> str:
        return f"from host 0 to {len(self.tracks) - 1} hosts"

    def prepare(self) -> None:
        source = self.hosts.machines[0]
        source.tell("prepare", ref=self._ref, size=self.size, host=0)
        source.tell("put", ref=self._ref, at=0.0)
        self.hosts.await_all("put", [source])

    def begin(self, at: float) -> None:
        for machine in self.hosts.machines[1:]:
            machine.tell("get", ref=self._ref, at=at)

    def over(self) -> bool:
        return all(track.dead or self.has_done(track.index, "get") for track in self.tracks[1:])

    def victim(self) -> int | None:
        """A relay, with about as many hosts behind it as before it, when it is in the middle of the object."""
        if len(self.edges) < len(self.tracks) - 1:
            return None  # the tree is not whole yet
        behind = {sender: len(_behind(sender, self.edges)) for sender, _ in self.edges if sender != 0}
        middle = (len(self.tracks) - 2) / 2
        relay = min(behind, key=lambda host: (abs(behind[host] - middle), host), default=None)
        least, most = _MIDDLE
        return relay if relay is not None and least <= self.tracks[relay].fraction <= most else None

    def affected(self, victim: int) -> None:
        pass  # everyone keeps what it has

    def standing(self, victim: int) -> str:
        return f"when it has {self.tracks[victim].fraction:.0%}"

    def check(self) -> None:
        got = [m for m in self.alive if "failed" not in self._done[m.index].get("get", {"failed": ""})]
        self._compare(self._ref, got, [0])
        self.hosts.machines[0].tell("delete", refs=[self._ref])
        self.hosts.await_all("delete", self.hosts.machines[:1])


class Reduce(Act):
    """Every host puts an array, some late; host 0 gets the sum of the first of them."""

    name = "reduce"

    def __init__(self, hosts: Hosts, *, kill: bool, show: Callable[[Act], None]) -> None:
        super().__init__(hosts, kill=kill, show=show)
        count = len(self.tracks)
        self.count = count - 1 if kill else count
        self.delays = [0.0] * (count - len(_LATE)) + list(_LATE) if count > 2 * len(_LATE) else _few_late(count)
        self.contributors: list[int] = []
        self.after_last: float | None = None
        """Seconds from the last thing that it had to wait for: a source that went in, or the death of one."""
        self._ref = secrets.token_hex(16)
        self._sources = [secrets.token_hex(16) for _ in self.tracks]
        for track in self.tracks:
            track.role = "to come"

    @property
    def title(self) -> str:
        first = f"the first {self.count} of " if self.count < len(self.tracks) else ""
        late = [f"{delay:g}" for delay in self.delays if delay]
        return f"from {first}{len(self.tracks)} hosts to host 0; some come {', '.join(late)} s late"

    def prepare(self) -> None:
        for machine in self.alive:
            machine.tell("prepare", ref=self._sources[machine.index], size=self.size, host=machine.index)
        self.hosts.await_all("prepare", self.alive)
        first = self.hosts.machines[0]
        first.tell("reduce", ref=self._ref, sources=self._sources, count=self.count)
        self.hosts.await_all("reduce", [first])

    def begin(self, at: float) -> None:
        for machine in self.alive:
            machine.tell("put", ref=self._sources[machine.index], at=at + self.delays[machine.index])
        self.hosts.machines[0].tell("get", ref=self._ref, at=at)

    def over(self) -> bool:
        return self.has_done(0, "get")

    def done(self, host: int, report: dict[str, Any]) -> None:
        super().done(host, report)
        if report["done"] == "put" and self.began is not None:
            at = report["at"] - self.began
            self.tracks[host].role = f"put at {at:.2f} s"

    def victim(self) -> int | None:
        """A host whose array is on its way into the sum, if possible one that adds to what it gets from others."""
        least, most = _MIDDLE
        if len(self.edges) < self.count - 1:
            return None  # some that go in have not come yet
        fitting = {
            sender: bool(self.tracks[sender].senders)
            for sender, _ in self.edges
            if sender != 0 and least <= self._taken(sender) <= most
        }
        return min(fitting, key=lambda host: (not fitting[host], abs(host - self.count // 2)), default=None)

    def standing(self, victim: int) -> str:
        return f"when {self._taken(victim):.0%} of its part is taken"

    def _taken(self, host: int) -> float:
        """How much of what a host adds to the sum is where it goes."""
        return max((self._traffic.taken(*pair) for pair in self.edges if pair[0] == host), default=0.0)

    def affected(self, victim: int) -> None:
        """Everything that its array went into starts over, with that of a spare."""
        for host in _behind(victim, self.edges):
            self._traffic.begin_anew(host)

    def rerouted(self, host: int, sender: int, after: float) -> str:
        return f"host {host} pulls from host {sender} now, {after * 1e3:.0f} ms after the kill"

    def check(self) -> None:
        if self.problems or self.began is None or self.seconds is None:
            return
        first = self.hosts.machines[0]
        first.tell("contributors", ref=self._ref)
        refs = self.hosts.await_all("contributors", [first])[0]["refs"]
        self.contributors = sorted(self._sources.index(ref) for ref in refs)
        if len(set(self.contributors)) != self.count:
            self.problems.append(f"{refs} are not {self.count} sources")
        self._compare(self._ref, [first], self.contributors)
        last = max(self._put_at(host) for host in self.contributors)
        if self.killed_at is not None and self.killed not in self.contributors:
            last = max(last, self.killed_at)
        self.after_last = self.seconds - last

    def _put_at(self, host: int) -> float:
        """What a worker says of it may still be on its way, or lost with its host."""
        if self.began is None or not self.has_done(host, "put"):
            return self.delays[host]
        return float(self.answer(host, "put")["at"]) - self.began

    def report(self) -> dict[str, Any]:
        after = self.after_last
        return {
            **super().report(),
            "count": self.count,
            "arrivals_seconds": self.delays,
            "contributors": self.contributors,
            "after_last_seconds": after,
            "after_last_ratio": None if after is None or self.limit is None else after / self.limit,
        }


def _few_late(count: int) -> list[float]:
    """Of few hosts only the last is late."""
    return [0.0] * (count - 1) + [_LATE[-1]]


def _behind(host: int, edges: list[tuple[int, int]]) -> set[int]:
    """Everyone that this host's bytes reach."""
    found: set[int] = set()
    new = {host}
    while new:
        new = {receiver for sender, receiver in edges if sender in new} - found - {host}
        found |= new
    return found
