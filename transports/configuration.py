"""What the user wants of links: a TOML file, with `HOPLITE_*` variables over it. Read once, checked whole, then fixed.

    [links]
    transport = "auto"          # auto, tcp, ucx or rdma: for links without a matching rule
    require = "rdma"            # fail rather than use anything else; if left out, TCP is the fallback
    cooldown = 30               # seconds for which a transport that failed on a link is not tried there

    [[links.rules]]             # the first that matches decides
    subnet = "198.18.0.0/16"    # of the peer's address; or host = "gpu-*", the peer as it is addressed;
    device = "mlx5_0"           # or an RDMA device with an active port here. All that are given must match.
    transport = "ucx"
    tls = ["rc"]                # for this rule's links, instead of [ucx]'s

    [ucx]
    tls = ["tcp"]               # what `ucx` uses. `rdma` uses rc by default
    net_devices = ["mlx5_0:1", "mlx5_1:1"]
    segment = "1MiB"            # of UCX's own TCP
    options = { RNDV_THRESH = "64K" }

    [tls]                       # all three, or no TLS; names are relative to this file
    certificate = "node.pem"    # of this host, for server and client, with its chain
    key = "node.key"
    ca = "ca.pem"               # whose certificates are accepted

A variable is named after its section and key: `HOPLITE_LINKS_TRANSPORT`, `HOPLITE_UCX_TLS=rc,posix`. Whatever is not
known or makes no sense is refused with the place, the key and what to write instead.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = ["CONFIG", "Configuration", "ConfigurationError", "Kind", "Rule", "load"]

CONFIG = "HOPLITE_CONFIG"

_SECTIONS = ("links", "ucx", "tls")
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "K": 1 << 10, "MIB": 1 << 20, "M": 1 << 20}
_TLS = ("certificate", "key", "ca")
_SEGMENTS = (8 << 10, 16 << 20)


class ConfigurationError(TransportError, ValueError):
    """Where, which key, what is wrong with it, and what to write."""

    def __init__(self, place: str, key: str, problem: str, remedy: str) -> None:
        super().__init__(f"{place}: {key}: {problem}", place, remedy)
        self.args = (f"{self.detail}; {remedy}",)
        self.place = place
        self.key = key


class Kind(StrEnum):
    """What a link may be asked to use. `rdma` is UCX that must find RDMA; `auto` is that if it can, else TCP; `fastest`
    is whichever of all is measured to be."""

    AUTO = "auto"
    TCP = "tcp"
    UCX = "ucx"
    RDMA = "rdma"
    FASTEST = "fastest"


@dataclass(frozen=True, slots=True)
class Rule:
    """Links to peers that match all of these use this transport."""

    transport: Kind
    name: str
    """Where it is written, for messages."""
    host: str | None = None
    subnet: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
    device: str | None = None
    ucx: UcxSettings | None = None

    def fits(self, host: str, devices: frozenset[str]) -> bool:
        """`host` is the peer's, as it is addressed; `devices` are those of this machine with an active port."""
        if self.host is not None and not fnmatch.fnmatchcase(host, self.host):
            return False
        if self.device is not None and self.device not in devices:
            return False
        if self.subnet is None:
            return True
        try:
            return ipaddress.ip_address(host) in self.subnet
        except ValueError:  # a name: only an address has a subnet
            return False


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path
    key: Path
    ca: Path
    place: str
    """Where they are named, for messages."""


