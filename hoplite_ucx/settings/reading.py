"""Settings from their sources: a TOML file, `HOPLITE_<SECTION>_<KEY>` variables over it, arguments over both.

Everything is checked when it is read: unknown keys, wrong types, values out of range. An error names the file and the
line, or the variable, or the argument. Each value keeps its place, so that `hoplite config` can tell where it is from.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from hoplite_ucx.settings.errors import ConfigurationError, UnfitError
from hoplite_ucx.settings.kinds import FileName, Setting
from hoplite_ucx.settings.toml_lines import line_of, lines_of_keys

__all__ = ["CONFIG", "SECTIONS", "Argument", "Origin", "Place", "Schema", "Values", "argument", "read", "variable_of"]

CONFIG = "HOPLITE_CONFIG"

SECTIONS = ("cluster", "store", "processes", "links", "ucx", "tls", "metrics", "log")

_OTHER_VARIABLES = (CONFIG, "HOPLITE_ADDRESS", "HOPLITE_AGENT", "HOPLITE_TOKEN", "HOPLITE_TOKEN_FILE")
_FOREIGN = re.compile(r"HOPLITE_(BENCH|HARDWARE|PEERS|TEST)_")
"""Variables of the benchmarks, which are not settings."""
_ALIKE = 0.88
"""Variables that are so much like one of ours are one with a typing error: nobody else has reason to use the prefix."""
_FEW = 12

Schema: TypeAlias = Mapping[str, Mapping[str, Setting[Any]]]
"""Settings by section and key."""


class Origin(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    ARGUMENT = "argument"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is from: `hoplite.toml:3`, `HOPLITE_CLUSTER_LEASE`, `--memory`."""

    origin: Origin
    text: str

    def error(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        """About the value of this key there."""
        match self.origin:
            case Origin.VARIABLE:
                return ConfigurationError("the environment", self.text, problem, remedy)
            case Origin.ARGUMENT:
                return ConfigurationError("the arguments", self.text, problem, remedy)
        return ConfigurationError(self.text, key, problem, remedy)


DEFAULT = Place(Origin.DEFAULT, "default")


@dataclass(frozen=True, slots=True)
class Found:
    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Argument:
    """A value that was given by a program or on the command line. One that is text is read like a variable."""

    name: str
    section: str
    key: str
    value: object


def argument(text: str) -> Argument:
    """Of `--set SECTION.KEY=VALUE`."""
    match = re.fullmatch(r"([^.=\s]+)\.([^.=\s]+)=(.*)", text, re.DOTALL)
    if match is None:
        remedy = "write SECTION.KEY=VALUE, such as cluster.lease=5s"
        raise ConfigurationError("the arguments", f"--set {text}", "is not a setting and its value", remedy)
    return Argument(f"--set {match[1]}.{match[2]}", match[1], match[2], match[3])


class Values:
    """What was found, by section and key; whatever is not here has its default."""

    def __init__(self, schema: Schema, path: Path | None = None, lines: dict[tuple[str | int, ...], int] | None = None):
        self.schema = schema
        self.path = path
        self._lines = lines or {}
        self._found: dict[tuple[str, str], Found] = {}

    def section(self, name: str) -> dict[str, Any]:
        """The values of a section that were given."""
        return {key: found.value for (section, key), found in self._found.items() if section == name}

    def place(self, section: str, key: str) -> Place:
        found = self._found.get((section, key))
        return DEFAULT if found is None else found.place

    def given(self, section: str, key: str) -> bool:
        return (section, key) in self._found

    def error(self, section: str, key: str, problem: str, remedy: str) -> ConfigurationError:
        """About a value as it is, wherever it is from."""
        place = self.place(section, key)
        if place.origin is Origin.DEFAULT and self.path is not None:
            place = self.in_file(section)
        return place.error(f"{section}.{key}", problem, remedy)

    def in_file(self, *path: str | int) -> Place:
        line = line_of(self._lines, path)
        return Place(Origin.FILE, f"{self.path}:{line}" if line is not None else str(self.path))

    @property
    def sources(self) -> str:
        """The file and the variables that were used, for people."""
        named = {found.place.text: None for found in self._found.values() if found.place.origin is not Origin.FILE}
        return " and ".join([str(self.path) if self.path is not None else "the defaults", *named])

    def table(
        self, table: Mapping[str, Any], settings: Mapping[str, Setting[Any]], *where: str | int
    ) -> dict[str, Any]:
        """Read a table of the file. Raises a `ConfigurationError` that names the line and the key."""
        values = {}
        for key, value in table.items():
            place, name = self.in_file(*where, key), f"{_dotted(where)}.{key}"
            if key not in settings:
                raise place.error(name, "is unknown", _remedy(key, settings, self.schema))
            values[key] = _read(settings[key], value, place, name)
            if isinstance(settings[key], FileName) and self.path is not None:
                values[key] = str(self.path.parent / values[key])
        return values

    def put(self, section: str, key: str, value: Any, place: Place) -> None:
        self._found[section, key] = Found(value, place)

    def put_text(self, section: str, key: str, value: object, place: Place) -> None:
        """What a variable or an argument gives."""
        setting, name = self.schema[section].get(key), f"{section}.{key}"
        if setting is None:
            raise place.error(name, "is unknown", _remedy(key, self.schema[section], self.schema, f"[{section}] has"))
        if not setting.textual:
            raise place.error(
                name, "cannot be set by a variable or an argument", f"write it in the file that {CONFIG} names"
            )
        self.put(section, key, _read(setting, value, place, name, text=True), place)


def read(
    schema: Schema,
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: Iterable[Argument] = (),
) -> Values:
    """Values of these sections. The file is the one that `HOPLITE_CONFIG` names, if none is given; sections of the
    others are left alone, and names that nobody has are refused."""
    variables = os.environ if environment is None else environment
    named_by = "the path"
    if path is None and (given := variables.get(CONFIG)):
        path, named_by = Path(given), CONFIG
    values = Values(schema)
    if path is not None:
        values = _read_file(schema, path, named_by)
    _read_variables(values, variables)
    _read_arguments(values, arguments)
    return values


def variable_of(section: str, key: str) -> str:
    return f"HOPLITE_{section}_{key}".upper()


def _read_file(schema: Schema, path: Path, named_by: str) -> Values:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # no such file, no text, or no name of a file
        raise ConfigurationError(str(path), "the file", f"cannot be read: {error}", f"correct {named_by}") from error
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigurationError(str(path), "the file", "is nested too deeply", "correct it there") from error
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        place = f"{path}:{at[1] if at is not None else text.count(chr(10)) + 1}"  # else it is at the end
        raise ConfigurationError(place, "the file", f"is not valid TOML: {error}", "correct it there") from error
    values = Values(schema, path, lines_of_keys(text.replace("\r\n", "\n")))
    for section, table in tables.items():
        if section not in SECTIONS:
            remedy = f"{_meant(section, SECTIONS)}the sections are {', '.join(SECTIONS)}"
            raise values.in_file(section).error(section, "is unknown", remedy)
        if not isinstance(table, dict):
            raise values.in_file(section).error(section, "must be a table", f"write [{section}]")
        if section in schema:
            for key, value in values.table(table, schema[section], section).items():
                values.put(section, key, value, values.in_file(section, key))
    return values


def _read_variables(values: Values, variables: Mapping[str, str]) -> None:
    pattern = re.compile(rf"HOPLITE_({'|'.join(SECTIONS).upper()})_(\w+)")
    known = [variable_of(section, key) for section, keys in values.schema.items() for key in keys]
    for name in sorted(variables):
        match = pattern.fullmatch(name)
        place = Place(Origin.VARIABLE, name)
        if match is None:
            if name.startswith("HOPLITE_") and name not in _OTHER_VARIABLES and not _FOREIGN.match(name):
                near = difflib.get_close_matches(name, [*known, *_OTHER_VARIABLES], 1, _ALIKE)
                if near:
                    raise place.error(name, "is unknown", f"did you mean {near[0]}?")
        elif match[1].lower() in values.schema:
            values.put_text(match[1].lower(), match[2].lower(), variables[name], place)


def _read_arguments(values: Values, arguments: Iterable[Argument]) -> None:
    seen: dict[tuple[str, str], tuple[Argument, Any]] = {}
    for given in arguments:
        place = Place(Origin.ARGUMENT, given.name)
        if given.section not in SECTIONS:
            remedy = f"{_meant(given.section, SECTIONS)}the sections are {', '.join(SECTIONS)}"
            raise place.error(given.section, "is unknown", remedy)
        values.put_text(given.section, given.key, given.value, place)
        value = values.section(given.section)[given.key]
        other, before = seen.setdefault((given.section, given.key), (given, value))
        if value != before:
            problem = f"is {given.value!r}, and {other.name} is {other.value!r}, which is the same setting"
            raise place.error(given.name, problem, "give one of them")


def _read(setting: Setting[Any], value: object, place: Place, name: str, *, text: bool = False) -> Any:
    try:
        return setting.read_text(value) if text and isinstance(value, str) else setting.read(value)
    except UnfitError as error:
        key = f"{name}.{error.below}" if error.below else name
        raise place.error(key, error.problem, error.remedy) from None


def _remedy(key: str, settings: Mapping[str, Setting[Any]], schema: Schema, here: str = "the keys here are") -> str:
    elsewhere = [section for section, keys in schema.items() if key in keys and keys is not settings]
    if elsewhere:
        return f"it belongs in [{elsewhere[0]}]"
    if len(settings) > _FEW:
        return _meant(key, settings) + "`hoplite config` shows all settings"
    return f"{_meant(key, settings)}{here} {', '.join(settings)}"


def _meant(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f"did you mean {near[0]}? " if near else ""


def _dotted(path: tuple[str | int, ...]) -> str:
    """As people count: the first of `links.rules` is `links.rules[1]`."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text
