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

A variable is named after its section and key: `HOPLITE_LINKS_TRANSPORT`, `HOPLITE_UCX_TLS=rc,posix`. `settings.reading`
finds and checks values; the file's other sections belong to other modules.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from hoplite_ucx.settings.errors import ConfigurationError, UnfitError
from hoplite_ucx.settings.kinds import Bandwidth, Choice, Duration, FileName, Name, Setting, Size, Tables, settings_of
from hoplite_ucx.settings.reading import CONFIG, Schema, Values, read
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.ucx.settings import UcxSettings

__all__ = [
    "CONFIG",
    "PINNED_LIMIT",
    "SCHEMA",
    "Configuration",
    "ConfigurationError",
    "Kind",
    "Rule",
    "TlsFiles",
    "build",
    "load",
]

PINNED_LIMIT = 64 << 20
"""Of the host's memory, to stage a GPU's."""


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
    certificate: Annotated[
        Path, FileName("This host's certificate in PEM form, for server and client alike, with its chain.")
    ]
    key: Annotated[Path, FileName("The certificate's key, without a password, in a file that only its user can read.")]
    ca: Annotated[Path, FileName("The authority whose certificates are accepted.")]
    place: str
    """Where they are named, for messages."""


@dataclass(frozen=True, slots=True)
class Configuration:
    transport: Annotated[
        Kind,
        Choice(
            "What links use that no rule speaks of. `auto` takes RDMA if both hosts have it, else TCP; `fastest` "
            "also tries UCX over TCP, and keeps what is measured to be faster.",
            "transport",
            tuple(Kind),
        ),
    ] = Kind.AUTO
    require: Annotated[
        Kind | None,
        Choice(
            "Fail rather than use anything else for a link. Without it, TCP is used where nothing better can be had.",
            "transport",
            (Kind.RDMA, Kind.UCX, Kind.TCP),
        ),
    ] = None
    cooldown: Annotated[
        float,
        Duration(
            "A transport that failed on a link is not tried there for this long; each time that it fails again doubles "
            "that, up to 16 times. A shorter time finds a repaired network sooner, and meets a broken one more often.",
            0,
            86400,
        ),
    ] = 30.0
    connect: Annotated[
        float,
        Duration(
            "How long connecting to another host may take, for links and sessions. A shorter time finds an unplugged "
            "host sooner; a longer one is for slow networks.",
            0.01,
            300,
        ),
    ] = 2.0
    unclaimed: Annotated[
        float,
        Duration(
            "A stream whose receiver does not connect is served for this much longer than connecting may take, which "
            "is `connect` and 4s for the handshakes. A shorter time sooner frees what a vanished receiver asked for.",
            0.01,
            600,
        ),
    ] = 0.5
    idle: Annotated[
        float,
        Duration(
            "A link without streams is closed after this long. A shorter time frees two threads and a connection "
            "sooner; the next stream then opens it again, which takes several round trips.",
            0.1,
            86400,
        ),
    ] = 60.0
    rate: Annotated[
        float | None,
        Bandwidth(
            "What this host's network card carries. Without it, the kernel is asked; cards that do not say are taken "
            "for 10 Gbit/s until streams have shown what they carry. It decides which hosts send to how many others.",
            1e3,
            1e13,
        ),
    ] = None
    pinned: Annotated[
        int,
        Size(
            "How much memory of the host may be pinned, in rings of 8 MiB, to stage memory of GPUs for links that do "
            "not take it as it is. A stream that finds none left uses a small ring that is not pinned, which is "
            "slower.",
            0,
            1 << 40,
        ),
    ] = PINNED_LIMIT
    rules: Annotated[
        tuple[Rule, ...],
        Tables(
            "Links to certain hosts: `host` (a pattern), `subnet`, `device` (an RDMA device here), and the "
            "`transport` for them, with settings of [ucx] that count for these links only. The first rule that fits "
            "decides.",
            "links.rules",
        ),
    ] = ()
    ucx: UcxSettings = field(default_factory=UcxSettings)
    tls_given: bool = False
    """Whether the user said which transports of UCX to use, for `rdma` too."""
    certificates: TlsFiles | None = None
    place: str = "the defaults"

    def timers(self) -> LinkTimers:
        return LinkTimers(self.connect, self.idle, self.unclaimed)

    def rdma_settings(self) -> UcxSettings:
        return self.ucx if self.tls_given else replace(self.ucx, tls=("rc",))

    @property
    def wants_ucx(self) -> bool:
        """Whether UCX must be ready before the first link."""
        named = {self.transport, self.require, *(rule.transport for rule in self.rules)}
        return not named.isdisjoint({Kind.UCX, Kind.RDMA, Kind.FASTEST})


