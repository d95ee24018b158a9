"""The `hoplite` command: one typer application, with a sub-application per module of this package.

It owns how results are shown and what is asked of the user, and takes no decision about transfers. Every command
that prints figures takes `--json`; quantities are written as in `quantities`.
"""

import sys
from typing import Annotated

import typer

from hoplite_ucx import __version__
from hoplite_ucx.cli import bench, simulate
from hoplite_ucx.cli.chaos import chaos
from hoplite_ucx.cli.delete import delete
from hoplite_ucx.cli.demo import demo
from hoplite_ucx.cli.doctor import doctor
from hoplite_ucx.cli.ending import INTERRUPTED, end_as_after_ctrl_c
from hoplite_ucx.cli.links import links
from hoplite_ucx.cli.output import OutputError, prepare
from hoplite_ucx.cli.start import start
from hoplite_ucx.cli.status import status

app = typer.Typer(
    name="hoplite",
    help="Collectives for task-based Python programs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
simulate.app.command()(chaos)
app.command()(delete)
app.command()(demo)
app.command()(doctor)
app.command()(links)
app.command()(start)
app.command()(status)
app.add_typer(simulate.app)
app.add_typer(bench.app)


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
