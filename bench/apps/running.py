"""Runs a plan: Ray nodes on emulated hosts, and on them the two programs of each run in turns.

A run that fails is reported as not run, with the reason, and the next one has new Ray nodes: one of the old ones may be
what failed. A run that misses its goal has one more turn, with hoplite and a trace.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from hoplite_ucx.bench.apps.job import END
from hoplite_ucx.bench.apps.plan import PLAIN_AND_OURS, Run
from hoplite_ucx.bench.apps.results import gains
from hoplite_ucx.bench.apps.streams import read_streams
from hoplite_ucx.bench.harness.journal import Journal, Record
from hoplite_ucx.bench.harness.machine_facts import MEMORY_SHARE, memory_available
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterError
from hoplite_ucx.bench.ray.nodes import RayNodes, ray_nodes

__all__ = ["Watcher", "about", "check_commit", "check_memory", "memory_needed", "run_all"]

_LINE_SECONDS = 180.0
"""A program says something at least that often."""
_EXIT_SECONDS = 20.0
"""For a program to end by itself, and for Ray to end its actors, before the next one starts."""
_PROCESSES = 700 << 20
"""What the processes of a Ray node, an actor and an agent take before the first object."""
_IN_HAND = 4
"""Objects of a run's size outside of the stores: parameters, a gradient, a sum, one that is being made."""
_NAMES_AN_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")


class Watcher(Protocol):
    """Who shows how far it is."""

    def begin(self, run: Run) -> None: ...
    def end(self, problem: str | None) -> None: ...


def memory_needed(run: Run) -> int:
    """About the most that a run has at one time, on all hosts together. Ray's store keeps its pages, so what both
    stores hold counts."""
    return run.nodes * (_PROCESSES + (run.at_once + _IN_HAND) * run.size)


def check_memory(runs: Iterable[Run]) -> None:
    """Refuse what does not fit, before anything starts."""
    there = memory_available()
    beyond = [run for run in runs if memory_needed(run) > MEMORY_SHARE * there]
    if beyond:
        largest = max(beyond, key=memory_needed)
        raise PeerError(
            f"{largest.title} takes about {memory_needed(largest) >> 20} MiB of memory; {there >> 20} MiB are "
            f"available, of which {MEMORY_SHARE:.0%} may be used ({len(beyond)} runs do not fit): choose a smaller "
            "--grid, leave runs out with --only, or take a machine with more memory"
        )


def check_commit(journal: Journal, commit: str | None) -> None:
    """Figures of several commits are not put together: a run goes on at the commit at which it began."""
    others = {str(run["machine"]["commit"]) for run in journal.runs if run["machine"]["commit"] != commit}
    if journal.records and others:
        raise PeerError(
            f"{journal.path} has figures of commit {', '.join(sorted(others))}, and this is {commit}: choose another "
            "--output, or remove the file to begin anew"
        )


def run_all(journal: Journal, runs: Sequence[Run], watcher: Watcher) -> list[str]:
    """All that an earlier run has not finished; returns what failed, and why."""
    todo = [run for run in runs if not journal.has_finished(run.key)]
    problems = []
    for (nodes, rate), some in itertools.groupby(todo, key=lambda run: (run.nodes, run.rate)):
        left = list(some)
        store = max(run.memory for run in left)
        while left:
            try:
                with Cluster(nodes, rate) as cluster, ray_nodes(cluster, store) as ray:
                    problems += _run_until_one_fails(journal, left, ray, watcher)
            except (PeerError, ClusterError) as failure:
                problems += [f"{run.title}: {_not_run(journal, run, failure)}" for run in left]
                left = []
    return problems


def _run_until_one_fails(journal: Journal, left: list[Run], ray: RayNodes, watcher: Watcher) -> list[str]:
    """Take what was run off the list."""
    while left:
        problem = _run(journal, left[0], ray, watcher)
        run = left.pop(0)
        if problem is not None:
            return [f"{run.title}: {problem}"]
    return []


