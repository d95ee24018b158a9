"""What the rows of a run come to: seconds a round by system, the speed-up beside its model, latencies under load, what
was learnt, what a death cost, and how far engines are behind. Pure: from records to figures.

Records of one run have the same `part`: nothing is put together that was measured in different settings.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hoplite_ucx.bench.apps.bounds import MODELS
from hoplite_ucx.bench.apps.plan import PLAIN_AND_OURS, Kind
from hoplite_ucx.bench.harness.journal import Record

__all__ = [
    "DEATH_GOAL",
    "Death",
    "Gain",
    "Joining",
    "Latency",
    "RealCompute",
    "Trace",
    "deaths",
    "gains",
    "joinings",
    "latencies",
    "median_of",
    "percentile",
    "real_computes",
    "settings",
    "system_of",
    "traces",
    "wrong_answers",
    "wrong_sums",
]

_UNTIMED = 2
"""Rounds of each turn that do not count, at least: links are opened, memory is touched for the first time."""
DEATH_GOAL = 1.3
"""The round in which a worker dies takes at most so many times the median of rounds like it."""
_JUDGED = 8
"""On so many nodes there is a goal; more of them would say more of this machine's cores."""


@dataclass(frozen=True)
class Gain:
    """A setting in which both systems ran, with a timer for compute."""

    part: str
    title: str
    application: str
    nodes: int
    size: int
    rate: float
    compute: float
    plain: float
    """Seconds a round: the mean of a turn, and of those the median."""
    ours: float
    spread: float
    """The range of our rounds over their median."""
    computed: float
    """Seconds of compute in a round as the workers measured them, with us."""
    samples: float
    """A second, with us; 0 where none are counted."""
    busy: tuple[float, float]
    """The share of their time that the machine's cores worked, with plain Ray and with us."""

    @property
    def speed_up(self) -> float:
        return self.plain / self.ours

    @property
    def bound(self) -> int:
        return MODELS[self.application].bound(self.nodes)

    @property
    def expected(self) -> float:
        return MODELS[self.application].speed_up(self.nodes, self.size, self.rate, self.compute)

    @property
    def of_expected(self) -> float:
        return self.speed_up / self.expected

    @property
    def goal(self) -> float | None:
        return MODELS[self.application].goal if self.nodes == _JUDGED else None

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.of_expected < self.goal


def gains(records: Iterable[Record]) -> list[Gain]:
    found = []
    for part, rows in settings(records, Kind.TIMING).items():
        one = rows[0]
        seconds = [_seconds_of_turns(rows, system) for system in PLAIN_AND_OURS]
        if one["compute"] is None or one["load"] or not all(seconds):
            continue
        plain, ours = map(statistics.median, seconds)
        mine = _timed(rows, PLAIN_AND_OURS[1])
        laps = [row["seconds"] for row in mine]
        found.append(
            Gain(
                part=part,
                title=one["title"],
                application=one["application"],
                nodes=one["nodes"],
                size=one["size"],
                rate=one["rate"],
                compute=one["compute"],
                plain=plain,
                ours=ours,
                spread=(max(laps) - min(laps)) / statistics.median(laps),
                computed=median_of(mine, "computed") or 0.0,
                samples=(median_of(mine, "samples") or 0.0) / ours,
                busy=_busy(rows),
            )
        )
    return found


@dataclass(frozen=True)
class Trace:
    """What a trace says of a round, in seconds."""

    file: str
    whole: float
    sending: float
    """In which some host received."""
    busiest: float
    """The longest that one host received."""
    transfers: float
    """What the links need for it."""

    @property
    def silent(self) -> float:
        return self.whole - self.sending


def traces(records: Iterable[Record]) -> dict[str, Trace]:
    """Of one more turn of the runs that missed their goal, by run."""
    records = list(records)
    found = {}
    for part, rows in settings(records, Kind.TIMING).items():
        told = next((record["trace"] for record in records if record["part"] == part and "trace" in record), None)
        if told is not None:
            one = rows[0]
            needed = MODELS[one["application"]].transfer_seconds(one["size"], one["rate"])
            whole, sending, busiest = (told[name] / told["rounds"] for name in ("whole", "sending", "busiest"))
            found[part] = Trace(told["file"], whole, sending, busiest, needed)
    return found


@dataclass(frozen=True)
class RealCompute:
    """A timing run that computes for real, by system."""

    title: str
    system: str
    seconds: float
    """A round."""
    computed: float
    """Seconds that one gradient took, the median."""
    quickest: float
    """The quickest one, as if it had a core for itself."""
    samples: float
    """A second."""
    busy: float


