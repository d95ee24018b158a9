"""Runs the parts of a plan and tells every result as it comes.

A part that fails is reported as not run, with the reason, and the next one goes on: a report with a hole says more than
none. What cannot fit into memory, or into the time that is left, is not begun.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.bench.harness.journal import Journal, Record
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.harness.machine_facts import check_memory, facts, versions
from hoplite_ucx.bench.harness.timing import Measurement, measure
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterError
from hoplite_ucx.bench.measures.operations import compare_on, live_clusters
from hoplite_ucx.bench.paper.applications import serve, train
from hoplite_ucx.bench.paper.fixed_degree import FixedDegreeCluster
from hoplite_ucx.bench.paper.plan import OURS, Kind, Part
from hoplite_ucx.bench.paper.staggered import staggered_round
from hoplite_ucx.bench.peers.measuring import NotRun, measure_peers
from hoplite_ucx.bench.peers.rounds import Cell

__all__ = ["Watcher", "run_parts"]

_ARENA_ROOM = 40
"""How many objects of an application the store of a host takes; it needs half of that at most."""
_UNTIMED = 1
_TIME_WAS_UP = "the time was up; the same command goes on with it"

Tell = Callable[[Record], object]
Advance = Callable[[], object]


class Watcher(Protocol):
    """Who shows how far it is."""

    def begin(self, part: Part, number: int, total: int) -> None: ...
    def advance(self) -> None: ...
    def end(self, part: Part, seconds: float, problem: str | None) -> None: ...


def run_parts(journal: Journal, parts: Sequence[Part], seconds: float, watcher: Watcher) -> list[str]:
    """All that an earlier run has not finished, within so many seconds; returns what of ours failed, and why."""
    deadline = time.monotonic() + seconds
    problems = []
    done, guessed = 0.0, 0.0
    todo = [part for part in parts if not journal.has_finished(part.key)]
    for number, part in enumerate(todo, 1):
        watcher.begin(part, number, len(todo))
        journal.begin(part.key)
        began = time.monotonic()
        # How good the guesses are on this machine shows in what was done, once that is more than a start. Peers end
        # when they are told to.
        pace = done / guessed if guessed > 20 else 1.0
        if began + pace * (part.seconds if part.subject == OURS else part.least_seconds) > deadline:
            problem: str | None = _TIME_WAS_UP
        else:
            problem = _run(part, deadline, partial(journal.tell, part.key), watcher.advance)
            done, guessed = done + time.monotonic() - began, guessed + part.seconds
        took = time.monotonic() - began
        if problem is None:
            journal.finish(part.key, took)
        else:
            journal.tell(part.key, {"kind": part.kind, "what": part.title, "not_run": problem})
            if part.subject == OURS:
                problems.append(f"{part.title}: {problem}")
        watcher.end(part, took, problem)
    return problems


def _run(part: Part, deadline: float, tell: Tell, advance: Advance) -> str | None:
    """One part; why it could not be run, or not to its end."""

    def told(measured: Measurement) -> None:
        tell({"kind": part.kind, **json.loads(measured.json_line())})

    try:
        if part.kind in (Kind.SERVING, Kind.TRAINING):
            _run_application(part, tell, advance)
            return None
        fitting = replace(part, cells=tuple(_fitting(part, tell)))
        if fitting.cells and part.subject == OURS:
            _run_ours(fitting, told, advance)
        elif fitting.cells:
            return _run_peer(fitting, deadline, told, advance)
    except (PeerError, ClusterError) as failure:
        return str(failure)
    return None


def _fitting(part: Part, tell: Tell) -> Iterator[Cell]:
    """The cells that memory has room for; the others are reported."""
    for cell in part.cells:
        try:
            check_memory(cell.operation, part.hosts, cell.size)
        except PeerError as refusal:
            tell({"kind": part.kind, "what": f"{part.title}, {cell.operation}", "not_run": str(refusal)})
        else:
            yield cell


def _run_peer(part: Part, deadline: float, told: Callable[[Measurement], object], advance: Advance) -> str | None:
    def figure_told(each: Measurement | NotRun) -> None:
        if isinstance(each, Measurement):
            told(each)

    with Cluster(part.hosts, part.rate) as cluster:
        figures = measure_peers(
            cluster,
            {part.subject: part.cells},
            rate=part.rate,
            untimed=_UNTIMED,
            until=deadline,
            advance=advance,
            told=figure_told,
        )
    if figures.not_run:
        return f"{len(figures.not_run)} of {len(part.cells)} cells: {figures.not_run[0].why}"
    missing = len(part.cells) - len(figures.measured)
    return f"{missing} of {len(part.cells)} cells: {_TIME_WAS_UP}" if missing else None


def _run_ours(part: Part, told: Callable[[Measurement], object], advance: Advance) -> None:
    with ExitStack() as stack:
        hosts = stack.enter_context(Cluster(part.hosts, part.rate)).hosts
        live: LiveCluster
        if part.degree:
            live = stack.enter_context(FixedDegreeCluster(hosts, part.rate, part.degree))
        else:
            (live,) = live_clusters(stack, hosts, part.rate, max(cell.size for cell in part.cells)).values()
        for cell in part.cells:
            if part.kind is Kind.STAGGERED:
                told(_measure_staggered(live, part, cell, advance))
                continue
            for measured in compare_on(
                hosts,
                {"": live},
                cell.operation,
                size=cell.size,
                rate=part.rate,
                repeat=cell.rounds - _UNTIMED,
                untimed=_UNTIMED,
                seconds=cell.seconds,
                bare=part.beside_bare(cell),
                settings={"degree": part.degree} if part.degree else {},
                advance=advance,
            ):
                told(measured)


def _measure_staggered(live: LiveCluster, part: Part, cell: Cell, advance: Advance) -> Measurement:
    numbers = iter(range(cell.rounds))
    return measure(
        cell.operation,
        lambda: staggered_round(live, cell.operation, cell.size, cell.spacing, next(numbers)),
        repeat=cell.rounds - _UNTIMED,
        untimed=_UNTIMED,
        settings={**_settings(part), "operation": cell.operation, "size": cell.size, "spacing": cell.spacing},
        advance=advance,
    )


def _run_application(part: Part, tell: Tell, advance: Advance) -> None:
    loop = serve if part.kind is Kind.SERVING else train
    settings = {**_settings(part), "size": part.size}
    check_memory(part.kind, part.hosts, 4 * part.size)
    with FaultCluster(part.hosts, part.rate, _ARENA_ROOM * part.size) as arena:
        for lap in loop(arena, part.queries, part.size):
            tell({"kind": part.kind, **asdict(lap), **settings})
            advance()


def _settings(part: Part) -> dict[str, Any]:
    return {"hosts": part.hosts, "rate": part.rate, "untimed": _UNTIMED, "versions": versions(), "machine": facts()}
