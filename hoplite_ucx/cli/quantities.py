"""Quantities on the command line: `*_option` are the parsers of `settings.quantities` for typer's `parser=`."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import typer

from hoplite_ucx.settings.quantities import (
    counted,
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
)

__all__ = [
    "bandwidth_option",
    "counted",
    "duration_option",
    "format_bandwidth",
    "format_duration",
    "format_size",
    "parse_bandwidth",
    "parse_duration",
    "parse_size",
    "size_option",
]

T = TypeVar("T")


def _option(parse: Callable[[str], T], name: str) -> Callable[[str], T]:
    """The parser as typer wants it: a refusal becomes a usage error that keeps the whole explanation."""

    @wraps(parse)
    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as refusal:
            raise typer.BadParameter(str(refusal)) from None

    convert.__name__ = name  # typer shows it as the placeholder of the option's value
    return convert


size_option = _option(parse_size, "size")
bandwidth_option = _option(parse_bandwidth, "bandwidth")
duration_option = _option(parse_duration, "duration")
