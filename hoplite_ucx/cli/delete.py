"""`hoplite delete`: delete objects by hand, such as those of a program that ended without deleting them."""

import os
from typing import Annotated

import typer

import hoplite_ucx as hoplite
from hoplite_ucx.cli.quantities import counted, duration_option
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import local_agents
from hoplite_ucx.runtime.worker import default_cluster


def delete(
    refs: Annotated[
        list[str] | None, typer.Argument(metavar="REF...", help="The refs to delete, 32 hexadecimal digits each.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            parser=duration_option,
            metavar="DURATION",
            help="Delete objects that this host's agent has held, unused, for at least this long.",
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The cluster's directory; HOPLITE_ADDRESS by default.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent to use, if this host has several; HOPLITE_AGENT by default.")
    ] = None,
) -> None:
    """Delete objects everywhere in the cluster. `hoplite status` shows the largest objects of this host."""
    if (idle is None) == (not refs):
        raise typer.BadParameter("give either refs or --idle", param_hint="REF...")
    if address is None and not os.environ.get(ADDRESS):
        raise typer.BadParameter(_unnamed(), param_hint="--address")
    named = [_ref(text) for text in refs or ()]
    try:
        hoplite.init(address, agent=agent)
        try:
            count = _delete_idle(idle) if idle is not None else 0
            hoplite.delete(named)
        finally:
            hoplite.shutdown()
    except HopliteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    # It is unknown whether a ref that is named here had an object.
    typer.echo(f"deleted {counted(count, 'object') if idle is not None else counted(len(named), 'ref')}")


def _unnamed() -> str:
    here = sorted({agent["directory"] for agent in local_agents().status})
    known = f"this host has agents of {', '.join(here)}" if here else "no agent of this user runs on this host"
    return f"give the cluster's --address, or set {ADDRESS} ({known})"


def _delete_idle(seconds: float) -> int:
    """The agent names some at a time."""
    seen: set[bytes] = set()
    while found := set(default_cluster.client().unused_for(seconds)) - seen:
        seen |= found
        hoplite.delete([hoplite.ObjectRef(ref) for ref in found])
    return len(seen)


def _ref(text: str) -> hoplite.ObjectRef:
    try:
        return hoplite.ObjectRef.fromhex(text)
    except HopliteError:
        raise typer.BadParameter(
            f"{text!r} is not a ref; refs have 32 hexadecimal digits", param_hint="REF..."
        ) from None
