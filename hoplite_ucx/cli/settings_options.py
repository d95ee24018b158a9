"""The options through which commands take settings: `--config`, `--set`, and the flags that settings have."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from hoplite_ucx.settings.quantities import format_bandwidth, format_size
from hoplite_ucx.settings.reading import CONFIG, Argument, argument

__all__ = ["ConfigOption", "SetOption", "settings_of_flags"]

ConfigOption: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help=f"The TOML file with settings; {CONFIG} by default.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="A setting, over those of the file and the environment; may be repeated. `hoplite config` shows all.",
    ),
]


def settings_of_flags(
    changes: list[str] | None, *, memory: int | None = None, rate: float | None = None, metrics: int | None = None
) -> list[Argument]:
    """What was given on the command line. Raises a `ConfigurationError`."""
    flags = [argument(text) for text in changes or ()]
    if memory is not None:
        flags.append(Argument("--memory", "store", "memory", format_size(memory)))
    if rate is not None:
        flags.append(Argument("--rate", "links", "rate", format_bandwidth(rate)))
    if metrics is not None:
        flags.append(Argument("--metrics", "metrics", "port", metrics))
    return flags