@dataclass(frozen=True, slots=True)
class Configuration:
    transport: Kind = Kind.AUTO
    require: Kind | None = None
    cooldown: float = 30.0
    rules: tuple[Rule, ...] = ()
    ucx: UcxSettings = field(default_factory=UcxSettings)
    tls_given: bool = False
    """Whether the user said which transports of UCX to use, for `rdma` too."""
    certificates: TlsFiles | None = None
    place: str = "the defaults"

    def rdma_settings(self) -> UcxSettings:
        return self.ucx if self.tls_given else replace(self.ucx, tls=("rc",))

    @property
    def wants_ucx(self) -> bool:
        """Whether UCX must be ready before the first link."""
        named = {self.transport, self.require, *(rule.transport for rule in self.rules)}
        return not named.isdisjoint({Kind.UCX, Kind.RDMA, Kind.FASTEST})


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the file (`HOPLITE_CONFIG` by default; without it there is no file), then the variables. Raises
    `ConfigurationError`."""
    variables = os.environ if environment is None else environment
    if path is None and (given := variables.get(CONFIG)):
        path = Path(given)
    place = str(path) if path is not None else "the defaults"
    tables = _read(path) if path is not None else {}
    reader = _Reader(place)
    sections: dict[str, Any] = {}
    for section in _SECTIONS:
        table = tables.pop(section, {})
        if not isinstance(table, dict):
            raise reader.error(section, "must be a table", f"write [{section}]")
        sections[section] = table
    if tables:
        raise reader.error(next(iter(tables)), "is unknown", f"the sections are {', '.join(_SECTIONS)}")
    configuration = reader.configuration(sections["links"], sections["ucx"])
    folder = path.parent if path is not None else Path()
    named = {key: folder / name for key, name in reader.tls(sections["tls"]).items()}
    return _override(configuration, named, variables)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(path), "the file", f"cannot be read: {error}", f"correct {CONFIG}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(str(path), "the file", f"is not valid TOML: {error}", "correct it there") from error


def _override(configuration: Configuration, tls: dict[str, Path], variables: Mapping[str, str]) -> Configuration:
    """The variables of the sections, as if they were written in the file."""
    for name in sorted(variables):
        match = re.fullmatch(rf"HOPLITE_({'|'.join(_SECTIONS).upper()})_(\w+)", name)
        if match is None:
            continue
        section, key = match[1].lower(), match[2].lower()
        value: Any = variables[name]
        reader = _Reader("the environment", name)
        configuration = replace(configuration, place=f"{configuration.place} and {name}")
        if (section, key) in {("ucx", "tls"), ("ucx", "net_devices")}:
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif (section, key) == ("links", "cooldown"):
            value = _number(value)
        if section == "tls":
            tls |= {key: Path(name) for key, name in reader.tls({key: value}).items()}
        elif section == "links" and key != "rules":
            configuration = reader.links(configuration, {key: value})
        elif section == "ucx" and key != "options":
            settings = reader.ucx(configuration.ucx, {key: value}, "ucx")
            given = configuration.tls_given or key == "tls"
            configuration = replace(
                configuration, ucx=settings, tls_given=given, place=f"{configuration.place}, {name}"
            )
        else:
            raise reader.error(
                key, "cannot be set by an environment variable", f"write it in the file that {CONFIG} names"
            )
    if tls and (missing := [key for key in _TLS if key not in tls]):
        remedy = f"name all of {', '.join(_TLS)}, or none"
        raise ConfigurationError(configuration.place, f"tls.{missing[0]}", "is missing", remedy)
    files = TlsFiles(**tls, place=configuration.place) if tls else None
    return replace(configuration, certificates=files)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


class _Reader:
    """Turns tables into settings, and knows where they were written."""

    def __init__(self, place: str, variable: str | None = None) -> None:
        self._place = place
        self._variable = variable

    def error(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(self._place, self._variable or key, problem, remedy)

    def configuration(self, links: dict[str, Any], ucx: dict[str, Any]) -> Configuration:
        settings = self.ucx(UcxSettings(), ucx, "ucx")
        base = Configuration(ucx=settings, tls_given="tls" in ucx, place=self._place)
        rules = links.get("rules", [])
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise self.error("links.rules", "must be a list of tables", "write each as [[links.rules]]")
        base = self.links(base, {key: value for key, value in links.items() if key != "rules"})
        return replace(base, rules=tuple(self._rule(base, rule, number) for number, rule in enumerate(rules, 1)))

    def links(self, base: Configuration, table: dict[str, Any]) -> Configuration:
        self._known(table, "links", ("transport", "require", "cooldown", "rules"))
        if "transport" in table:
            base = replace(base, transport=self._kind(table["transport"], "links.transport", tuple(Kind)))
        if "require" in table:
            wanted = (Kind.RDMA, Kind.UCX, Kind.TCP)
            base = replace(base, require=self._kind(table["require"], "links.require", wanted))
        if "cooldown" in table:
            value = table["cooldown"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 86400:
                raise self.error("links.cooldown", f"{value!r} is not a duration", "write seconds, from 0 to 86400")
            base = replace(base, cooldown=float(value))
        if base.require is not None and base.transport not in (Kind.AUTO, base.require):
            problem = f"{base.require.value} is required, but links.transport is {base.transport.value}"
            raise self.error("links.require", problem, "leave one of them out")
        return base

    def tls(self, table: dict[str, Any]) -> dict[str, str]:
        self._known(table, "tls", _TLS)
        return {key: name for key in table if (name := self._text(table, key, "tls")) is not None}

    def ucx(self, base: UcxSettings, table: dict[str, Any], where: str) -> UcxSettings:
        self._known(table, where, ("tls", "net_devices", "segment", "options"))
        readers: dict[str, Callable[[Any, str], Any]] = {
            "tls": self._names,
            "net_devices": self._names,
            "segment": self._segment,
            "options": self._options,
        }
        return replace(base, **{key: readers[key](value, f"{where}.{key}") for key, value in table.items()})

    def _rule(self, base: Configuration, table: dict[str, Any], number: int) -> Rule:
        where = f"links.rules[{number}]"
        ucx_keys = ("tls", "net_devices", "segment", "options")
        self._known(table, where, ("host", "subnet", "device", "transport", *ucx_keys))
        if "transport" not in table:
            raise self.error(f"{where}.transport", "is missing", f"write one of {', '.join(Kind)}")
        transport = self._kind(table["transport"], f"{where}.transport", tuple(Kind))
        if base.require is not None and transport not in (Kind.AUTO, base.require):
            problem = f"{transport.value} can never be used: links.require is {base.require.value}"
            raise self.error(f"{where}.transport", problem, "leave out one of them")
        own = {key: table[key] for key in ucx_keys if key in table}
        if own and transport is Kind.TCP:
            raise self.error(f"{where}.{next(iter(own))}", "has no effect for tcp", "write transport = 'ucx'")
        start = base.rdma_settings() if transport is Kind.RDMA else base.ucx
        return Rule(
            transport,
            f"rule {number} of {self._place}",
            host=self._text(table, "host", where),
            subnet=self._subnet(table.get("subnet"), where),
            device=self._text(table, "device", where),
            ucx=self.ucx(start, own, where) if own else None,
        )

    def _known(self, table: dict[str, Any], where: str, keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                raise self.error(f"{where}.{key}", "is unknown", f"the keys here are {', '.join(keys)}")

    def _kind(self, value: Any, key: str, kinds: tuple[Kind, ...]) -> Kind:
        if value not in [kind.value for kind in kinds]:
            raise self.error(key, f"{value!r} is not a transport", f"write one of {', '.join(kinds)}")
        return Kind(value)

    def _text(self, table: dict[str, Any], key: str, where: str) -> str | None:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.error(f"{where}.{key}", f"{value!r} is not a name", "write a name in quotes")
        return value

    def _subnet(self, value: Any, where: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
        if value is None:
            return None
        try:
            return ipaddress.ip_network(str(value))
        except ValueError as error:
            raise self.error(f"{where}.subnet", str(error), "write one like '198.18.0.0/16'") from None

    def _names(self, value: Any, key: str) -> tuple[str, ...]:
        wrong = not isinstance(value, list) or not value
        if wrong or not all(isinstance(name, str) and re.fullmatch(r"[\w:.^-]+", name) for name in value):
            raise self.error(key, f"{value!r} is not a list of names", 'write one like ["rc", "posix"]')
        return tuple(value)

    def _segment(self, value: Any, key: str) -> int:
        size = value
        if isinstance(value, str) and (match := re.fullmatch(r"(\d+)\s*([A-Za-z]*)", value.strip())) is not None:
            size = int(match[1]) * _UNITS.get(match[2].upper(), 0)
        low, high = _SEGMENTS
        if isinstance(size, bool) or not isinstance(size, int) or not low <= size <= high:
            raise self.error(key, f"{value!r} is not a segment size", "write 8KiB to 16MiB, such as '1MiB'")
        return size

    def _options(self, value: Any, key: str) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, dict):
            raise self.error(key, "must be a table", 'write one like { RNDV_THRESH = "64K" }')
        for name, setting in value.items():
            fixed = name in ("TLS", "NET_DEVICES", "TCP_TX_SEG_SIZE", "TCP_RX_SEG_SIZE")
            if fixed or name.startswith("UCX_") or not isinstance(setting, str):
                remedy = (
                    "use tls, net_devices and segment" if fixed else "write names without UCX_, and values in quotes"
                )
                raise self.error(f"{key}.{name}", "cannot be set here", remedy)
        return tuple(sorted(value.items()))
