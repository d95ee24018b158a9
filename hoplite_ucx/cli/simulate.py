"""`hoplite simulate …`: the protocol on a virtual network, from the command line."""

import typer

app = typer.Typer(name="simulate", help="Run the protocol on a virtual network.", no_args_is_help=True)
