"""`hoplite bench broadcast|reduce|…`: the live runtime on emulated hosts, compared with bare sockets on the same hosts.

Every command creates its own hosts, directory, agents and workers, and removes them, however it ends. With
`--hosts-file`, the hosts are real machines, and the command only starts processes on them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from hoplite_ucx.bench.harness.timing import Measurement, progress_bar
from hoplite_ucx.bench.measures import capacity
from hoplite_ucx.bench.measures.comparison import measure_beside
from hoplite_ucx.bench.measures.latency import measure_latencies
from hoplite_ucx.bench.measures.over_ssh import measure_on_machines
from hoplite_ucx.bench.measures.relay import measure_relay
from hoplite_ucx.bench.peers.launching import PEERS
from hoplite_ucx.cli.bench.shared import (
    RATE,
    SIZE,
    SMALL_SIZE,
    Hosts,
    Json,
    Rate,
    Repeat,
    Size,
    refusals,
    show,
    tell_not_run,
)
from hoplite_ucx.cli.quantities import bandwidth_option, format_bandwidth, format_duration, format_size
from hoplite_ucx.transports.configuration import Kind

Untimed = Annotated[
    int, typer.Option(min=1, help="Untimed rounds before those: each round may build another tree and open new links.")
]
Bare = Annotated[bool, typer.Option("--bare/--no-bare", help="Also run bare sockets, in turns with it.")]
Transports = Annotated[
    list[Kind] | None,
    typer.Option(
        "--transport", help="The transport of the links; may be repeated, they take turns. By default, as configured."
    ),
]

Peers = Annotated[bool, typer.Option("--peers", help="Also run Open MPI, Gloo, Ray and Dask, after it (see ci/peers).")]

HostsOrAll = Annotated[
    int | None, typer.Option(min=1, help="How many hosts, including the source; 8 by default, or all in the file.")
]
RateOrMeasured = Annotated[
    float | None,
    typer.Option(
        parser=bandwidth_option,
        help="Rate of each host, in and out; 1gbit by default, or for real machines, as bare streams measure it first.",
    ),
]
HostsFile = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="A file of machines to use through ssh, one per line; see docs/measuring.md."),
]
Ssh = Annotated[str, typer.Option(help="The ssh command for them, with options: ssh -i KEY.")]

_HOSTS = 8
_RATE = 125e6
_128_MIB: int = "128MiB"  # type: ignore[assignment]
_GIB: int = "1GiB"  # type: ignore[assignment]
_LARGE: int = "5GiB"  # type: ignore[assignment]
_FAST: float = "10gbit"  # type: ignore[assignment]
_ARRIVALS = "puts are 0.1 s apart; time runs from the start of the last put"


def add_to(app: typer.Typer) -> None:
    for operation, what in _OPERATIONS.items():
        app.command(operation, help=what)(_command_for(operation))
    for command in (rtt, relay, onehost, burner, large, small):
        app.command()(command)


# --- operations -------------------------------------------------------------------------------------------------


_OPERATIONS = {
    "broadcast": "Every other host gets an object of host 0.",
    "reduce": "Host 0 gets the sum of an object of each host.",
    "allreduce": "All hosts get the sum of an object of each.",
    "gather": "Host 0 gets an object of each other host.",
    "arrivals": "A reduce of objects that are put 0.1 s apart: time after the last put.",
}


def _command_for(operation: str) -> Callable[..., None]:
    """They differ in nothing but their name."""

    def command(
        hosts: HostsOrAll = None,
        size: Size = SIZE,
        rate: RateOrMeasured = None,
        repeat: Repeat = 5,
        untimed: Untimed = 1,
        bare: Bare = True,
        transport: Transports = None,
        peers: Peers = False,
        hosts_file: HostsFile = None,
        ssh: Ssh = "ssh",
        as_json: Json = False,
    ) -> None:
        if hosts_file is None:
            _operation(
                operation, hosts or _HOSTS, size, rate or _RATE, repeat, untimed,
                bare=bare, transports=transport, peers=peers, as_json=as_json,
            )  # fmt: skip
            return
        if peers:
            raise typer.BadParameter("--peers needs emulated hosts", param_hint="--peers")
        named = _named(transport)
        rounds = (repeat + untimed) * (max(len(named), 1) + bare)
        with refusals(), progress_bar(operation, rounds, quiet=as_json) as advance:
            found = measure_on_machines(
                hosts_file, operation, size=size, hosts=hosts, rate=rate, ssh=ssh, repeat=repeat, untimed=untimed,
                bare=bare, transports=named, advance=advance,
            )  # fmt: skip
        have = f"{format_bandwidth(found.rate, 3)} each{'' if rate else ', as measured with bare streams'}"
        _tell(
            found.measured, f"{operation} of {format_size(size)} between {', '.join(found.machines)}; {have}", as_json
        )

    return command


def _operation(
    operation: str,
    hosts: int,
    size: int,
    rate: float,
    repeat: int,
    untimed: int,
    *,
    bare: bool,
    transports: list[Kind] | None,
    peers: bool,
    as_json: bool,
) -> None:
    named = _named(transports)
    rounds = (repeat + untimed) * (max(len(named), 1) + bare + peers * len(PEERS))
    with refusals(), progress_bar(operation, rounds, quiet=as_json) as advance:
        figures = measure_beside(
            [(operation, size)],
            list(PEERS) if peers else [],
            hosts=hosts,
            rate=rate,
            repeat=repeat,
            untimed=untimed,
            bare=bare,
            transports=named,
            advance=advance,
        )
    title = f"{operation} of {format_size(size)} between {hosts} hosts, {format_bandwidth(rate)} each"
    if operation == "arrivals" and not as_json:
        title += f"; {_ARRIVALS}"
    _tell(figures.measured, title, as_json)
    tell_not_run(figures.not_run, as_json)


def _named(transports: list[Kind] | None) -> list[str]:
    return [kind.value for kind in dict.fromkeys(transports or [])]


def _tell(measured: list[Measurement], title: str, as_json: bool) -> None:
    if as_json:
        for each in measured:
            typer.echo(each.json_line())
    else:
        show(measured, title)


# --- small objects ----------------------------------------------------------------------------------------------


def rtt(
    hosts: Hosts = 8,
    size: Size = SMALL_SIZE,
    rate: Rate = RATE,
    repeat: Repeat = 5,
    peers: Peers = False,
    as_json: Json = False,
) -> None:
    """Put, get and broadcast of a small object, compared with a bare echo; and small gets per second."""
    with refusals(), progress_bar("rtt", (repeat + 1) * 4, quiet=as_json) as advance:
        latencies = measure_latencies(hosts=hosts, size=size, rate=rate, repeat=repeat, advance=advance)
    if as_json:
        for each in latencies.measurements:
            typer.echo(each.json_line())
        typer.echo(json.dumps({"what": "gets per second", "clients": hosts, "gets": latencies.gets_per_second}))
    else:
        title = f"{format_size(size)} between hosts of {format_bandwidth(rate)}"
        rules = "medians of many calls a round; a broadcast ends with its last get"
        show(latencies.measurements, title, "bare echo", rules)
        typer.echo(f"{hosts} clients at once: {latencies.gets_per_second:,.0f} gets per second")
    if peers:
        _operation("rtt", hosts, size, rate, repeat, 1, bare=True, transports=None, peers=True, as_json=as_json)


def small(
    objects: Annotated[int, typer.Option(min=1, help="How many objects.")] = 20_000,
    size: Size = SMALL_SIZE,
    as_json: Json = False,
) -> None:
    """Put, get and delete very many objects; shows the memory and descriptors of every process."""
    with refusals(), progress_bar("small", max(10, objects // 500), quiet=as_json) as advance:
        growth, rate = capacity.measure_many(objects=objects, size=size, advance=advance)
    if as_json:
        for each in growth:
            typer.echo(
                json.dumps({"process": each.process, "resident": each.resident, "descriptors": each.descriptors})
            )
        return
    typer.echo(f"{objects:,} objects of {format_size(size)} put, got and deleted: {rate:,.0f} a second, one by one")
    typer.echo("MiB and descriptors after every tenth of them:")
    for each in growth:
        kept = " ".join(f"{resident / 2**20:6.1f}" for resident in each.resident)
        typer.echo(f"  {each.process:10} {kept}   {each.descriptors[0]} → {each.descriptors[-1]} descriptors")


# --- what a host must bear --------------------------------------------------------------------------------------


def relay(size: Size = _128_MIB, rate: Rate = RATE, repeat: Repeat = 5, as_json: Json = False) -> None:
    """Processor time of the host in the middle of a chain of three, compared with a bare forwarder."""
    with refusals(), progress_bar("relay", 2 * (repeat + 1), quiet=as_json) as advance:
        cost = measure_relay(size=size, rate=rate, repeat=repeat, advance=advance)
    if as_json:
        typer.echo(cost.json_line())
        return
    for what, runs in (("relay's agent", cost.relay), ("bare forwarder", cost.bare)):
        median, fastest, slowest = (1e9 * each for each in (statistics.median(runs), min(runs), max(runs)))
        typer.echo(f"{what:14}  {median:.3f} ns a byte ({fastest:.3f} to {slowest:.3f})")
    typer.echo(f"{format_size(size)} passed on at {format_bandwidth(rate)}: {cost.ratio:.2f} × the bare forwarder")


def onehost(
    workers: Annotated[int, typer.Option(min=2, help="How many workers on the host.")] = 8,
    size: Size = _GIB,
    rate: Rate = _FAST,
    repeat: Repeat = 3,
    as_json: Json = False,
) -> None:
    """All workers of one host get a large object, which should cross the network once."""
    with refusals(), progress_bar("onehost", repeat + 1, quiet=as_json) as advance:
        found = capacity.measure_one_host(workers=workers, size=size, rate=rate, repeat=repeat, advance=advance)
    if as_json:
        typer.echo(found.measured.json_line())
        typer.echo(json.dumps({"apart_seconds": found.together, "crossings": found.crossings}))
        return
    show([found.measured], f"{workers} workers of one host get {format_size(size)}, {format_bandwidth(rate)}")
    typer.echo(
        f"the gets returned within {format_duration(found.together, 3)} of each other at most; "
        f"the network carried {found.crossings:.3f} × the object at most"
    )


def burner(hosts: Hosts = 4, size: Size = SIZE, rate: Rate = RATE, repeat: Repeat = 6, as_json: Json = False) -> None:
    """A broadcast while a worker on a receiving host runs busy Python code, compared with it outside the cluster."""
    with refusals(), progress_bar("burner", 2 * (repeat + 1), quiet=as_json) as advance:
        measured = capacity.measure_burner(hosts=hosts, size=size, rate=rate, repeat=repeat, advance=advance)
    _tell(measured, f"broadcast of {format_size(size)} between {hosts} hosts with a busy worker", as_json)


def large(size: Size = _LARGE, rate: Rate = _FAST, as_json: Json = False) -> None:
    """Send a very large object, created in place, between two hosts, and reduce two; needs RAM for three of them."""
    with refusals(), progress_bar("large", 4, quiet=as_json) as advance:
        measured = capacity.measure_large(size=size, rate=rate, advance=advance)
    _tell(measured, f"{format_size(size)} between two hosts, {format_bandwidth(rate)} each", as_json)
