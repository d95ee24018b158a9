"""Commands that are loaded when they are run: `hoplite status` waits for neither the simulator nor the benchmarks.

The group knows the name of each command, the line that help shows of it, and where it is. Its code is imported only
when the command is run, or is asked for its own help.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Where a command is: a function, or a `Typer` application with commands of its own."""

    module: str
    attribute: str
    help: str

    def load(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.module), self.attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(name)(found)
            found = alone
        return typer.main.get_command(found)


def application(commands: dict[str, OnDemand], **options: Any) -> typer.Typer:
    """A `Typer` application of these commands."""

    class Group(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, _, rest = super().resolve_command(ctx, args)
            return name, None if name is None else commands[name].load(name), rest

    app = typer.Typer(cls=Group, **options)
    for name, command in commands.items():
        app.command(name, help=command.help)(_listed)
    return app


def _listed() -> None:
    """Stands in the list of commands; the command itself is run instead of it."""
