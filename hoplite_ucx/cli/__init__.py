"""The `hoplite` command: one typer application, with a sub-application per module of this package.

It owns how results are shown and what is asked of the user, and takes no decision about transfers. Every command
that prints figures takes `--json`; quantities are written as in `quantities`.
"""

import sys
from typing import Annotated

import typer

from hoplite_ucx import __version__
from hoplite_ucx.cli.lazy_commands import OnDemand, application
from hoplite_ucx.cli.output import OutputError, prepare
from hoplite_ucx.cli.signals import INTERRUPTED, end_as_after_ctrl_c

COMMANDS = {
    "start": OnDemand("hoplite_ucx.cli.start", "start", "Run this host's part of a cluster until ctrl-C."),
    "status": OnDemand("hoplite_ucx.cli.status", "status", "Show a cluster's nodes and this host's agents."),
    "dashboard": OnDemand("hoplite_ucx.cli.dashboard", "dashboard", "Watch a cluster live, in the browser."),
    "links": OnDemand("hoplite_ucx.cli.links", "links", "Show the links of this host's agents, and their transports."),
    "trace": OnDemand("hoplite_ucx.cli.trace", "trace", "Record what a cluster does, for Perfetto or Chrome."),
    "config": OnDemand("hoplite_ucx.cli.config", "config", "Show the settings in force, and where each comes from."),
    "delete": OnDemand("hoplite_ucx.cli.delete", "delete", "Delete objects everywhere in the cluster."),
    "doctor": OnDemand("hoplite_ucx.cli.doctor", "doctor", "Check this machine's UCX, RDMA devices, TCP and limits."),
    "demo": OnDemand("hoplite_ucx.cli.demo", "demo", "Watch a broadcast and a reduce that each lose a host."),
    "bench": OnDemand("hoplite_ucx.cli.bench", "app", "Measure on emulated hosts."),
    "simulate": OnDemand("hoplite_ucx.cli.simulate", "app", "Run the protocol on a virtual network."),
}

app = application(
    COMMANDS,
    name="hoplite",
    help="Collectives for task-based Python programs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hoplite {__version__}")
        raise typer.Exit


@app.callback()
def _hoplite(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Collectives for task-based Python programs."""


def main() -> None:
    """Run the command. It is called when everything is loaded; the console script starts in `hoplite_ucx.__main__`."""
    try:
        prepare()
        end_as_after_ctrl_c()
        app(prog_name="hoplite")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OutputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