def _run(journal: Journal, run: Run, ray: RayNodes, watcher: Watcher) -> str | None:
    watcher.begin(run)
    journal.begin(run.key)
    began = time.monotonic()
    problem = None
    try:
        for turn in range(run.turns):
            for system in PLAIN_AND_OURS if turn % 2 == 0 else reversed(PLAIN_AND_OURS):
                for row in _rows(run, system, turn, ray):
                    journal.tell(run.key, {**row, **about(run), "system": system, "turn": turn})
        mine = [record for record in journal.records if record["part"] == run.key]
        if any(gain.missed for gain in gains(mine)):
            journal.tell(run.key, {"title": run.title, **_trace(run, ray, journal.path.parent)})
    except PeerError as failure:
        problem = _not_run(journal, run, failure)
    else:
        journal.finish(run.key, time.monotonic() - began)
    watcher.end(problem)
    return problem


def _not_run(journal: Journal, run: Run, failure: Exception) -> str:
    """Record why, and return it in one line."""
    problem = _in_short(str(failure))
    journal.tell(run.key, {"title": run.title, "not_run": problem, "said": str(failure)})
    return problem


def _in_short(said: str) -> str:
    """The line that names the error, of a traceback among what Ray writes, or else the last one."""
    first, *others = [line for line in said.splitlines() if line.strip()] or [""]
    if not others:
        return first
    named = [line for line in others if _NAMES_AN_ERROR.match(line)]
    who, _, _ = first.partition(": ")
    return f"{who}: {(named or others)[-1].strip()}"


def _trace(run: Run, ray: RayNodes, folder: Path) -> Record:
    """Of one more turn: where its file is, and what it says. The figures stand without it."""
    name = f"trace-{run.key.rpartition('#')[2]}.json"
    path = (folder / name).resolve()
    try:
        rounds = [row for row in _rows(run, PLAIN_AND_OURS[1], 0, ray, path) if row.get("round", -1) >= 0]
        found = read_streams(path)
    except PeerError as failure:
        return {"untraced": _in_short(str(failure))}
    return {
        "trace": {
            "file": name,
            "rounds": len(rounds) + 1,  # and one before those that are counted
            "whole": found.whole,
            "sending": found.sending,
            "busiest": found.busiest,
        }
    }


def _rows(run: Run, system: str, turn: int, ray: RayNodes, trace: Path | None = None) -> Iterator[Record]:
    """What the program of a system tells, and what it took of the machine meanwhile: of its cores and its memory."""
    job = run.job(ray.address, [host.address for host in ray.hosts], turn).written()
    module = f"hoplite_ucx.bench.apps.programs.{run.program}.{system}"
    words = [module, job] if trace is None else ["hoplite_ucx.bench.apps.traced", job, module, str(trace)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        command = ray.command([sys.executable, "-P", "-m", *words])
        process = LineProcess(ray.hosts[0], command, f"the {system} program", environment, log)
        stack.callback(process.close)
        before, least = _cores(), memory_available()
        free = least
        while (line := _line(process, run)) != END:
            least = min(least, memory_available())
            if line.startswith("{"):  # Ray itself writes there, too: who died, for example
                yield json.loads(line)
        busy, idle = (after - earlier for after, earlier in zip(_cores(), before, strict=True))
        yield {"busy": round(busy / max(1, busy + idle), 3), "memory": free - least}
        process.wait(time.monotonic() + _EXIT_SECONDS)


def _line(process: LineProcess, run: Run) -> str:
    deadline = time.monotonic() + _LINE_SECONDS
    try:
        return process.line(deadline)
    except PeerError as error:
        if time.monotonic() < deadline:
            raise  # it ended, and says why
        raise PeerError(
            f"{error}: {process.name} said nothing for {_LINE_SECONDS:g} s. A worker did not come up or stopped, or "
            f"{run.nodes} nodes are too many for this machine"
        ) from error


def _cores() -> tuple[int, int]:
    """Ticks in which the machine's cores worked, and in which they did not."""
    with open("/proc/stat") as table:
        user, nice, system, idle, waited, *others = map(int, table.readline().split()[1:])
    return user + nice + system + sum(others), idle + waited


def about(run: Run) -> Record:
    """What every record of a run says of it."""
    return {
        "kind": run.kind,
        "application": run.application,
        "task": run.task,
        "nodes": run.nodes,
        "rate": run.rate,
        "size": run.size,
        "compute": run.compute,
        "load": run.load,
        "title": run.title,
    }
