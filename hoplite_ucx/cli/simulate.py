"""`hoplite simulate …`: the protocol on a virtual network, from the command line.

Each command reads its options into a `Scenario`, runs it, and shows the result: for people, or with `--json` as one
object. Hosts are numbered from 0; 0 is the source of a broadcast, the receiver of a gather or a reduce, and asks for an
allreduce.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress

from hoplite_ucx.cli.chaos import chaos
from hoplite_ucx.cli.quantities import (
    bandwidth_option,
    duration_option,
    parse_bandwidth,
    parse_duration,
    size_option,
)
from hoplite_ucx.cli.render_simulation import broadcast_report, gather_report, reduce_report
from hoplite_ucx.simulate import measure
from hoplite_ucx.simulate.cluster import Shape, VirtualCluster
from hoplite_ucx.simulate.directory_costs import MEASURED, DirectoryCosts, costs_from, every_event
from hoplite_ucx.simulate.measure import MakeCluster, Reduced, Result, StaticResult
from hoplite_ucx.simulate.scenario import Arrivals, Kill, Pattern, Scenario, Span
from hoplite_ucx.simulate.static import STATIC_ALLREDUCES, STATIC_REDUCTIONS, STATIC_TREES
from hoplite_ucx.simulate.traced import TracedCluster
from hoplite_ucx.tracing.document import check_writable

app = typer.Typer(
    name="simulate", help="Run the protocol on a virtual network.", no_args_is_help=True, add_completion=False
)
app.command()(chaos)

Nodes = Annotated[int, typer.Option(help="How many hosts, including the source.")]
Size = Annotated[int, typer.Option(parser=size_option, help="Size of each object.")]
Bandwidth = Annotated[float, typer.Option(parser=bandwidth_option, help="Rate of every host's network card.")]
Latency = Annotated[float, typer.Option(parser=duration_option, help="Latency between any two hosts.")]
Handover = Annotated[float, typer.Option(parser=duration_option, help="Delay until a received chunk can be forwarded.")]


def directory_costs_option(text: str) -> DirectoryCosts:
    """A word, a duration, or a file."""
    if text == "measured":
        return MEASURED
    try:
        return every_event(parse_duration(text))
    except ValueError as error:
        file = Path(text)
        if not file.is_file():
            raise typer.BadParameter(f"{text!r} is neither `measured` nor a file, and no duration: {error}") from None
    try:
        return costs_from(json.loads(file.read_text()))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be used: {error}") from None


DirectoryCost = Annotated[
    DirectoryCosts,
    typer.Option(
        parser=directory_costs_option,
        metavar="measured|DURATION|FILE",
        help="What the directory takes for what it does, one after the other: what was measured for each kind of "
        "message, the same for every event, or what `hoplite bench directory --json` wrote.",
    ),
]
ArrivalsText = Annotated[
    str,
    typer.Option(
        "--arrivals",
        metavar="together|every D|random D|bimodal D",
        help="When the receivers ask, or the sources of a reduce are put; D is a duration, or a fraction of the limit "
        "such as 30%. Bimodal: half at once, half D later.",
    ),
]
KillTexts = Annotated[
    list[str] | None,
    typer.Option("--kill", metavar="HOST@WHEN", help="Kill a process: 4@40%, 4@0.2s, source@50%. Repeatable."),
]
UnplugTexts = Annotated[
    list[str] | None,
    typer.Option("--unplug", metavar="HOST@WHEN", help="Cut a host off silently; written like --kill. Repeatable."),
]
RestartText = Annotated[
    str | None,
    typer.Option(
        "--restart-directory", metavar="WHEN", help="Crash the directory; a new one starts 50 ms later: 40%, 0.2s."
    ),
]
SlowTexts = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="HOST=RATE", help="A host with another rate: 5=500mbit. Repeatable."),
]
Seed = Annotated[int, typer.Option(help="The seed of everything random.")]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", dir_okay=False, metavar="FILE", help="Also write the run as a trace, for Perfetto or Chrome."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

# Typer reads these defaults with the option's parser, as if they had been typed.
_SIZE: Any = "64MiB"
_BANDWIDTH: Any = "1gbit"
_LATENCY: Any = "100us"
_HANDOVER: Any = "150us"
_DIRECTORY_COST: Any = "measured"


@app.command()
def broadcast(
    nodes: Nodes = 8,
    size: Size = _SIZE,
    bandwidth: Bandwidth = _BANDWIDTH,
    latency: Latency = _LATENCY,
    handover: Handover = _HANDOVER,
    directory_cost: DirectoryCost = _DIRECTORY_COST,
    arrivals: ArrivalsText = "together",
    kill: KillTexts = None,
    unplug: UnplugTexts = None,
    restart_directory: RestartText = None,
    slow: SlowTexts = None,
    copies: Annotated[int, typer.Option(help="How many hosts already have the object, the source first.")] = 1,
    put_again: Annotated[
        bool, typer.Option("--put-again", help="If the object is lost, put it again and let everyone ask again.")
    ] = False,
    compare_static: Annotated[
        bool, typer.Option("--compare-static", help="Run chain, binomial, k-ary and star trees as well.")
    ] = False,
    seed: Seed = 0,
    trace: TraceFile = None,
    as_json: Json = False,
) -> None:
    """Send one object from host 0 to all others."""
    shape = _shape(nodes, size, Costs(bandwidth, latency, handover, directory_cost), slow)
    disturbed = Disturbed(_kills(kill, unplug), _crash(restart_directory))
    scenario = _scenario(shape, size, arrivals, disturbed, seed, copies=copies, put_again=put_again)
    with _traced(trace) as make:
        result = measure.broadcast(scenario, make)
    static = _compared(measure.static_trees, scenario, len(STATIC_TREES)) if compare_static else []
    if as_json:
        figures = _figures(scenario, result)
        if result.again is not None:
            figures["again"] = _timed(result.again)
        if static:
            figures["static"] = [_static_figures(tree, result, result.seconds) for tree in static]
        typer.echo(json.dumps(figures))
    else:
        _show(broadcast_report(scenario, result, static))
    _finish(result)


@app.command()
def gather(
    nodes: Nodes = 8,
    size: Size = _SIZE,
    bandwidth: Bandwidth = _BANDWIDTH,
    latency: Latency = _LATENCY,
    handover: Handover = _HANDOVER,
    directory_cost: DirectoryCost = _DIRECTORY_COST,
    arrivals: ArrivalsText = "together",
    kill: KillTexts = None,
    unplug: UnplugTexts = None,
    restart_directory: RestartText = None,
    slow: SlowTexts = None,
    seed: Seed = 0,
    trace: TraceFile = None,
    as_json: Json = False,
) -> None:
    """Get one object from every other host to host 0."""
    kills = _kills(kill, unplug)
    if any(each.host == measure.SOURCE for each in kills):
        raise typer.BadParameter("host 0 gathers; kill another host")
    shape = _shape(nodes, size, Costs(bandwidth, latency, handover, directory_cost), slow)
    scenario = _scenario(shape, size, arrivals, Disturbed(kills, _crash(restart_directory)), seed)
    with _traced(trace) as make:
        result = measure.gather(scenario, make)
    if as_json:
        typer.echo(json.dumps(_figures(scenario, result)))
    else:
        _show(gather_report(scenario, result))
    _finish(result)


@app.command()
def reduce(
    nodes: Nodes = 8,
    size: Size = _SIZE,
    bandwidth: Bandwidth = _BANDWIDTH,
    latency: Latency = _LATENCY,
    handover: Handover = _HANDOVER,
    directory_cost: DirectoryCost = _DIRECTORY_COST,
    count: Annotated[
        int | None, typer.Option(help="How many sources to combine, the first that are ready; all by default.")
    ] = None,
    arrivals: ArrivalsText = "together",
    kill: KillTexts = None,
    unplug: UnplugTexts = None,
    restart_directory: RestartText = None,
    slow: SlowTexts = None,
    copies: Annotated[
        int, typer.Option(help="How many hosts already have each source: its own and the next ones.")
    ] = 1,
    getters: Annotated[int, typer.Option(help="How many hosts get the result, host 0 first.")] = 1,
    compare_static: Annotated[
        bool, typer.Option("--compare-static", help="Run chain, k-ary and star trees as well.")
    ] = False,
    seed: Seed = 0,
    trace: TraceFile = None,
    as_json: Json = False,
) -> None:
    """Combine one object of every host, and get the result at host 0."""
    kills = _kills(kill, unplug)
    if any(each.host < getters for each in kills):
        raise typer.BadParameter(f"the first {getters} hosts get the result; kill another host")
    shape = _shape(nodes, size, Costs(bandwidth, latency, handover, directory_cost), slow)
    disturbed = Disturbed(kills, _crash(restart_directory))
    scenario = _scenario(shape, size, arrivals, disturbed, seed, copies=copies, count=count, getters=getters)
    _require_copies_together(scenario)
    static = _compared(measure.static_reductions, scenario, len(STATIC_REDUCTIONS)) if compare_static else []
    with _traced(trace) as make:
        result = measure.reduce(scenario, make)
    _report_reduction(scenario, result, static, as_json=as_json)


@app.command()
def allreduce(
    nodes: Nodes = 8,
    size: Size = _SIZE,
    bandwidth: Bandwidth = _BANDWIDTH,
    latency: Latency = _LATENCY,
    handover: Handover = _HANDOVER,
    directory_cost: DirectoryCost = _DIRECTORY_COST,
    count: Annotated[
        int | None, typer.Option(help="How many sources to combine, the first that are ready; all by default.")
    ] = None,
    arrivals: ArrivalsText = "together",
    kill: KillTexts = None,
    unplug: UnplugTexts = None,
    restart_directory: RestartText = None,
    slow: SlowTexts = None,
    copies: Annotated[
        int, typer.Option(help="How many hosts already have each source: its own and the next ones.")
    ] = 1,
    compare_static: Annotated[
        bool, typer.Option("--compare-static", help="Run a ring in stripes, chains, trees and stars as well.")
    ] = False,
    seed: Seed = 0,
    trace: TraceFile = None,
    as_json: Json = False,
) -> None:
    """Combine one object of every host, and get the result at every host."""
    kills = _kills(kill, unplug)
    if any(each.host == measure.SOURCE for each in kills):
        raise typer.BadParameter("host 0 asks for the allreduce; kill another host")
    shape = _shape(nodes, size, Costs(bandwidth, latency, handover, directory_cost), slow)
    options = {"copies": copies, "count": count, "getters": nodes, "everywhere": True}
    scenario = _scenario(shape, size, arrivals, Disturbed(kills, _crash(restart_directory)), seed, **options)
    _require_copies_together(scenario)
    static = _compared(measure.static_allreduces, scenario, len(STATIC_ALLREDUCES)) if compare_static else []
    with _traced(trace) as make:
        result = measure.allreduce(scenario, make)
    _report_reduction(scenario, result, static, as_json=as_json)


def _report_reduction(scenario: Scenario, result: Reduced, static: list[StaticResult], *, as_json: bool) -> None:
    if as_json:
        figures = _figures(scenario, result) | _reduction_figures(result)
        if static:
            figures["static"] = [_static_figures(tree, result, result.after_last_seconds) for tree in static]
        typer.echo(json.dumps(figures))
    else:
        _show(reduce_report(scenario, result, static))
    _finish(result)


@contextmanager
def _traced(path: Path | None) -> Iterator[MakeCluster]:
    """How to make the cluster of a run, which is written as a trace in the end, if there is a path."""
    if path is None:
        yield VirtualCluster
        return
    made: list[TracedCluster] = []

    def make(shape: Shape, seed: int) -> VirtualCluster:
        made.append(TracedCluster(shape, seed))
        return made[-1]

    try:
        check_writable(path)
        yield make
        for cluster in made:
            cluster.write_trace(path)
    except OSError as error:
        typer.echo(f"error: the trace cannot be written: {error}", err=True)
        raise typer.Exit(1) from None


# --- what was asked --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """What the network and the directory take."""

    bandwidth: float
    latency: float
    handover: float
    directory_costs: DirectoryCosts


def _shape(nodes: int, size: int, costs: Costs, slow: list[str] | None) -> Shape:
    return Shape(
        nodes=nodes,
        bandwidth=costs.bandwidth,
        latency=costs.latency,
        handover=costs.handover,
        directory_costs=costs.directory_costs,
        rates=dict(_rate(text) for text in slow or ()),
        memory=2 * nodes * size,  # enough for everything at once: a store that is full is another experiment
    )


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What goes wrong in a run."""

    kills: tuple[Kill, ...]
    directory_crash: Span | None


