"""`hoplite delete`: end objects by hand, such as those of a program that ended without deleting them."""

import os
from typing import Annotated

import typer

import hoplite_ucx as hoplite
from hoplite_ucx.cli.quantities import duration_option
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.protocol.node.memory import Phase
from hoplite_ucx.runtime.launch.cluster import ADDRESS
from hoplite_ucx.runtime.launch.inspection import local_agents
from hoplite_ucx.runtime.worker import default_cluster


def delete(
    refs: Annotated[list[str] | None, typer.Argument(metavar="REF...", help="32 hexadecimal digits each.")] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            parser=duration_option,
            metavar="DURATION",
            help="Delete what this host's agent has held for that long, while nobody here used it.",
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The cluster's directory; HOPLITE_ADDRESS by default.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="The agent to go through, where this host has several; HOPLITE_AGENT by default.")
    ] = None,
) -> None:
    """Delete objects everywhere in the cluster. `hoplite status` shows the largest of this host."""
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
    # Nobody knows whether a ref that is named here had an object somewhere.
    typer.echo(f"deleted {count} objects" if idle is not None else f"deleted {len(named)} refs")


def _unnamed() -> str:
    here = sorted({agent["directory"] for agent in local_agents().status})
    known = f"this host has agents of {', '.join(here)}" if here else "no agent of this user runs on this host"
    return f"no cluster is named; give its address, or set {ADDRESS} ({known})"


def _delete_idle(seconds: float) -> int:
    """The agent tells of the largest, so that they are deleted bunch by bunch."""
    seen: set[str] = set()
    while (
        found := {
            holding["ref"]
            for holding in default_cluster.client().status()["largest"]
            if holding["phase"] == Phase.COMPLETE.value and not holding["pins"] and holding["idle"] >= seconds
        }
        - seen
    ):
        seen |= found
        hoplite.delete([_ref(text) for text in found])
    return len(seen)


def _ref(text: str) -> hoplite.ObjectRef:
    try:
        return hoplite.ObjectRef.fromhex(text)
    except HopliteError:
        raise typer.BadParameter(f"{text!r} is no ref; they have 32 hexadecimal digits", param_hint="REF...") from None
