"""What a setting may be: durations, sizes, counts, rates, names. Each kind reads a value and shows it.

A class declares its settings as annotated fields, and their reasons with them:

    lease: Annotated[float, Duration("A silent node is declared dead after this long. …", 0.1, 3600)] = 2.0

`settings_of` finds them. This module is pure: no files, no environment.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

from hoplite_ucx.settings.errors import UnfitError
from hoplite_ucx.settings.quantities import (
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
)

__all__ = [
    "Bandwidth",
    "Choice",
    "Count",
    "Duration",
    "FileName",
    "Name",
    "Names",
    "Setting",
    "Size",
    "Table",
    "Tables",
    "settings_of",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(ABC, Generic[T]):
    """One setting, without its name and its default. `doc` says what it does, and what more or less of it costs."""

    doc: str
    unit: ClassVar[str] = ""
    textual: ClassVar[bool] = True
    """Whether a variable or an argument can give it."""

    @abstractmethod
    def read(self, value: object) -> T:
        """A value as TOML has it. Raises an `UnfitError`."""

    def read_text(self, text: str) -> T:
        """A value as a variable or an argument has it."""
        return self.read(text)

    def show(self, value: T) -> str:
        """As it is written in the environment, exactly."""
        return str(value)

    @property
    @abstractmethod
    def range(self) -> str:
        """What may be written, for people."""


@dataclass(frozen=True)
class Duration(Setting[float]):
    """Seconds: a number, or text with a unit. Those that `scale` are timers, which simulations and tests shorten
    together; costs do not."""

    least: float
    most: float
    scales: bool = True
    unit: ClassVar[str] = "seconds"

    def read(self, value: object) -> float:
        return float(_within(_number(value, self, parse_duration), value, self))

    def show(self, value: float) -> str:
        return format_duration(value)

    @property
    def range(self) -> str:
        return f"{self.show(self.least)} to {self.show(self.most)}"

    @property
    def example(self) -> str:
        return f"seconds, from {self.range}, such as {self.least:g} or '{self.show(self.most)}'"


@dataclass(frozen=True)
class Size(Setting[int]):
    """Bytes. A number, or text with a unit."""

    least: int
    most: int
    unit: ClassVar[str] = "bytes"

    def read(self, value: object) -> int:
        if isinstance(value, float):
            raise UnfitError(f"{value!r} is not a whole number of bytes", f"write {self.example}")
        return int(_within(_number(value, self, parse_size), value, self))

    def show(self, value: int) -> str:
        return format_size(value)

    @property
    def range(self) -> str:
        return f"{self.show(self.least)} to {self.show(self.most)}"

    @property
    def example(self) -> str:
        return f"{self.range}, such as '{self.show(_middle(self.least, self.most))}'"


@dataclass(frozen=True)
class Count(Setting[int]):
    least: int
    most: int

    def read(self, value: object) -> int:
        number = value
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value, re.ASCII):
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int):
            raise UnfitError(f"{_shown(value)} is not a whole number", f"write {self.example}")
        return int(_within(number, value, self))

    @property
    def range(self) -> str:
        return f"{self.least} to {self.most}"

    @property
    def example(self) -> str:
        return f"a whole number from {self.range}"


@dataclass(frozen=True)
class Bandwidth(Setting[float]):
    """Bytes a second, written with a unit: bits and bytes are easily mixed up."""

    least: float
    most: float
    unit: ClassVar[str] = "bytes a second"

    def read(self, value: object) -> float:
        if not isinstance(value, str):
            raise UnfitError(f"{_shown(value)} has no unit", f"write {self.example}")
        return float(_within(_number(value, self, parse_bandwidth), value, self))

    def show(self, value: float) -> str:
        return format_bandwidth(value)

    @property
    def range(self) -> str:
        return f"{self.show(self.least)} to {self.show(self.most)}"

    @property
    def example(self) -> str:
        return f"{self.range}, such as '10gbit' or '1.2GB/s'"


@dataclass(frozen=True)
class Choice(Setting[str]):
    what: str
    names: tuple[str, ...]

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise UnfitError(f"{_shown(value)} is not a {self.what}", f"write one of {self.range}")
        return value

    @property
    def range(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True)
class Name(Setting[str]):
    range: ClassVar[str] = "a name"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise UnfitError(f"{_shown(value)} is not a name", f"write {self.range} in quotes")
        return value


@dataclass(frozen=True)
class FileName(Name):
    """Relative to the file that names it; of a variable, to the current directory."""

    range: ClassVar[str] = "the name of a file"


@dataclass(frozen=True)
class Names(Setting[tuple[str, ...]]):
    range: ClassVar[str] = "a list of names"

    def read(self, value: object) -> tuple[str, ...]:
        if isinstance(value, list) and value:
            names = [name for name in value if isinstance(name, str) and re.fullmatch(r"[\w:.^-]+", name)]
            if len(names) == len(value):
                return tuple(names)
        raise UnfitError(f"{_shown(value)} is not a list of names", 'write one like ["rc", "posix"]')

    def read_text(self, text: str) -> tuple[str, ...]:
        return self.read([part.strip() for part in text.split(",") if part.strip()])

    def show(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


@dataclass(frozen=True)
class Table(Setting[tuple[tuple[str, str], ...]]):
    """Texts by name. `reserved` are names that have settings of their own, and `prefix` is left out of all of them."""

    reserved: Mapping[str, str]
    prefix: str
    textual: ClassVar[bool] = False
    range: ClassVar[str] = "a table of texts"

    def read(self, value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            raise UnfitError("must be a table", 'write one like { RNDV_THRESH = "64K" }')
        for name, text in value.items():
            if name in self.reserved:
                raise UnfitError("cannot be set here", f"use {self.reserved[name]}", name)
            if name.startswith(self.prefix) or not isinstance(text, str):
                raise UnfitError("cannot be set here", f"write names without {self.prefix}, and values in quotes", name)
        return tuple(sorted(value.items()))

    def show(self, value: tuple[tuple[str, str], ...]) -> str:
        return ", ".join(f"{name}={text}" for name, text in value)


@dataclass(frozen=True)
class Tables(Setting[list[dict[str, Any]]]):
    """A list of tables, each with settings of its own."""

    header: str
    textual: ClassVar[bool] = False
    range: ClassVar[str] = "a list of tables"

    def read(self, value: object) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise UnfitError("must be a list of tables", f"write each as [[{self.header}]]")
        return value

    def show(self, value: list[dict[str, Any]]) -> str:
        return f"{len(value)} of them"


def settings_of(owner: type) -> dict[str, Setting[Any]]:
    """The settings that a class declares, in its order."""
    found = {}
    for name, hint in get_type_hints(owner, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Setting):
                found[name] = note
    return found


def _number(value: object, setting: Duration | Size | Bandwidth, parse: Callable[[str], float]) -> float:
    if isinstance(value, str):
        try:
            return parse(value)
        except ValueError as error:
            problem = str(error).partition("; ")[0]
            raise UnfitError(problem, f"write {setting.example}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitError(f"{_shown(value)} is not a number", f"write {setting.example}")
    return value


def _within(number: float, value: object, setting: Duration | Size | Count | Bandwidth) -> float:
    if not setting.least <= number <= setting.most:  # neither is what is no number
        side = "more than" if number > setting.most else "less than" if number < setting.least else "not from"
        bound = setting.most if number > setting.most else setting.least
        raise UnfitError(f"{_shown(value)} is {side} {setting.show(bound)}", f"write {setting.example}")  # type: ignore[arg-type]
    return number


def _middle(least: int, most: int) -> int:
    """A power of two between them, for an example."""
    return 1 << ((max(least, 1).bit_length() + most.bit_length()) // 2)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