@dataclass(frozen=True)
class _Subnet(Setting[ipaddress.IPv4Network | ipaddress.IPv6Network]):
    range = "a subnet"

    def read(self, value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        try:
            return ipaddress.ip_network(str(value))
        except ValueError as error:
            raise UnfitError(str(error), "write one like '198.18.0.0/16'") from None


SCHEMA: Schema = {
    "links": settings_of(Configuration),
    "ucx": settings_of(UcxSettings),
    "tls": settings_of(TlsFiles),
}
_RULE: Mapping[str, Setting[Any]] = {
    "host": Name("The peer as it is addressed: a name or an address, with * and ?."),
    "subnet": _Subnet("A subnet of the peer's address."),
    "device": Name("An RDMA device of this host that has an active port."),
    "transport": SCHEMA["links"]["transport"],
    **SCHEMA["ucx"],
}


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the file (`HOPLITE_CONFIG` by default; without it there is no file), then the variables. Raises
    `ConfigurationError`."""
    return build(read(SCHEMA, path, environment))


def build(values: Values) -> Configuration:
    """Of values that were read, with what can only be judged of several together."""
    given = values.section("links")
    tables = given.pop("rules", [])
    given |= {key: Kind(given[key]) for key in ("transport", "require") if key in given}
    base = Configuration(
        **given,
        ucx=UcxSettings(**values.section("ucx")),
        tls_given=values.given("ucx", "tls"),
        certificates=_certificates(values),
        place=values.sources,
    )
    if base.require is not None and base.transport not in (Kind.AUTO, base.require):
        problem = f"{base.require.value} is required, but links.transport is {base.transport.value}"
        raise values.error("links", "require", problem, "leave one of them out")
    return replace(base, rules=tuple(_rule(values, base, table, index) for index, table in enumerate(tables)))


def _certificates(values: Values) -> TlsFiles | None:
    named = {key: Path(name) for key, name in values.section("tls").items()}
    missing = [key for key in SCHEMA["tls"] if key not in named]
    if named and missing:
        remedy = f"name all of {', '.join(SCHEMA['tls'])}, or none"
        raise ConfigurationError(values.place("tls", next(iter(named))).text, f"tls.{missing[0]}", "is missing", remedy)
    return TlsFiles(**named, place=values.sources) if named else None


def _rule(values: Values, base: Configuration, table: dict[str, Any], index: int) -> Rule:
    def error(key: str, problem: str, remedy: str) -> ConfigurationError:
        place = values.in_file("links", "rules", index, key)
        return place.error(f"links.rules[{index + 1}].{key}", problem, remedy)

    given = values.table(table, _RULE, "links", "rules", index)
    if "transport" not in given:
        raise error("transport", "is missing", f"write one of {', '.join(Kind)}")
    transport = Kind(given["transport"])
    if base.require is not None and transport not in (Kind.AUTO, base.require):
        problem = f"{transport.value} can never be used: links.require is {base.require.value}"
        raise error("transport", problem, "leave out one of them")
    own = {key: given[key] for key in SCHEMA["ucx"] if key in given}
    if own and transport is Kind.TCP:
        raise error(next(iter(own)), "has no effect for tcp", "write transport = 'ucx'")
    start = base.rdma_settings() if transport is Kind.RDMA else base.ucx
    return Rule(
        transport,
        f"rule {index + 1} of {values.path}",
        host=given.get("host"),
        subnet=given.get("subnet"),
        device=given.get("device"),
        ucx=replace(start, **own) if own else None,
    )
