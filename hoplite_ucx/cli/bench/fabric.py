"""`hoplite bench fabric`: which links are the fastest between real machines, and the configuration for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hoplite_ucx.bench.fabric.machines import machines_of_slurm
from hoplite_ucx.bench.fabric.measuring import OPERATIONS, measure_fabric
from hoplite_ucx.bench.hosts.ssh import SshCluster, read_hosts, ssh_words
from hoplite_ucx.cli.bench.shared import SIZE, WIDTH, Json, Repeat, Size, refusals
from hoplite_ucx.cli.quantities import format_bandwidth, format_duration, format_size, size_option

_DIGITS = 3
_MEMORY: int = "2GiB"  # type: ignore[assignment]


def fabric(
    hosts_file: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="A file of machines, one per line; see docs/measuring.md."),
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="The machines of this Slurm job instead of a file's.")] = False,
    ssh: Annotated[str, typer.Option(help="The ssh command for them, with options: ssh -i KEY.")] = "ssh",
    size: Size = SIZE,
    operation: Annotated[
        list[str] | None, typer.Option(help=f"Which of {', '.join(OPERATIONS)}; may be repeated. All by default.")
    ] = None,
    repeat: Repeat = 5,
    memory: Annotated[int, typer.Option(parser=size_option, help="Of each agent's store.")] = _MEMORY,
    as_json: Json = False,
) -> None:
    """Measure collectives between real machines over TCP, UCX's TCP, and RDMA with each number of rails; and perftest.

    Prints the [links] configuration that was the fastest, ready for HOPLITE_CONFIG.
    """
    if (hosts_file is None) == (not slurm):
        raise typer.BadParameter("give either --hosts-file or --slurm", param_hint="--hosts-file")
    if unknown := set(operation or ()) - set(OPERATIONS):
        raise typer.BadParameter(
            f"{', '.join(unknown)}: it is one of {', '.join(OPERATIONS)}", param_hint="--operation"
        )
    with refusals():
        machines = machines_of_slurm() if hosts_file is None else read_hosts(hosts_file)
        with SshCluster(machines, ssh_words(ssh)) as cluster:
            report = measure_fabric(
                cluster.hosts,
                size=size,
                repeat=repeat,
                operations=operation or OPERATIONS,
                devices=[machine.devices for machine in machines],
                memory=memory,
                say=lambda line: typer.echo(line, err=True),
            )
    typer.echo(json.dumps(report)) if as_json else _show(report)


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    operations = list(next(iter(report["ways"].values()))["operations"])
    names = ", ".join(machine["name"] for machine in report["machines"])
    title = f"{format_size(report['size'])} between {names}"
    table = Table("links", *operations, "lanes of UCX", title=title, title_justify="left", box=None, pad_edge=False)
    for name, found in report["ways"].items():
        medians = (format_duration(found["operations"][each]["seconds"], _DIGITS) for each in operations)
        table.add_row(name, *medians, " ".join(found["lanes"]) or "-")
    console.print(table)
    console.print(f"a bare TCP stream: {format_bandwidth(report['bare_stream_bytes_per_second'], _DIGITS)}")
    for rail, found in report["perftest"].items():
        if isinstance(found, dict) and "bytes_per_second" in found:
            console.print(f"perftest, {rail}: {format_bandwidth(found['bytes_per_second'], _DIGITS)}")
        else:
            why = found["not_run"] if isinstance(found, dict) else found
            console.print(f"not run: perftest: {why}", soft_wrap=True)
    for name, why in {"Open MPI with UCX": report["open_mpi"]["not_run"], **report["not_run"]}.items():
        console.print(f"not run: {name}: {why}", soft_wrap=True)
    console.print(
        f"\nthe fastest here: {report['advised']}. Its configuration, for the file that HOPLITE_CONFIG names:\n"
    )
    console.print(report["configuration"], markup=False)