def real_computes(records: Iterable[Record]) -> list[RealCompute]:
    found = []
    for rows in settings(records, Kind.TIMING).values():
        if rows[0]["compute"] is not None:
            continue
        for system, busy in zip(PLAIN_AND_OURS, _busy(rows), strict=True):
            mine = _in_whole_cycles(rows, system)
            if mine:
                seconds = statistics.fmean(row["seconds"] for row in mine)
                computed = [row["computed"] for row in mine]
                samples = statistics.fmean(row["samples"] for row in mine) / seconds
                found.append(
                    RealCompute(
                        rows[0]["title"], system, seconds, statistics.median(computed), min(computed), samples, busy
                    )
                )
    return found


@dataclass(frozen=True)
class Latency:
    """Of queries that come by themselves, by system."""

    title: str
    system: str
    load: float
    queries: int
    seconds: dict[int, float]
    """By percentile; the hundredth is the longest."""


def latencies(records: Iterable[Record]) -> list[Latency]:
    found = []
    for rows in settings(records, Kind.TIMING).values():
        for system in PLAIN_AND_OURS:
            mine = sorted(row["seconds"] for row in _timed(rows, system))
            if rows[0]["load"] and mine:
                shares = {percent: percentile(mine, percent) for percent in (50, 90, 99, 100)}
                found.append(Latency(rows[0]["title"], system, rows[0]["load"], len(mine), shares))
    return found


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest one that so many percent are not above."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True)
class Death:
    """What the death of a worker cost one system."""

    title: str
    system: str
    median: float
    """Of all rounds before."""
    like_it: float
    """The median of the rounds before that had its place in the cycle. Where a round takes half of the workers, the
    halves take turns, and the round that waits for compute is longer than the one after it."""
    slowest_before: float
    at_death: float
    """The round in which it died."""
    slowest: float
    """Of the rounds from the death until the worker was back."""
    back: float | None
    """Seconds until a round with the worker that came back; None if it did not."""

    @property
    def of_median(self) -> float:
        return self.at_death / self.median

    @property
    def ratio(self) -> float:
        """Over rounds that are like it. This one is judged."""
        return self.at_death / self.like_it

    @property
    def goal(self) -> float | None:
        """Of us; plain Ray is beside it."""
        return DEATH_GOAL if self.system == PLAIN_AND_OURS[1] else None

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.ratio > self.goal

    @property
    def above_median(self) -> bool:
        """Whether it misses the goal by the stricter rule, that of the median of all rounds."""
        return self.goal is not None and self.of_median > self.goal


def deaths(records: Iterable[Record]) -> list[Death]:
    """Of applications with rounds. Engines of weight sync have none: see `joinings`."""
    found = []
    for every in settings(records, Kind.FAILURE).values():
        for system in PLAIN_AND_OURS:
            rows = _timed(every, system)
            killed = next((row["round"] for row in rows if row.get("killed")), None)
            before = [row for row in rows if killed is not None and row["round"] < killed]
            after = [row for row in rows if killed is not None and row["round"] >= killed]
            if not before or not after:
                continue
            like_it = [row for row in before if (after[0]["round"] - row["round"]) % _cycle(row) == 0]
            known = {pid for row in before for pid in row.get("pids", ())}
            back = next((row for row in after[1:] if _is_whole(row, before[0], known)), None)
            missing = [row for row in after if back is None or row["round"] <= back["round"]]
            ends = None if back is None else back["began"] + back["seconds"]
            found.append(
                Death(
                    every[0]["title"],
                    system,
                    statistics.median(row["seconds"] for row in before),
                    statistics.median(row["seconds"] for row in like_it or before),
                    max(row["seconds"] for row in before),
                    after[0]["seconds"],
                    max(row["seconds"] for row in missing),
                    None if ends is None else ends - after[0]["began"],
                )
            )
    return found


def _is_whole(row: Record, before: Record, known: set[int]) -> bool:
    """Whether the worker that was killed takes part again: in a new process, or as one of as many."""
    if "pids" in row:
        return not known.issuperset(row["pids"])
    return bool(row["workers"] >= before["workers"])


@dataclass(frozen=True)
class Joining:
    """Engines of weight sync that come and go, by system."""

    title: str
    system: str
    newest: float
    """The median over the versions: seconds until the last engine had it, or a newer one."""
    longest: float
    behind: float
    """Versions that engines were behind, on average over the time."""
    joined: list[float]
    """Seconds from an engine's first question to the newest version, of those that came later."""
    back: float | None
    """Seconds from the death of an engine until its successor had the newest version."""
    wrong: int
    """Versions that had a wrong weight in an engine."""


