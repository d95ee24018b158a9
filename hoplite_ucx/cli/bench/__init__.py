"""`hoplite bench …`: emulated hosts to try things on, and measurements over them.

Measurements are shown as one table, or with `--json` as one object a line. `bench cluster` keeps hosts up between
commands; the other commands make their own and take them down again, however they end.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from hoplite_ucx.bench.bare.driver import measure_bare
from hoplite_ucx.bench.harness.timing import progress_bar
from hoplite_ucx.bench.hosts import namespaces as clusters
from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterError
from hoplite_ucx.cli.bench import (
    apps,
    breaks,
    dask,
    directory,
    fabric,
    faults,
    fuzz,
    links,
    live,
    observed,
    paper,
    peers,
    ray,
    results,
    scale,
    view,
)
from hoplite_ucx.cli.bench.shared import RATE, SIZE, SMALL_SIZE, Hosts, Json, Rate, Repeat, Size, refusals, show
from hoplite_ucx.cli.quantities import format_bandwidth, format_size

app = typer.Typer(name="bench", help="Measure on emulated hosts.", no_args_is_help=True, add_completion=False)
cluster_app = typer.Typer(name="cluster", help="Emulated hosts that stay up between commands.", no_args_is_help=True)
bare_app = typer.Typer(name="bare", help="The same operations with bare sockets, for comparison.", no_args_is_help=True)
app.add_typer(cluster_app)
app.add_typer(bare_app)
app.add_typer(dask.app)
app.add_typer(ray.app)

live.add_to(app)
faults.add_to(app)
app.command()(links.links)
fuzz.add_to(app)
app.command()(peers.peers)
results.add_to(app)
app.command()(breaks.breaks)
app.command()(scale.scale)
app.command()(fabric.fabric)
app.command()(paper.paper)
app.command()(view.view)
app.command()(observed.observed)
app.command()(directory.directory)
app.command()(apps.apps)

Name = Annotated[str | None, typer.Option(help="The cluster's name; needed only if there are several.")]

_DEFAULT_NAME = "hoplite"


# --- hosts that stay up ----------------------------------------------------------------------------------------


@cluster_app.command()
def up(
    hosts: Hosts = 8,
    rate: Rate = RATE,
    name: Annotated[str, typer.Option(help="The cluster's name.")] = _DEFAULT_NAME,
    as_json: Json = False,
) -> None:
    """Make emulated hosts that stay until `down`."""
    with refusals():
        cluster = Cluster.detached(hosts, rate, name)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "name": cluster.name,
                    "rate": rate,
                    "keeper": cluster.keeper_pid,
                    "hosts": [
                        {"host": host.index, "address": host.address, "namespace": host.namespace}
                        for host in cluster.hosts
                    ],
                }
            )
        )
        return
    named = "" if name == _DEFAULT_NAME else f" --name {name}"
    typer.echo(f"cluster {name}: {hosts} hosts of {format_bandwidth(rate)}, kept by process {cluster.keeper_pid}")
    for host in cluster.hosts:
        typer.echo(f"  host {host.index}  {host.address}")
    typer.echo(f"run things with: hoplite bench cluster exec{named} 0 -- COMMAND")
    typer.echo(f"end it with:     hoplite bench cluster down{named}")


@cluster_app.command()
def down(
    name: Name = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every cluster of this user that no running program uses.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the hosts and end everything that runs on them, including leftovers of a killed cluster."""
    with refusals():
        found = clusters.names_detached()
        chosen = found if every else [_choose(name, found)]
        ended = [each for each in chosen if clusters.take_down(each)]
        if name is not None and not ended:
            raise ClusterError(f"there is no cluster {name!r}, and nothing of one is left")
    if as_json:
        typer.echo(json.dumps({"down": ended}))
    else:
        typer.echo(f"down: {', '.join(ended) or 'nothing was up'}")


@cluster_app.command("exec", context_settings={"allow_interspersed_args": False})
def execute(
    host: Annotated[int, typer.Argument(min=0, help="The host's number.")],
    command: Annotated[list[str], typer.Argument(help="The command to run on the host.")],
    name: Name = None,
) -> None:
    """Run a command on a host."""
    with refusals():
        cluster = Cluster.attach(_choose(name, clusters.names_up()))
        if host >= len(cluster.hosts):
            raise ClusterError(f"cluster {cluster.name} has the hosts 0 to {len(cluster.hosts) - 1}, not {host}")
        entered = cluster.hosts[host].command(command[command[0] == "--" :])
    os.execvpe(entered[0], entered, cluster.hosts[host].environment())


def _choose(name: str | None, found: list[str]) -> str:
    if name is not None:
        return name
    if len(found) == 1:
        return found[0]
    if _DEFAULT_NAME in found or not found:
        return _DEFAULT_NAME
    raise ClusterError(f"there are several clusters; give --name with one of {', '.join(found)}")


# --- bare sockets ----------------------------------------------------------------------------------------------


@bare_app.command()
def broadcast(
    hosts: Hosts = 8, size: Size = SIZE, rate: Rate = RATE, repeat: Repeat = 5, as_json: Json = False
) -> None:
    """A chain of relays, from host 0 to all others."""
    _bare("broadcast", hosts, size, rate, repeat, as_json=as_json)


@bare_app.command()
def reduce(hosts: Hosts = 8, size: Size = SIZE, rate: Rate = RATE, repeat: Repeat = 5, as_json: Json = False) -> None:
    """A chain in which every host adds its array, to host 0."""
    _bare("reduce", hosts, size, rate, repeat, as_json=as_json)


@bare_app.command()
def allreduce(
    hosts: Hosts = 8, size: Size = SIZE, rate: Rate = RATE, repeat: Repeat = 5, as_json: Json = False
) -> None:
    """A ring of all hosts."""
    _bare("allreduce", hosts, size, rate, repeat, as_json=as_json)


@bare_app.command()
def gather(hosts: Hosts = 8, size: Size = SIZE, rate: Rate = RATE, repeat: Repeat = 5, as_json: Json = False) -> None:
    """All other hosts to host 0 at once."""
    _bare("gather", hosts, size, rate, repeat, as_json=as_json)


@bare_app.command()
def echo(size: Size = SMALL_SIZE, rate: Rate = RATE, repeat: Repeat = 5, as_json: Json = False) -> None:
    """A round trip between two hosts."""
    _bare("echo", 2, size, rate, repeat, as_json=as_json)


def _bare(operation: str, hosts: int, size: int, rate: float, repeat: int, *, as_json: bool) -> None:
    with refusals(), progress_bar(f"bare {operation}", repeat + 1, quiet=as_json) as advance:
        measured = measure_bare(operation, hosts=hosts, size=size, rate=rate, repeat=repeat, advance=advance)
    if as_json:
        typer.echo(measured.json_line())
        return
    between = f"{hosts} hosts" if operation != "echo" else "two hosts"
    show([measured], f"{operation} of {format_size(size)} between {between}, {format_bandwidth(rate)} each")
