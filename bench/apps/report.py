"""One HTML file: each application's speed-up beside its bound, its model and the paper's, latencies under load, what
was learnt, what a death cost, and its two programs as a diff. It is made from a journal alone."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hoplite_ucx.bench.apps.bounds import MODELS, SpeedModel
from hoplite_ucx.bench.apps.plan import PLAIN_AND_OURS, Kind
from hoplite_ucx.bench.apps.results import (
    DEATH_GOAL,
    Death,
    Gain,
    Joining,
    Latency,
    RealCompute,
    deaths,
    gains,
    joinings,
    latencies,
    percentile,
    real_computes,
    settings,
    system_of,
    traces,
    wrong_answers,
    wrong_sums,
)
from hoplite_ucx.bench.harness.html_page import as_data, escape, page_of, table
from hoplite_ucx.bench.harness.journal import Journal, Record
from hoplite_ucx.bench.harness.plots import load_pyplot
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["diff_of", "page", "write_report"]

_PROGRAMS = ("sgd", "impala", "serving", "weight_sync")
_COLOURS = dict(zip(PLAIN_AND_OURS, ("#1f77b4", "#c1121f"), strict=True))
_NOTHING = '<p class="missing">There are no records.</p>'


def write_report(journal: Journal, path: Path) -> None:
    text = page(journal)
    try:
        path.write_text(text)
    except OSError as error:
        raise PeerError(f"the report cannot be written: {error}") from error


def page(journal: Journal) -> str:
    records = journal.records
    if not records:
        raise PeerError(f"{journal.path} holds no records yet")
    parts = (
        _head(journal),
        _short(records),
        _timing(records),
        _real_compute(records),
        _under_load(records),
        _weight_sync(records),
    )
    more = (_deaths(records), _learning(records), _diffs(), _tail(journal))
    return page_of("Applications on Ray, plain and with hoplite", [line for part in (*parts, *more) for line in part])


def _head(journal: Journal) -> Iterator[str]:
    yield "<h1>Applications on Ray, plain and with hoplite</h1>"
    yield (
        "<p>Ray nodes in network namespaces of one machine, with shaped links. Both programs of an application run in "
        "turns on the same nodes. No GPU was used. Learning runs, timing runs and failure runs are in tables of their "
        "own.</p>"
    )
    machines: dict[str, list[str]] = {}
    for run in journal.runs:
        facts = {**run["machine"], **run["versions"]}
        load = facts.pop("load", None)
        begun = f"{run['begun']} {run['command']}" + ("" if load is None else f" (load {load:g})")
        machines.setdefault(", ".join(f"{name} {_fact(name, value)}" for name, value in facts.items()), []).append(
            begun
        )
    for about, commands in machines.items():
        yield f"<p>{escape(about)}</p>"
        yield f"<pre>{escape(chr(10).join(commands))}</pre>"


def _fact(name: str, value: Any) -> str:
    return f"{value / (1 << 30):.0f} GiB" if name == "memory" else str(value)


# --- in short ---------------------------------------------------------------------------------------------------


def _short(records: Sequence[Record]) -> Iterator[str]:
    """What was wanted, and what came of it."""
    found = gains(records)
    judged = [gain for gain in found if gain.goal is not None]
    died = [death for death in deaths(records) if death.goal is not None]
    if found:
        yield _picture("Speed-up over plain Ray, beside its model and its bound", _speed_ups(found))
    lines = [
        f"{sum(not gain.missed for gain in judged)} of {len(judged)} settings on 8 nodes reach their share of the "
        "model."
        if judged
        else "",
        f"{sum(not death.missed for death in died)} of {len(died)} rounds in which a worker was killed took at most "
        f"{DEATH_GOAL} × the median of rounds like them, and {sum(not death.above_median for death in died)} of "
        f"{len(died)} at most {DEATH_GOAL} × the median of all rounds."
        if died
        else "",
        *(f"Wrong: {problem}" for problem in (*wrong_sums(records), *wrong_answers(records))),
    ]
    yield from (f"<p>{escape(line)}</p>" for line in lines if line)


def _speed_ups(found: Sequence[Gain]) -> Any:
    picture, axis = load_pyplot().subplots(figsize=(9, 0.8 + 0.27 * len(found)), layout="constrained")
    places = list(range(len(found)))[::-1]
    axis.barh(
        places, [gain.speed_up for gain in found], color=_COLOURS["hoplite"], alpha=0.5, height=0.6, label="measured"
    )
    for marker, values, label in (
        ("|", [gain.expected for gain in found], "model"),
        (".", [float(gain.bound) for gain in found], "bound"),
    ):
        axis.plot(values, places, marker, color="black", ms=12 if marker == "|" else 5, label=label)
    axis.set_yticks(places, [f"{gain.application}, {gain.nodes} nodes, c = {gain.compute:.2g} s" for gain in found])
    axis.set_xlabel("times as fast as plain Ray")
    axis.set_xlim(left=0)
    picture.legend(loc="outside right upper")
    return picture


# --- timing -----------------------------------------------------------------------------------------------------


def _timing(records: Sequence[Record]) -> Iterator[str]:
    yield "<h2>Timing runs</h2>"
    yield (
        "<p>Real tensors, and real gradients that are computed once. A timer stands for the accelerator, since a host "
        "is idle while its GPU works: <em>c</em> seconds in each round. The paper's shares of compute and S/B are kept "
        "by scaling sizes and rates together.</p>"
        "<p>The model: speed-up(c) = (c + T<sub>plain</sub>) / (c + T<sub>ours</sub>), with T<sub>ours</sub> = "
        "transfers · S/B, T<sub>plain</sub> = bound · T<sub>ours</sub>, B = 0.95 · the link's rate. The bound is what "
        "plain Ray sends over the busiest link, as a multiple of what hoplite sends. The paper's c is what gives the "
        "paper's figure by that formula, on its 16 nodes of 10 Gbit/s; it is 0 where the figure is above the bound. "
        "The model adds compute and transfers. In SGD and reinforcement learning half of the workers compute while the "
        "other half's data travels, so that the speed-up may be above the model. Weight sync counts from the moment "
        "when new weights are there: its c is the trainer's pause, and is not in the model.</p>"
    )
    yield table(
        (
            "application",
            "T ours",
            "bound, n nodes",
            "paper",
            "its S, MiB",
            "its T ours, s",
            "its T plain, s",
            "its c, s",
        ),
        [_model_row(name, model) for name, model in MODELS.items()],
    )
    found = gains(records)
    if not found:
        yield _NOTHING
        return
    speed_ups = (
        "setting",
        "c, s",
        "plain, s",
        "hoplite, s",
        "spread",
        "speed-up",
        "model",
        "of model",
        "goal",
        "bound",
    )
    yield "<p>Measured:</p>"
    yield table((*speed_ups, "paper"), [_gain_row(gain) for gain in found])
    yield (
        "<p><em>plain, hoplite</em>: mean seconds a round after the first two, and of the turns the median; "
        "<em>spread</em>: the range of hoplite's rounds over their median. There is a goal on 8 nodes.</p>"
    )
    terms = ("setting", "c, s", "S/B, s", "c + T plain, s", "c + T ours, s", "compute", "samples/s", "cores busy")
    yield table(terms, [_terms_row(gain) for gain in found])
    yield (
        "<p>The terms of the model in each setting. <em>compute</em>: its share of a round with hoplite, as the "
        "workers measured it; where it overlaps with other rounds, it can be above 100 %. <em>samples/s</em>: with "
        "hoplite. <em>cores busy</em>: of this machine, with plain Ray and with hoplite, from the start of the "
        "programs.</p>"
    )
    yield from _missed(found, records)


def _model_row(name: str, model: SpeedModel) -> list[str]:
    plain, ours = model.round_seconds(16, model.paper_size, 10e9 / 8, 0.0)
    bound = "n - 1" if model.bound(16) == 15 else "(n - 1) // 2"
    of_paper = [f"{model.paper_size >> 20}", f"{ours:.3f}", f"{plain:.3f}", f"{model.paper_compute:.3f}"]
    return [name, f"{model.transfers} · S/B", bound, _times(model.paper), *(of_paper if model.paper else [""] * 4)]


def _gain_row(gain: Gain) -> list[str]:
    return [
        f"{gain.application}, {_setting(gain)}",
        f"{gain.compute:.3g}",
        f"{gain.plain:.3g}",
        f"{gain.ours:.3g}",
        f"{gain.spread:.0%}",
        f"{gain.speed_up:.2f} ×",
        f"{gain.expected:.2f} ×",
        f"{gain.of_expected:.0%}",
        "" if gain.goal is None else f"{gain.goal:.0%}{', missed' if gain.missed else ''}",
        f"{gain.bound} ×",
        _times(MODELS[gain.application].paper),
    ]


def _terms_row(gain: Gain) -> list[str]:
    model = MODELS[gain.application]
    plain, ours = model.round_seconds(gain.nodes, gain.size, gain.rate, gain.compute)
    return [
        f"{gain.application}, {_setting(gain)}",
        f"{gain.compute:.3g}",
        f"{gain.size / (0.95 * gain.rate):.3g}",
        f"{plain:.3g}",
        f"{ours:.3g}",
        f"{gain.computed / gain.ours:.0%}" if model.computes else "",
        f"{gain.samples:.3g}" if gain.samples else "",
        f"{gain.busy[0]:.0%}, {gain.busy[1]:.0%}",
    ]


def _missed(found: Sequence[Gain], records: Sequence[Record]) -> Iterator[str]:
    """What a trace of one more turn said, where the goal was missed."""
    traced = traces(records)
    untraced = [record for record in records if "untraced" in record]
    yield from (f"<p>{escape(record['title'])}: no trace: {escape(record['untraced'])}</p>" for record in untraced)
    for gain in found:
        if gain.part not in traced:
            continue
        trace = traced[gain.part]
        yield (
            f"<p>{escape(gain.title)}: {gain.of_expected:.0%} of the model. In a round of one more turn, of "
            f"{trace.whole:.2f} s, some host received for {trace.sending:.2f} s (T<sub>ours</sub> is "
            f"{trace.transfers:.2f} s), the busiest one for {trace.busiest:.2f} s; for "
            f"{trace.silent:.2f} s nothing was sent: compute, copies and Ray's own calls. "
            f'<a href="{escape(trace.file)}">The trace</a>, for Perfetto.</p>'
        )


def _real_compute(records: Sequence[Record]) -> Iterator[str]:
    found = real_computes(records)
    if not found:
        return
    yield "<h2>A timing run with real compute</h2>"
    yield (
        "<p>The same program without the timer: all nodes compute on this machine's cores, in each round. Compare the "
        "seconds that a gradient takes with its quickest one: the rest is what sharing the cores cost.</p>"
    )
    columns = ("setting", "system", "s a round", "s a gradient", "quickest, s", "samples/s", "cores busy")
    yield table(columns, [_real_row(each) for each in found])


def _real_row(each: RealCompute) -> list[str]:
    seconds = (each.seconds, each.computed, each.quickest, each.samples)
    return [_shortened(each.title), each.system, *(f"{value:.3g}" for value in seconds), f"{each.busy:.0%}"]


def _under_load(records: Sequence[Record]) -> Iterator[str]:
    yield "<h2>Serving under open-loop load</h2>"
    found = latencies(records)
    if not found:
        yield _NOTHING
        return
    yield (
        "<p>Queries come by themselves, at random moments that are the same for both systems. A query's time counts "
        "from the moment when it came. Milliseconds.</p>"
    )
    yield table(
        ("setting", "system", "queries", "p50", "p90", "p99", "longest"), [_latency_row(each) for each in found]
    )
    for rows in settings(records, Kind.TIMING).values():
        if rows[0]["load"]:
            yield _picture(rows[0]["title"], _shares(rows))


def _latency_row(latency: Latency) -> list[str]:
    times = [f"{seconds * 1e3:.0f}" for seconds in latency.seconds.values()]
    return [_shortened(latency.title), latency.system, str(latency.queries), *times]


def _shares(rows: Sequence[Record]) -> Any:
    """Which share of the queries took how long."""
    picture, axis = load_pyplot().subplots(figsize=(7, 3), layout="constrained")
    for system in PLAIN_AND_OURS:
        mine = sorted(row["seconds"] for row in system_of(rows, system) if row["round"] >= 0)
        if mine:
            percents = range(1, 101)
            times = [percentile(mine, percent) for percent in percents]
            axis.plot(times, list(percents), color=_COLOURS[system], label=system)
    axis.set_xlabel("seconds")
    axis.set_ylabel("percent of the queries")
    axis.set_xlim(left=0)
    axis.legend()
    return picture


# --- weight sync, deaths ----------------------------------------------------------------------------------------


def _weight_sync(records: Sequence[Record]) -> Iterator[str]:
    yield "<h2>Weight sync</h2>"
    found = joinings(records)
    if not found:
        yield _NOTHING
        return
    yield (
        "<p>A trainer publishes a version in each step. <em>To newest</em>: seconds until the last engine had it, or a "
        "newer one. <em>Behind</em>: versions, on average over engines and time. <em>Joined</em>: seconds from an "
        "engine's first question to the newest version, of engines that came later. <em>Back</em>: seconds from kill "
        "-9 of an engine until its successor had the newest version; Ray starts it meanwhile. In failure runs one "
        "engine leaves, one joins, and one is killed.</p>"
    )
    columns = ("setting", "system", "to newest, s", "longest, s", "behind", "joined, s", "back, s", "wrong versions")
    yield table(columns, [_joining_row(each) for each in found])


def _joining_row(each: Joining) -> list[str]:
    return [
        _shortened(each.title, keep_kind=True),
        each.system,
        f"{each.newest:.2f}",
        f"{each.longest:.2f}",
        f"{each.behind:.2f}",
        ", ".join(f"{seconds:.2f}" for seconds in each.joined),
        "" if each.back is None else f"{each.back:.1f}",
        str(each.wrong),
    ]


def _deaths(records: Sequence[Record]) -> Iterator[str]:
    yield "<h2>A worker is killed with -9 and comes back</h2>"
    found = deaths(records)
    if not found:
        yield _NOTHING
        return
    yield (
        "<p>In the middle of a round. Ray starts the worker again; meanwhile the others go on. The front end of an "
        "ensemble waits a fifth longer for its last model than it took the others, with both systems: Ray itself takes "
        "a second or two to say that an actor is gone. "
        "<em>Like it</em>: the median of the rounds before that had the same place in the cycle. In SGD the two halves "
        "of the workers take turns: the round that waits for compute is longer than the next one, whose gradients have "
        "come meanwhile, by about c at most, with both systems. <em>Ratio</em>: the round with the death over those; "
        f"wanted with hoplite: at most {DEATH_GOAL}. <em>Of median</em>: over the median of all rounds before.</p>"
    )
    columns = ("setting", "system", "median before, ms", "like it, ms", "slowest before, ms", "with the death, ms")
    ratios = ("ratio", "of median", "slowest until back, ms", "back after, s")
    yield table((*columns, *ratios), [_death_row(death) for death in found])
    for rows in settings(records, Kind.FAILURE).values():
        if any("killed" in row for row in rows):
            yield _picture(rows[0]["title"], _over_time(rows))


def _death_row(death: Death) -> list[str]:
    return [
        _shortened(death.title),
        death.system,
        f"{death.median * 1e3:.0f}",
        f"{death.like_it * 1e3:.0f}",
        f"{death.slowest_before * 1e3:.0f}",
        f"{death.at_death * 1e3:.0f}",
        f"{death.ratio:.2f}{', missed' if death.missed else ''}",
        f"{death.of_median:.2f}{f', above {DEATH_GOAL}' if death.above_median else ''}",
        f"{death.slowest * 1e3:.0f}",
        "not" if death.back is None else f"{death.back:.1f}",
    ]


def _over_time(rows: Sequence[Record]) -> Any:
    """Each round by when it began; a ring is around the one with the death."""
    picture, axis = load_pyplot().subplots(figsize=(7, 3), layout="constrained")
    for system in PLAIN_AND_OURS:
        mine = [row for row in system_of(rows, system) if row["round"] >= 0]
        if not mine:
            continue
        begun = mine[0]["began"]
        style = {"color": _COLOURS[system], "marker": ".", "linewidth": 0.8}
        axis.plot([row["began"] - begun for row in mine], [row["seconds"] for row in mine], label=system, **style)
        for row in mine:
            if row.get("killed"):
                axis.plot(row["began"] - begun, row["seconds"], "o", ms=11, mfc="none", mec=_COLOURS[system])
    axis.set_xlabel("seconds since the first round (ring: the round with the death)")
    axis.set_ylabel("seconds a round")
    axis.set_ylim(bottom=0)
    axis.legend()
    return picture


# --- learning ---------------------------------------------------------------------------------------------------


def _learning(records: Sequence[Record]) -> Iterator[str]:
    yield "<h2>Learning runs</h2>"
    found = settings(records, Kind.LEARNING)
    if not found:
        yield _NOTHING
        return
    yield "<p>Real compute on few nodes. All nodes share this machine's cores, so times say nothing here.</p>"
    problems = [*wrong_sums(records), *wrong_answers(records)]
    yield from (f'<p class="missing">{escape(problem)}</p>' for problem in problems)
    sums = [row for rows in found.values() for row in rows if row.get("sums")]
    if sums:
        yield (
            "<p>Sums, compared by the server with what the workers gave: exact ones (powers of two) bit for bit, "
            "random ones with a sum in float64, to within n · eps of the magnitudes.</p>"
        )
        columns = ("setting", "system", "sums", "wrong elements", "largest error, of what is allowed")
        yield table(columns, [_sums_row(row) for row in sums])
    answers = sum("answer" in row for rows in settings(records, *Kind).values() for row in rows)
    if answers and not problems:
        yield f"<p>{answers} answers of ensembles were the same with both systems.</p>"
    for rows in found.values():
        if any(row.get("score") for row in rows):
            yield _picture(rows[0]["title"], _learning_curve(rows))


def _sums_row(row: Record) -> list[str]:
    wrong = sum(each["wrong"] for each in row["sums"])
    worst = max(each["worst"] for each in row["sums"])
    return [_shortened(row["title"]), row["system"], str(len(row["sums"])), str(wrong), f"{worst:.2g}"]


def _learning_curve(rows: Sequence[Record]) -> Any:
    picture, axes = load_pyplot().subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    for system in PLAIN_AND_OURS:
        mine = [row for row in system_of(rows, system) if row.get("score") is not None]
        for axis, across in zip(axes, (_numbers(mine), _moments(mine)), strict=True):
            axis.plot(across, [row["score"] for row in mine], color=_COLOURS[system], label=system)
    axes[0].set_xlabel("round")
    axes[1].set_xlabel("seconds, on shared cores")
    axes[0].set_ylabel("length of an episode" if "cart-pole" in rows[0]["title"] else "loss")
    axes[0].legend()
    return picture


def _numbers(rows: Sequence[Record]) -> list[int]:
    return [row["round"] for row in rows]


def _moments(rows: Sequence[Record]) -> list[float]:
    return [row["began"] + row["seconds"] - rows[0]["began"] for row in rows]


# --- the programs -----------------------------------------------------------------------------------------------


def _diffs() -> Iterator[str]:
    yield "<h2>What a Ray user changes</h2>"
    for program in _PROGRAMS:
        yield f"<h3>{escape(program)}</h3><pre>{escape(diff_of(program))}</pre>"


def diff_of(program: str) -> str:
    """The lines in which the program with hoplite differs."""
    plain, ours = (_source(program, system) for system in PLAIN_AND_OURS)
    return "\n".join(difflib.unified_diff(plain, ours, "plain.py", "hoplite.py", n=0, lineterm=""))


def _source(program: str, system: str) -> list[str]:
    found = importlib.util.find_spec(f"hoplite_ucx.bench.apps.programs.{program}")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / f"{system}.py").read_text().splitlines()


def _tail(journal: Journal) -> Iterator[str]:
    yield "<h2>Not run</h2>"
    skipped = [record for record in journal.records if "not_run" in record]
    for record in skipped:
        yield f"<p>{escape(record['title'])}: {escape(record['not_run'])}</p>"
        if record.get("said", record["not_run"]) != record["not_run"]:
            yield f"<details><summary>All that was said</summary><pre>{escape(record['said'])}</pre></details>"
    if not skipped:
        yield "<p>Nothing of the plan failed.</p>"
    lines = "\n".join(journal.lines)
    yield f"<details><summary>{len(journal.lines)} records</summary><pre>{escape(lines)}</pre></details>"


# --- words ------------------------------------------------------------------------------------------------------


def _setting(gain: Gain) -> str:
    return f"{gain.size / (1 << 20):.3g} MiB, {gain.nodes} nodes at {gain.rate * 8e-6:g} Mbit/s"


def _shortened(title: str, keep_kind: bool = False) -> str:
    """Of a table whose heading says the kind already."""
    return title if keep_kind else title.partition(": ")[2]


def _times(paper: float | None) -> str:
    return "" if paper is None else f"{paper:g} ×"


def _picture(title: str, picture: Any) -> str:
    return f'<p><img alt="{escape(title)}" src="{as_data(picture)}"></p><p>{escape(title)}</p>'