def _scenario(shape: Shape, size: int, arrivals: str, disturbed: Disturbed, seed: int, **options: Any) -> Scenario:
    try:
        return Scenario(
            shape=shape,
            size=size,
            arrivals=_arrivals(arrivals),
            kills=disturbed.kills,
            directory_crash=disturbed.directory_crash,
            seed=seed,
            **options,
        )
    except ValueError as refusal:
        raise typer.BadParameter(str(refusal)) from None


def _require_copies_together(scenario: Scenario) -> None:
    if scenario.copies > 1 and scenario.arrivals.pattern is not Pattern.TOGETHER:
        raise typer.BadParameter("copies are made before the clock starts, so all sources must be ready at the start")


def _arrivals(text: str) -> Arrivals:
    pattern, _, span = text.strip().partition(" ")
    if pattern == Pattern.TOGETHER and not span:
        return Arrivals()
    if pattern not in (Pattern.EVERY, Pattern.RANDOM, Pattern.BIMODAL) or not span:
        raise ValueError(
            f"{text!r} is not an arrival pattern; write together, every 10ms, every 30%, random 2s or bimodal 2s"
        )
    return Arrivals(Pattern(pattern), _span(span))


def _span(text: str) -> Span:
    text = text.strip()
    if not text.endswith("%"):
        return Span(parse_duration(text))
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text[:-1], re.ASCII):
        raise ValueError(f"{text!r} is not a fraction of the limit; write it like 40%")
    return Span(float(text[:-1]) / 100, of_limit=True)


