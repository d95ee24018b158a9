"""The figures of a run of the applications as a page of the manual: one machine, one commit, and where it falls short.

It is made from a journal alone, as the report is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hoplite_ucx.bench.apps.bounds import MODELS
from hoplite_ucx.bench.apps.plan import Kind
from hoplite_ucx.bench.apps.results import (
    DEATH_GOAL,
    Gain,
    deaths,
    gains,
    joinings,
    latencies,
    real_computes,
    settings,
    traces,
    wrong_answers,
    wrong_sums,
)
from hoplite_ucx.bench.harness.journal import Journal, Record
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["is_journal", "page"]

_PAGE = """\
# Applications on Ray

<!-- Made by `{command}`; a test compares the two. -->

The paper's applications, and weight sync, as two programs each: plain Ray, and Ray with hoplite. They ran in turns on
the same Ray nodes: emulated hosts on one machine ({processor}, {cores} cores, {memory} GiB, Linux {kernel}, Python
{python}), at commit {commit}, {date}. With {versions}. The load average was {load} when runs began: other work on the
machine counts in *cores* below.

No GPU was used: in timing runs a timer stands for it, *c* seconds in each round.
[Measuring](measuring.md#applications-on-ray) says what the runs, the model and the bound are.

## Speed-up

{speed_ups}

*plain*, *hoplite*: seconds a round. *model*: (c + T plain) / (c + T hoplite), from the links alone; *of it*: the share
of the model that was reached, beside its goal on 8 nodes. *paper*: on its 16 nodes of 10 Gbit/s. *cores*: how busy this
machine's cores were, with plain Ray and with hoplite.

{missed}

## Serving under open-loop load

Queries come by themselves, at the same random moments for both systems. Milliseconds.

{loads}

## Weight sync

Seconds until the last engine has the newest version, how many versions engines are behind on average, how long an
engine that joins takes to the newest version, and how long after kill -9 its successor has it. With hoplite, the first
engine on a node also waits until the node's agent has started.

{syncs}

## A worker is killed with -9

*ratio*: the round with the death over the median of the rounds like it before the death (wanted with hoplite: at most
{death_goal}); *of median*: over the median of all rounds before. *back after*: how long until a round has the worker
that Ray started again. In SGD the two halves of the workers take turns, so every second round is like it: the round
that waits for compute is longer than the next one, whose gradients have come meanwhile, by about c at most, with both
systems. [Measuring](measuring.md#applications-on-ray) has the evidence, and why the median of all rounds is beside it.

{deaths}

## Real compute

The same program without the timer: all nodes compute on the two cores.

{real}

## Are the results right?

Losses and lengths of episodes are means of the first and of the last quarter of the rounds. The lengths jump up and
down with both systems: one run shows that both learn, and not which one learns faster.

{right}
{not_run}"""


def is_journal(path: Path) -> bool:
    """Whether a file of records is one of `hoplite bench apps`."""
    try:
        with path.open() as file:
            return file.readline().startswith('{"run"')
    except OSError as error:
        raise PeerError(f"{path} cannot be read: {error}") from error


def page(journal: Journal, command: str) -> str:
    records = journal.records
    if not records:
        raise PeerError(f"{journal.path} holds no records yet")
    commits = {run["machine"]["commit"] for run in journal.runs}
    if len(commits) > 1:
        raise PeerError(f"{journal.path} has figures of several commits: {', '.join(sorted(map(str, commits)))}")
    machine, versions = journal.runs[-1]["machine"], journal.runs[-1]["versions"]
    found = gains(records)
    return _PAGE.format(
        command=command,
        **{name: machine[name] for name in ("processor", "cores", "kernel", "python", "commit", "date")},
        memory=f"{machine['memory'] / (1 << 30):.0f}",
        load=_range([run["machine"]["load"] for run in journal.runs]),
        versions=", ".join(f"{name} {version}" for name, version in versions.items() if name != "hoplite"),
        speed_ups=_speed_ups(found),
        missed=_missed(found, records),
        loads=_loads(records),
        syncs=_syncs(records),
        death_goal=DEATH_GOAL,
        deaths=_deaths(records),
        real=_real(records),
        right="\n".join(f"- {line}" for line in _right(records)),
        not_run=_not_run(records),
    )


def _range(values: Sequence[float]) -> str:
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return least if least == most else f"{least} to {most}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "*Not run.*"
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _speed_ups(found: Sequence[Gain]) -> str:
    columns = ("", "c, s", "plain, s", "hoplite, s", "speed-up", "model", "of it", "bound", "paper", "cores")
    return _table(columns, [_speed_up(gain) for gain in found])


def _speed_up(gain: Gain) -> list[str]:
    goal = "" if gain.goal is None else f" (goal {gain.goal:.0%}{', **missed**' if gain.missed else ''})"
    paper = MODELS[gain.application].paper
    return [
        f"{gain.application}, {gain.size / (1 << 20):.3g} MiB, {gain.nodes} nodes at {gain.rate * 8e-6:g} Mbit/s",
        f"{gain.compute:.2f}",
        f"{gain.plain:.2f}",
        f"{gain.ours:.2f}",
        f"**{gain.speed_up:.2f} ×**",
        f"{gain.expected:.2f} ×",
        f"{gain.of_expected:.0%}{goal}",
        f"{gain.bound} ×",
        "" if paper is None else f"{paper:g} ×",
        f"{gain.busy[0]:.0%}, {gain.busy[1]:.0%}",
    ]


def _missed(found: Sequence[Gain], records: Sequence[Record]) -> str:
    judged = [gain for gain in found if gain.goal is not None]
    reached = sum(not gain.missed for gain in judged)
    lines = [f"{reached} of {len(judged)} settings with a goal reach it." if judged else "No setting has a goal."]
    traced = traces(records)
    for gain in found:
        if gain.missed and gain.part in traced:
            trace = traced[gain.part]
            lines.append(
                f"- {gain.title}: {gain.of_expected:.0%} of the model. A trace of one more turn: in a round of "
                f"{trace.whole:.2f} s some host received for {trace.sending:.2f} s (the links need "
                f"{trace.transfers:.2f} s), and for {trace.silent:.2f} s nothing was sent."
            )
    return "\n".join(lines)


def _loads(records: Sequence[Record]) -> str:
    rows = [
        [f"{_short(each.title)}: {each.system}", *(f"{seconds * 1e3:.0f}" for seconds in each.seconds.values())]
        for each in latencies(records)
    ]
    return _table(("", "p50", "p90", "p99", "longest"), rows)


def _syncs(records: Sequence[Record]) -> str:
    rows = [
        [
            f"{each.title}: {each.system}",
            f"{each.newest:.2f}",
            f"{each.longest:.2f}",
            f"{each.behind:.2f}",
            ", ".join(f"{seconds:.2f}" for seconds in each.joined),
            "" if each.back is None else f"{each.back:.1f}",
        ]
        for each in joinings(records)
    ]
    return _table(("", "to newest", "longest", "behind", "joined after", "back after"), rows)


def _deaths(records: Sequence[Record]) -> str:
    rows = [
        [
            f"{_short(each.title)}: {each.system}",
            f"{each.median * 1e3:.0f}",
            f"{each.like_it * 1e3:.0f}",
            f"{each.slowest_before * 1e3:.0f}",
            f"{each.at_death * 1e3:.0f}",
            f"{each.ratio:.2f}{', **missed**' if each.missed else ''}",
            f"{each.of_median:.2f}{f', **above {DEATH_GOAL}**' if each.above_median else ''}",
            f"{each.slowest * 1e3:.0f}",
            "not" if each.back is None else f"{each.back:.1f}",
        ]
        for each in deaths(records)
    ]
    before = ("median before, ms", "like it, ms", "slowest before, ms")
    after = ("with the death, ms", "ratio", "of median", "slowest until back, ms", "back after, s")
    return _table(("", *before, *after), rows)


def _real(records: Sequence[Record]) -> str:
    rows = [
        [
            f"{_short(each.title)}: {each.system}",
            *(f"{value:.3g}" for value in (each.seconds, each.computed, each.quickest, each.samples)),
            f"{each.busy:.0%}",
        ]
        for each in real_computes(records)
    ]
    return _table(("", "s a round", "s a gradient", "quickest, s", "samples/s", "cores busy"), rows)


def _right(records: Sequence[Record]) -> Iterator[str]:
    problems = [*wrong_sums(records), *wrong_answers(records)]
    yield from problems
    for rows in settings(records, Kind.LEARNING).values():
        for row in rows:
            if row.get("sums") and row["task"] in ("exact", "random"):
                wrong = sum(each["wrong"] for each in row["sums"])
                worst = max(each["worst"] for each in row["sums"])
                said = f", the largest error {worst:.2g} × what is allowed" if row["task"] == "random" else ""
                yield f"{len(row['sums'])} {row['task']} sums, {row['system']}: {wrong} wrong elements{said}"
        scores = {
            system: [row["score"] for row in rows if row["system"] == system and row.get("score") is not None]
            for system in ("plain", "hoplite")
        }
        if any(any(found) for found in scores.values()):
            said = "; ".join(f"{system} {_ends(found)}" for system, found in scores.items() if found)
            yield f"{_short(rows[0]['title'])}: {said}"
    answers = sum("answer" in row for rows in settings(records, *Kind).values() for row in rows)
    if answers and not problems:
        yield f"{answers} answers of ensembles were the same with both systems, and no version had a wrong weight"


def _not_run(records: Sequence[Record]) -> str:
    failed = [f"- {record['title']}: {record['not_run']}" for record in records if "not_run" in record]
    return "\n".join(["", "## What failed", "", *failed, ""]) if failed else ""


def _ends(scores: Sequence[float]) -> str:
    """The means of the first and of the last quarter."""
    part = max(1, len(scores) // 4)
    return f"{sum(scores[:part]) / part:.3g} → {sum(scores[-part:]) / part:.3g}"


def _short(title: str) -> str:
    return title.partition(": ")[2]
