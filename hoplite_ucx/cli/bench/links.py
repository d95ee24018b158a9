"""`hoplite bench links`: each transport compared with what it uses (bare sockets, bare UCX, memcpy), in one run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterUnavailableError
from hoplite_ucx.bench.measures.links import CONTESTS, Contest, Result, contests_here, measure_links, rounds_of
from hoplite_ucx.cli.bench.shared import WIDTH, Json, Repeat, refusals
from hoplite_ucx.cli.quantities import bandwidth_option, format_duration, format_size, size_option
from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.transports.detection import detect

_STREAM: int = "256MiB"  # type: ignore[assignment]
_FRAMES: list[int] = ["64KiB", "1MiB", "16MiB"]  # type: ignore[list-item]
_COLUMNS = ("transport", "frames", "link", "bare", "× bare", "processor", "wanted", "× tcp", "spread", "lanes")
_RULES = """\
rates are medians of rounds that take turns; spread is (slowest - fastest) / median, of the link and of the bare way
× bare: the link's rate divided by the bare rate; for an echo, its time divided by the bare round trip
processor: the processor time of the bare way as a fraction of the link's, which depends less on other load
an echo over a link advances a stream by a few bytes each way, as a relay does"""


def links(
    transport: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What to measure, may be repeated: {', '.join(CONTESTS)}. By default, all that this machine has."
        ),
    ] = None,
    size: Annotated[int, typer.Option(parser=size_option, help="Bytes per stream.")] = _STREAM,
    frame: Annotated[list[int], typer.Option(parser=size_option, help="Size of a frame; may be repeated.")] = _FRAMES,
    repeat: Repeat = 7,
    hosts: Annotated[bool, typer.Option("--hosts/--no-hosts", help="Also measure between two emulated hosts.")] = True,
    rate: Annotated[
        float | None, typer.Option(parser=bandwidth_option, help="Of emulated hosts. By default, what they reach.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Throughput and latency of each transport, compared with bare sockets, a bare UCX loop, or memcpy."""
    contests = _chosen(transport)
    between = [contest for contest in contests if not contest.local]
    frames = sorted(set(frame))
    rounds = rounds_of(contests, frames) + (rounds_of(between, frames) if hosts else 0)
    with refusals(), progress_bar("links", rounds * (repeat + 1), quiet=as_json) as advance:
        results = measure_links(contests, size=size, frames=frames, repeat=repeat, advance=advance)
        if hosts and between:
            try:
                with Cluster(2, rate) as cluster:
                    results += measure_links(
                        between, hosts=cluster.hosts, size=size, frames=frames, repeat=repeat, advance=advance
                    )
            except ClusterUnavailableError as unavailable:
                typer.echo(f"hoplite bench: only loopback was measured: {unavailable}", err=True)
    if as_json:
        for result in results:
            typer.echo(result.json_line())
    else:
        _show(results, size)


def _chosen(names: list[str] | None) -> list[Contest]:
    """The transports that were asked for, or all that this machine has."""
    if names is None:
        machine = detect()
        gpus = 0 if cuda.unavailable() is not None else cuda.load().count
        return contests_here(ucx=not machine.ucx.failure, rdma=machine.rdma, gpus=gpus)
    unknown = [name for name in names if name not in CONTESTS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(CONTESTS)}", param_hint="--transport")
    return [CONTESTS[name] for name in dict.fromkeys(names)]


def _show(results: list[Result], size: int) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    for where in dict.fromkeys(result.where for result in results):
        title = f"links on {where}, {format_size(size)} a stream"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for column in _COLUMNS:
            table.add_column(column, justify="right" if column not in ("transport", "lanes") else "left", no_wrap=True)
        for result in results:
            if result.where == where:
                table.add_row(*_row(result))
        console.print(table)
    console.print(_RULES, style="dim", soft_wrap=True)


def _row(result: Result) -> list[str]:
    spread = f"{result.ours.spread:.0%} {result.bare.spread:.0%}"
    lanes = ", ".join(result.lanes)
    bare = f"({result.bare_name})"
    if result.frame is None:
        ours, theirs = (format_duration(each.seconds, 3) for each in (result.ours, result.bare))
        return [
            result.transport,
            "echo",
            ours,
            f"{theirs} {bare}",
            f"{1 / result.rate_ratio:.1f}",
            "",
            "",
            "",
            spread,
            lanes,
        ]
    ours, theirs = (f"{result.size / each.seconds / 1e9:.2f} GB/s" for each in (result.ours, result.bare))
    return [
        result.transport,
        format_size(result.frame),
        ours,
        f"{theirs} {bare}",
        f"{result.rate_ratio:.2f}",
        "" if result.processor_ratio is None else f"{result.processor_ratio:.2f}",
        "" if result.wanted is None else f"{result.wanted:.2f}",
        "" if result.beside_tcp is None else f"{result.beside_tcp:.2f}",
        spread,
        lanes,
    ]