def _kills(kill: list[str] | None, unplug: list[str] | None) -> tuple[Kill, ...]:
    return tuple(_kill(text, unplug=quiet) for quiet, texts in ((False, kill), (True, unplug)) for text in texts or ())


def _kill(text: str, *, unplug: bool) -> Kill:
    host, separator, when = text.partition("@")
    try:
        if not separator:
            raise ValueError(f"{text!r} does not say when; write it like 4@40%, 4@0.2s or source@50%")
        return Kill(measure.SOURCE if host == "source" else _host(host), _span(when), unplug)
    except ValueError as refusal:
        raise typer.BadParameter(str(refusal), param_hint="--unplug" if unplug else "--kill") from None


def _crash(text: str | None) -> Span | None:
    try:
        return None if text is None else _span(text)
    except ValueError as refusal:
        raise typer.BadParameter(str(refusal), param_hint="--restart-directory") from None


def _rate(text: str) -> tuple[int, float]:
    host, separator, rate = text.partition("=")
    try:
        if not separator:
            raise ValueError(f"{text!r} does not say how slow; write it like 5=500mbit")
        return _host(host), parse_bandwidth(rate)
    except ValueError as refusal:
        raise typer.BadParameter(str(refusal), param_hint="--slow") from None


def _host(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise ValueError(f"{text!r} is not a host; write its number, like 4")
    return int(text)


# --- what is answered ------------------------------------------------------------------------------------------


def _compared(
    run: Callable[[Scenario, Callable[[str], object]], list[StaticResult]], scenario: Scenario, total: int
) -> list[StaticResult]:
    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        task = bar.add_task("static trees", total=total)
        return run(scenario, lambda name: bar.update(task, advance=1, description=name))


def _show(report: Iterable[RenderableType]) -> None:
    console = Console(highlight=False)
    for part in report:
        console.print(part)


def _finish(result: Result) -> None:
    """A get that never returned is a bug in the protocol, unless it asked for an object that was already lost."""
    if result.unanswered and not result.failures:
        raise typer.Exit(1)


def _timed(result: Result) -> dict[str, Any]:
    return {"seconds": result.seconds, "limit_seconds": result.limit_seconds, "ratio": result.ratio}


def _figures(scenario: Scenario, result: Result) -> dict[str, Any]:
    shape, loss = scenario.shape, result.loss
    return {
        **_timed(result),
        "finished_seconds": result.finished,
        "nodes": shape.nodes,
        "size": scenario.size,
        "bandwidth": shape.bandwidth,
        "latency": shape.latency,
        "handover": shape.handover,
        "directory_cost": shape.directory_costs.as_dict(),
        "seed": scenario.seed,
        "gets": [
            {
                "host": ending.host,
                "asked": ending.asked,
                "seconds": ending.seconds,
                "limit_seconds": ending.limit_seconds,
                "ratio": ending.ratio,
                "failure": ending.failure.kind.value if ending.failure else None,
            }
            for ending in result.endings
        ],
        "tree": result.edges,
        "cut": result.cut,
        "moves": [asdict(move) for move in result.moves],
        "killed": [asdict(killed) for killed in result.killed],
        "unanswered": result.unanswered,
        "loss": {"calm_seconds": loss.calm_seconds, "worst": loss.worst, "by_host": loss.by_host} if loss else None,
        "events": result.events,
    }


def _reduction_figures(result: Reduced) -> dict[str, Any]:
    return {
        "ready_seconds": result.ready_seconds,
        "after_last_seconds": result.after_last_seconds,
        "after_last_ratio": result.after_last_ratio,
        "contributors": result.contributors,
        "slots": result.slots,
        "stripes": result.stripes,
        "restarted": result.restarted,
        "rebindings": [asdict(rebinding) for rebinding in result.rebindings],
    }


def _static_figures(tree: StaticResult, result: Result, ours: float) -> dict[str, Any]:
    return {
        "tree": tree.name,
        "at_once": tree.at_once,
        "seconds": tree.seconds,
        "ratio": tree.seconds / result.limit_seconds,
        "to_ours": tree.seconds / ours,
    }