def joinings(records: Iterable[Record]) -> list[Joining]:
    found = []
    for every in settings(records, Kind.FAILURE, Kind.TIMING).values():
        for system in PLAIN_AND_OURS:
            rows = [row for row in _timed(every, system) if "exactly" in row]
            if not rows:
                continue
            mine = [row for row in every if row["system"] == system]
            killed = next((row["killed_at"] for row in mine if row.get("killed_at")), None)
            again = next((row["at"] for row in mine if row.get("again")), None)
            waits = [row["seconds"] for row in rows if row["seconds"] is not None]
            behind = [row["behind"] for row in rows if row["behind"] is not None]
            found.append(
                Joining(
                    every[0]["title"],
                    system,
                    newest=statistics.median(waits),
                    longest=max(waits),
                    behind=statistics.fmean(behind) if behind else 0.0,
                    joined=[row["took"] for row in mine if "joined" in row],
                    back=None if killed is None or again is None else again - killed,
                    wrong=sum(row.get("wrong", 0) for row in mine),
                )
            )
    return found


# --- what must not be wrong --------------------------------------------------------------------------------------


def wrong_sums(records: Iterable[Record]) -> list[str]:
    """Of checked gradients: the server compared each with what the workers that went in had given."""
    problems = []
    for rows in settings(records, Kind.LEARNING).values():
        for row in rows:
            wrong = [found["wrong"] for found in row.get("sums", ()) if found["wrong"]]
            if wrong:
                problems.append(f"{row['title']}, {row['system']}: {len(wrong)} sums have wrong elements: {wrong}")
    return problems


def wrong_answers(records: Iterable[Record]) -> list[str]:
    """An ensemble's answers must not depend on the system, nor weights on how they came."""
    problems = []
    for rows in settings(records, *Kind).values():
        answers = {
            (row["turn"], row["answer"]) for row in rows if "answer" in row and row["workers"] == row["nodes"] - 1
        }
        if len(answers) != len({turn for turn, _ in answers}):
            problems.append(f"{rows[0]['title']}: answers differ: {sorted(answers)}")
        problems += [
            f"{row['title']}, {row['system']}: version {row['round'] + 2} has wrong weights in {row['wrong']} engines"
            for row in rows
            if row.get("wrong")
        ]
    return problems


# --- rows --------------------------------------------------------------------------------------------------------


def settings(records: Iterable[Record], *kinds: Kind) -> dict[str, list[Record]]:
    """The rows of each run. One that failed has none: some of its rounds are missing."""
    records = list(records)
    failed = {record["part"] for record in records if "not_run" in record}
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.get("kind") in kinds and "system" in record and record["part"] not in failed:
            found[record["part"]].append(record)
    return found


def system_of(rows: Iterable[Record], system: str) -> list[Record]:
    return [row for row in rows if row["system"] == system and "round" in row]


def median_of(rows: Iterable[Record], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else None


def _timed(rows: Iterable[Record], system: str) -> list[Record]:
    """Those after the first cycle, whose gradients were all there when it began: its rounds are short."""
    mine = system_of(rows, system)
    return [row for row in mine if row["round"] >= max(_UNTIMED, _cycle(row)) and row["seconds"] is not None]


def _in_whole_cycles(rows: Iterable[Record], system: str) -> list[Record]:
    """The timed rounds without the last ones that make no cycle, which would count its long or its short rounds once
    more."""
    mine = _timed(rows, system)
    if not mine:
        return []
    end = max(row["round"] for row in mine) + 1
    end -= (end - mine[0]["round"]) % _cycle(mine[0])
    return [row for row in mine if row["round"] < end]


def _cycle(row: Record) -> int:
    """In how many rounds each worker has its turn: two on 8 nodes where a round takes half of them, three on 4, and one
    where a round takes all."""
    return (row["nodes"] - 1) // len(row["workers"]) if "pids" in row else 1


def _seconds_of_turns(rows: Sequence[Record], system: str) -> list[float]:
    turns: dict[int, list[float]] = defaultdict(list)
    for row in _in_whole_cycles(rows, system):
        turns[row["turn"]].append(row["seconds"])
    return [statistics.fmean(seconds) for seconds in turns.values()]


def _busy(rows: Sequence[Record]) -> tuple[float, float]:
    plain, ours = (
        median_of([row for row in rows if row["system"] == system], "busy") or 0.0 for system in PLAIN_AND_OURS
    )
    return plain, ours
